//! The operations on streams.

use super::stream::Next;
use super::{Engine, Entry, Sockets, Stream, entry};
use crate::buf::RecvBuf;
use crate::counters::Counters;
use crate::driver::common::{closed, reset_on_close};
use crate::driver::pieces::Piece;
use crate::slots::Key;
use crate::task::{WaitToken, Waiter};
use std::io;
use std::task::{Poll, Waker};

impl<E: Engine> Sockets<E> {
    pub(crate) fn poll_connected(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        entry!(self, key, Stream).0.sending.poll_connected(waiter)
    }

    /// Inlined, like `try_send`: entering and leaving them, with the result in between, would be a third of
    /// all instructions.
    #[inline(always)]
    pub(crate) fn take_received(&mut self, key: Key, token: &mut WaitToken) -> Option<RecvBuf> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return None };
        if !stream.receiving.waiters.is_empty() {
            // One of the waiters may be this future.
            return None;
        }
        *token = WaitToken::default();
        match stream.receiving.take_put_back() {
            None => self.engine.receive(stream),
            piece => piece,
        }
    }

    pub(crate) fn poll_recv(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<RecvBuf>> {
        let (stream, engine) = entry!(self, key, Stream);
        stream.receiving.waiters.leave(waiter);
        if let Some(piece) = stream.receiving.take_put_back() {
            return Poll::Ready(Ok(piece));
        }
        if let Some(piece) = engine.receive(stream) {
            return Poll::Ready(Ok(piece));
        }
        let polled = stream.receiving.poll_end(waiter);
        if polled.is_pending() {
            engine.await_bytes(key, stream)?;
        }
        polled
    }

    pub(crate) fn put_back(&mut self, key: Key, piece: RecvBuf, wakes: &mut Vec<Waker>) {
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
            stream.receiving.put_back(piece, wakes);
        }
    }

    pub(crate) fn poll_peek(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let (stream, engine) = entry!(self, key, Stream);
        stream.receiving.waiters.leave(waiter);
        let copied = stream.receiving.copy_put_back(into);
        if copied > 0 {
            return Poll::Ready(Ok(copied));
        }
        if let Some(bytes) = engine.peek(stream, into) {
            return Poll::Ready(Ok(bytes));
        }
        let polled = stream.receiving.poll_peek_end(waiter);
        if polled.is_pending() {
            engine.await_bytes(key, stream)?;
        }
        polled.map(|end| end.map(|()| 0))
    }

    pub(crate) fn poll_send_ready(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        let (stream, engine) = entry!(self, key, Stream);
        let polled = stream.sending.poll_accept(waiter);
        if polled.is_pending() {
            engine.await_sent(key, stream);
        }
        polled
    }

    pub(crate) fn poll_flushed(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        let (stream, engine) = entry!(self, key, Stream);
        let polled = stream.sending.poll_flushed(waiter);
        engine.await_sent(key, stream);
        polled
    }

    pub(crate) fn finish(&mut self, key: Key) {
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
            stream.sending.finish();
            self.engine.await_sent(key, stream);
            stream.shut_down_if_due(self.engine.counters());
        }
    }

    pub(crate) fn discard(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
            stream.sending.fail(libc::ECANCELED, wakes);
        }
    }

    pub(crate) fn poll_begin_pieces(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        E::send_held_back(self, key);
        let (stream, engine) = entry!(self, key, Stream);
        let polled = stream.sending.poll_file(waiter);
        engine.await_sent(key, stream);
        polled
    }

    pub(crate) fn send_piece(&mut self, key: Key, piece: Piece<'_>) -> io::Result<usize> {
        let (stream, engine) = entry!(self, key, Stream);
        let Some(socket) = &stream.socket else { return Err(closed()) };
        if let Some(error) = stream.sending.error() {
            return Err(error);
        }
        piece.send(socket, &mut stream.nonblocking, engine.counters())
    }

    pub(crate) fn poll_room(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        asked: &mut bool,
    ) -> Poll<io::Result<()>> {
        let (stream, engine) = entry!(self, key, Stream);
        let awaited = stream.sending.awaits_room();
        let polled = stream.sending.poll_writable(waiter, asked);
        if polled.is_pending() && !awaited {
            engine.await_room(key, stream)?;
        }
        polled.map(Ok)
    }

    pub(crate) fn end_pieces(&mut self, key: Key, broken: Option<i32>, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        stream.end_file(self.engine.counters(), broken, wakes);
    }
}

impl<E: Engine> Stream<E> {
    /// Releases the sending half. With an errno it is broken from now on, and a close sends a reset.
    pub(crate) fn end_file(
        &mut self,
        counters: &Counters,
        broken: Option<i32>,
        wakes: &mut Vec<Waker>,
    ) {
        if let Some(errno) = broken {
            self.sending.fail(errno, wakes);
            self.socket.iter().for_each(reset_on_close);
        }
        self.sending.end_file(wakes);
        self.shut_down_if_due(counters);
    }

    /// Continues with the queue, FIN and the close, once the engine has no send in progress. True if the
    /// socket is to be closed.
    pub(crate) fn advance(&mut self, key: Key, engine: &mut E, wakes: &mut Vec<Waker>) -> bool {
        loop {
            self.sending.wake_if_room(wakes);
            match self.sending.next() {
                Next::Send(buf) => {
                    if !engine.send(key, self, buf, wakes) {
                        return false;
                    }
                }
                Next::ShutDown => self.shut_down(engine.counters()),
                Next::Close => return true,
                Next::Nothing => return false,
            }
        }
    }
}
