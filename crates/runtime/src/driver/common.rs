//! What all engines have in common.

use crate::confine::Uses;
use crate::counters::Counters;
use crate::sys::socket::SockRef;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// What a driver gets from its worker.
pub(crate) struct DriverSetup {
    /// Becomes readable when another thread wakes this worker; lives longer than the driver.
    pub(crate) wake_fd: RawFd,
    /// The operations that the kernel is to restrict a ring to.
    pub(crate) confined: Option<Uses>,
    pub(crate) counters: Arc<Counters>,
    /// How long a closed stream may go on sending what is queued.
    pub(crate) linger: Duration,
}

/// The side of a socket that a future waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    /// Incoming: bytes, datagrams, connections.
    Receive,
    /// Outgoing: free space, the end of the queue, a connection that is being made.
    Send,
}

/// Different sizes and numbers of buffers that the datagram sockets of a worker may ask for in all: their
/// memory lives as long as the worker.
const GEOMETRIES_MAX: usize = 63;

pub(super) fn check_geometries(count: usize) -> io::Result<()> {
    if count < GEOMETRIES_MAX {
        return Ok(());
    }
    Err(io::Error::other(
        "the sockets of this worker use too many different buffer sizes and counts (63): choose \
         one of those in use",
    ))
}

/// The error of an operation on a socket that the driver no longer has.
pub(super) fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

/// The errno inside an I/O error; EIO for one that has none, which no system call returns.
pub(crate) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Makes the close of a stream that has unsent data a reset: after FIN the peer would take the data
/// that it got for all of it.
pub(super) fn reset_on_close(socket: &OwnedFd) {
    // Fails only when the connection has ended, and then there is no peer to inform.
    let _connection_has_ended = SockRef::from(&socket.as_fd()).set_linger(Some(Duration::ZERO));
}
