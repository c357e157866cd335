//! Sockets that wait for a buffer, in the order in which they get one.

use crate::driver::slots::Key;
use std::collections::VecDeque;

/// While sockets of both kinds wait, one of so many buffers goes to one that has much to receive.
const BULK_TURN: u32 = 4;

/// Two queues, as in fair queueing of packets (RFC 8290, 4.2): a socket from which the last receive
/// took everything does not wait behind all those that are never empty. A crowd that sends without
/// pause would otherwise delay each message of all others by a round of its own. Holds each socket at
/// most once.
#[derive(Debug, Default)]
pub(in crate::driver::uring) struct Starved {
    /// The last receive left nothing behind.
    sparse: VecDeque<Key>,
    /// It did.
    bulk: VecDeque<Key>,
    turn: u32,
}

impl Starved {
    /// `more`: the last receive of this socket left something behind.
    pub(in crate::driver::uring) fn push(&mut self, key: Key, more: bool) {
        if more { self.bulk.push_back(key) } else { self.sparse.push_back(key) }
    }

    /// The socket whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Key> {
        self.turn = (self.turn + 1) % BULK_TURN;
        let (first, second) = match self.turn {
            0 => (&mut self.bulk, &mut self.sparse),
            _ => (&mut self.sparse, &mut self.bulk),
        };
        first.pop_front().or_else(|| second.pop_front())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sparse.is_empty() && self.bulk.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        Key::from_bits(number)
    }

    #[test]
    fn one_that_has_little_to_receive_does_not_wait_for_a_crowd() {
        let mut starved = Starved::default();
        (0..1000).for_each(|number| starved.push(key(number), true));
        starved.push(key(2000), false);
        let order: Vec<Key> = std::iter::from_fn(|| starved.pop()).collect();
        let place = order.iter().position(|next| *next == key(2000));
        assert!(place.is_some_and(|place| place <= 1), "{place:?}");
        assert_eq!(order.len(), 1001);
        assert!(starved.is_empty());
    }

    #[test]
    fn sockets_that_keep_coming_back_leave_a_quarter_to_the_others() {
        let mut starved = Starved::default();
        (0..100).for_each(|number| starved.push(key(number), true));
        starved.push(key(2000), false);
        let mut bulk = Vec::new();
        for _ in 0..400 {
            let next = starved.pop().expect("a socket");
            if next == key(2000) { starved.push(next, false) } else { bulk.push(next) }
        }
        assert_eq!(bulk, (0..100).map(key).collect::<Vec<_>>());
    }
}
