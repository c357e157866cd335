//! Options of sockets, and calls of datagram sockets, that no wrapper library in use offers.

use super::retry_eintr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let (fd, bytes) = (socket.as_raw_fd(), size_of_val(&value) as libc::socklen_t);
    retry_eintr(|| {
        // SAFETY: a live c_int and its exact size are passed.
        unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), bytes) as isize }
    })
    .map(drop)
}

/// Reads an option that is an array of 32-bit numbers; words that the kernel does not fill stay 0.
pub(super) fn get_option<const N: usize>(
    socket: RawFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<[u32; N]> {
    let mut values = [0u32; N];
    let mut bytes = size_of_val(&values) as libc::socklen_t;
    retry_eintr(|| {
        let values = values.as_mut_ptr().cast();
        // SAFETY: the pointer names `bytes` live bytes, exclusively borrowed, of a type that any
        // bit pattern is valid for.
        unsafe { libc::getsockopt(socket, level, name, values, &mut bytes) as isize }
    })?;
    Ok(values)
}

/// True if the kernel cuts UDP buffers into datagrams (UDP_SEGMENT, Linux 4.18).
pub(crate) fn knows_segmentation(socket: BorrowedFd<'_>) -> bool {
    get_option::<1>(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
}

/// Packets that this socket has dropped since it was created, modulo 2^32 (SO_MEMINFO, Linux 4.12).
pub(crate) fn drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    /// Number of entries, of which the drops are the last (sock_diag.h).
    const SK_MEMINFO_VARS: usize = 9;
    let socket = socket.as_raw_fd();
    let memory = get_option::<SK_MEMINFO_VARS>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(memory[libc::SK_MEMINFO_DROPS as usize])
}

/// recvmmsg(2) without waiting: how many headers were filled, at least 1.
///
/// # Safety
/// Each header names memory (address, ancillary data, one buffer) that is valid for writes of the
/// stated lengths and has no other user during the call.
pub(crate) unsafe fn recvmmsg(socket: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    #[cfg(feature = "faults")]
    let headers = super::faults::part(socket, libc::EPOLLIN, headers)?;
    let (count, flags) = (headers.len() as libc::c_uint, libc::MSG_DONTWAIT as _);
    let no_timeout = std::ptr::null_mut();
    retry_eintr(|| {
        // SAFETY: the headers are live and exclusively borrowed; the caller guarantees the memory
        // that they name. MSG_DONTWAIT and a null timeout: the call does not block.
        unsafe { libc::recvmmsg(socket, headers.as_mut_ptr(), count, flags, no_timeout) as isize }
    })
}

/// sendmmsg(2) without waiting: how many were sent, at least 1. A later one that failed is
/// reported when it is the first of the next call.
///
/// # Safety
/// Each header names memory (address, ancillary data, buffers) that is valid for reads.
pub(crate) unsafe fn sendmmsg(socket: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    #[cfg(feature = "faults")]
    let headers = super::faults::part(socket, libc::EPOLLOUT, headers)?;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let count = headers.len() as libc::c_uint;
    retry_eintr(|| {
        // SAFETY: the headers are live and exclusively borrowed; the caller guarantees the memory
        // that they name.
        unsafe { libc::sendmmsg(socket, headers.as_mut_ptr(), count, flags as _) as isize }
    })
}

pub(crate) fn empty_header() -> libc::msghdr {
    // SAFETY: null pointers and zero lengths are a valid msghdr. (Not written as a literal: some
    // C libraries have private padding fields in it.)
    unsafe { MaybeUninit::zeroed().assume_init() }
}
