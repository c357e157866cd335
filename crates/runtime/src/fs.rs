//! Files beneath a directory, for services that read them: confined to the directory, and without
//! blocking the worker on a disk.
//!
//! Data in the kernel's caches is returned by a direct system call on both engines. Reads that may wait for
//! a disk go to the ring, or to one of a few threads on epoll; opening goes to a thread. Filesystems other
//! than ext4, XFS, Btrfs, F2FS and tmpfs, which may have to call a server, are always accessed in this second
//! way, and so are files of another filesystem mounted beneath the directory. Only opening one of those may
//! block the worker on a server: make the mounted directory a [`Dir`] of its own.
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

mod open_file;

pub(crate) use open_file::{FileRead, Storage};

use self::open_file::{OpenFile, on_thread};
use crate::runtime::{Worker, current};
use crate::sys::file as sys;
use crate::task::wake_all;
use rustix::fs::{OFlags, ResolveFlags};
use std::cell::Cell;
use std::collections::BinaryHeap;
use std::ffi::OsString;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read at once, at most 32 times between two turns of other tasks.
const READ_BYTES_MAX: usize = 128 * 1024;

/// Bytes that were in the page cache this recently are assumed to be there still. If not, the worker waits
/// for the disk, once.
const CACHED_FOR: Duration = Duration::from_millis(10);

/// How often opening is retried while directories on the path are renamed, see RESOLVE_BENEATH in
/// openat2(2).
const OPEN_ATTEMPTS: usize = 16;

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A FIFO, a socket, a device.
    Other,
}

/// Whether symbolic links are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Symlinks {
    /// A path with a symbolic link anywhere in it is refused (ELOOP).
    Refuse,
    /// Followed as long as they stay beneath the directory; a link out of it is refused (EXDEV).
    /// Absolute links always lead out of it.
    #[default]
    Beneath,
}

impl Symlinks {
    /// Always beneath the directory, and never through /proc's magic links.
    fn resolve(self) -> ResolveFlags {
        let policy = match self {
            Symlinks::Refuse => ResolveFlags::NO_SYMLINKS,
            Symlinks::Beneath => ResolveFlags::empty(),
        };
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | policy
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
    fn of(file: &std::fs::File) -> io::Result<Metadata> {
        let found = file.metadata()?;
        let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds: nanoseconds as u32 };
        Ok(Metadata {
            len: found.len(),
            modified: at(found.mtime(), found.mtime_nsec()),
            changed: at(found.ctime(), found.ctime_nsec()),
            device: found.dev(),
            inode: found.ino(),
            kind: match found.file_type() {
                kind if kind.is_file() => Kind::File,
                kind if kind.is_dir() => Kind::Directory,
                _ => Kind::Other,
            },
        })
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

/// The content of a directory.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its entries, sorted by name.
    pub entries: Vec<Entry>,
    /// False if there are further names, behind the last one.
    pub is_complete: bool,
}

/// A directory, opened at start: the only way to files, confined to what is beneath it. Cheap to
/// clone, and usable on every worker. Its operations panic outside a runtime.
#[derive(Clone, Debug)]
pub struct Dir {
    handle: Arc<OpenFile>,
}

impl Dir {
    /// Opens a directory; symbolic links in `path` itself are followed. Blocks on the disk, so call
    /// it at the start of a program.
    ///
    /// # Errors
    /// Those of open(2); ENOTDIR; a specific one if openat2(2) is refused, without which there is no safe way
    /// to open files beneath it.
    pub fn open(path: &Path) -> io::Result<Dir> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        // Docker's profile of before 2020 knew no openat2, and answered EPERM.
        let trial = sys::open_at(&file, Path::new("."), OFlags::PATH, Symlinks::Refuse.resolve());
        if let Err(error) = trial
            && is_one_of(&error, &[libc::ENOSYS, libc::EPERM])
        {
            let why = format!(
                "openat2(2) is refused ({error}): it needs Linux 5.6 and a seccomp profile that \
                 allows it"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let storage = Storage::of(&file)?;
        let Metadata { device, kind, .. } = Metadata::of(&file)?;
        Ok(Dir { handle: Arc::new(OpenFile { file: Some(file), storage, device, kind }) })
    }

    /// Opens the file at `path` (relative) beneath the directory, for reading. A FIFO or a device
    /// is opened without waiting for its other end; check [`Metadata::kind`] before reading.
    ///
    /// # Errors
    /// Those of openat2(2): EXDEV if the path leads out of the directory, ELOOP for a symbolic link
    /// that is not followed and for magic links, ENOENT, EACCES, EMFILE and so on. EAGAIN, which is
    /// caused by concurrent renames of directories, only after several attempts.
    pub async fn open_file(&self, path: &Path, symlinks: Symlinks) -> io::Result<File> {
        const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
        let (worker, resolve) = (current(), symlinks.resolve());
        if self.handle.storage != Storage::Elsewhere {
            worker.counters.syscalls.add(1);
            let cached = resolve | ResolveFlags::CACHED;
            match sys::open_at(self.handle.file(), path, FLAGS, cached) {
                // EINVAL: RESOLVE_CACHED is of Linux 5.12.
                Err(error) if is_one_of(&error, &[libc::EAGAIN, libc::EINVAL]) => {}
                opened => {
                    let opened = self.handle.beneath(opened?)?;
                    worker.counters.syscalls.add(1);
                    return Ok(File::new(worker, opened));
                }
            }
        }
        let (root, path) = (Arc::clone(&self.handle), path.to_owned());
        let opening = on_thread(&worker, self.handle.storage, move || {
            let open = || sys::open_at(root.file(), &path, FLAGS, resolve);
            let renamed = |error: &io::Error| is_one_of(error, &[libc::EAGAIN]);
            let is_over = |it: &io::Result<_>| !it.as_ref().is_err_and(renamed);
            root.beneath((1..OPEN_ATTEMPTS).map(|_| open()).find(is_over).unwrap_or_else(open)?)
        });
        let opened = opening.await?;
        Ok(File::new(worker, opened))
    }

    /// The content of the directory `path` (`.` is this one), sorted by name: the first `most` names.
    /// Left out are names that [`open_file`](Dir::open_file) would refuse by its policy for
    /// symbolic links, and those that disappear meanwhile.
    pub async fn list(&self, path: &Path, symlinks: Symlinks, most: usize) -> io::Result<Listed> {
        let (root, path) = (Arc::clone(&self.handle), path.to_owned());
        let listing = move || list(root.file(), &path, symlinks, most);
        on_thread(&current(), self.handle.storage, listing).await
    }
}

/// Lists a directory beneath `root`, which may wait for a disk.
fn list(root: &std::fs::File, path: &Path, symlinks: Symlinks, most: usize) -> io::Result<Listed> {
    let resolve = symlinks.resolve();
    let directory = sys::open_at(root, path, OFlags::RDONLY | OFlags::DIRECTORY, resolve)?;
    // The first names, whatever the order of the directory; the largest of them is on top.
    let mut first = BinaryHeap::new();
    let mut is_complete = true;
    for name in sys::names(&directory)? {
        first.push(name?);
        if first.len() > most {
            first.pop();
            is_complete = false;
        }
    }
    let mut entries = Vec::with_capacity(first.len());
    for name in first.into_sorted_vec() {
        // From the root, because a link may lead out of `path` and still stay beneath the root.
        if let Ok(found) = sys::open_at(root, &path.join(&name), OFlags::PATH, resolve) {
            let Metadata { kind, len, modified, .. } = Metadata::of(&found)?;
            entries.push(Entry { name, kind, len, modified });
        }
    }
    Ok(Listed { entries, is_complete })
}

fn is_one_of(error: &io::Error, errnos: &[i32]) -> bool {
    error.raw_os_error().is_some_and(|errno| errnos.contains(&errno))
}

/// An open file of the current worker. Tasks may share it in an [`Rc`]; dropping it closes it, when
/// operations that use it are over.
#[derive(Debug)]
pub struct File {
    worker: Rc<Worker>,
    handle: Arc<OpenFile>,
    /// sendfile(2) does not support it.
    pub(crate) refuses_sendfile: Cell<bool>,
    /// Its last metadata, and the round of the worker in which they were read.
    looked: Cell<Option<(u64, Metadata)>>,
    /// The part that was in the page cache last, and when.
    cached: Cell<Option<(u64, u64, Instant)>>,
}

impl File {
    fn new(worker: Rc<Worker>, opened: OpenFile) -> File {
        let (refuses_sendfile, looked, cached) = Default::default();
        File { worker, handle: Arc::new(opened), refuses_sendfile, looked, cached }
    }

    /// The current metadata.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        if let Some(metadata) = self.metadata_at_once() {
            return metadata;
        }
        let handle = Arc::clone(&self.handle);
        on_thread(&self.worker, handle.storage, move || Metadata::of(handle.file())).await
    }

    /// Like [`metadata`](File::metadata), but all calls until the worker next waits share the result of the
    /// first one: for answers to requests that have arrived. `None` if the filesystem may have to call a
    /// server: use `metadata` then.
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
        let metadata = Metadata::of(self.handle.file());
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
            let (before, most) = (bytes.len(), (len - bytes.len()).min(READ_BYTES_MAX));
            bytes = self.append(offset.saturating_add(before as u64), bytes, most).await?;
            if bytes.len() == before {
                break;
            }
        }
        Ok(bytes)
    }

    /// Reads at least one byte behind `bytes`, or none at the end of the file.
    async fn append(&self, offset: u64, mut bytes: Vec<u8>, most: usize) -> io::Result<Vec<u8>> {
        self.check_readable(offset)?;
        let (file, storage) = (self.handle.file(), self.handle.storage);
        if storage != Storage::Elsewhere {
            self.worker.executor.spend_or_yield().await;
            self.worker.counters.syscalls.add(1);
            let flags = if storage == Storage::Memory { 0 } else { libc::RWF_NOWAIT };
            match sys::read_at(file, offset, &mut bytes, most, flags) {
                // Kernels 5.9 and 5.10 returned 0 for uncached data.
                Ok(0) if offset < Metadata::of(file)?.len => {}
                Err(error) if is_one_of(&error, &[libc::EAGAIN, libc::EOPNOTSUPP]) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(bytes),
            }
        }
        self.append_waiting(offset, bytes, most).await
    }

    /// The same for bytes that are not in memory: on the ring, or on a thread.
    async fn append_waiting(
        &self,
        offset: u64,
        bytes: Vec<u8>,
        most: usize,
    ) -> io::Result<Vec<u8>> {
        let read = FileRead { on: Arc::clone(&self.handle), offset, most, bytes };
        let worker = &*self.worker;
        let started = match worker.driver.borrow_mut().uring() {
            Some(ring) => ring.start_read(read),
            None => Err(read),
        };
        let mut read = match started {
            Err(refused) => refused,
            Ok(outcome) => match poll_fn(|cx| outcome.poll(cx)).await {
                Ok((read, Ok(()))) => return Ok(read.bytes),
                // The ring cannot wait for every file: not for one opened with O_NONBLOCK on some older
                // kernels, nor on a filesystem without non-blocking reads. A thread can.
                Ok((read, Err(error)))
                    if is_one_of(&error, &[libc::EAGAIN, libc::EOPNOTSUPP, libc::EINTR]) =>
                {
                    read
                }
                Ok((_, Err(error))) => return Err(error),
                Err(_the_ring_ended) => return Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            },
        };
        on_thread(worker, self.handle.storage, move || {
            sys::read_at(read.on.file(), read.offset, &mut read.bytes, read.most, 0)?;
            Ok(read.bytes)
        })
        .await
    }

    /// Rejects arguments that the ring treats differently from pread(2): an offset of -1 is the
    /// position of the descriptor there, and a FIFO blocks. sendfile(2) refuses such an offset as it does a file.
    pub(crate) fn check_readable(&self, offset: u64) -> io::Result<()> {
        let refusal = match self.handle.kind {
            Kind::Directory => libc::EISDIR,
            Kind::Other => libc::ESPIPE,
            Kind::File if i64::try_from(offset).is_err() => libc::EINVAL,
            Kind::File => return Ok(()),
        };
        Err(io::Error::from_raw_os_error(refusal))
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
        let is_cached = sys::is_cached(self.handle.file(), offset, len);
        if is_cached {
            self.cached.set(Some((offset, end, now)));
        }
        is_cached
    }

    /// Brings bytes into the page cache, as far as the file has them.
    pub(crate) async fn warm(&self, offset: u64, len: usize) -> io::Result<()> {
        self.check_readable(offset)?;
        let (mut done, mut bytes) = (0, Vec::new());
        while done < len {
            bytes = self.append_waiting(offset + done as u64, bytes, len - done).await?;
            if bytes.is_empty() {
                break;
            }
            done += bytes.len();
            bytes.clear();
        }
        Ok(())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.handle.file().as_fd()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        wake_all(&self.worker.descriptor_waiters);
    }
}
