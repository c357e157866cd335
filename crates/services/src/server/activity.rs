//! Whether anything has happened since somebody looked, so that a watch over connections on which
//! nothing happens sleeps.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Set by many, waited for by one.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    happened: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Activity {
    /// Something happened. Called for each request: a load, until somebody looks again.
    pub(crate) fn note(&self) {
        if !self.happened.replace(true)
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// What happens from now on counts.
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
