//! MSG_ZEROCOPY on sockets of a simulated machine: it copies, and reports that some time later.

use super::{ask, real};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

pub(crate) use super::real::zero_copy::*;

pub(crate) fn enable(socket: BorrowedFd<'_>) -> io::Result<()> {
    ask(socket.as_raw_fd(), |_, _| Ok(())).unwrap_or_else(|| real::zero_copy::enable(socket))
}

pub(crate) fn send(socket: RawFd, bytes: &[u8], more: bool) -> io::Result<usize> {
    let sent = ask(socket, |kernel, socket| kernel.send_zero_copy(socket, bytes));
    sent.unwrap_or_else(|| real::zero_copy::send(socket, bytes, more))
}

pub(crate) fn notification(socket: RawFd) -> Option<Option<Notification>> {
    match ask(socket, |kernel, socket| Ok(kernel.notification(socket))) {
        Some(taken) => taken
            .ok()
            .flatten()
            .map(|(first, last)| Some(Notification { first, last, copied: true })),
        None => real::zero_copy::notification(socket),
    }
}
