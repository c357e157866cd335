//! Reads of files that may wait for a disk.
//!
//! A read belongs to a slot, with all memory that the kernel sees of it, until its completion. A future that
//! is dropped leaves its slot as an orphan.

use super::{Op, UringEngine};
#[cfg(debug_assertions)]
use crate::buf::quarantine::{self, Quarantined};
use crate::counters::Counters;
use crate::fs::{FileRead, Storage};
use crate::slots::{Key, Slots};
use crate::task::Waiter;
use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Reads of one worker that are with the kernel; threads do further ones.
const READS_MAX: usize = 256;

pub(super) struct Files {
    slots: Slots<PendingRead>,
    /// Those that are with the kernel; the others are complete, and their futures have not been
    /// polled.
    pub(super) in_flight: usize,
}

struct PendingRead {
    read: FileRead,
    ended: Option<io::Result<()>>,
    waker: Option<Waker>,
    abandoned: bool,
}

impl Files {
    pub(super) fn new(counters: &Arc<Counters>) -> Files {
        Files { slots: Slots::counted(counters), in_flight: 0 }
    }

    fn forget(&mut self, key: Key) {
        let forgotten = self.slots.remove(key);
        #[cfg(debug_assertions)]
        forgotten.into_iter().for_each(|slot| quarantine::add(Quarantined::Heap(slot.read.bytes)));
        #[cfg(not(debug_assertions))]
        drop(forgotten);
    }
}

impl UringEngine {
    /// Gives a read to the kernel; returns it if the ring has ended, or has enough of them.
    pub(crate) fn start_read(&mut self, mut read: FileRead) -> Result<Key, FileRead> {
        if self.torn_down || self.files.in_flight >= READS_MAX {
            return Err(read);
        }
        read.bytes.reserve(read.most);
        let into = read.bytes.spare_capacity_mut().as_mut_ptr().cast();
        let fd = Fd(read.on.file.as_raw_fd());
        let mut entry = opcode::Read::new(fd, into, read.most as u32).offset(read.offset).build();
        if read.on.storage == Storage::Elsewhere {
            // Without first trying what does not wait: a network filesystem may ask its server even
            // for that.
            entry = entry.flags(Flags::ASYNC);
        }
        let slot = PendingRead { read, ended: None, waker: None, abandoned: false };
        let key = self.files.slots.insert(slot);
        self.files.in_flight += 1;
        self.counters.file_operations.add(1);
        // SAFETY: the slot owns the memory that the entry names until the completion; a slot whose future
        // is gone is kept for that.
        unsafe { self.ring.push(entry.user_data(Op::FILE.tag(key))) };
        Ok(key)
    }

    /// A read, and how it has ended; `None` if the ring has ended first.
    pub(crate) fn poll_read(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<Option<(FileRead, io::Result<()>)>> {
        let Some(slot) = self.files.slots.get_mut(key) else { return Poll::Ready(None) };
        let Some(ended) = slot.ended.take() else {
            waiter.store(&mut slot.waker);
            return Poll::Pending;
        };
        Poll::Ready(self.files.slots.remove(key).map(|slot| (slot.read, ended)))
    }

    /// The future was dropped. A read that is with the kernel is cancelled, if possible.
    pub(crate) fn abandon_read(&mut self, key: Key) -> Option<Waker> {
        let slot = self.files.slots.get_mut(key)?;
        let waker = slot.waker.take();
        if slot.ended.is_some() {
            self.files.forget(key);
        } else if !std::mem::replace(&mut slot.abandoned, true) {
            let cancel = opcode::AsyncCancel::new(Op::FILE.tag(key)).build();
            // SAFETY: a cancel names no memory.
            unsafe { self.ring.push_uncounted(cancel) };
        }
        waker
    }

    pub(super) fn abandon_files(&mut self, wakes: &mut Vec<Waker>) {
        let keys = self.files.slots.keys();
        keys.into_iter().for_each(|key| wakes.extend(self.abandon_read(key)));
    }

    pub(super) fn on_file(&mut self, key: Key, result: i32, wakes: &mut Vec<Waker>) {
        let Some(slot) = self.files.slots.get_mut(key) else { return };
        let bytes = &mut slot.read.bytes;
        let ended = match usize::try_from(result) {
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
            Ok(read) => {
                // SAFETY: the kernel has initialised `read <= most` bytes behind the old end, where
                // `start_read` has reserved `most`; nothing touched the vector since.
                unsafe { bytes.set_len(bytes.len() + read) };
                Ok(())
            }
        };
        slot.ended = Some(ended);
        wakes.extend(slot.waker.take());
        self.files.in_flight -= 1;
        if slot.abandoned {
            self.files.forget(key);
        }
    }
}
