//! Files: opening beneath a directory, status, reading, the page cache, and sendfile(2).

use super::retry_eintr;
use std::ffi::{CStr, OsString};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;

/// `struct open_how` of openat2(2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenHow {
    pub(crate) flags: u64,
    pub(crate) mode: u64,
    pub(crate) resolve: u64,
}

/// openat2(2), Linux 5.6.
pub(crate) fn open_at(dir: BorrowedFd<'_>, path: &CStr, how: &OpenHow) -> io::Result<OwnedFd> {
    let fd = retry_eintr(|| {
        // SAFETY: the path is terminated, and the open_how live and of the size passed; the
        // kernel only reads them.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_openat2,
                dir.as_raw_fd(),
                path.as_ptr(),
                std::ptr::from_ref(how),
                size_of::<OpenHow>(),
            )
        };
        fd as isize
    })?;
    // SAFETY: openat2 returned a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Opens a directory for opening files beneath it (O_PATH); follows symbolic links.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    OpenOptions::new().read(true).custom_flags(flags).open(path).map(OwnedFd::from)
}

/// The result of statx(2). A separate type because libc's has no `Default`.
#[derive(Clone, Copy)]
pub(crate) struct Status(libc::statx);

impl Status {
    pub(crate) fn new() -> Status {
        // SAFETY: statx consists of integers, for which zero is a value.
        Status(unsafe { std::mem::zeroed() })
    }

    /// Where the kernel writes to.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::statx {
        &raw mut self.0
    }

    pub(crate) fn get(&self) -> &libc::statx {
        &self.0
    }

    pub(crate) fn device(&self) -> u64 {
        libc::makedev(self.0.stx_dev_major, self.0.stx_dev_minor)
    }
}

/// The requested fields: those of stat(2).
pub(crate) const STATUS_MASK: u32 = libc::STATX_BASIC_STATS;

/// The status of an open file. `flags` may add AT_STATX_DONT_SYNC, which avoids a call to a file
/// server.
pub(crate) fn status(file: BorrowedFd<'_>, flags: i32) -> io::Result<Status> {
    let mut status = Status::new();
    retry_eintr(|| {
        // SAFETY: an empty, terminated path and one live, exclusively borrowed statx.
        unsafe {
            libc::syscall(
                libc::SYS_statx,
                file.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH | flags,
                STATUS_MASK,
                status.as_mut_ptr(),
            ) as isize
        }
    })?;
    Ok(status)
}

/// The type of the filesystem that holds a file: the magic numbers of statfs(2).
pub(crate) fn filesystem_type(file: BorrowedFd<'_>) -> io::Result<i64> {
    // SAFETY: statfs consists of integers, for which zero is a value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: one live, exclusively borrowed statfs.
    retry_eintr(|| unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) } as isize)?;
    // Its integer type differs between architectures.
    #[allow(clippy::unnecessary_cast)]
    Ok(found.f_type as i64)
}

/// Appends at most `most` bytes from `offset`, blocking on the disk.
pub(crate) fn read_at(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut Vec<u8>,
    most: usize,
) -> io::Result<usize> {
    read_with_flags(file, offset, into, most, 0)
}

/// The same without blocking: data in the page cache; EAGAIN if there is none, EOPNOTSUPP if the
/// filesystem does not support it (RWF_NOWAIT, Linux 4.14).
pub(crate) fn read_cached(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut Vec<u8>,
    most: usize,
) -> io::Result<usize> {
    read_with_flags(file, offset, into, most, libc::RWF_NOWAIT)
}

fn read_with_flags(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut Vec<u8>,
    most: usize,
    flags: libc::c_int,
) -> io::Result<usize> {
    let offset = file_offset(offset)?;
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

fn file_offset(offset: u64) -> io::Result<libc::off_t> {
    offset.try_into().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
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
pub(crate) fn is_cached(file: BorrowedFd<'_>, offset: u64, len: usize) -> bool {
    let last = offset.saturating_add(len as u64 - 1);
    if !is_byte_cached(file, last) {
        return false;
    }
    match cached_pages(file, offset, len as u64) {
        Some(pages) => pages > last / page_bytes() - offset / page_bytes(),
        None => (offset..last)
            .step_by(PROBE_STRIDE as usize)
            .all(|position| is_byte_cached(file, position)),
    }
}

fn is_byte_cached(file: BorrowedFd<'_>, offset: u64) -> bool {
    let Ok(offset) = file_offset(offset) else { return false };
    let mut byte = 0u8;
    let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let read = retry_eintr(|| {
        // SAFETY: one live iovec that names one live byte.
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset, libc::RWF_NOWAIT) }
    });
    read.is_ok_and(|bytes| bytes == 1)
}

/// Pages of a range that are in the page cache; `None` if unknown.
fn cached_pages(file: BorrowedFd<'_>, offset: u64, len: u64) -> Option<u64> {
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

fn page_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    // SAFETY: no memory is passed.
    *BYTES.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64)
}

/// sendfile(2): the part of `file` that fits into the buffer of a non-blocking `socket`.
///
/// A closed connection raises SIGPIPE: sendfile has no MSG_NOSIGNAL. Rust's standard library
/// ignores that signal from the start of the program.
pub(crate) fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    len: usize,
) -> io::Result<usize> {
    let mut offset = file_offset(offset)?;
    retry_eintr(|| {
        // SAFETY: one live, exclusively borrowed offset, which the kernel advances.
        unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, len) }
    })
}

/// Calls `visit` with the names in an open directory, without `.` and `..` and in no order, until
/// it returns false.
pub(crate) fn visit_names(
    directory: BorrowedFd<'_>,
    mut visit: impl FnMut(OsString) -> io::Result<bool>,
) -> io::Result<()> {
    const BUFFER_BYTES: usize = 32 * 1024;
    let mut buffer = vec![0u8; BUFFER_BYTES];
    loop {
        let filled = retry_eintr(|| {
            // SAFETY: live, exclusively borrowed memory of the length passed.
            unsafe {
                libc::syscall(
                    libc::SYS_getdents64,
                    directory.as_raw_fd(),
                    buffer.as_mut_ptr(),
                    buffer.len(),
                ) as isize
            }
        })?;
        if filled == 0 {
            return Ok(());
        }
        let mut entries = &buffer[..filled];
        while let Some((name, rest)) = next_name(entries) {
            let is_ours = name != b"." && name != b"..";
            if is_ours && !visit(OsString::from_vec(name.to_vec()))? {
                return Ok(());
            }
            entries = rest;
        }
    }
}

/// The first name in a buffer of `struct linux_dirent64`, and the rest: inode and offset (8 bytes
/// each), length of the entry (2), type (1), the name and a zero.
fn next_name(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    const NAME_AT: usize = 19;
    let length = u16::from_ne_bytes(entries.get(16..18)?.try_into().ok()?);
    let (entry, rest) = entries.split_at_checked(usize::from(length))?;
    let name = CStr::from_bytes_until_nul(entry.get(NAME_AT..)?).ok()?;
    Some((name.to_bytes(), rest))
}
