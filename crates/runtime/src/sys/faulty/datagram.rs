//! Datagram calls that handle fewer messages than they could.

use super::calls::{self, Way};
use super::real;
use std::io;
use std::os::fd::RawFd;

pub(crate) use super::real::datagram::*;

/// # Safety
/// As for the real one.
pub(crate) unsafe fn recvmmsg(socket: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let headers = calls::part(socket, Way::In, headers)?;
    // SAFETY: the obligation is the caller's.
    unsafe { real::datagram::recvmmsg(socket, headers) }
}

/// # Safety
/// As for the real one.
pub(crate) unsafe fn sendmmsg(socket: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let headers = calls::part(socket, Way::Out, headers)?;
    // SAFETY: the obligation is the caller's.
    unsafe { real::datagram::sendmmsg(socket, headers) }
}
