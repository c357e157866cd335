//! Files are those of the real filesystem. In a world, descriptors for them may run out as for
//! sockets, reading takes time, and files may end early.

use super::{ask, real};
use crate::sys::faults::Fault;
use crate::sys::faults::calls::{self, Way};
use crate::sys::machine::world;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

pub(crate) use super::real::file::*;

/// Bytes of a file that are read per microsecond: 2 GB/s. If that took no time, a program that
/// reads in a loop would copy hundreds of gigabytes in a simulated second.
const READ_BYTES_PER_US: u64 = 2_000;

/// Bytes of a file that are sent to a simulated socket at once.
const CHUNK_BYTES: usize = 64 * 1024;

pub(crate) fn open_at(dir: BorrowedFd<'_>, path: &CStr, how: &OpenHow) -> io::Result<OwnedFd> {
    // Open files are not counted.
    if let Some(machine) = world::machine()
        && let Ok(mut kernel) = machine.kernel.try_borrow_mut()
    {
        kernel.may_have_descriptor()?;
    }
    real::file::open_at(dir, path, how)
}

/// True if a fault lets a file end here.
fn ends_early() -> bool {
    world::machine().is_some_and(|machine| {
        let kernel = machine.kernel.try_borrow_mut();
        kernel.is_ok_and(|mut kernel| kernel.dice.strikes(Fault::FileTruncated))
    })
}

pub(crate) fn has_read(bytes: usize) {
    if let Some(machine) = world::machine() {
        machine.clock.set(machine.clock.get() + bytes as u64 * 1_000 / READ_BYTES_PER_US);
    }
}

pub(crate) fn read_at(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut Vec<u8>,
    most: usize,
) -> io::Result<usize> {
    if ends_early() {
        return Ok(0);
    }
    real::file::read_at(file, offset, into, most).inspect(|bytes| has_read(*bytes))
}

pub(crate) fn read_cached(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut Vec<u8>,
    most: usize,
) -> io::Result<usize> {
    real::file::read_cached(file, offset, into, most).inspect(|bytes| has_read(*bytes))
}

pub(crate) fn read_into(file: BorrowedFd<'_>, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    real::file::read_into(file, offset, into).inspect(|bytes| has_read(*bytes))
}

pub(crate) fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    len: usize,
) -> io::Result<usize> {
    if world::machine_of(socket.as_raw_fd()).is_none() {
        let len = calls::allowed(socket.as_raw_fd(), Way::Out, len)?;
        return real::file::send_file(socket, file, offset, len);
    }
    let mut bytes = Vec::new();
    if read_at(file, offset, &mut bytes, len.min(CHUNK_BYTES))? == 0 {
        return Ok(0);
    }
    let sent = ask(socket.as_raw_fd(), |kernel, socket| kernel.send_for_engine(socket, &bytes));
    sent.unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EBADF)))
}
