//! Closing and cancelling, for every kind of slot.

use super::ring::Enter;
use super::{Op, UringEngine};
use crate::driver::sockets::{Sockets, Source};
use crate::slots::Key;
use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::os::fd::IntoRawFd;

impl UringEngine {
    /// Cancels what is with the kernel and then closes the descriptor, in one submission. The
    /// order matters: an armed receive holds the file, and close(2) alone would send no FIN.
    ///
    /// A listener and a datagram socket are closed at once, because they also hold a port: a program may
    /// drop one and bind the next before the driver's turn.
    #[inline(never)]
    pub(in crate::driver) fn abandon(&mut self, sockets: &mut Sockets, key: Key) {
        self.cancel_all(sockets, key);
        if let Some((stream, wakes)) = sockets.stream(key) {
            let stream = &mut *stream.borrow_mut();
            if !self.torn_down
                && let Some(socket) = stream.socket.take()
            {
                // Data that is still queued when the linger limit has passed is dropped: a send that
                // ends from now on must find nothing to continue with, so that the slot becomes free.
                stream.sending.fail(libc::ECANCELED, wakes);
                let entry = opcode::Close::new(Fd(socket.into_raw_fd())).build();
                let entry = entry.flags(Flags::SKIP_SUCCESS);
                // SAFETY: closing names no memory.
                unsafe { self.ring.push(entry.user_data(Op::CLOSE.tag(key))) };
            }
        } else if sockets.sources.get(key).is_some()
            && self.ring.enter(Enter::Collect, None).is_ok()
            && self.ring.all_submitted()
        {
            // An operation or a cancel that was not submitted yet refers to the descriptor: then, as with
            // a submission thread, the slot keeps it until its last completion.
            match sockets.sources.get_mut(key) {
                Some(Source::Listener(listener)) => listener.socket = None,
                Some(Source::Udp(udp)) => udp.socket = None,
                _ => {}
            }
        }
        self.remove_if_done(sockets, key);
    }

    /// Asks the kernel to end every operation of a slot; their completions still come.
    pub(super) fn cancel_all(&mut self, sockets: &mut Sockets, key: Key) {
        match sockets.sources.get_mut(key) {
            Some(Source::Listener(listener)) => {
                listener.uring.closing = true;
                listener.uring.accepted.clear();
                if listener.uring.armed {
                    self.cancel_accept(key, listener);
                }
            }
            Some(Source::Stream(stream)) => {
                let stream = &mut *stream.borrow_mut();
                stream.sending.closing = true;
                self.await_sent(stream);
                let connecting = stream.uring.connecting.is_some().then_some(Op::CONNECT);
                let cancels = [
                    stream.receiving.state.is_armed().then_some(Op::RECEIVE),
                    stream.uring.reporting.is_some().then_some(Op::SEND).or(connecting),
                    stream.sending.awaits_room.then_some(Op::WRITABLE),
                ];
                for op in cancels.into_iter().flatten() {
                    stream.uring.expected += 1;
                    self.push_cancel(key, op);
                }
            }
            Some(Source::Udp(udp)) => self.cancel_all_of_udp(key, udp),
            None => {}
        }
        self.remove_if_done(sockets, key);
    }

    pub(super) fn on_bookkeeping(&mut self, sockets: &mut Sockets, key: Key) {
        match sockets.sources.get_mut(key) {
            Some(Source::Stream(stream)) => stream.borrow_mut().uring.expected -= 1,
            Some(Source::Listener(listener)) => listener.uring.expected -= 1,
            Some(Source::Udp(udp)) => udp.uring.cancels -= 1,
            None => {}
        }
        self.remove_if_done(sockets, key);
    }

    pub(super) fn remove_if_done(&mut self, sockets: &mut Sockets, key: Key) {
        let done = match sockets.sources.get(key) {
            Some(Source::Stream(stream)) => stream.borrow_mut().is_done(self),
            Some(Source::Listener(listener)) => {
                listener.uring.closing && listener.uring.expected == 0
            }
            Some(Source::Udp(udp)) => udp.is_done(),
            None => false,
        };
        let removed = if done { sockets.remove(key) } else { None };
        if let Some(Source::Udp(udp)) = removed {
            self.groups.get(udp.group).pending -= udp.setup.options.pending as usize;
        }
    }

    /// Cancels one operation; the cancel itself completes too, found or not, and its slot has to
    /// expect that.
    pub(super) fn push_cancel(&mut self, key: Key, op: Op) {
        let entry = opcode::AsyncCancel::new(op.tag(key)).build();
        // SAFETY: a cancel names no memory.
        unsafe { self.ring.push(entry.user_data(Op::CANCEL.tag(key))) };
    }
}
