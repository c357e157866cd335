//! Sending a file: pieces that are sent by a system call, bypassing the queue of the stream.
//!
//! This is the same on both engines, which differ in how they wait for free space. sendfile(2)
//! waits for the peer unless the socket is O_NONBLOCK. Accepted sockets always are; on io_uring,
//! one that was connected is set to it by its first file. Operations of the ring still wait, because the
//! ring considers the flags of each receive and send instead.

use crate::counters::Counters;
use crate::driver::common::set_nonblocking;
use crate::sys;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The next piece to send.
#[derive(Clone, Copy)]
pub(crate) enum Piece<'a> {
    /// A part of a file, `len` bytes from `offset`, that is in the page cache.
    File { file: BorrowedFd<'a>, offset: u64, len: usize },
    /// Bytes, with `more` to follow.
    Bytes { bytes: &'a [u8], more: bool },
}

impl Piece<'_> {
    /// Sends as much as the socket accepts now; EAGAIN if it accepts nothing. `nonblocking`: the socket
    /// is already O_NONBLOCK.
    pub(super) fn send(
        &self,
        socket: &OwnedFd,
        nonblocking: &mut bool,
        counters: &Counters,
    ) -> io::Result<usize> {
        counters.syscalls.add(1);
        if !matches!(self, Piece::Bytes { .. }) && !*nonblocking {
            counters.syscalls.add(1);
            set_nonblocking(socket)?;
            *nonblocking = true;
        }
        let sent = match *self {
            Piece::File { file, offset, len } => {
                let sent = sys::file::send_file(socket.as_fd(), file, offset, len);
                counters.sendfiles.add(u64::from(sent.is_ok()));
                sent
            }
            Piece::Bytes { bytes, more } => sys::send(socket.as_raw_fd(), bytes, more),
        };
        match &sent {
            Ok(_) => counters.sent.add(1),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => counters.eagain.add(1),
            Err(_) => {}
        }
        sent
    }
}
