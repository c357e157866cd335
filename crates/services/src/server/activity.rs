//! Records whether there was activity since the last check, so that a watch over idle connections
//! sleeps.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Set by many tasks, awaited by one.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    happened: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Activity {
    /// Records activity. Called for each request; it costs one load until the next check.
    pub(crate) fn note(&self) {
        if !self.happened.replace(true)
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// Discards the activity so far.
    pub(crate) fn forget(&self) {
        self.happened.set(false);
    }

    /// Waits until something has happened since [`forget`](Activity::forget).
    pub(crate) async fn wait(&self) {
        poll_fn(|cx| {
            if self.happened.get() {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
