//! Sending on streams: a quick send that ends with its enter, and one that waits for the peer with
//! what that left.

use super::ring::Enter;
use super::stream::InFlight;
use super::{Entry, Op, UringDriver};
use crate::buf::SendBuf;
use crate::config::GATHER_MAX;
use crate::driver::closed;
use crate::driver::queues::Fin;
use crate::driver::slots::Key;
use crate::sys;
use crate::task::Waiter;
use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::io;
use std::os::fd::AsRawFd;
use std::task::{Poll, Waker};

/// Bytes of one send. The kernel cuts a longer one at 2 GiB and calls that a success; a buffer
/// above this is sent in parts, each of which completes.
const SEND_BYTES_MAX: usize = 1 << 30;

impl UringDriver {
    pub(crate) fn poll_send(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        buf: &mut Option<SendBuf>,
        more: bool,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        stream.queued.check()?;
        if !stream.queued.has_room(stream.in_flight.len()) {
            stream.queued.waiters.add(waiter);
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
        self.ungathered += 1;
        if self.ungathered >= self.features.gather && self.features.gather < GATHER_MAX {
            self.ungathered = 0;
            // What it completes is taken, and what it sent settled, after the next enter, which also
            // reports the error of a ring that is broken.
            let _reported_then = self.ring.enter(Enter::Submit, None);
        }
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
        // SAFETY: the slot owns the buffer, as `in_flight`, until the send is over.
        unsafe { self.ring.push(entry.user_data(Op::Send.tag(key))) };
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
            error => {
                stream.queued.fail(-error, wakes);
                // Who answers what was received asks for more, and not whether that was sent.
                self.look_again(key);
            }
        }
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
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

    pub(crate) fn poll_flushed(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        let polled = stream.queued.poll_flushed(waiter, stream.in_flight.is_none());
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
