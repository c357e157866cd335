//! Queues of a socket, which are small while they are empty.

use crate::buf::RecvBuf;
use std::collections::VecDeque;

/// Received and unread bytes of a socket at which its receive is paused. The data of one turn of the
/// driver, at most the pool, can come on top.
pub(crate) const RECEIVED_BYTES_MAX: usize = 128 * 1024;
/// Received and unread pieces of a socket at which its receive is paused.
pub(crate) const RECEIVED_PIECES_MAX: usize = 64;

/// A queue that is empty most of the time, when it is only a pointer.
#[derive(Debug)]
pub(crate) struct Seldom<T>(Option<Box<Items<T>>>);

#[derive(Debug)]
struct Items<T>(VecDeque<T>);

impl<T> Default for Seldom<T> {
    fn default() -> Seldom<T> {
        Seldom(None)
    }
}

impl<T> Seldom<T> {
    pub(crate) fn items(&mut self) -> &mut VecDeque<T> {
        &mut self.0.get_or_insert_with(|| Box::new(Items(VecDeque::new()))).0
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |items| items.0.len())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(never)]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.0.as_mut()?.0.pop_front()
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    pub(crate) fn map_all(&mut self, change: impl Fn(T) -> T) {
        if let Some(items) = &mut self.0 {
            items.0 = std::mem::take(&mut items.0).into_iter().map(change).collect();
        }
    }
}

/// Data that was received and not yet read.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// The oldest piece, in the socket's own memory because there is rarely a second one.
    first: Option<RecvBuf>,
    /// Those behind it; empty without a first.
    more: Seldom<RecvBuf>,
    bytes: usize,
    /// The driver's turn in which the oldest piece arrived.
    oldest_turn: u32,
}

impl Unread {
    #[inline]
    pub(crate) fn push(&mut self, piece: RecvBuf, turn: u32) {
        self.bytes += piece.len();
        if self.first.is_none() {
            self.oldest_turn = turn;
            self.first = Some(piece);
        } else {
            self.push_behind(piece);
        }
    }

    #[inline(never)]
    fn push_behind(&mut self, piece: RecvBuf) {
        self.more.items().push_back(piece);
    }

    /// Puts a piece before all others.
    pub(crate) fn push_front(&mut self, piece: RecvBuf) {
        self.bytes += piece.len();
        if let Some(second) = self.first.replace(piece) {
            self.more.items().push_front(second);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// True when the socket holds as much as it may, although its reader had a turn to take it: a large
    /// batch that has just arrived does not mean that the reader is slow.
    #[inline]
    pub(crate) fn is_full(&self, turn: u32) -> bool {
        self.oldest_turn != turn
            && (self.bytes >= RECEIVED_BYTES_MAX || self.more.len() >= RECEIVED_PIECES_MAX)
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<RecvBuf> {
        let piece = self.first.take()?;
        self.bytes -= piece.len();
        if !self.more.is_empty() {
            self.first = self.more.pop_front();
        }
        Some(piece)
    }

    /// Moves the unread pieces out of the pool; called when they will stay for a while.
    #[inline(never)]
    pub(crate) fn detach(&mut self) -> u64 {
        let moved = u64::from(self.first.is_some()) + self.more.len() as u64;
        self.first = self.first.take().map(RecvBuf::detach);
        self.more.map_all(RecvBuf::detach);
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(byte: u8, bytes: usize) -> RecvBuf {
        RecvBuf::from(vec![byte; bytes])
    }

    proptest! {
        /// Against a model: pieces come out whole and in order.
        #[test]
        fn unread_data_is_a_queue(
            steps in proptest::collection::vec((0u8..4, 1usize..3000), 0..60),
        ) {
            let (mut unread, mut model) = (Unread::default(), VecDeque::new());
            for (step, (kind, bytes)) in steps.into_iter().enumerate() {
                match kind {
                    0 | 1 => {
                        unread.push(piece(step as u8, bytes), 0);
                        model.push_back(vec![step as u8; bytes]);
                    }
                    2 => {
                        let popped = unread.pop().map(|piece| piece.to_vec());
                        prop_assert_eq!(popped, model.pop_front());
                    }
                    _ => prop_assert_eq!(unread.detach(), model.len() as u64),
                }
                prop_assert_eq!(unread.is_empty(), model.is_empty());
            }
            let bytes: usize = model.iter().map(Vec::len).sum();
            prop_assert_eq!(unread.is_full(1), bytes >= RECEIVED_BYTES_MAX);
            while let Some(expected) = model.pop_front() {
                prop_assert_eq!(unread.pop().map(|piece| piece.to_vec()), Some(expected));
            }
            prop_assert!(unread.pop().is_none() && unread.is_empty());
        }
    }
}
