//! MSG_ZEROCOPY, as the kernel's Documentation/networking/msg_zerocopy.rst describes it: sends that
//! do not copy the bytes, and notifications, on the error queue of the socket, that the kernel does
//! not need them any more.

use super::datagram::{empty_header, set_option};
use super::retry_eintr;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

/// SO_EE_ORIGIN_ZEROCOPY and SO_EE_CODE_ZEROCOPY_COPIED of linux/errqueue.h.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// Makes a socket take MSG_ZEROCOPY: SO_ZEROCOPY, for TCP since Linux 4.14.
pub(crate) fn enable(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
}

/// As [`super::send`], but the bytes stay the kernel's until its notification. Each call that
/// sends something has a number, counted from 0.
pub(crate) fn send(socket: RawFd, bytes: &[u8], more: bool) -> io::Result<usize> {
    let more = if more { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more;
    retry_eintr(|| {
        // SAFETY: the slice is live for the call. The kernel continues to read the pages behind it,
        // on which it holds its own references, as `driver::zero_copy` explains.
        unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags) }
    })
}

/// That the kernel needs the bytes of some sends no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    /// Numbers of the first and the last of them; they wrap around.
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// The kernel copied after all.
    pub(crate) copied: bool,
}

/// Takes one message off the error queue; `Some(None)` if that is no notification, `None` if there
/// is no message.
pub(crate) fn notification(socket: RawFd) -> Option<Option<Notification>> {
    // A header, the struct sock_extended_err, and an address, which the kernel leaves empty.
    let mut control = [0u64; 16];
    let mut header = empty_header();
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header names live memory of the stated length, exclusively borrowed, and no
    // buffer for a payload.
    retry_eintr(|| unsafe { libc::recvmsg(socket, &raw mut header, flags) }).ok()?;
    // SAFETY: the kernel has filled `msg_controllen` bytes of the live control memory.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    if first.is_null() {
        return Some(None);
    }
    // SAFETY: CMSG_FIRSTHDR returns a whole header inside the control memory, aligned as that is.
    let (level, kind, len) =
        unsafe { ((*first).cmsg_level, (*first).cmsg_type, (*first).cmsg_len) };
    // SAFETY: takes a number.
    let enough = unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) } as usize;
    let is_error = (level, kind) == (libc::SOL_IP, libc::IP_RECVERR)
        || (level, kind) == (libc::SOL_IPV6, libc::IPV6_RECVERR);
    // Its integer type differs between C libraries.
    #[allow(clippy::unnecessary_cast)]
    if !is_error || (len as usize) < enough {
        return Some(None);
    }
    // SAFETY: the data is at least as long as the type, which consists of integers, and is read
    // without an assumption about its alignment.
    let error: libc::sock_extended_err =
        unsafe { libc::CMSG_DATA(first).cast::<libc::sock_extended_err>().read_unaligned() };
    let is_ours = error.ee_errno == 0 && error.ee_origin == ORIGIN_ZEROCOPY;
    Some(is_ours.then_some(Notification {
        first: error.ee_info,
        last: error.ee_data,
        copied: error.ee_code & CODE_COPIED != 0,
    }))
}
