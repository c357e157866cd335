//! Sockets that wait for a buffer, in the order in which they get one.

use crate::slots::Key;
use std::collections::VecDeque;

/// Two queues, as in fair queueing of packets (RFC 8290, 4.2): a socket from which the last receive
/// took everything does not wait behind all those that are never empty. A crowd that sends without
/// pause would otherwise delay each message of all others by a round of its own. While both kinds
/// wait, each gets buffers in proportion to its number, but sparse ones get half of them even if they
/// are few. Holds each socket at most once.
#[derive(Debug, Default)]
pub(in crate::driver::uring) struct Starved {
    /// The last receive left nothing behind.
    sparse: VecDeque<Key>,
    /// It did.
    bulk: VecDeque<Key>,
    /// Buffers since the last one for `bulk`.
    turn: usize,
}

impl Starved {
    /// `more`: the last receive of this socket left something behind.
    pub(in crate::driver::uring) fn push(&mut self, key: Key, more: bool) {
        if more { self.bulk.push_back(key) } else { self.sparse.push_back(key) }
    }

    pub(super) fn pop(&mut self) -> Option<Key> {
        self.turn += 1;
        if self.turn > (self.sparse.len() / self.bulk.len().max(1)).max(1) {
            self.turn = 0;
            return self.bulk.pop_front().or_else(|| self.sparse.pop_front());
        }
        self.sparse.pop_front().or_else(|| self.bulk.pop_front())
    }

    pub(in crate::driver::uring) fn is_empty(&self) -> bool {
        self.sparse.is_empty() && self.bulk.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sockets that are served in 10,000 turns and wait again at once, of `sparse` and `bulk` ones.
    fn served(sparse: u64, bulk: u64) -> [u32; 2] {
        let (mut starved, key) = (Starved::default(), Key::from_bits);
        (0..bulk).for_each(|number| starved.push(key(number), true));
        (bulk..bulk + sparse).for_each(|number| starved.push(key(number), false));
        let mut served = [0; 2];
        for _ in 0..10_000 {
            let next = starved.pop().expect("a socket");
            let more = next.to_bits() < bulk;
            served[usize::from(more)] += 1;
            starved.push(next, more);
        }
        served
    }

    /// Messages of a crowd may come whole to some and in parts to others: nobody is served less for that.
    /// But one that has little to receive does not wait for a crowd.
    #[test]
    fn many_of_both_kinds_wait_equally_long_and_few_sparse_ones_do_not_wait() {
        assert_eq!(served(900, 100), [9_000, 1_000]);
        assert_eq!(served(1, 1000), [5_000, 5_000]);
    }
}
