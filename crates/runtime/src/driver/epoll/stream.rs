//! One connected (or connecting) TCP socket on epoll.

use super::EpollShared;
use crate::buf::{RecvBuf, SendBuf};
use crate::driver::common::{closed, errno};
use crate::driver::stream::{End, Next, Receive, Stream};
use crate::sys;
use crate::sys::poll::EpollSet;
use crate::sys::socket::SockRef;
use std::io;
use std::os::fd::AsFd;
use std::task::Waker;

/// The events that a stream is registered for, once.
pub(super) const INTEREST: i32 =
    libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;

const HANG_UP: i32 = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;

impl Stream {
    pub(super) fn register(&self, epoll: &EpollSet) -> io::Result<()> {
        epoll.add(self.fd().ok_or_else(closed)?, INTEREST, self.key.to_bits())
    }

    /// One recv(2) into the warmest buffer; `None` when there is nothing, or the end was found.
    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    pub(in crate::driver) fn receive(&mut self, shared: &mut EpollShared) -> Option<RecvBuf> {
        let socket = self.socket.as_ref()?;
        shared.counters.syscalls.add(1);
        let place = shared.buffer.place();
        let room = place.len();
        let bytes = match sys::recv(socket.as_fd(), place) {
            Ok(bytes) if bytes > 0 => bytes,
            nothing => {
                self.on_nothing_received(nothing, shared);
                return None;
            }
        };
        if bytes < room && !self.receiving.read_on {
            self.receiving.state = Receive::Armed;
        }
        shared.counters.received.add(1);
        let (piece, low) = shared.buffer.piece(bytes);
        if low {
            shared.counters.copied_out.add(1);
            return Some(piece.detach());
        }
        Some(piece)
    }

    /// A receive found the end (0 bytes), no data, or an error.
    #[cold]
    fn on_nothing_received(&mut self, result: io::Result<usize>, shared: &EpollShared) {
        match result {
            Ok(_) => {
                let is_closed = || self.fd().is_some_and(sys::tcp_is_closed);
                self.receiving.end = Some(self.sending.end_of_stream(false, is_closed));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                shared.counters.eagain.add(1);
                self.receiving.state = Receive::Armed;
            }
            Err(error) => self.receiving.end = Some(End::Error(errno(&error))),
        }
    }

    /// Sends or queues a buffer; nothing of this stream is gathered. An error is that which has ended the half.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        buf: SendBuf,
        more: bool,
        shared: &EpollShared,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        let queued = self.sending.is_queued();
        let sent = if queued { 0 } else { self.send_now(buf.as_slice(), more, shared, wakes) };
        if sent < buf.len() {
            return self.queue_rest(buf, sent);
        }
        buf.free();
        Ok(())
    }

    /// What the kernel has not accepted.
    #[cold]
    fn queue_rest(&mut self, mut buf: SendBuf, sent: usize) -> io::Result<()> {
        if let Some(error) = self.sending.error() {
            return Err(error);
        }
        buf.advance(sent);
        self.sending.unsent += buf.len();
        // It will wait for the peer: keep it out of the pool meanwhile.
        self.sending.queue(buf.detach());
        Ok(())
    }

    /// Sends as much as the kernel accepts, and returns how much that is. A failure is kept in the state.
    #[inline(always)]
    fn send_now(
        &mut self,
        bytes: &[u8],
        more: bool,
        shared: &EpollShared,
        wakes: &mut Vec<Waker>,
    ) -> usize {
        let Some(socket) = &self.socket else { return 0 };
        shared.counters.syscalls.add(1);
        let sent = sys::send(socket.as_fd(), bytes, more);
        match sent {
            Ok(sent) => {
                shared.counters.sent.add(1);
                if sent < bytes.len() {
                    shared.counters.short_sends.add(1);
                }
                sent
            }
            Err(error) => {
                self.on_send_failed(&error, shared, wakes);
                0
            }
        }
    }

    #[cold]
    fn on_send_failed(&mut self, error: &io::Error, shared: &EpollShared, wakes: &mut Vec<Waker>) {
        shared.counters.short_sends.add(1);
        if error.kind() == io::ErrorKind::WouldBlock {
            shared.counters.eagain.add(1);
        } else {
            self.send_failed(errno(error), wakes);
        }
    }

    /// Continues with the queue, FIN and the close.
    #[cold]
    fn advance(&mut self, shared: &EpollShared, wakes: &mut Vec<Waker>) {
        loop {
            self.sending.wake_if_room(wakes);
            match self.sending.next() {
                Next::Send(mut buf) => {
                    let sent = self.send_now(buf.as_slice(), false, shared, wakes);
                    self.sending.sent(sent);
                    buf.advance(sent);
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

    #[cold]
    fn on_connected(&mut self, shared: &EpollShared, wakes: &mut Vec<Waker>) {
        shared.counters.syscalls.add(1);
        let told = self.socket.as_ref().map(|socket| SockRef::from(socket).take_error());
        let error = told.and_then(|told| told.unwrap_or_else(Some));
        self.sending.connected(error.map(|error| errno(&error)), wakes);
    }

    /// An event of the stream. True if it is to be closed.
    #[inline(always)]
    pub(super) fn on_event(
        &mut self,
        bits: i32,
        shared: &EpollShared,
        wakes: &mut Vec<Waker>,
    ) -> bool {
        // A quick peer may have answered and finished in the event that reports the connection.
        if bits & (HANG_UP | libc::EPOLLPRI) != 0 {
            self.receiving.read_on = true;
        }
        if self.sending.connecting {
            self.on_connected(shared, wakes);
            return self.sending.is_over();
        }
        if bits & (libc::EPOLLIN | libc::EPOLLPRI | HANG_UP) != 0 {
            self.receiving.state = Receive::Readable;
            self.receiving.waiters.wake(wakes);
        }
        if bits & (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) != 0 {
            if self.sending.is_queued() {
                self.advance(shared, wakes);
                self.sending.wake_if_room(wakes);
            } else {
                self.sending.writable(wakes);
            }
        }
        self.sending.is_over()
    }
}
