//! The eventfd(2) that wakes a worker; its driver watches it.

use crate::sys;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(super) fn new() -> io::Result<EventFd> {
        sys::eventfd().map(EventFd)
    }

    pub(crate) fn signal(&self) {
        sys::eventfd_signal(self.0.as_fd());
    }

    pub(super) fn clear(&self) {
        sys::eventfd_clear(self.0.as_fd());
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
