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
#[expect(clippy::box_collection, reason = "no more than a pointer where it is seldom there")]
pub(crate) struct Seldom<T>(Option<Box<VecDeque<T>>>);

impl<T> Default for Seldom<T> {
    fn default() -> Seldom<T> {
        Seldom(None)
    }
}

impl<T> Seldom<T> {
    pub(crate) fn items(&mut self) -> &mut VecDeque<T> {
        self.0.get_or_insert_default()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |items| items.len())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[cold]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.0.as_mut()?.pop_front()
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    pub(crate) fn map_all(&mut self, change: impl Fn(T) -> T) {
        if let Some(items) = &mut self.0 {
            **items = std::mem::take(&mut **items).into_iter().map(change).collect();
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// The oldest piece, in the socket's own memory because there is rarely a second one.
    first: Option<RecvBuf>,
    /// Those behind it; empty without a first.
    more: Seldom<RecvBuf>,
    /// The driver's turn in which the oldest piece arrived.
    oldest_turn: u32,
}

impl Unread {
    /// Appends a piece. True if the socket now holds as much as it may, although its reader had a turn to take
    /// it: a large batch that has just arrived does not mean that the reader is slow.
    #[inline]
    pub(crate) fn push(&mut self, piece: RecvBuf, turn: u32) -> bool {
        if self.first.is_some() {
            return self.push_behind(piece, turn);
        }
        self.oldest_turn = turn;
        self.first = Some(piece);
        false
    }

    #[cold]
    fn push_behind(&mut self, piece: RecvBuf, turn: u32) -> bool {
        let more = self.more.items();
        more.push_back(piece);
        let pieces = self.first.iter().chain(&*more);
        self.oldest_turn != turn
            && (more.len() >= RECEIVED_PIECES_MAX
                || pieces.map(|piece| piece.len()).sum::<usize>() >= RECEIVED_BYTES_MAX)
    }

    pub(crate) fn push_front(&mut self, piece: RecvBuf) {
        if let Some(second) = self.first.replace(piece) {
            self.more.items().push_front(second);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<RecvBuf> {
        let piece = self.first.take()?;
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
