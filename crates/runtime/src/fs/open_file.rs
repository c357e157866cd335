//! Open files and directories, where their content comes from, and the threads for what may wait for that.

use super::{Kind, Metadata};
use crate::runtime::{Worker, with_current};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Where the content of a file comes from, and so which calls may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// From memory (swap aside): no call blocks.
    Memory,
    /// From a disk of this machine, through the page cache: the kernel answers at once or reports
    /// that it cannot.
    Disk,
    /// From elsewhere: any call may block.
    Elsewhere,
}

impl Storage {
    pub(super) fn of(directory: &File) -> io::Result<Storage> {
        // Magic numbers of statfs(2) and of the kernel's linux/magic.h.
        Ok(match rustix::fs::fstatfs(directory)?.f_type as u32 {
            // tmpfs, ramfs
            0x0102_1994 | 0x8584_58f6 => Storage::Memory,
            // ext2 to ext4, XFS, Btrfs, F2FS: those that support RWF_NOWAIT.
            0xef53 | 0x5846_5342 | 0x9123_683e | 0xf2f5_2010 => Storage::Disk,
            _ => Storage::Elsewhere,
        })
    }
}

/// An open file or directory; closed when its last user drops it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// There until this is dropped.
    pub(super) file: Option<File>,
    pub(crate) storage: Storage,
    pub(super) device: u64,
    pub(super) kind: Kind,
}

impl OpenFile {
    pub(crate) fn file(&self) -> &File {
        self.file.as_ref().expect("closed by its drop alone")
    }

    /// A file that was opened beneath this directory. Asks the server of a remote one.
    pub(super) fn beneath(&self, file: File) -> io::Result<OpenFile> {
        let Metadata { device, kind, .. } = Metadata::of(&file)?;
        // Another filesystem may be mounted there.
        let storage = if device == self.device { self.storage } else { Storage::Elsewhere };
        Ok(OpenFile { file: Some(file), storage, device, kind })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // A file of this machine is closed here, so that its descriptor is free for the next one. Closing a remote
        // one may call a server, which a worker leaves to a thread.
        if self.storage == Storage::Elsewhere {
            let file = self.file.take();
            with_current(|worker| worker.shared.remote.drop_there(file));
        }
    }
}

/// Work that may wait for a disk or a server, on a thread.
pub(super) async fn on_thread<T: Send + 'static>(
    worker: &Worker,
    storage: Storage,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    worker.counters.file_jobs.add(1);
    let shared = &worker.shared;
    let threads = if storage == Storage::Elsewhere { &shared.remote } else { &shared.blocking };
    threads.run(work).await?
}

/// A read that may wait: at most `most` bytes from `offset` are appended to `bytes`. It belongs to the ring
/// or to a thread until it is over, never to a future.
pub(crate) struct FileRead {
    /// Kept open until then.
    pub(crate) on: Arc<OpenFile>,
    pub(crate) offset: u64,
    pub(crate) most: usize,
    pub(crate) bytes: Vec<u8>,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fs::{Dir, File, Symlinks};
    use crate::runtime::current;
    use std::io::{PipeReader, Read, Write};
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};
    use std::time::Duration;

    /// For a minute at most.
    fn run(test: impl Future) {
        let runtime = crate::Runtime::builder().build().unwrap();
        let ended = runtime.block_on(crate::timeout(Duration::from_secs(60), test));
        ended.unwrap().expect("in time");
    }

    /// A file of a server that does not answer before something is written.
    fn remote(pipe: PipeReader) -> File {
        let file = Some(std::fs::File::from(OwnedFd::from(pipe)));
        let (storage, device, kind) = (Storage::Elsewhere, 0, Kind::File);
        File::new(current(), OpenFile { file, storage, device, kind })
    }

    fn begin(read: Pin<&mut impl Future>) {
        assert!(read.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    /// Work for more threads than there are for such files, until the other end of the pipe is closed.
    fn occupy(worker: &Worker, pipe: &PipeReader) -> Vec<Pin<Box<impl Future>>> {
        let read = |_| {
            let mut pipe = pipe.try_clone().unwrap();
            let read = on_thread(worker, Storage::Elsewhere, move || pipe.read(&mut [0]));
            let mut read = Box::pin(read);
            begin(read.as_mut());
            read
        };
        (0..5).map(read).collect()
    }

    /// On io_uring, clients that had left kept others from their files.
    #[test]
    fn reads_that_nobody_waits_for_make_room() {
        run(async {
            let (worker, (pipe, _writer)) = (current(), io::pipe().unwrap());
            let file = remote(pipe);
            // One more than the ring takes: a thread fails with that, perhaps at once, because it is a pipe.
            for _ in 0..257 {
                let read = pin!(file.read_at(0, 1));
                let _pending_or_failed = read.poll(&mut Context::from_waker(Waker::noop()));
            }
            // A read that the kernel turns into a poll at that moment, as it does for pipes, is not cancelled.
            while worker.counters.slots_in_use.get() > 16 {
                crate::sleep(Duration::from_millis(1)).await;
            }
        });
    }

    /// Four files of a server that does not answer held up all of this machine.
    #[test]
    fn other_filesystems_do_not_wait_for_one_that_does_not_answer() {
        run(async {
            let (worker, (pipe, _writer)) = (current(), io::pipe().unwrap());
            let _stuck = occupy(&worker, &pipe);
            let here = Dir::open(Path::new("/dev/shm")).unwrap();
            here.list(Path::new("."), Symlinks::Refuse, 1).await.unwrap();
        });
    }

    /// The worker waited for the server when it had opened a file, and when the last read ended after the file was
    /// dropped.
    #[test]
    fn a_worker_does_not_wait_for_a_server() {
        run(async {
            let (worker, (pipe, _writer)) = (current(), io::pipe().unwrap());
            let calls = worker.counters.syscalls.get();
            let root = Dir::open(Path::new("/proc")).unwrap();
            drop(root.open_file(Path::new("version"), Symlinks::Refuse).await.unwrap());
            assert_eq!(worker.counters.syscalls.get(), calls);
            let _stuck = occupy(&worker, &pipe);
            let (pipe, mut writer) = io::pipe().unwrap();
            let slots = worker.counters.slots_in_use.get();
            let file = remote(pipe);
            begin(pin!(file.read_at(0, 1)));
            drop(file);
            writer.write_all(b"!").unwrap();
            while worker.counters.slots_in_use.get() > slots {
                crate::sleep(Duration::from_millis(1)).await;
            }
            // It is not closed yet: that waits for a thread.
            writer.write_all(b"!").unwrap();
        });
    }
}
