//! Seeded faults between the kernel and the engines, for tests: the calls of `real` that may do
//! less than they could, refuse, or report later and reordered. A kernel may do all of that.
//!
//! Only in builds with the feature `faults`, and only with TWINRING_FAULTS in the environment.
//! Against a real kernel a seed repeats the faults, not the timing.

mod calls;
mod dice;
pub(crate) mod ring;

pub(crate) use super::real::*;

use super::real;
use calls::Way;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

pub(crate) fn recv(socket: BorrowedFd<'_>, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    real::recv(socket, calls::part(socket.as_raw_fd(), Way::In, into)?)
}

pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    let most = calls::allowed(socket.as_raw_fd(), Way::Out, bytes.len())?;
    real::send(socket, &bytes[..most], more)
}

pub(crate) fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    calls::with(Ok(()), |faults| faults.may_accept(listener))?;
    real::accept(listener)
}

/// Datagram calls that handle fewer messages than they could.
pub(crate) mod datagram {
    use super::*;
    pub(crate) use real::datagram::*;

    /// # Safety
    /// As for the real one.
    pub(crate) unsafe fn recvmmsg(
        socket: RawFd,
        headers: &mut [libc::mmsghdr],
    ) -> io::Result<usize> {
        let headers = calls::part(socket, Way::In, headers)?;
        // SAFETY: the obligation is the caller's.
        unsafe { real::datagram::recvmmsg(socket, headers) }
    }

    /// # Safety
    /// As for the real one.
    pub(crate) unsafe fn sendmmsg(
        socket: RawFd,
        headers: &mut [libc::mmsghdr],
    ) -> io::Result<usize> {
        let headers = calls::part(socket, Way::Out, headers)?;
        // SAFETY: the obligation is the caller's.
        unsafe { real::datagram::sendmmsg(socket, headers) }
    }
}

/// sendfile(2) that sends less than it could.
pub(crate) mod file {
    use super::*;
    use std::os::fd::{AsRawFd, BorrowedFd};

    pub(crate) use real::file::*;

    pub(crate) fn send_file(
        socket: BorrowedFd<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> io::Result<usize> {
        let len = calls::allowed(socket.as_raw_fd(), Way::Out, len)?;
        real::file::send_file(socket, file, offset, len)
    }
}

/// Waits that report events later and reordered.
pub(crate) mod poll {
    use super::*;
    use std::os::fd::RawFd;
    use std::time::Duration;

    pub(crate) use real::poll::*;

    pub(crate) struct EpollSet(real::poll::EpollSet);

    impl EpollSet {
        pub(crate) fn new() -> io::Result<EpollSet> {
            let set = real::poll::EpollSet::new()?;
            calls::install();
            Ok(EpollSet(set))
        }

        pub(crate) fn add(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
            calls::with((), |faults| faults.watched(target, interest, data));
            self.0.add(target, interest, data)
        }

        pub(crate) fn modify(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
            calls::with((), |faults| faults.watched(target, interest, data));
            self.0.modify(target, interest, data)
        }

        pub(crate) fn wait(
            &self,
            events: &mut Vec<EpollEvent>,
            timeout: Option<Duration>,
        ) -> io::Result<()> {
            self.0.wait(events, calls::with(timeout, |faults| faults.patience(timeout)))?;
            calls::with((), |faults| faults.reported(events));
            Ok(())
        }
    }

    impl Drop for EpollSet {
        fn drop(&mut self) {
            calls::remove();
        }
    }
}
