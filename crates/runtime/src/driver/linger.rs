//! Sockets that were closed by the program while bytes for the peer were still queued.

use crate::slots::Key;
use crate::sys;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Closed sockets that still send, each with its deadline. All have the same linger time, so the queue
/// is in order of the deadlines.
#[derive(Debug)]
pub(crate) struct Lingering {
    queue: VecDeque<(Instant, Key)>,
    limit: Duration,
}

impl Lingering {
    pub(crate) fn new(limit: Duration) -> Lingering {
        Lingering { queue: VecDeque::new(), limit }
    }

    pub(crate) fn push(&mut self, key: Key) {
        self.queue.push_back((sys::now() + self.limit, key));
    }

    /// The next key whose deadline has passed. The caller ignores sockets that were closed earlier.
    pub(crate) fn pop_expired(&mut self) -> Option<Key> {
        let (deadline, key) = *self.queue.front()?;
        if deadline > sys::now() {
            return None;
        }
        self.queue.pop_front();
        Some(key)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The socket whose deadline is next, open or not.
    pub(crate) fn front(&self) -> Option<(Instant, Key)> {
        self.queue.front().copied()
    }

    pub(crate) fn pop(&mut self) {
        self.queue.pop_front();
    }
}
