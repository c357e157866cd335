//! Which streams of a connection h2 has woken.
//!
//! All of that happens while the connection's task polls h2 or drops streams of it, so the task itself
//! needs no waking: it looks here before it waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// Streams that can make progress, by number. A stream is woken once for each time that it waits, so
/// there are at most two entries for each: one for its answer, one for its body.
type Woken = Mutex<Vec<usize>>;

pub(super) struct Wakes {
    woken: Arc<Woken>,
    /// By number of the stream, made when first needed.
    wakers: Vec<Waker>,
}

struct StreamWaker {
    number: usize,
    woken: Arc<Woken>,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

impl Wakes {
    pub(super) fn new() -> Wakes {
        Wakes { woken: Arc::default(), wakers: Vec::new() }
    }

    /// The waker of a stream. Numbers are given out from 0 without gaps.
    pub(super) fn waker(&mut self, number: usize) -> &Waker {
        while self.wakers.len() <= number {
            let waker = StreamWaker { number: self.wakers.len(), woken: Arc::clone(&self.woken) };
            self.wakers.push(Arc::new(waker).into());
        }
        &self.wakers[number]
    }

    /// The list is locked meanwhile: a stream that is polled may wake another.
    pub(super) fn woken(&self) -> MutexGuard<'_, Vec<usize>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
