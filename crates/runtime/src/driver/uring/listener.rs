//! Listeners: one multishot accept, and the connections that it has accepted.

use super::{Entry, Op, Uring, UringDriver};
use crate::driver::socket;
use crate::slots::Key;
use crate::task::WaitQueue;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::task::Waker;

/// Accepted connections a listener may hold before its multishot accept is cancelled.
const ACCEPTED_MAX: usize = 1024;

/// Non-blocking for the sake of files, see `driver::pieces`.
const FLAGS: libc::c_int = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

pub(super) type Listener = socket::Listener<Uring>;

/// The state of a listener on io_uring, beside the common state.
#[derive(Default)]
pub(crate) struct Own {
    pub(super) armed: bool,
    again: bool,
    pub(super) expected: u32,
    pub(super) closing: bool,
    /// The accept was cancelled, and its last completion has not arrived.
    cancelled: bool,
    pub(super) accepted: VecDeque<io::Result<OwnedFd>>,
}

impl UringDriver {
    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> io::Result<Key> {
        let waiters = WaitQueue::default();
        let listener = Listener { socket: Some(socket), waiters, own: Own::default() };
        Ok(self.entries.insert(Entry::Listener(listener)))
    }

    pub(super) fn on_accept(&mut self, key: Key, result: i32, flags: u32, wakes: &mut Vec<Waker>) {
        let accepted = match result {
            // SAFETY: the completion of an accept hands over a new descriptor, exactly once.
            fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            error => Err(io::Error::from_raw_os_error(-error)),
        };
        let Some(Entry::Listener(listener)) = self.entries.get_mut(key) else { return };
        let own = &mut listener.own;
        if !cqueue::more(flags) {
            own.armed = false;
            own.cancelled = false;
            own.expected -= 1;
        }
        // A connection that raced with the close of its listener goes with it.
        listener.waiters.wake(wakes);
        if !own.closing && result != -libc::ECANCELED {
            own.accepted.push_back(accepted);
            if own.armed && own.accepted.len() == ACCEPTED_MAX {
                self.engine.cancel_accept(key, listener);
            }
        }
        self.remove_if_done(key);
    }
}

impl Uring {
    /// Cancels an accept, unless that was done; it begins again when a task waits for it.
    pub(super) fn cancel_accept(&mut self, key: Key, listener: &mut Listener) {
        if !std::mem::replace(&mut listener.own.cancelled, true) {
            listener.own.expected += 1;
            self.push_cancel(key, Op::Accept);
        }
    }

    pub(super) fn arm_accept(&mut self, key: Key, listener: &mut Listener) {
        let Some(socket) = listener.socket.as_ref().filter(|_| !listener.own.armed) else { return };
        let fd = Fd(socket.as_raw_fd());
        let entry = if self.features.multishot {
            opcode::AcceptMulti::new(fd).flags(FLAGS).build()
        } else {
            opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).flags(FLAGS).build()
        };
        listener.own.armed = true;
        listener.own.expected += 1;
        if self.features.multishot && std::mem::replace(&mut listener.own.again, true) {
            self.counters.rearms.add(1);
        }
        // SAFETY: the entry names no memory: the address of the peer is not asked for.
        unsafe { self.ring.push(entry.user_data(Op::Accept.tag(key))) };
    }
}
