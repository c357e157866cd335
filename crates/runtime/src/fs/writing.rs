//! Writing files. Every write may wait for a disk, so it is done by a thread, on both engines.

use super::{Dir, File, Symlinks};
use crate::sys::file as sys;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

/// Permissions of created files, from which the umask of the process is taken.
const MODE: u64 = 0o666;

/// What [`Dir::create_file`] does with a file that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// EEXIST.
    New,
    /// It becomes empty.
    Truncate,
    /// It stays as it is.
    Keep,
}

impl Dir {
    /// Opens the file at `path` (relative) beneath the directory for reading and writing, and creates
    /// it if it does not exist; directories are not created.
    ///
    /// # Errors
    /// As [`open_file`](Dir::open_file); EEXIST with [`Create::New`].
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn create_file(
        &self,
        path: &Path,
        symlinks: Symlinks,
        create: Create,
    ) -> io::Result<File> {
        let existing = match create {
            Create::New => libc::O_EXCL,
            Create::Truncate => libc::O_TRUNC,
            Create::Keep => 0,
        };
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK | libc::O_NOCTTY | existing;
        let mut how = symlinks.how(flags);
        how.mode = MODE;
        self.open_with(path, how).await
    }
}

impl File {
    /// Writes all bytes at `offset`. They are then in the page cache, and on the disk after
    /// [`sync`](File::sync). If the future is dropped, all, a part or none of them are written:
    /// a thread that has begun continues.
    ///
    /// # Errors
    /// Those of pwrite(2): EBADF if the file is not from [`Dir::create_file`], ENOSPC and so on, with
    /// a part perhaps written. EISDIR and ESPIPE as for [`read_at`](File::read_at).
    pub async fn write_at(&self, offset: u64, bytes: impl Into<Vec<u8>>) -> io::Result<()> {
        self.check_readable(offset)?;
        let bytes = bytes.into();
        self.on_thread(move |file| sys::write_all_at(file, offset, &bytes)).await
    }

    /// Cuts the file at `len` bytes, or extends it by zeros.
    ///
    /// # Errors
    /// Those of ftruncate(2); as for [`write_at`](File::write_at).
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_readable(len)?;
        self.on_thread(move |file| sys::set_len(file, len)).await
    }

    /// Waits until what was written is on the disk (fsync(2)). A new name is on the disk only after a
    /// sync of its directory.
    ///
    /// # Errors
    /// Those of fsync(2); EIO reports a write that has failed since.
    pub async fn sync(&self) -> io::Result<()> {
        self.on_thread(sys::sync).await
    }

    /// Works on the file with a thread that may block.
    async fn on_thread(
        &self,
        work: impl FnOnce(BorrowedFd<'_>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        self.worker.counters.file_jobs.add(1);
        let handle = Arc::clone(&self.handle);
        let done = self.worker.blocking().run(move || work(handle.fd.as_fd())).await;
        // What was known of the file may have changed.
        self.looked.set(None);
        done?
    }
}
