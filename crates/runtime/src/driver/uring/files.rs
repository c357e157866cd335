//! Reads of files that may wait for a disk.
//!
//! A read belongs to a slot, with all memory that the kernel sees of it, until its completion, also if the
//! future that waits for it is dropped.

use super::{Op, UringEngine};
use crate::fs::{FileRead, Storage};
use crate::slots::Key;
use crate::task::{Outcome, Promise};
use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::io;
use std::os::fd::AsRawFd;
use std::task::Waker;

/// Reads of one worker that are with the kernel; threads do further ones.
const READS_MAX: usize = 256;

/// A read that is over, and how it has ended.
type Ended = (FileRead, io::Result<()>);

pub(super) struct PendingRead {
    read: FileRead,
    promise: Promise<Ended>,
    cancelled: bool,
}

impl UringEngine {
    /// Gives a read to the kernel; returns it if the ring has ended, or has enough of them.
    pub(crate) fn start_read(&mut self, mut read: FileRead) -> Result<Outcome<Ended>, FileRead> {
        if self.torn_down {
            return Err(read);
        }
        if self.reads_in_flight >= READS_MAX {
            // Those that nobody waits for any more make room: else the clients that have left a filesystem that
            // does not answer keep all others from theirs.
            self.cancel_reads(|pending| !pending.promise.is_awaited());
            return Err(read);
        }
        read.bytes.reserve(read.most);
        let into = read.bytes.spare_capacity_mut().as_mut_ptr().cast();
        let fd = Fd(read.on.file().as_raw_fd());
        let mut entry = opcode::Read::new(fd, into, read.most as u32).offset(read.offset).build();
        if read.on.storage == Storage::Elsewhere {
            // Without first trying what does not wait: a network filesystem may ask its server even
            // for that.
            entry = entry.flags(Flags::ASYNC);
        }
        let (outcome, promise) = Outcome::new();
        let key = self.reads.insert(PendingRead { read, promise, cancelled: false });
        self.reads_in_flight += 1;
        self.counters.file_operations.add(1);
        // SAFETY: the slot owns the memory that the entry names until the completion.
        unsafe { self.ring.push(entry.user_data(Op::FILE.tag(key))) };
        Ok(outcome)
    }

    /// Asks the kernel, once, to end reads; their completions still come.
    pub(super) fn cancel_reads(&mut self, which: impl Fn(&PendingRead) -> bool) {
        for key in self.reads.keys() {
            let Some(pending) = self.reads.get_mut(key).filter(|pending| which(pending)) else {
                continue;
            };
            if std::mem::replace(&mut pending.cancelled, true) {
                continue;
            }
            let cancel = opcode::AsyncCancel::new(Op::FILE.tag(key)).build();
            // SAFETY: a cancel names no memory.
            unsafe { self.ring.push_uncounted(cancel) };
        }
    }

    pub(super) fn on_file(&mut self, key: Key, result: i32, wakes: &mut Vec<Waker>) {
        let Some(PendingRead { mut read, promise, .. }) = self.reads.remove(key) else { return };
        self.reads_in_flight -= 1;
        let ended = match usize::try_from(result) {
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
            Ok(bytes) => {
                // SAFETY: the kernel has initialised `bytes <= most` bytes behind the old end, where
                // `start_read` has reserved `most`; nothing touched the vector since.
                unsafe { read.bytes.set_len(read.bytes.len() + bytes) };
                Ok(())
            }
        };
        #[cfg(debug_assertions)]
        if !promise.is_awaited() {
            use crate::buf::quarantine::{Quarantined, add};
            return add(Quarantined::Heap(read.bytes));
        }
        wakes.extend(promise.end(Ok((read, ended))));
    }
}
