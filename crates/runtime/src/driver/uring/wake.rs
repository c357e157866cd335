//! Wake-ups by other threads.

use super::{Entry, Op, UringDriver};
use crate::slots::Key;
use crate::sys;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::os::fd::{BorrowedFd, RawFd};

/// The poll on the worker's eventfd.
pub(crate) struct WakeWatch {
    pub(super) eventfd: RawFd,
    pub(super) armed: bool,
}

impl UringDriver {
    pub(super) fn arm_wake(&mut self, key: Key) {
        let Some(Entry::Wake(wake)) = self.entries.get_mut(key) else { return };
        wake.armed = true;
        let entry = opcode::PollAdd::new(Fd(wake.eventfd), libc::POLLIN as u32)
            .multi(self.engine.features.multishot)
            .build();
        // SAFETY: a poll names no memory.
        unsafe { self.engine.ring.push(entry.user_data(Op::Wake.tag(key))) };
    }

    pub(super) fn on_wake(&mut self, key: Key, flags: u32) {
        self.engine.signalled = true;
        if cqueue::more(flags) {
            return;
        }
        if let Some(Entry::Wake(wake)) = self.entries.get_mut(key) {
            wake.armed = false;
        }
        if self.engine.torn_down {
            self.remove_if_done(key);
        } else {
            // A poll that is armed again reports a level. A signal that arrived after the inbox was
            // emptied (a waker first adds to the inbox and then signals) would end every further
            // wait. Clearing it loses nothing: the worker checks the inbox before it waits.
            if let Some(Entry::Wake(wake)) = self.entries.get(key) {
                // SAFETY: the worker keeps its eventfd open longer than its driver.
                sys::eventfd_clear(unsafe { BorrowedFd::borrow_raw(wake.eventfd) });
            }
            self.arm_wake(key);
        }
    }
}
