//! Wake-ups by other threads.

use super::{Op, Uring};
use crate::driver::sockets::{Entry, Sockets};
use crate::slots::Key;
use crate::sys;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::os::fd::{BorrowedFd, RawFd};

/// The poll on the worker's eventfd.
pub(crate) struct WakeWatch {
    pub(in crate::driver) eventfd: RawFd,
    pub(in crate::driver) armed: bool,
}

impl Uring {
    pub(super) fn watch_wakes(&mut self, sockets: &mut Sockets, eventfd: RawFd) {
        let key = sockets.entries.insert(Entry::Wake(WakeWatch { eventfd, armed: true }));
        self.arm_wake(key, eventfd);
    }

    fn arm_wake(&mut self, key: Key, eventfd: RawFd) {
        let entry = opcode::PollAdd::new(Fd(eventfd), libc::POLLIN as u32)
            .multi(self.features.multishot)
            .build();
        // SAFETY: a poll names no memory.
        unsafe { self.ring.push(entry.user_data(Op::Wake.tag(key))) };
    }

    pub(super) fn on_wake(&mut self, sockets: &mut Sockets, key: Key, flags: u32) {
        self.signalled = true;
        if cqueue::more(flags) {
            return;
        }
        let Some(Entry::Wake(wake)) = sockets.entries.get_mut(key) else { return };
        if self.torn_down {
            wake.armed = false;
            return self.remove_if_done(sockets, key);
        }
        // A poll that is armed again reports a level. A signal that arrived after the inbox was
        // emptied (a waker first adds to the inbox and then signals) would end every further
        // wait. Clearing it loses nothing: the worker checks the inbox after this.
        // SAFETY: the worker keeps its eventfd open longer than its driver.
        sys::eventfd_clear(unsafe { BorrowedFd::borrow_raw(wake.eventfd) });
        let eventfd = wake.eventfd;
        self.arm_wake(key, eventfd);
    }
}
