//! One connected (or connecting) TCP socket on epoll.

use super::{Epoll, Shared};
use crate::buf::{RecvBuf, SendBuf};
use crate::driver::common::{errno, socket_error};
use crate::driver::stream::{End, Next, Stream};
use crate::sys;
use crate::sys::poll::Epoll as EpollSet;
use std::io;
use std::os::fd::RawFd;
use std::task::Waker;

/// The events that a stream is registered for, once.
pub(super) const INTEREST: i32 =
    libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;

const HANG_UP: i32 = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;

/// What epoll has to remember of a stream. Unread bytes stay in the kernel.
#[derive(Default)]
pub(crate) struct EpollStream {
    /// Cleared by an event, set by a receive that emptied the socket: the next event reports more. Starts
    /// out clear: the first receive is tried without waiting for an event.
    drained: bool,
    /// A short receive does not mean that the socket is empty: the peer has finished or the
    /// connection is broken, and a further receive reports which; or there is urgent data, before
    /// which a receive ends (tcp(7)).
    read_on: bool,
}

impl EpollStream {
    /// On a Unix socket a receive ends behind a message with descriptors, although data may follow.
    pub(super) fn new(unix: bool) -> EpollStream {
        EpollStream { drained: false, read_on: unix }
    }

    #[inline]
    pub(in crate::driver) fn is_drained(&self) -> bool {
        self.drained
    }
}

impl Stream {
    /// The descriptor, which is open as long as the entry exists.
    fn open_fd(&self) -> RawFd {
        self.fd().unwrap_or(-1)
    }

    pub(super) fn register(&self, epoll: &EpollSet) -> io::Result<()> {
        epoll.add(self.open_fd(), INTEREST, self.key.to_bits())
    }

    /// Ends both directions, because the engine cannot serve them.
    pub(super) fn fail(&mut self, errno: i32, wakes: &mut Vec<Waker>) {
        self.receiving.finish(End::Error(errno), wakes);
        self.sending.fail(errno, wakes);
    }

    /// The bytes that have already arrived, unless the end was found.
    #[inline]
    pub(in crate::driver) fn try_receive(&mut self, shared: &Shared) -> Option<RecvBuf> {
        if !self.epoll.drained && self.receiving.end.is_none() {
            self.receive(shared)
        } else {
            None
        }
    }

    /// One recv(2) into the warmest buffer; `None` when there is nothing, or the end was found.
    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    fn receive(&mut self, shared: &Shared) -> Option<RecvBuf> {
        let Some(id) = shared.pool.take() else {
            // Below, pieces are copied out before the pool is empty, so this cannot happen.
            debug_assert!(false, "the pool ran dry");
            self.receiving.end = Some(End::Error(libc::ENOBUFS));
            return None;
        };
        shared.counters.syscalls.add(1);
        let fd = self.open_fd();
        let bytes = match shared.pool.with_writable(id, |memory| sys::recv(fd, memory)) {
            Ok(bytes) if bytes > 0 => bytes,
            nothing => {
                shared.pool.give_back(id);
                self.on_nothing_received(nothing, shared);
                return None;
            }
        };
        let filled = bytes == shared.pool.buffer_bytes();
        self.epoll.drained = !filled && !self.epoll.read_on;
        shared.counters.received.add(1);
        let piece = RecvBuf::from_pool(&shared.pool, id, 0, bytes);
        if shared.pool.available() * 4 < shared.pool.count() {
            shared.counters.copied_out.add(1);
            return Some(piece.detach());
        }
        Some(piece)
    }

    /// A receive found the end (0 bytes), no data, or an error.
    #[cold]
    fn on_nothing_received(&mut self, result: io::Result<usize>, shared: &Shared) {
        match result {
            Ok(_) => {
                let is_closed = || self.fd().is_some_and(sys::tcp_is_closed);
                self.receiving.end = Some(self.sending.end_of_stream(false, is_closed));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                shared.counters.eagain.add(1);
                self.epoll.drained = true;
            }
            Err(error) => self.receiving.end = Some(End::Error(errno(&error))),
        }
    }

    /// Sends or queues a buffer that was accepted; nothing of this stream is gathered. An error is that
    /// which has ended the half.
    #[unsafe(link_section = ".text.hot")]
    pub(super) fn send(
        &mut self,
        mut buf: SendBuf,
        more: bool,
        shared: &Shared,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        if !self.sending.is_queued() && !self.sending.failed() {
            self.send_part(&mut buf, more, shared, wakes);
        }
        if let Some(error) = self.sending.error() {
            return Err(error);
        }
        if !buf.is_empty() {
            // It will wait for the peer: keep it out of the pool meanwhile.
            self.sending.queue(buf.detach());
        }
        Ok(())
    }

    /// The same for bytes of which what is left is copied.
    pub(super) fn send_copied(&mut self, bytes: &[u8], shared: &Shared, wakes: &mut Vec<Waker>) {
        if self.sending.is_queued() || self.sending.failed() {
            let _told_by_the_next = self.send(bytes.to_vec().into(), false, shared, wakes);
            return;
        }
        let sent = sys::send(self.open_fd(), bytes, false);
        let sent = self.on_sent(sent, bytes.len(), shared, wakes);
        if sent < bytes.len() && !self.sending.failed() {
            self.sending.queue(SendBuf::from(bytes[sent..].to_vec()));
        }
    }

    /// Sends as much of a buffer as the kernel accepts, and leaves the rest in it.
    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    fn send_part(
        &mut self,
        buf: &mut SendBuf,
        more: bool,
        shared: &Shared,
        wakes: &mut Vec<Waker>,
    ) {
        let bytes = buf.as_slice();
        let sent = sys::send(self.open_fd(), bytes, more);
        let sent = self.on_sent(sent, bytes.len(), shared, wakes);
        buf.advance(sent);
    }

    /// Records the result of a system call that was to send `bytes`; returns how many it has sent. A
    /// failure is kept in the state.
    #[inline]
    fn on_sent(
        &mut self,
        result: io::Result<usize>,
        bytes: usize,
        shared: &Shared,
        wakes: &mut Vec<Waker>,
    ) -> usize {
        shared.counters.syscalls.add(1);
        let mut taken = 0;
        match result {
            Ok(sent) => {
                self.sending.sent(sent);
                shared.counters.sent.add(1);
                taken = sent;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                shared.counters.eagain.add(1);
            }
            Err(error) => self.send_failed(errno(&error), wakes),
        }
        if taken < bytes {
            shared.counters.short_sends.add(1);
        }
        taken
    }

    /// Continues with the queue, FIN and the close.
    #[inline(never)]
    fn advance(&mut self, shared: &Shared, wakes: &mut Vec<Waker>) {
        loop {
            self.sending.wake_if_room(wakes);
            match self.sending.next() {
                Next::Send(mut buf) => {
                    self.send_part(&mut buf, false, shared, wakes);
                    if !buf.is_empty() {
                        return self.sending.put_back(buf);
                    }
                }
                Next::ShutDown => self.shut_down(&shared.counters),
                // Whether it is to be closed is checked after every event.
                Next::Close | Next::Nothing => return,
            }
        }
    }

    #[inline(never)]
    fn on_connected(&mut self, shared: &Shared, wakes: &mut Vec<Waker>) {
        shared.counters.syscalls.add(1);
        let outcome = self.socket.as_ref().map_or(Ok(()), socket_error);
        self.sending.connected(outcome.map_err(|error| errno(&error)), wakes);
    }
}

impl Epoll {
    /// An event of a stream. True if it is to be closed.
    #[inline]
    pub(super) fn on_stream_event(
        &mut self,
        stream: &mut Stream,
        bits: i32,
        wakes: &mut Vec<Waker>,
    ) -> bool {
        // A quick peer may have answered and finished in the event that reports the connection.
        stream.epoll.read_on |= bits & (HANG_UP | libc::EPOLLPRI) != 0;
        if stream.sending.connecting {
            stream.on_connected(&self.shared, wakes);
            return stream.sending.is_over();
        }
        if bits & (libc::EPOLLIN | libc::EPOLLPRI | HANG_UP) != 0 {
            stream.epoll.drained = false;
            stream.receiving.waiters.wake(wakes);
        }
        if bits & (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) != 0 {
            if stream.sending.is_queued() {
                stream.advance(&self.shared, wakes);
                stream.sending.wake_if_room(wakes);
            } else {
                stream.sending.writable(wakes);
            }
        }
        stream.sending.is_over()
    }
}
