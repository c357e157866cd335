//! Operations of sockets: how they are armed, and what their completions do.

use super::provided::STREAMS;
use super::ring::Enter;
use super::stream::{InFlight, Stream};
use super::{ACCEPTED_MAX, Entry, Listener, Op, UringDriver};
use crate::buf::{RecvBuf, SendBuf};
use crate::driver::closed;
use crate::driver::queues::{End, Fin, Waiters};
use crate::driver::slots::Key;
use crate::sys;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use socket2::SockAddr;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::task::{Context, Poll, Waker};

/// Bytes of one send. The kernel cuts a longer one at 2 GiB and calls that a success; a buffer
/// above this is sent in parts, each of which completes.
const SEND_BYTES_MAX: usize = 1 << 30;

/// Listeners.
impl UringDriver {
    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> io::Result<Key> {
        let listener = Listener {
            socket: Some(socket),
            armed: false,
            again: false,
            expected: 0,
            closing: false,
            accepted: VecDeque::new(),
            waiters: Waiters::default(),
        };
        Ok(self.entries.insert(Entry::Listener(listener)))
    }

    pub(crate) fn poll_accept(
        &mut self,
        key: Key,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<OwnedFd>> {
        let Some(Entry::Listener(listener)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        if let Some(accepted) = listener.accepted.pop_front() {
            return Poll::Ready(accepted);
        }
        listener.waiters.add(cx.waker());
        if !listener.armed
            && let Some(socket) = &listener.socket
        {
            let fd = Fd(socket.as_raw_fd());
            let entry = if self.features.multishot {
                opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
            } else {
                opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            };
            listener.armed = true;
            listener.expected += 1;
            if self.features.multishot && std::mem::replace(&mut listener.again, true) {
                self.counters.rearms.add(1);
            }
            self.ring.push(entry.user_data(Op::Accept.tag(key)));
        }
        Poll::Pending
    }

    pub(super) fn on_accept(&mut self, key: Key, result: i32, flags: u32, wakes: &mut Vec<Waker>) {
        let accepted = match result {
            // SAFETY: the completion of an accept hands over a new descriptor, exactly once.
            fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            error => Err(io::Error::from_raw_os_error(-error)),
        };
        let Some(Entry::Listener(listener)) = self.entries.get_mut(key) else { return };
        if !cqueue::more(flags) {
            listener.armed = false;
            listener.expected -= 1;
        }
        // A connection that raced with the close of its listener goes with it.
        listener.waiters.wake(wakes);
        if !listener.closing && result != -libc::ECANCELED {
            listener.accepted.push_back(accepted);
            if listener.armed && listener.accepted.len() == ACCEPTED_MAX {
                listener.expected += 1;
                self.push_cancel(key, Op::Accept);
            }
        }
        self.remove_if_done(key);
    }
}

/// Connecting.
impl UringDriver {
    pub(crate) fn add_stream(&mut self, socket: OwnedFd) -> Key {
        self.entries.insert(Entry::Stream(Stream::new(socket)))
    }

    pub(crate) fn connect(&mut self, socket: OwnedFd, address: &SockAddr) -> Key {
        let fd = Fd(socket.as_raw_fd());
        let mut stream = Stream::new(socket);
        // The kernel reads the address when the entry is submitted, so it lives in the slot.
        let address = stream.connecting.insert(Box::new(address.clone()));
        let entry = opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build();
        stream.expected = 1;
        let key = self.entries.insert(Entry::Stream(stream));
        self.ring.push(entry.user_data(Op::Connect.tag(key)));
        key
    }

    pub(crate) fn poll_connected(
        &mut self,
        key: Key,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        if stream.connecting.is_some() {
            stream.queued.waiters.add(cx.waker());
            return Poll::Pending;
        }
        Poll::Ready(stream.queued.check())
    }

    pub(super) fn on_connect(&mut self, key: Key, result: i32, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        stream.expected -= 1;
        stream.connecting = None;
        if result < 0 {
            stream.queued.fail(-result, wakes);
        }
        stream.queued.waiters.wake(wakes);
        self.remove_if_done(key);
    }
}

/// Receiving.
impl UringDriver {
    pub(crate) fn poll_recv(
        &mut self,
        key: Key,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<RecvBuf>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        if let Some(next) = stream.received.next() {
            return Poll::Ready(next);
        }
        stream.received.waiters.add(cx.waker());
        self.arm_receive(key);
        Poll::Pending
    }

    /// Starts a receive, or queues for a buffer if others do. They come first because one receive
    /// can take all there are: a single fast peer would get each turn's buffers and those others
    /// none, ever.
    fn arm_receive(&mut self, key: Key) {
        if !self.groups.is_starved(STREAMS) {
            return self.start_receive(key);
        }
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key)
            && stream.may_receive()
        {
            stream.receive.starved = true;
            self.groups.get(STREAMS).starved.push_back(key);
        }
    }

    /// Starts a receive unless one is with the kernel, waits for a buffer, or is not wanted.
    pub(super) fn start_receive(&mut self, key: Key) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        if !stream.may_receive() {
            return;
        }
        let receive = &mut stream.receive;
        let Some(socket) = &stream.socket else { return };
        let fd = Fd(socket.as_raw_fd());
        let entry = if self.features.multishot {
            opcode::RecvMulti::new(fd, STREAMS).build()
        } else {
            let bytes = self.features.buffer_bytes as u32;
            opcode::Recv::new(fd, std::ptr::null_mut(), bytes)
                .buf_group(STREAMS)
                .build()
                .flags(Flags::BUFFER_SELECT)
        };
        receive.armed = true;
        receive.pausing = false;
        stream.expected += 1;
        if self.features.multishot && std::mem::replace(&mut receive.again, true) {
            self.counters.rearms.add(1);
        }
        self.ring.push(entry.user_data(Op::Receive.tag(key)));
    }

    pub(super) fn on_receive(&mut self, key: Key, result: i32, flags: u32, wakes: &mut Vec<Waker>) {
        // First of all, so that the buffer is accounted for whatever becomes of the bytes. An
        // end of stream usually names no buffer, and must not return one then.
        let piece = self.groups.get(STREAMS).take(flags, result.max(0) as usize);
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        if !cqueue::more(flags) {
            stream.receive.armed = false;
            stream.expected -= 1;
        }
        match result {
            0 => stream.received.finish(stream.how_it_ended(), wakes),
            bytes if bytes > 0 => {
                self.counters.received.add(1);
                if let Some(piece) = piece.filter(|_| !stream.closing) {
                    self.deliver(key, piece, wakes);
                }
            }
            error if error == -libc::ENOBUFS => {
                self.counters.enobufs.add(1);
                if !stream.closing && !stream.received.waiters.is_empty() {
                    stream.receive.starved = true;
                    self.groups.get(STREAMS).starved.push_back(key);
                }
            }
            // Ours: the receive was paused, or the stream is closing. (EINTR: one that had got into a
            // worker thread, which was told to look at its signals.)
            error if matches!(-error, libc::ECANCELED | libc::EINTR) => {}
            error => stream.received.finish(End::Error(-error), wakes),
        }
        self.rearm_if_awaited(key);
        self.remove_if_done(key);
    }

    fn deliver(&mut self, key: Key, piece: RecvBuf, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        let piece = if self.pressure || self.groups.get(STREAMS).is_low() {
            self.counters.copied_out.add(1);
            piece.detach()
        } else {
            piece
        };
        stream.received.push(piece, self.turn);
        stream.received.waiters.wake(wakes);
        if stream.received.is_full(self.turn) && stream.receive.armed && !stream.receive.pausing {
            stream.receive.pausing = true;
            stream.expected += 1;
            self.counters.pauses.add(1);
            self.counters.copied_out.add(stream.received.detach());
            self.push_cancel(key, Op::Receive);
        }
    }

    /// A receive that ended while a task waits for it starts again.
    fn rearm_if_awaited(&mut self, key: Key) {
        if let Some(Entry::Stream(stream)) = self.entries.get(key)
            && stream.received.is_empty()
            && !stream.received.waiters.is_empty()
        {
            self.arm_receive(key);
        }
    }
}

/// Sending.
impl UringDriver {
    pub(crate) fn poll_send(
        &mut self,
        key: Key,
        cx: &mut Context<'_>,
        buf: &mut Option<SendBuf>,
        more: bool,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        stream.queued.check()?;
        if !stream.queued.has_room(stream.in_flight.len()) {
            stream.queued.waiters.add(cx.waker());
            self.held_up |= stream.is_held_up();
            return Poll::Pending;
        }
        if let Some(buf) = buf.take().filter(|buf| !buf.is_empty()) {
            match stream.in_flight {
                InFlight::None if more => return self.send_ahead(key, buf),
                InFlight::None => self.send_quick(key, buf),
                InFlight::Quick { .. } => {
                    stream.queued.push(buf);
                    self.held_up |= stream.is_held_up();
                }
                // It will wait for the peer: keep it out of the pool meanwhile.
                InFlight::Waiting(_) => stream.queued.push(buf.detach()),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Submits a send that ends at once, sent whole or not.
    fn send_quick(&mut self, key: Key, buf: SendBuf) {
        // A submission thread would run the send at a time we do not learn, so there every send
        // has to complete.
        let completes = !self.features.skip_success
            || self.features.sqpoll_idle_ms > 0
            || buf.len() > SEND_BYTES_MAX;
        self.quick_bytes += buf.len();
        self.serial = self.serial.wrapping_add(1);
        if !completes {
            self.quick.push((key, self.serial));
        }
        self.push_send(key, InFlight::Quick { buf, completes, serial: self.serial });
    }

    pub(super) fn push_send(&mut self, key: Key, send: InFlight) {
        let (buf, wait_flag, silent) = match &send {
            InFlight::Quick { buf, completes, .. } => (buf, libc::MSG_DONTWAIT, !completes),
            InFlight::Waiting(buf) => (buf, 0, false),
            InFlight::None => return,
        };
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        let Some(socket) = &stream.socket else { return };
        // MSG_WAITALL makes a short send a failure, so that skipping success hides none.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | wait_flag;
        let bytes = buf.as_slice();
        let len = bytes.len().min(SEND_BYTES_MAX) as u32;
        let mut entry =
            opcode::Send::new(Fd(socket.as_raw_fd()), bytes.as_ptr(), len).flags(flags).build();
        if silent {
            entry = entry.flags(Flags::SKIP_SUCCESS);
        } else {
            stream.expected += 1;
        }
        stream.in_flight = send;
        self.held_up |= stream.is_held_up();
        self.ring.push(entry.user_data(Op::Send.tag(key)));
    }

    pub(super) fn on_send(&mut self, key: Key, result: i32, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        let sent = std::mem::replace(&mut stream.in_flight, InFlight::None);
        let (mut buf, was_expected) = match sent {
            InFlight::Quick { buf, completes, .. } => (buf, completes),
            InFlight::Waiting(buf) => (buf, true),
            InFlight::None => return,
        };
        if was_expected {
            stream.expected -= 1;
        }
        match result {
            bytes if bytes >= 0 => {
                self.counters.sent.add(1);
                buf.advance(bytes as usize);
            }
            error if error == -libc::EAGAIN => self.counters.eagain.add(1),
            // A send that waited in a worker thread was interrupted: nothing was sent.
            error if error == -libc::EINTR => {}
            error => stream.queued.fail(-error, wakes),
        }
        if !buf.is_empty() && !stream.queued.failed() && stream.socket.is_some() {
            self.counters.short_sends.add(1);
            stream.queued.detach();
            self.push_send(key, InFlight::Waiting(buf.detach()));
            return;
        }
        self.after_send(key, wakes);
        self.remove_if_done(key);
    }

    /// The send in flight is over: the next, or FIN, or the close, and whoever waits.
    pub(super) fn after_send(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        if stream.queued.has_room(0) {
            stream.queued.waiters.wake(wakes);
        }
        match stream.queued.pop() {
            Some(next) => self.send_quick(key, next),
            None => {
                self.send_fin_if_due(key);
                self.close_if_flushed(key);
            }
        }
    }

    pub(crate) fn poll_flushed(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        let polled = stream.queued.poll_flushed(cx, stream.in_flight.is_none());
        self.held_up |= stream.is_held_up();
        polled
    }

    pub(crate) fn finish(&mut self, key: Key) {
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key)
            && stream.queued.fin == Fin::No
        {
            stream.queued.fin = Fin::Queued;
            self.held_up |= stream.is_held_up();
            self.send_fin_if_due(key);
        }
    }

    pub(super) fn send_fin_if_due(&mut self, key: Key) {
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key)
            && stream.in_flight.is_none()
            && stream.queued.is_fin_due()
            && let Some(socket) = &stream.socket
        {
            stream.queued.fin = Fin::Sent;
            self.counters.syscalls.add(1);
            // Fails only when the connection is gone, which the receiving side reports.
            let _reported_by_recv = sys::shutdown_write(socket.as_raw_fd());
        }
    }
}

/// Closing and cancelling.
impl UringDriver {
    pub(crate) fn wake_waiters(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => {
                stream.received.waiters.wake(wakes);
                stream.queued.waiters.wake(wakes);
            }
            Some(Entry::Listener(listener)) => listener.waiters.wake(wakes),
            Some(Entry::Udp(udp)) => udp.wake_waiters(wakes),
            Some(Entry::Wake(_)) | None => {}
        }
    }

    pub(crate) fn fd(&self, key: Key) -> Option<RawFd> {
        match self.entries.get(key)? {
            Entry::Stream(stream) => stream.socket.as_ref().map(AsRawFd::as_raw_fd),
            Entry::Listener(listener) => listener.socket.as_ref().map(AsRawFd::as_raw_fd),
            Entry::Udp(udp) => udp.socket.as_ref().map(|socket| socket.owned.as_raw_fd()),
            Entry::Wake(_) => None,
        }
    }

    pub(crate) fn discard(&mut self, key: Key) {
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
            stream.queued.fail(libc::ECANCELED, &mut Vec::new());
        }
    }

    pub(crate) fn close(&mut self, key: Key) {
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => {
                stream.closing = true;
                if stream.must_linger() {
                    self.held_up |= stream.is_held_up();
                    self.lingering.push(key);
                } else {
                    self.abandon(key);
                }
            }
            Some(Entry::Udp(udp)) => {
                udp.closing = true;
                if udp.must_linger() {
                    self.held_up |= udp.is_held_up();
                    self.lingering.push(key);
                } else {
                    self.abandon(key);
                }
            }
            Some(Entry::Listener(_)) => self.close_listener(key),
            Some(Entry::Wake(_)) | None => {}
        }
    }

    /// Cancels the accept and closes the socket, at once, because a listening socket is also the
    /// claim to its port: who drops a listener may bind the next one before the driver's turn.
    fn close_listener(&mut self, key: Key) {
        self.cancel_all(key);
        // An accept or a cancel that the kernel has not taken yet names the descriptor: then, as
        // with a submission thread, the slot keeps it until its last completion.
        if self.entries.get(key).is_some()
            && self.ring.enter(Enter::Collect, None).is_ok()
            && self.ring.all_submitted()
            && let Some(Entry::Listener(listener)) = self.entries.get_mut(key)
        {
            listener.socket = None;
        }
    }

    pub(super) fn close_if_flushed(&mut self, key: Key) {
        let flushed = match self.entries.get(key) {
            Some(Entry::Stream(stream)) => stream.closing && !stream.must_linger(),
            Some(Entry::Udp(udp)) => udp.has_lingered(),
            _ => false,
        };
        if flushed {
            self.abandon(key);
        }
    }

    /// Cancels what is with the kernel and then closes the descriptor, in one submission. The
    /// order matters: an armed receive holds the file, and close(2) alone would send no FIN.
    pub(super) fn abandon(&mut self, key: Key) {
        if matches!(self.entries.get(key), Some(Entry::Udp(_))) {
            return self.abandon_udp(key);
        }
        self.cancel_all(key);
        if !self.torn_down
            && let Some(Entry::Stream(stream)) = self.entries.get_mut(key)
            && let Some(socket) = stream.socket.take()
        {
            // What is still queued, when the linger limit has passed, has nowhere to go: a send
            // that ends from now on must find nothing to go on with, so that the slot gets free.
            stream.queued.fail(libc::ECANCELED, &mut Vec::new());
            let entry = opcode::Close::new(Fd(socket.into_raw_fd())).build();
            let entry = if self.features.skip_success {
                entry.flags(Flags::SKIP_SUCCESS)
            } else {
                stream.expected += 1;
                entry
            };
            self.ring.push(entry.user_data(Op::Close.tag(key)));
        }
        self.remove_if_done(key);
    }

    /// Asks the kernel to end every operation of a slot; their completions still come.
    pub(super) fn cancel_all(&mut self, key: Key) {
        let mut cancels: [Option<Op>; 3] = [None; 3];
        match self.entries.get_mut(key) {
            Some(Entry::Wake(wake)) => cancels[0] = wake.armed.then_some(Op::Wake),
            Some(Entry::Listener(listener)) => {
                listener.closing = true;
                listener.accepted.clear();
                cancels[0] = listener.armed.then_some(Op::Accept);
                listener.expected += u32::from(listener.armed);
            }
            Some(Entry::Stream(stream)) => {
                stream.closing = true;
                cancels[0] = stream.receive.armed.then_some(Op::Receive);
                cancels[1] = match stream.in_flight {
                    InFlight::Waiting(_) => Some(Op::Send),
                    _ => stream.connecting.is_some().then_some(Op::Connect),
                };
                cancels[2] = stream.awaits_room.then_some(Op::Room);
                stream.expected += cancels.iter().flatten().count() as u32;
            }
            Some(Entry::Udp(_)) => return self.cancel_all_of_udp(key),
            None => {}
        }
        cancels.into_iter().flatten().for_each(|op| self.push_cancel(key, op));
        self.remove_if_done(key);
    }

    /// Cancels one operation; the cancel itself completes too, found or not, and its slot has to
    /// expect that.
    pub(super) fn push_cancel(&mut self, key: Key, op: Op) {
        self.push_cancel_of(key, op.tag(key));
    }

    pub(super) fn push_cancel_of(&mut self, key: Key, user_data: u64) {
        let entry = opcode::AsyncCancel::new(user_data).build();
        self.ring.push(entry.user_data(Op::Cancel.tag(key)));
    }

    /// The completion of a cancel or of a close that reports.
    pub(super) fn on_bookkeeping(&mut self, key: Key) {
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => stream.expected -= 1,
            Some(Entry::Listener(listener)) => listener.expected -= 1,
            Some(Entry::Udp(udp)) => udp.expected -= 1,
            Some(Entry::Wake(_)) | None => {}
        }
        self.remove_if_done(key);
    }

    /// Frees the slot of a closed socket after its last completion.
    pub(super) fn remove_if_done(&mut self, key: Key) {
        let done = match self.entries.get(key) {
            Some(Entry::Stream(stream)) => {
                // A silent quick send is over only when it was settled.
                let silent = matches!(stream.in_flight, InFlight::Quick { completes: false, .. });
                let closed = stream.socket.is_none() || self.torn_down;
                stream.closing && closed && stream.expected == 0 && !silent
            }
            Some(Entry::Listener(listener)) => listener.closing && listener.expected == 0,
            Some(Entry::Udp(udp)) => udp.is_done(),
            Some(Entry::Wake(wake)) => self.torn_down && !wake.armed,
            None => false,
        };
        if done && let Some(Entry::Udp(udp)) = self.entries.remove(key) {
            self.forget_udp(*udp);
        }
    }
}

/// Being woken by other threads.
impl UringDriver {
    pub(super) fn arm_wake(&mut self, key: Key) {
        let Some(Entry::Wake(wake)) = self.entries.get_mut(key) else { return };
        wake.armed = true;
        let entry = opcode::PollAdd::new(Fd(wake.eventfd), libc::POLLIN as u32)
            .multi(self.features.multishot)
            .build();
        self.ring.push(entry.user_data(Op::Wake.tag(key)));
    }

    pub(super) fn on_wake(&mut self, key: Key, flags: u32) {
        self.signalled = true;
        if cqueue::more(flags) {
            return;
        }
        if let Some(Entry::Wake(wake)) = self.entries.get_mut(key) {
            wake.armed = false;
        }
        if self.torn_down {
            self.remove_if_done(key);
        } else {
            // A poll that is armed anew reports a level. A signal that came in after its inbox
            // was emptied (the waker notes first and signals then) would end every wait from now
            // on. Nothing is lost with it: the worker looks at the note before it waits.
            if let Some(Entry::Wake(wake)) = self.entries.get(key) {
                // SAFETY: the worker keeps its eventfd open longer than its driver.
                sys::eventfd_clear(unsafe { BorrowedFd::borrow_raw(wake.eventfd) });
            }
            self.arm_wake(key);
        }
    }
}
