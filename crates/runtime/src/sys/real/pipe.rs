//! splice(2): from a file to a socket through a pipe, which holds references to pages and no
//! copies of them.

use super::{file::file_offset, retry_eintr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A pipe with both ends in this process.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
}

impl Pipe {
    /// A pipe of `bytes`, or of the default 64 KiB if larger ones are not allowed (pipe(7): a
    /// user's share is limited by pipe-user-pages-soft).
    pub(crate) fn new(bytes: usize) -> io::Result<Pipe> {
        const DEFAULT_BYTES: usize = 64 * 1024;
        let mut ends = [0; 2];
        retry_eintr(|| {
            // SAFETY: space for two descriptors, exclusively borrowed.
            unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) as isize }
        })?;
        // SAFETY: pipe2 returned two new descriptors that have no other owner.
        let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let asked = bytes.min(i32::MAX as usize) as libc::c_int;
        let capacity = retry_eintr(|| {
            // SAFETY: no memory is passed.
            unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, asked) as isize }
        });
        Ok(Pipe { read, write, capacity: capacity.unwrap_or(DEFAULT_BYTES) })
    }

    /// Bytes it holds at most; fewer if they do not begin and end with pages.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Fills it with the file's pages; 0 at the end of the file. Waits for pages that are not in
    /// memory.
    pub(crate) fn fill(&self, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<usize> {
        let mut offset = file_offset(offset)?;
        retry_eintr(|| {
            // SAFETY: one live, exclusively borrowed offset, which the kernel advances; a pipe has
            // none.
            unsafe {
                libc::splice(
                    file.as_raw_fd(),
                    &raw mut offset,
                    self.write.as_raw_fd(),
                    std::ptr::null_mut(),
                    len,
                    libc::SPLICE_F_NONBLOCK,
                )
            }
        })
    }

    /// Moves as much as fits to a non-blocking socket; EAGAIN if nothing fits. Like sendfile(2),
    /// this raises SIGPIPE on a closed connection.
    pub(crate) fn drain(
        &self,
        socket: BorrowedFd<'_>,
        len: usize,
        more: bool,
    ) -> io::Result<usize> {
        let more = if more { libc::SPLICE_F_MORE } else { 0 };
        retry_eintr(|| {
            // SAFETY: neither end has an offset, so no memory is passed.
            unsafe {
                libc::splice(
                    self.read.as_raw_fd(),
                    std::ptr::null_mut(),
                    socket.as_raw_fd(),
                    std::ptr::null_mut(),
                    len,
                    libc::SPLICE_F_NONBLOCK | more,
                )
            }
        })
    }
}
