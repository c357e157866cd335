//! Files beneath a directory, for services that read them: confined to the directory, and without
//! blocking the worker on a disk.
//!
//! Data in the kernel's caches is returned by a direct system call on both engines. Operations that
//! may wait for a disk go to the ring, or to one of a few threads on epoll. Filesystems whose
//! answers may come from elsewhere (NFS, FUSE, overlayfs, and all others than ext4, XFS, Btrfs,
//! F2FS and tmpfs) are always accessed in this second way, and so are files of another filesystem
//! that is mounted beneath the directory. Only opening one of those may block the worker on a
//! server: make the mounted directory a [`Dir`] of its own.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use std::path::Path;
//! use twinring::fs::{Dir, Symlinks};
//!
//! let root = Dir::open(Path::new("/srv/www"))?;
//! let file = root.open_file(Path::new("index.html"), Symlinks::Beneath).await?;
//! let length = file.metadata().await?.len;
//! let bytes = file.read_at(0, length as usize).await?;
//! # Ok(())
//! # }
//! ```

mod execution;
pub(crate) mod handle;
mod list;
pub(crate) mod operation;

pub use self::handle::Kind;
pub use self::list::Listed;

use self::execution::Execution;
use self::handle::{Handle, Storage};
use self::operation::FileOp;
use crate::runtime::{Worker, current};
use crate::sys::file::{self as sys, OpenHow, Status};
use std::cell::Cell;
use std::ffi::{CString, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read at once, at most 32 times between two turns of other tasks.
const READ_BYTES_MAX: usize = 128 * 1024;

/// Bytes that were in the page cache this recently are assumed to be there still: the kernel first
/// evicts pages that were unused for long. If not, the worker waits for the disk, once.
const CACHED_FOR: Duration = Duration::from_millis(10);

/// How often opening is retried while directories on the path are renamed, see RESOLVE_BENEATH in
/// openat2(2).
const OPEN_ATTEMPTS: usize = 16;

// Constants of openat2(2), for `resolve`.
const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
const RESOLVE_NO_SYMLINKS: u64 = 0x04;
const RESOLVE_BENEATH: u64 = 0x08;
const RESOLVE_CACHED: u64 = 0x20;

/// Whether symbolic links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// A path with a symbolic link anywhere in it is refused (ELOOP).
    Refuse,
    /// Followed as long as they stay beneath the directory; a link out of it is refused (EXDEV).
    /// Absolute links always lead out of it.
    Beneath,
}

impl Symlinks {
    /// Always beneath the directory, and never through /proc's magic links.
    fn how(self, flags: i32) -> OpenHow {
        let policy = if self == Symlinks::Refuse { RESOLVE_NO_SYMLINKS } else { 0 };
        let resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | policy;
        OpenHow { flags: (flags | libc::O_CLOEXEC) as u64, mode: 0, resolve }
    }
}

/// A moment of the wall clock, as files carry it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// Nanoseconds into that second.
    pub nanoseconds: u32,
}

impl Timestamp {
    fn of(at: libc::statx_timestamp) -> Timestamp {
        Timestamp { seconds: at.tv_sec, nanoseconds: at.tv_nsec }
    }
}

/// The metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Length in bytes.
    pub len: u64,
    /// When its content was last modified (mtime; programs can set it).
    pub modified: Timestamp,
    /// When content or metadata last changed (ctime; only the kernel sets it).
    pub changed: Timestamp,
    /// The device that holds the file.
    pub device: u64,
    /// The file's number on its device.
    pub inode: u64,
    /// Its kind.
    pub kind: Kind,
}

impl Metadata {
    fn of(status: &Status) -> Metadata {
        let found = status.get();
        Metadata {
            len: found.stx_size,
            modified: Timestamp::of(found.stx_mtime),
            changed: Timestamp::of(found.stx_ctime),
            device: status.device(),
            inode: found.stx_ino,
            kind: match u32::from(found.stx_mode) & libc::S_IFMT {
                libc::S_IFREG => Kind::File,
                libc::S_IFDIR => Kind::Directory,
                _ => Kind::Other,
            },
        }
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, without the directory.
    pub name: OsString,
    /// Its kind; for a symbolic link that is followed, that of its target.
    pub kind: Kind,
    /// Length in bytes.
    pub len: u64,
    /// When its content was last modified.
    pub modified: Timestamp,
}

/// A directory, opened at start: the only way to files, confined to what is beneath it. Cheap to
/// clone, and usable on every worker.
#[derive(Clone, Debug)]
pub struct Dir {
    handle: Arc<Handle>,
}

impl Dir {
    /// Opens a directory; symbolic links in `path` itself are followed. Blocks on the disk, so call
    /// it at the start of a program.
    ///
    /// # Errors
    /// Those of open(2); ENOTDIR; a specific error if openat2(2) is refused, without which there is
    /// no safe way to open files beneath it.
    pub fn open(path: &Path) -> io::Result<Dir> {
        let fd = sys::open_directory(path)?;
        // Docker's profile of before 2020 knew no openat2, and answered EPERM.
        let trial = sys::open_at(fd.as_fd(), c".", &Symlinks::Refuse.how(libc::O_PATH));
        if let Err(error) = trial
            && matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
        {
            let why = format!(
                "openat2(2) is refused ({error}): it needs Linux 5.6 and a seccomp profile that \
                 allows it"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let storage = Storage::of(fd.as_fd())?;
        let Metadata { device, kind, .. } = Metadata::of(&sys::status(fd.as_fd(), 0)?);
        Ok(Dir { handle: Arc::new(Handle { fd, storage, device, kind }) })
    }

    /// Opens the file at `path` (relative) beneath the directory, for reading. A FIFO or a device
    /// is opened without waiting for its other end; check [`Metadata::kind`] before reading.
    ///
    /// # Errors
    /// Those of openat2(2): EXDEV if the path leads out of the directory, ELOOP for a symbolic link
    /// that is not followed and for magic links, ENOENT, EACCES, EMFILE and so on. EAGAIN, which is
    /// caused by concurrent renames of directories, only after several attempts.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn open_file(&self, path: &Path, symlinks: Symlinks) -> io::Result<File> {
        self.open_with(path, symlinks.how(libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)).await
    }

    async fn open_with(&self, path: &Path, how: OpenHow) -> io::Result<File> {
        let worker = current();
        let path = terminated(path)?;
        if self.handle.storage != Storage::Elsewhere {
            worker.counters.syscalls.add(1);
            let cached = OpenHow { resolve: how.resolve | RESOLVE_CACHED, ..how };
            match sys::open_at(self.handle.fd.as_fd(), &path, &cached) {
                // EINVAL: RESOLVE_CACHED is of Linux 5.12.
                Err(error) if is_one_of(&error, &[libc::EAGAIN, libc::EINVAL]) => {}
                opened => return self.file(worker, opened?),
            }
        }
        for _ in 1..OPEN_ATTEMPTS {
            match self.open_waiting(&worker, path.clone(), how).await {
                Err(error) if is_one_of(&error, &[libc::EAGAIN]) => {}
                opened => return self.file(worker, opened?),
            }
        }
        let fd = self.open_waiting(&worker, path, how).await?;
        self.file(worker, fd)
    }

    async fn open_waiting(
        &self,
        worker: &Rc<Worker>,
        path: CString,
        how: OpenHow,
    ) -> io::Result<OwnedFd> {
        let op = FileOp::open(&self.handle, path, how);
        let (op, ended) = Execution::new(worker, op).await?;
        ended?;
        op.opened.ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
    }

    fn file(&self, worker: Rc<Worker>, fd: OwnedFd) -> io::Result<File> {
        worker.counters.syscalls.add(1);
        // Another filesystem may be mounted here. This flag avoids a call to its server.
        let status = sys::status(fd.as_fd(), libc::AT_STATX_DONT_SYNC)?;
        let Metadata { device, kind, .. } = Metadata::of(&status);
        let ours = device == self.handle.device;
        let storage = if ours { self.handle.storage } else { Storage::Elsewhere };
        let handle = Arc::new(Handle { fd, storage, device, kind });
        Ok(File {
            worker,
            handle,
            refuses_sendfile: Cell::new(false),
            looked: Cell::new(None),
            cached: Cell::new(None),
        })
    }
}

fn terminated(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path contains a zero byte"))
}

fn is_one_of(error: &io::Error, errnos: &[i32]) -> bool {
    error.raw_os_error().is_some_and(|errno| errnos.contains(&errno))
}

/// An open file of the current worker. Tasks may share it in an [`Rc`]; dropping it closes it, when
/// operations that use it are over.
pub struct File {
    worker: Rc<Worker>,
    handle: Arc<Handle>,
    /// sendfile(2) does not support it.
    pub(crate) refuses_sendfile: Cell<bool>,
    /// Its last metadata, and the round of the worker in which they were read.
    looked: Cell<Option<(u64, Metadata)>>,
    /// The part that was in the page cache last, and when.
    cached: Cell<Option<(u64, u64, Instant)>>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl File {
    /// The current metadata.
    ///
    /// # Errors
    /// Those of statx(2).
    pub async fn metadata(&self) -> io::Result<Metadata> {
        if let Some(metadata) = self.metadata_at_once() {
            return metadata;
        }
        let op = FileOp::status(&self.handle);
        let (op, ended) = Execution::new(&self.worker, op).await?;
        ended?;
        Ok(Metadata::of(&op.status))
    }

    /// Like [`metadata`](File::metadata), but all calls until the worker next waits share the
    /// result of the first one. For answers to requests that have arrived: nearly always, they had
    /// arrived when the file was checked. (An exception are bytes that epoll's receive finds behind
    /// those of the event.) `None` if the filesystem may have to call a server: use `metadata`
    /// then.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn recent_metadata(&self) -> Option<io::Result<Metadata>> {
        match self.looked.get() {
            Some((round, metadata)) if round == self.worker.round() => Some(Ok(metadata)),
            _ => self.metadata_at_once(),
        }
    }

    fn metadata_at_once(&self) -> Option<io::Result<Metadata>> {
        if self.handle.storage == Storage::Elsewhere {
            return None;
        }
        self.worker.counters.syscalls.add(1);
        let metadata = sys::status(self.handle.fd.as_fd(), 0).map(|status| Metadata::of(&status));
        if let Ok(metadata) = metadata {
            self.looked.set(Some((self.worker.round(), metadata)));
        }
        Some(metadata)
    }

    /// Reads `len` bytes from `offset`; fewer only at the end of the file. Memory grows with the
    /// bytes read, so a large `len` costs nothing by itself.
    ///
    /// # Errors
    /// Those of preadv2(2); EISDIR for a directory, ESPIPE for everything else that is not a
    /// regular file: reading a FIFO or a device may block for ever.
    pub async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let most = (len - bytes.len()).min(READ_BYTES_MAX);
            let at = offset.saturating_add(bytes.len() as u64);
            let before = bytes.len();
            bytes = self.append(at, bytes, most).await?;
            if bytes.len() == before {
                break;
            }
        }
        Ok(bytes)
    }

    /// Reads at least one byte behind `bytes`, or none at the end of the file.
    async fn append(&self, offset: u64, mut bytes: Vec<u8>, most: usize) -> io::Result<Vec<u8>> {
        let handle = &self.handle;
        self.check_readable(offset)?;
        let file = handle.fd.as_fd();
        if handle.storage != Storage::Elsewhere {
            self.worker.executor.spend_or_yield().await;
            self.worker.counters.syscalls.add(1);
            let read = match handle.storage {
                Storage::Memory => sys::read_at(file, offset, &mut bytes, most),
                _ => sys::read_cached(file, offset, &mut bytes, most),
            };
            match read {
                // Kernels 5.9 and 5.10 returned 0 for uncached data.
                Ok(0) if !self.ends_before(offset)? => {}
                Err(error) if is_one_of(&error, &[libc::EAGAIN, libc::EOPNOTSUPP]) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(bytes),
            }
        }
        let op = FileOp::read(handle, offset, bytes, most);
        let (op, ended) = Execution::new(&self.worker, op).await?;
        ended?;
        Ok(op.bytes)
    }

    /// Rejects arguments that the ring treats differently from pread(2): an offset of -1 is the
    /// position of the descriptor there, and a FIFO blocks.
    fn check_readable(&self, offset: u64) -> io::Result<()> {
        let refusal = match self.handle.kind {
            Kind::Directory => libc::EISDIR,
            Kind::Other => libc::ESPIPE,
            Kind::File if i64::try_from(offset).is_err() => libc::EINVAL,
            Kind::File => return Ok(()),
        };
        Err(io::Error::from_raw_os_error(refusal))
    }

    fn ends_before(&self, offset: u64) -> io::Result<bool> {
        self.worker.counters.syscalls.add(1);
        let status = sys::status(self.handle.fd.as_fd(), 0)?;
        Ok(offset >= status.get().stx_size)
    }

    /// True if sendfile(2) and other blocking calls may be used.
    pub(crate) fn may_sendfile(&self) -> bool {
        self.handle.storage != Storage::Elsewhere && !self.refuses_sendfile.get()
    }

    /// True if `len` (more than zero) bytes from `offset` can be sent without waiting.
    pub(crate) fn is_cached(&self, offset: u64, len: usize) -> bool {
        if self.handle.storage == Storage::Memory {
            return true;
        }
        let (end, now) = (offset.saturating_add(len as u64), Instant::now());
        if let Some((from, to, at)) = self.cached.get()
            && (from <= offset && end <= to)
            && now.saturating_duration_since(at) < CACHED_FOR
        {
            return true;
        }
        // Nearly always two: see there.
        self.worker.counters.syscalls.add(2);
        let is_cached = sys::is_cached(self.handle.fd.as_fd(), offset, len);
        if is_cached {
            self.cached.set(Some((offset, end, now)));
        }
        is_cached
    }

    /// Brings bytes into the page cache, as far as the file has them.
    pub(crate) async fn warm(&self, offset: u64, len: usize) -> io::Result<()> {
        self.check_readable(offset)?;
        let mut done = 0;
        while done < len {
            let op = FileOp::warm(&self.handle, offset + done as u64, len - done);
            let (_, ended) = Execution::new(&self.worker, op).await?;
            match ended? {
                0 => break,
                bytes => done += bytes,
            }
        }
        Ok(())
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.handle.fd.as_fd()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A file of this machine is closed here, so that its descriptor is free for the next one.
        // Closing a remote one may call a server: a thread then drops the last handle, unless the
        // queue is full, in which case the job drops it here.
        if self.handle.storage == Storage::Elsewhere && Arc::strong_count(&self.handle) == 1 {
            let last = Arc::clone(&self.handle);
            let _closed_anyhow = self.worker.blocking().run_detached(Box::new(move || drop(last)));
        }
        self.worker.wake_descriptor_waiters();
    }
}
