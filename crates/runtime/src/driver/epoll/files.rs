//! Sending files on epoll. Operations on files that may wait are for threads: `crate::blocking`.

use super::{Entry, EpollDriver};
use crate::driver::pieces::Piece;
use crate::driver::slots::Key;
use crate::driver::{closed, reset_on_close};
use crate::task::Waiter;
use std::io;
use std::task::{Poll, Waker};

impl EpollDriver {
    pub(crate) fn poll_begin_pieces(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(Entry::Stream(stream)) = self.entries.get(key)
            && stream.gathered_bytes > 0
        {
            self.send_gathered();
        }
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => stream.queued.poll_exclusive(waiter, true),
            _ => Poll::Ready(Err(closed())),
        }
    }

    pub(crate) fn send_piece(&mut self, key: Key, piece: Piece<'_>) -> io::Result<usize> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return Err(closed()) };
        if let Some(error) = stream.queued.error() {
            return Err(error);
        }
        // Sockets are O_NONBLOCK from the beginning here.
        piece.send(&stream.socket, &mut true, &self.shared.counters)
    }

    pub(crate) fn poll_room(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        asked: &mut bool,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        if std::mem::replace(asked, true) && !stream.awaits_room {
            return Poll::Ready(Ok(()));
        }
        stream.awaits_room = true;
        stream.queued.waiters.add(waiter);
        stream.update_interest(&self.epoll, key, &self.shared)?;
        Poll::Pending
    }

    pub(crate) fn end_pieces(&mut self, key: Key, broken: Option<i32>, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        stream.awaits_room = false;
        if let Some(errno) = broken {
            stream.queued.fail(errno, wakes);
            reset_on_close(&stream.socket);
        }
        stream.queued.end_exclusive(wakes);
        stream.send_fin_if_due(&self.shared);
    }
}
