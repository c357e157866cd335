//! Streams on the simulated engine.

use super::kernel::{Completion, Machine, Op};
use super::{Entry, SimDriver};
use crate::buf::{Pool, RecvBuf, SendBuf};
use crate::driver::faults::Fault;
use crate::driver::pieces::Piece;
use crate::driver::queues::{End, Fin, QUEUED_BYTES_MAX, Queued, RECEIVED_BYTES_MAX, Received};
use crate::driver::slots::Key;
use crate::driver::{closed, errno, reset_on_close};
use crate::sys;
use crate::task::Waiter;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Poll, Waker};

/// Bytes of a file that go to the kernel at once.
const PIECE_BYTES: usize = 64 * 1024;

pub(super) struct Stream {
    socket: OwnedFd,
    connecting: bool,
    /// A receive is with the kernel.
    receiving: bool,
    /// The send that is with the kernel.
    sending: Option<SendBuf>,
    awaits_room: bool,
    pub(super) closing: bool,
    /// Longest buffer that was handed over.
    largest: usize,
    pub(super) received: Received,
    pub(super) queued: Queued,
}

impl Stream {
    fn new(socket: OwnedFd, connecting: bool) -> Stream {
        Stream {
            socket,
            connecting,
            receiving: false,
            sending: None,
            awaits_room: false,
            closing: false,
            largest: 0,
            received: Received::default(),
            queued: Queued::default(),
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn in_flight(&self) -> usize {
        self.sending.as_ref().map_or(0, SendBuf::len)
    }

    pub(super) fn must_linger(&self) -> bool {
        !self.queued.failed() && (self.sending.is_some() || !self.queued.is_empty())
    }

    /// Before a close that does not wait for what is queued.
    pub(super) fn cut_off(&mut self, machine: &Machine) {
        if self.must_linger() {
            machine.kernel.borrow_mut().excuse(self.fd());
            reset_on_close(&self.socket);
        }
    }

    pub(super) fn check(&self, pool: &Pool, resting: bool) -> Result<(), &'static str> {
        let unread = self.received.bytes();
        if unread > RECEIVED_BYTES_MAX + pool.count() * pool.buffer_bytes() {
            return Err("more is received and unread than may be");
        }
        if self.queued.bytes() + self.in_flight() > QUEUED_BYTES_MAX + self.largest {
            return Err("more is queued than may be");
        }
        if !resting {
            return Ok(());
        }
        let something = !self.received.is_empty() || self.received.end.is_some();
        if something && !self.received.waiters.is_empty() {
            return Err("a task waits to receive what is there");
        }
        let room = self.queued.has_room(self.in_flight()) && !self.connecting;
        let settled = self.sending.is_none() && !self.awaits_room && self.queued.is_empty();
        if room && settled && !self.queued.waiters.is_empty() {
            return Err("a task waits to send although there is room");
        }
        Ok(())
    }
}

impl SimDriver {
    fn stream(&mut self, key: Key) -> Option<&mut Stream> {
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn add_stream(&mut self, socket: OwnedFd) -> Key {
        let fd = socket.as_raw_fd();
        self.insert(fd, Entry::Stream(Box::new(Stream::new(socket, false))))
    }

    pub(crate) fn connect(&mut self, socket: OwnedFd, address: SocketAddr) -> io::Result<Key> {
        let fd = socket.as_raw_fd();
        let started = self.kernel().connect(fd, address);
        started?;
        let key = self.insert(fd, Entry::Stream(Box::new(Stream::new(socket, true))));
        self.kernel().arm(fd, Op::Connect);
        Ok(key)
    }

    pub(crate) fn poll_connected(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(stream) = self.stream(key) else { return Poll::Ready(Err(closed())) };
        if stream.connecting {
            stream.queued.waiters.add(waiter);
            return Poll::Pending;
        }
        Poll::Ready(stream.queued.check())
    }

    pub(crate) fn poll_recv(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<RecvBuf>> {
        let Some(stream) = self.stream(key) else { return Poll::Ready(Err(closed())) };
        let fd = stream.fd();
        if let Some(next) = stream.received.next() {
            if let Ok(piece) = &next {
                let mut kernel = self.kernel();
                match piece.is_empty() {
                    true => kernel.was_told_the_end(fd),
                    false => kernel.received(fd, piece),
                }
            }
            return Poll::Ready(next);
        }
        stream.received.waiters.add(waiter);
        self.arm_receive(key);
        Poll::Pending
    }

    /// Starts a receive unless one is with the kernel or none is wanted.
    pub(super) fn arm_receive(&mut self, key: Key) {
        let Some(stream) = self.stream(key) else { return };
        if stream.receiving || stream.closing || stream.received.end.is_some() {
            return;
        }
        stream.receiving = true;
        let fd = stream.fd();
        self.kernel().arm(fd, Op::Receive);
    }

    pub(super) fn on_stream(&mut self, key: Key, completion: Completion, wakes: &mut Vec<Waker>) {
        match completion.op {
            Op::Receive => self.on_receive(key, completion, wakes),
            Op::Send => self.on_send(key, completion.refused, wakes),
            Op::Connect => self.on_connect(key, wakes),
            Op::Accept | Op::File => {}
        }
    }

    fn on_connect(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        stream.connecting = false;
        let connected = self.machine.kernel.borrow_mut().connected(stream.fd());
        if let Err(error) = connected {
            stream.queued.fail(errno(&error), wakes);
        }
        stream.queued.waiters.wake(wakes);
    }

    fn on_receive(&mut self, key: Key, completion: Completion, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        stream.receiving &= completion.more;
        let refused = completion.refused.is_some() || stream.closing;
        if completion.refused == Some(libc::ENOBUFS) {
            self.counters.enobufs.add(1);
        }
        // A report that was on its way when receiving was paused is none to follow.
        if !refused && stream.received.is_full(self.turn) {
            self.pause_receive(key);
        } else if !refused {
            match self.pool.take() {
                Some(id) => self.receive_into(key, id, wakes),
                // Pieces are copied out before the pool is empty.
                None => self.kernel().complain(|| "the receive pool ran dry".into()),
            }
        }
        if let Some(stream) = self.stream(key)
            && stream.received.is_empty()
            && !stream.received.waiters.is_empty()
        {
            self.arm_receive(key);
        }
    }

    /// Receives no more until what is there has been read.
    fn pause_receive(&mut self, key: Key) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        if std::mem::take(&mut stream.receiving) {
            self.counters.pauses.add(1);
            self.counters.copied_out.add(stream.received.detach());
            self.machine.kernel.borrow_mut().disarm(stream.fd(), Op::Receive);
        }
    }

    fn receive_into(&mut self, key: Key, id: u16, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        let fd = stream.fd();
        let result =
            self.pool.with_writable(id, |memory| self.machine.kernel.borrow_mut().recv(fd, memory));
        match result {
            Ok(bytes) if bytes > 0 => {
                self.counters.received.add(1);
                let mut piece = RecvBuf::from_pool(&self.pool, id, 0, bytes);
                if self.pool.available() * 4 < self.pool.count() {
                    self.counters.copied_out.add(1);
                    piece = piece.detach();
                }
                stream.received.push(piece, self.turn);
                stream.received.waiters.wake(wakes);
                if stream.received.is_full(self.turn) {
                    self.pause_receive(key);
                }
                return;
            }
            Ok(_) => {
                let end = stream.queued.end_of_stream(&stream.socket, stream.sending.is_some());
                stream.received.finish(end, wakes);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.counters.eagain.add(1),
            Err(error) => stream.received.finish(End::Error(errno(&error)), wakes),
        }
        self.pool.give_back(id);
    }

    pub(crate) fn poll_send(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        buf: &mut Option<SendBuf>,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        stream.queued.check()?;
        if !stream.queued.has_room(stream.in_flight()) {
            stream.queued.waiters.add(waiter);
            return Poll::Pending;
        }
        if let Some(buf) = buf.take().filter(|buf| !buf.is_empty()) {
            stream.largest = stream.largest.max(buf.len());
            let mut kernel = self.machine.kernel.borrow_mut();
            kernel.handed_over(stream.fd(), buf.as_slice());
            match stream.sending {
                Some(_) => stream.queued.push(buf.detach()),
                None => {
                    stream.sending = Some(buf);
                    kernel.arm(stream.fd(), Op::Send);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn on_send(&mut self, key: Key, refused: Option<i32>, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        if std::mem::take(&mut stream.awaits_room) {
            stream.queued.waiters.wake(wakes);
        }
        let fd = stream.fd();
        let Some(mut buf) = stream.sending.take() else { return };
        let mut kernel = self.machine.kernel.borrow_mut();
        let sent = match refused {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => kernel.may_refuse().and_then(|()| kernel.send(fd, buf.as_slice())),
        };
        match sent {
            Ok(bytes) => {
                self.counters.sent.add(1);
                buf.advance(bytes);
            }
            Err(_) if refused.is_some() => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.counters.eagain.add(1),
            Err(error) => {
                stream.queued.fail(errno(&error), wakes);
                kernel.excuse(fd);
            }
        }
        if !stream.queued.failed() {
            if !buf.is_empty() {
                self.counters.short_sends.add(1);
                stream.sending = Some(buf.detach());
                return kernel.arm(fd, Op::Send);
            }
            stream.sending = stream.queued.pop();
            if stream.queued.has_room(stream.in_flight()) {
                stream.queued.waiters.wake(wakes);
            }
            if stream.sending.is_some() {
                return kernel.arm(fd, Op::Send);
            }
        }
        drop(kernel);
        self.after_sends(key);
    }

    /// Nothing is left to send: FIN has its turn, or the close.
    fn after_sends(&mut self, key: Key) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        if stream.queued.is_fin_due() && stream.sending.is_none() {
            stream.queued.fin = Fin::Sent;
            self.machine.kernel.borrow_mut().shutdown_write(stream.fd());
        }
        if stream.closing && !stream.must_linger() {
            self.remove(key);
        }
    }

    pub(crate) fn poll_flushed(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        match self.stream(key) {
            Some(stream) => stream.queued.poll_flushed(waiter, stream.sending.is_none()),
            None => Poll::Ready(Err(closed())),
        }
    }

    pub(crate) fn finish(&mut self, key: Key) {
        if let Some(stream) = self.stream(key)
            && stream.queued.fin == Fin::No
        {
            stream.queued.fin = Fin::Queued;
            self.after_sends(key);
        }
    }

    pub(crate) fn discard(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        stream.sending = None;
        stream.queued.fail(libc::ECANCELED, wakes);
        self.machine.kernel.borrow_mut().excuse(stream.fd());
    }

    pub(crate) fn poll_begin_pieces(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        match self.stream(key) {
            Some(stream) => stream.queued.poll_exclusive(waiter, stream.sending.is_none()),
            None => Poll::Ready(Err(closed())),
        }
    }

    pub(crate) fn send_piece(&mut self, key: Key, piece: Piece<'_>) -> io::Result<usize> {
        let Some(stream) = self.stream(key) else { return Err(closed()) };
        if let Some(error) = stream.queued.error() {
            return Err(error);
        }
        match piece {
            Piece::File { file, offset, len } => {
                let mut bytes = Vec::new();
                sys::file::read_at(file, offset, &mut bytes, len.min(PIECE_BYTES))?;
                if bytes.is_empty() || self.kernel().dice.strikes(Fault::FileTruncated) {
                    return Ok(0);
                }
                let sent = self.send_bytes(key, &bytes);
                self.counters.sendfiles.add(u64::from(sent.is_ok()));
                sent
            }
            Piece::Bytes { bytes, .. } => self.send_bytes(key, bytes),
            // No pipes here: the file is read and sent instead.
            Piece::Piped { .. } => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Sends past the queue what the kernel takes now.
    pub(crate) fn send_bytes(&mut self, key: Key, bytes: &[u8]) -> io::Result<usize> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return Err(closed()) };
        let mut kernel = self.machine.kernel.borrow_mut();
        kernel.may_refuse()?;
        let sent = kernel.send(stream.fd(), bytes)?;
        kernel.handed_over(stream.fd(), &bytes[..sent]);
        self.counters.sent.add(1);
        Ok(sent)
    }

    pub(crate) fn poll_room(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        asked: &mut bool,
    ) -> Poll<io::Result<()>> {
        let Some(stream) = self.stream(key) else { return Poll::Ready(Err(closed())) };
        if std::mem::replace(asked, true) && !stream.awaits_room {
            return Poll::Ready(Ok(()));
        }
        stream.awaits_room = true;
        stream.queued.waiters.add(waiter);
        let fd = stream.fd();
        self.kernel().arm(fd, Op::Send);
        Poll::Pending
    }

    pub(crate) fn end_pieces(&mut self, key: Key, broken: Option<i32>, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        stream.awaits_room = false;
        if let Some(errno) = broken {
            stream.queued.fail(errno, wakes);
            self.machine.kernel.borrow_mut().excuse(stream.fd());
            reset_on_close(&stream.socket);
        }
        stream.queued.end_exclusive(wakes);
        self.after_sends(key);
    }
}
