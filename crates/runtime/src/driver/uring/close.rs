//! Closing and cancelling, for every kind of slot.

use super::ring::Enter;
use super::stream::InFlight;
use super::{Entry, Op, Uring, UringDriver};
use crate::slots::Key;
use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::os::fd::IntoRawFd;

impl UringDriver {
    /// Cancels what is with the kernel and then closes the descriptor, in one submission. The
    /// order matters: an armed receive holds the file, and close(2) alone would send no FIN.
    pub(super) fn abandon(&mut self, key: Key) {
        match self.entries.get(key) {
            Some(Entry::Udp(_)) => return self.abandon_udp(key),
            Some(Entry::Listener(_)) => return self.close_listener(key),
            _ => self.cancel_all(key),
        }
        let engine = &mut self.engine;
        if !engine.torn_down
            && let Some(Entry::Stream(stream)) = self.entries.get_mut(key)
            && let Some(socket) = stream.socket.take()
        {
            // Data that is still queued when the linger limit has passed is dropped: a send that
            // ends from now on must find nothing to continue with, so that the slot becomes free.
            stream.sending.fail(libc::ECANCELED, &mut Vec::new());
            let entry = opcode::Close::new(Fd(socket.into_raw_fd())).build();
            let entry = entry.flags(Flags::SKIP_SUCCESS);
            // SAFETY: closing names no memory.
            unsafe { engine.ring.push(entry.user_data(Op::Close.tag(key))) };
        }
        self.remove_if_done(key);
    }

    /// Cancels the accept and closes the socket, at once, because a listening socket also holds its
    /// port: a program may drop a listener and bind the next one before the driver's turn.
    fn close_listener(&mut self, key: Key) {
        self.cancel_all(key);
        // An accept or a cancel that was not submitted yet refers to the descriptor: then, as with
        // a submission thread, the slot keeps it until its last completion.
        if self.entries.get(key).is_some()
            && self.engine.ring.enter(Enter::Collect, None).is_ok()
            && self.engine.ring.all_submitted()
            && let Some(Entry::Listener(listener)) = self.entries.get_mut(key)
        {
            listener.socket = None;
        }
    }

    /// Asks the kernel to end every operation of a slot; their completions still come.
    pub(super) fn cancel_all(&mut self, key: Key) {
        let mut cancels: [Option<Op>; 3] = [None; 3];
        match self.entries.get_mut(key) {
            Some(Entry::Wake(wake)) => cancels[0] = wake.armed.then_some(Op::Wake),
            Some(Entry::Listener(listener)) => {
                let own = &mut listener.own;
                own.closing = true;
                own.accepted.clear();
                cancels[0] = own.armed.then_some(Op::Accept);
                own.expected += u32::from(own.armed);
            }
            Some(Entry::Stream(stream)) => {
                stream.sending.close();
                let own = &mut stream.own;
                cancels[0] = own.receive.armed.then_some(Op::Receive);
                cancels[1] = match own.in_flight {
                    InFlight::Waiting(_) => Some(Op::Send),
                    _ => own.connecting.is_some().then_some(Op::Connect),
                };
                cancels[2] = stream.sending.awaits_room().then_some(Op::Writable);
                own.expected += cancels.iter().flatten().count() as u32;
            }
            Some(Entry::Udp(_)) => return self.cancel_all_of_udp(key),
            None => {}
        }
        cancels.into_iter().flatten().for_each(|op| self.engine.push_cancel(key, op));
        self.remove_if_done(key);
    }

    /// The completion of a cancel.
    pub(super) fn on_bookkeeping(&mut self, key: Key) {
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => stream.own.expected -= 1,
            Some(Entry::Listener(listener)) => listener.own.expected -= 1,
            Some(Entry::Udp(udp)) => udp.own.expected -= 1,
            Some(Entry::Wake(_)) | None => {}
        }
        self.remove_if_done(key);
    }

    /// Frees the slot of a closed socket after its last completion.
    pub(super) fn remove_if_done(&mut self, key: Key) {
        let torn_down = self.engine.torn_down;
        let done = match self.entries.get(key) {
            Some(Entry::Stream(stream)) => stream.is_done(torn_down),
            Some(Entry::Listener(listener)) => listener.own.closing && listener.own.expected == 0,
            Some(Entry::Udp(udp)) => udp.is_done(),
            Some(Entry::Wake(wake)) => torn_down && !wake.armed,
            None => false,
        };
        if done && let Some(Entry::Udp(udp)) = self.entries.remove(key) {
            self.forget_udp(*udp);
        }
    }
}

impl Uring {
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
}
