//! Seeded faults between the kernel and the engines, for tests: the calls of `real` that may do
//! less than they could, refuse, or report later and reordered. A kernel may do all of that.
//!
//! Only in builds with the feature `faults`, and only with TWINRING_FAULTS in the environment.
//! Against a real kernel a seed repeats the faults, not the timing.

mod calls;
pub(crate) mod datagram;
mod dice;
pub(crate) mod file;
mod operations;
pub(crate) mod poll;
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
    calls::may_accept(listener)?;
    real::accept(listener)
}
