//! Yielding to the other tasks of a worker.

use std::future::poll_fn;
use std::task::Poll;

/// Lets the other tasks run.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
