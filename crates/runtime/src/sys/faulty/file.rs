//! sendfile(2) that sends less than it could.

use super::calls::{self, Way};
use super::real;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

pub(crate) use super::real::file::*;

pub(crate) fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    len: usize,
) -> io::Result<usize> {
    let len = calls::allowed(socket.as_raw_fd(), Way::Out, len)?;
    real::file::send_file(socket, file, offset, len)
}
