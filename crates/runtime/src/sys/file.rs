//! Files: opening beneath a directory, reading, the page cache, and sendfile(2).

use super::retry_eintr;
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags};
use rustix::io::{ReadWriteFlags, retry_on_intr};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// openat2(2), Linux 5.6.
pub(crate) fn open_at(
    dir: &File,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve))?;
    Ok(File::from(opened))
}

/// Appends at most `most` bytes from `offset`. With RWF_NOWAIT (Linux 4.14) without blocking: data in the
/// page cache; EAGAIN if there is none, EOPNOTSUPP if the filesystem does not support it.
pub(crate) fn read_at(
    file: &File,
    offset: u64,
    into: &mut Vec<u8>,
    most: usize,
    flags: libc::c_int,
) -> io::Result<usize> {
    let offset = offset.try_into().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    into.reserve(most);
    let spare = &mut into.spare_capacity_mut()[..most];
    let vector = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: most };
    let read = retry_eintr(|| {
        // SAFETY: one live iovec that names exclusively borrowed memory of its length.
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset, flags) }
    })?;
    // SAFETY: the kernel has initialised `read <= most` bytes behind the old end.
    unsafe { into.set_len(into.len() + read) };
    Ok(read)
}

/// cachestat(2), the same number on every architecture that Rust runs on.
const SYS_CACHESTAT: libc::c_long = 451;

/// Where cachestat(2) is refused, one byte in this many is checked.
const PROBE_STRIDE: u64 = 16 * 1024;

/// True if `len` (more than zero) bytes from `offset` can be sent without waiting for the disk.
///
/// cachestat(2) (Linux 6.5) counts pages, including those still being read; so the last byte is
/// checked as well, which arrives last. Newer kernels allow cachestat only to processes that may
/// write to the file or own it (EPERM). Then one byte is checked in every 16 KiB: the kernel nearly
/// always reads and evicts in larger units.
pub(crate) fn is_cached(file: &File, offset: u64, len: usize) -> bool {
    let last = offset.saturating_add(len as u64 - 1);
    if !is_byte_cached(file, last) {
        return false;
    }
    let page_bytes = rustix::param::page_size() as u64;
    match cached_pages(file, offset, len as u64) {
        Some(pages) => pages > last / page_bytes - offset / page_bytes,
        None => (offset..last)
            .step_by(PROBE_STRIDE as usize)
            .all(|position| is_byte_cached(file, position)),
    }
}

fn is_byte_cached(file: &File, offset: u64) -> bool {
    let mut byte = [0];
    let into = &mut [IoSliceMut::new(&mut byte)];
    rustix::io::preadv2(file, into, offset, ReadWriteFlags::NOWAIT) == Ok(1)
}

/// Pages of a range that are in the page cache; `None` if unknown.
fn cached_pages(file: &File, offset: u64, len: u64) -> Option<u64> {
    let range = [offset, len];
    // nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted.
    let mut counts = [0u64; 5];
    let asked = retry_eintr(|| {
        // SAFETY: a live cachestat_range (two u64) and a live, exclusively borrowed cachestat
        // (five u64).
        unsafe {
            libc::syscall(
                SYS_CACHESTAT,
                file.as_raw_fd(),
                range.as_ptr(),
                counts.as_mut_ptr(),
                0u32,
            ) as isize
        }
    });
    asked.ok().map(|_| counts[0])
}

/// sendfile(2): the part of `file` that fits into the buffer of a non-blocking `socket`.
///
/// A closed connection raises SIGPIPE: sendfile has no MSG_NOSIGNAL. Rust's standard library
/// ignores that signal from the start of the program.
pub(crate) fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    mut offset: u64,
    len: usize,
) -> io::Result<usize> {
    #[cfg(feature = "faults")]
    let len = super::faults::allowed(socket.as_raw_fd(), libc::EPOLLOUT, len)?;
    Ok(retry_on_intr(|| rustix::fs::sendfile(socket, file, Some(&mut offset), len))?)
}

/// The names in an open directory, without `.` and `..` and in no order.
pub(crate) fn names(directory: &File) -> io::Result<impl Iterator<Item = io::Result<OsString>>> {
    let entries = Dir::new(directory.try_clone()?)?;
    let name =
        |entry: rustix::fs::DirEntry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
    let names = entries.map(move |entry| Ok(name(entry?)));
    Ok(names.filter(|name| !matches!(name, Ok(name) if name == "." || name == "..")))
}
