//! Listeners: one multishot accept, and the connections that it brought.

use super::{Entry, Op, UringDriver};
use crate::driver::closed;
use crate::driver::slots::Key;
use crate::task::{WaitQueue, Waiter};
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::task::{Poll, Waker};

/// Accepted connections a listener may hold before its multishot accept is cancelled.
const ACCEPTED_MAX: usize = 1024;

/// Non-blocking for the sake of files, see `driver::pieces`.
const FLAGS: libc::c_int = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

pub(super) struct Listener {
    /// Empty once it was closed.
    pub(super) socket: Option<OwnedFd>,
    pub(super) armed: bool,
    pub(super) again: bool,
    pub(super) expected: u32,
    pub(super) closing: bool,
    pub(super) accepted: VecDeque<io::Result<OwnedFd>>,
    pub(super) waiters: WaitQueue,
}

impl UringDriver {
    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> io::Result<Key> {
        let listener = Listener {
            socket: Some(socket),
            armed: false,
            again: false,
            expected: 0,
            closing: false,
            accepted: VecDeque::new(),
            waiters: WaitQueue::default(),
        };
        Ok(self.entries.insert(Entry::Listener(listener)))
    }

    pub(crate) fn poll_accept(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<OwnedFd>> {
        let Some(Entry::Listener(listener)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        if let Some(accepted) = listener.accepted.pop_front() {
            return Poll::Ready(accepted);
        }
        listener.waiters.add(waiter);
        if !listener.armed
            && let Some(socket) = &listener.socket
        {
            let fd = Fd(socket.as_raw_fd());
            let entry = if self.features.multishot {
                opcode::AcceptMulti::new(fd).flags(FLAGS).build()
            } else {
                opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(FLAGS)
                    .build()
            };
            listener.armed = true;
            listener.expected += 1;
            if self.features.multishot && std::mem::replace(&mut listener.again, true) {
                self.counters.rearms.add(1);
            }
            // SAFETY: the entry names no memory: the address of the peer is not asked for.
            unsafe { self.ring.push(entry.user_data(Op::Accept.tag(key))) };
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
