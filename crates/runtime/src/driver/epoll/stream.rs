//! One connected (or connecting) TCP socket on epoll.

use super::Shared;
use super::zero_copy::Outstanding;
use crate::buf::{RecvBuf, SendBuf};
use crate::config::EpollFeatures;
use crate::driver::queues::{End, Fin, Queued, next_end};
use crate::driver::slots::Key;
use crate::driver::{errno, reset_on_close, socket_error};
use crate::sys;
use crate::sys::poll::Epoll;
use crate::task::{WaitQueue, Waiter};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Poll, Waker};

const HANG_UP: i32 = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;

pub(super) struct Stream {
    pub(super) socket: OwnedFd,
    /// Set by an event, cleared by a receive that emptied the socket. Starts out set: the first
    /// receive is tried without waiting for an event.
    readable: bool,
    /// A receive that is short says nothing: the peer finished or the connection broke, and the socket is
    /// to say how it ended; or there is urgent data, and a receive ends before it (tcp(7)).
    read_on: bool,
    connecting: bool,
    /// The program has closed its end; what is queued is still being sent.
    pub(super) closing: bool,
    /// Level-triggered only: bytes arrived that nobody waits for, so reading is not watched until
    /// somebody does. Masking after every event instead would cost two epoll_ctl a message.
    masked: bool,
    /// A file is being sent, and waits until the socket takes more.
    pub(super) awaits_room: bool,
    /// What the kernel reads from; there once something was sent without a copy.
    pub(super) zero_copy: Option<Box<Outstanding>>,
    /// What epoll watches for, or will; changes only when level-triggered.
    interest: i32,
    registered: bool,
    /// How receiving ended. Nothing is kept unread here: bytes wait in the kernel.
    end: Option<End>,
    pub(super) readers: WaitQueue,
    /// Bytes that wait in `Gather`; those in `queued` come behind them.
    pub(super) gathered_bytes: usize,
    pub(super) queued: Queued,
}

impl Stream {
    pub(super) fn new(socket: OwnedFd, interest: i32, connecting: bool) -> Stream {
        Stream {
            socket,
            readable: true,
            read_on: false,
            connecting,
            closing: false,
            masked: false,
            awaits_room: false,
            zero_copy: None,
            interest,
            // One that connects is registered at once.
            registered: connecting,
            end: None,
            readers: WaitQueue::default(),
            gathered_bytes: 0,
            queued: Queued::default(),
        }
    }

    pub(super) fn first_interest(features: &EpollFeatures, connecting: bool) -> i32 {
        if features.edge_triggered {
            libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET
        } else if connecting {
            libc::EPOLLOUT
        } else {
            libc::EPOLLIN | libc::EPOLLRDHUP
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) fn register(&mut self, epoll: &Epoll, key: Key) -> io::Result<()> {
        self.registered = true;
        epoll.add(self.fd(), self.interest, key.to_bits())
    }

    /// Ends both directions, because the engine cannot serve them.
    pub(super) fn fail(&mut self, errno: i32, wakes: &mut Vec<Waker>) {
        self.end.get_or_insert(End::Error(errno));
        self.readers.wake(wakes);
        self.queued.fail(errno, wakes);
    }

    pub(super) fn poll_connected(&mut self, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>> {
        if self.connecting {
            self.queued.waiters.add(waiter);
            return Poll::Pending;
        }
        Poll::Ready(self.queued.check())
    }

    pub(super) fn poll_recv(
        &mut self,
        waiter: &mut Waiter<'_>,
        shared: &Shared,
    ) -> Poll<io::Result<RecvBuf>> {
        self.readers.leave(waiter);
        if self.readable
            && self.end.is_none()
            && let Some(piece) = self.receive(shared)
        {
            return Poll::Ready(Ok(piece));
        }
        if let Some(end) = next_end(&mut self.end) {
            return Poll::Ready(end);
        }
        self.readers.add(waiter);
        self.masked = false;
        Poll::Pending
    }

    /// One recv(2) into the warmest buffer; `None` when there is nothing, or the end was found.
    fn receive(&mut self, shared: &Shared) -> Option<RecvBuf> {
        let Some(id) = shared.pool.take() else {
            // Below, pieces are copied out before the pool is empty, so this cannot happen.
            debug_assert!(false, "the pool ran dry");
            self.end = Some(End::Error(libc::ENOBUFS));
            return None;
        };
        shared.counters.syscalls.add(1);
        let result = shared.pool.with_writable(id, |memory| sys::recv(self.fd(), memory));
        match result {
            Ok(bytes) if bytes > 0 => {
                let filled = bytes == shared.pool.buffer_bytes();
                self.readable = filled || self.read_on;
                shared.counters.received.add(1);
                let piece = RecvBuf::from_pool(&shared.pool, id, 0, bytes);
                if shared.pool.available() * 4 < shared.pool.count() {
                    shared.counters.copied_out.add(1);
                    return Some(piece.detach());
                }
                return Some(piece);
            }
            Ok(_) => self.end = Some(self.queued.end_of_stream(&self.socket, false)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                shared.counters.eagain.add(1);
                self.readable = false;
            }
            Err(error) => self.end = Some(End::Error(errno(&error))),
        }
        shared.pool.give_back(id);
        None
    }

    /// Ready when a buffer may be handed over.
    pub(super) fn poll_send_room(&mut self, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>> {
        self.queued.check()?;
        if !self.queued.has_room(self.gathered_bytes) {
            self.queued.waiters.add(waiter);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends or queues a buffer that there is room for; nothing of this stream is gathered.
    pub(super) fn send(&mut self, mut buf: SendBuf, more: bool, shared: &Shared) -> io::Result<()> {
        if !buf.is_empty() {
            if self.queued.is_empty() {
                // With nothing queued nobody else waits to be told of a failure.
                self.send_now(&mut buf, more, shared, &mut Vec::new());
            }
            self.queued.check()?;
            if !buf.is_empty() {
                // It will wait for the peer: keep it out of the pool meanwhile.
                self.queued.push(buf.detach());
            }
        }
        Ok(())
    }

    /// Sends what was gathered, or queues what the kernel does not take; a failure is kept in the
    /// queue's state.
    pub(super) fn send_gathered(&mut self, bytes: &[u8], shared: &Shared, wakes: &mut Vec<Waker>) {
        self.gathered_bytes -= bytes.len();
        if self.queued.failed() {
            return;
        }
        let first = self.queued.is_empty();
        let sent = if first { self.send_bytes(bytes, false, shared, wakes) } else { 0 };
        if sent < bytes.len() && !self.queued.failed() {
            self.queued.push(SendBuf::from(bytes[sent..].to_vec()));
        }
        self.send_fin_if_due(shared);
        if self.queued.has_room(self.gathered_bytes) {
            self.queued.waiters.wake(wakes);
        }
    }

    /// Sends what the kernel takes of `buf`; a failure is kept in the queue's state.
    fn send_now(&mut self, buf: &mut SendBuf, more: bool, shared: &Shared, wakes: &mut Vec<Waker>) {
        let sent = self.send_bytes(buf.as_slice(), more, shared, wakes);
        buf.advance(sent);
    }

    fn send_bytes(
        &mut self,
        bytes: &[u8],
        more: bool,
        shared: &Shared,
        wakes: &mut Vec<Waker>,
    ) -> usize {
        shared.counters.syscalls.add(1);
        let mut taken = 0;
        match sys::send(self.fd(), bytes, more) {
            Ok(sent) => {
                shared.counters.sent.add(1);
                taken = sent;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                shared.counters.eagain.add(1);
            }
            Err(error) => self.queued.fail(errno(&error), wakes),
        }
        if taken < bytes.len() {
            shared.counters.short_sends.add(1);
        }
        taken
    }

    /// Sends queued buffers until the kernel takes no more, then FIN if it is due.
    fn flush(&mut self, shared: &Shared, wakes: &mut Vec<Waker>) {
        while let Some(mut buf) = self.queued.pop() {
            self.send_now(&mut buf, false, shared, wakes);
            if self.queued.failed() {
                break;
            }
            if !buf.is_empty() {
                self.queued.push_front(buf);
                break;
            }
        }
        self.send_fin_if_due(shared);
        if self.queued.has_room(0) {
            self.queued.waiters.wake(wakes);
        }
    }

    pub(super) fn finish(&mut self, shared: &Shared) {
        if self.queued.fin == Fin::No {
            self.queued.fin = Fin::Queued;
            self.send_fin_if_due(shared);
        }
    }

    pub(super) fn send_fin_if_due(&mut self, shared: &Shared) {
        if self.queued.is_fin_due() && self.gathered_bytes == 0 {
            self.queued.fin = Fin::Sent;
            shared.counters.syscalls.add(1);
            // Fails only when the connection is gone, which the receiving side reports.
            let _reported_by_recv = sys::shutdown_write(self.fd());
        }
    }

    /// True while a closed stream still has bytes to send.
    pub(super) fn must_linger(&self) -> bool {
        (self.gathered_bytes > 0 || !self.queued.is_empty()) && !self.queued.failed()
    }

    /// Before a close that does not wait for what is queued.
    pub(super) fn cut_off(&self) {
        if self.must_linger() {
            reset_on_close(&self.socket);
        }
    }

    pub(super) fn on_event(&mut self, mut bits: i32, shared: &Shared, wakes: &mut Vec<Waker>) {
        // A notification looks like an error. One that broke the connection says EPOLLHUP too.
        if bits & libc::EPOLLERR != 0
            && let Some(outstanding) = &mut self.zero_copy
            && outstanding.collect(&self.socket, shared)
        {
            bits &= !libc::EPOLLERR;
        }
        if self.connecting {
            // A peer that was quick to answer and to finish did so in the same event.
            self.read_on |= bits & (HANG_UP | libc::EPOLLPRI) != 0;
            return self.on_connected(shared, wakes);
        }
        if bits & (libc::EPOLLIN | libc::EPOLLPRI | HANG_UP) != 0 {
            self.readable = true;
            self.read_on |= bits & (HANG_UP | libc::EPOLLPRI) != 0;
            self.masked = self.readers.is_empty();
            self.readers.wake(wakes);
        }
        if bits & (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) != 0 {
            if !self.queued.is_empty() {
                self.flush(shared, wakes);
            } else if std::mem::take(&mut self.awaits_room) {
                self.queued.waiters.wake(wakes);
            }
        }
    }

    fn on_connected(&mut self, shared: &Shared, wakes: &mut Vec<Waker>) {
        self.connecting = false;
        shared.counters.syscalls.add(1);
        if let Err(error) = socket_error(&self.socket) {
            self.queued.fail(errno(&error), wakes);
        }
        self.queued.waiters.wake(wakes);
    }

    /// Level-triggered only: watch for what somebody waits for, and for nothing else.
    #[inline]
    pub(super) fn update_interest(
        &mut self,
        epoll: &Epoll,
        key: Key,
        shared: &Shared,
    ) -> io::Result<()> {
        if shared.features.edge_triggered { Ok(()) } else { self.watch(epoll, key, shared) }
    }

    fn watch(&mut self, epoll: &Epoll, key: Key, shared: &Shared) -> io::Result<()> {
        let mut wanted = 0;
        if !self.masked && !self.closing && !self.connecting {
            wanted |= libc::EPOLLIN | libc::EPOLLRDHUP;
        }
        if self.connecting || !self.queued.is_empty() || self.awaits_room {
            wanted |= libc::EPOLLOUT;
        }
        // EPOLLHUP and EPOLLERR cannot be masked; edge-triggered they report only once.
        if wanted == 0 {
            wanted = libc::EPOLLET;
        }
        if wanted == self.interest {
            return Ok(());
        }
        self.interest = wanted;
        if !self.registered {
            return Ok(());
        }
        shared.counters.syscalls.add(1);
        epoll.modify(self.fd(), wanted, key.to_bits())
    }
}
