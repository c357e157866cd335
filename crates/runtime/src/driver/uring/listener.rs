//! Listeners: one multishot accept, and the connections that it has accepted.

use super::{Op, UringEngine};
use crate::driver::sockets::{Listener, Sockets};
use crate::slots::Key;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Accepted connections a listener may hold before its multishot accept is cancelled.
const ACCEPTED_MAX: usize = 1024;

/// Non-blocking for the sake of sendfile(2), as all sockets are. Operations of the ring wait nevertheless:
/// it considers the flags of each receive and send instead.
const FLAGS: libc::c_int = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

#[derive(Default)]
pub(crate) struct UringListener {
    pub(super) armed: bool,
    pub(super) expected: u32,
    pub(super) closing: bool,
    /// The accept was cancelled, and its last completion has not arrived.
    cancelled: bool,
    pub(in crate::driver) accepted: VecDeque<io::Result<OwnedFd>>,
}

impl UringEngine {
    pub(super) fn on_accept(&mut self, sockets: &mut Sockets, key: Key, result: i32, flags: u32) {
        let accepted = match result {
            // SAFETY: the completion of an accept hands over a new descriptor, exactly once.
            fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            error => Err(io::Error::from_raw_os_error(-error)),
        };
        let Some((listener, wakes)) = sockets.listener(key) else { return };
        let uring = &mut listener.uring;
        if !cqueue::more(flags) {
            uring.armed = false;
            uring.cancelled = false;
            uring.expected -= 1;
        }
        // A connection that raced with the close of its listener goes with it.
        listener.waiters.wake(wakes);
        if !uring.closing && result != -libc::ECANCELED {
            uring.accepted.push_back(accepted);
            if uring.armed && uring.accepted.len() == ACCEPTED_MAX {
                self.cancel_accept(key, listener);
            }
        }
        self.remove_if_done(sockets, key);
    }

    /// Cancels an accept, unless that was done; it begins again when a task waits for it.
    pub(super) fn cancel_accept(&mut self, key: Key, listener: &mut Listener) {
        if !std::mem::replace(&mut listener.uring.cancelled, true) {
            listener.uring.expected += 1;
            self.push_cancel(key, Op::ACCEPT);
        }
    }

    pub(in crate::driver) fn arm_accept(&mut self, key: Key, listener: &mut Listener) {
        let Some(socket) = listener.socket.as_ref().filter(|_| !listener.uring.armed) else {
            return;
        };
        let fd = Fd(socket.as_raw_fd());
        let entry = if self.features.multishot {
            opcode::AcceptMulti::new(fd).flags(FLAGS).build()
        } else {
            opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).flags(FLAGS).build()
        };
        listener.uring.armed = true;
        listener.uring.expected += 1;
        // SAFETY: the entry names no memory: the address of the peer is not asked for.
        unsafe { self.ring.push(entry.user_data(Op::ACCEPT.tag(key))) };
    }
}
