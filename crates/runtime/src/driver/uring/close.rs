//! Closing and cancelling, whatever it is that occupies a slot.

use super::ring::Enter;
use super::stream::InFlight;
use super::{Entry, Op, UringDriver};
use crate::driver::Side;
use crate::driver::slots::Key;
use crate::task::WaitQueue;
use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::task::Waker;

impl UringDriver {
    pub(crate) fn wait_queue(&mut self, key: Key, side: Side) -> Option<&mut WaitQueue> {
        Some(match (self.entries.get_mut(key)?, side) {
            (Entry::Stream(stream), Side::Receive) => &mut stream.received.waiters,
            (Entry::Stream(stream), Side::Send) => &mut stream.queued.waiters,
            (Entry::Udp(udp), _) => udp.wait_queue(side),
            (Entry::Listener(listener), _) => &mut listener.waiters,
            (Entry::Wake(_), _) => return None,
        })
    }

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

    pub(crate) fn discard(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
            stream.queued.fail(libc::ECANCELED, wakes);
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
            // SAFETY: closing names no memory.
            unsafe { self.ring.push(entry.user_data(Op::Close.tag(key))) };
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
        // SAFETY: a cancel names no memory.
        unsafe { self.ring.push(entry.user_data(Op::Cancel.tag(key))) };
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
