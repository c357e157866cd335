//! Reads of files that may wait for a disk.
//!
//! A read belongs to a slot, with all memory that the kernel sees of it, until its completion. A future that
//! is dropped leaves its slot as an orphan.

use super::{Op, Uring};
#[cfg(debug_assertions)]
use crate::buf::quarantine::{self, Quarantined};
use crate::counters::Counters;
use crate::driver::common::closed;
use crate::fs::{FileRead, Start, Storage};
use crate::slots::{Key, Slots};
use crate::task::{WaitQueue, WaitToken, Waiter};
use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Reads of one worker that are with the kernel; further ones wait in their tasks.
const READS_MAX: usize = 256;

/// The reads of one worker.
pub(super) struct Files {
    slots: Slots<Slot>,
    /// Those that are with the kernel; the others are complete, and their futures have not been
    /// polled.
    in_flight: usize,
    waiters: WaitQueue,
}

struct Slot {
    read: Box<FileRead>,
    ended: Option<io::Result<()>>,
    waker: Option<Waker>,
    abandoned: bool,
}

impl Files {
    pub(super) fn new(counters: &Arc<Counters>) -> Files {
        Files { slots: Slots::counted(counters), in_flight: 0, waiters: WaitQueue::default() }
    }

    /// True when the kernel holds nothing of ours.
    pub(super) fn is_drained(&self) -> bool {
        self.in_flight == 0
    }

    /// True if a read has to wait for others. FIFO: newcomers queue behind waiters, which are
    /// woken when half the capacity is free.
    fn is_full(&self) -> bool {
        let least = if self.waiters.is_empty() { READS_MAX } else { READS_MAX / 2 + 1 };
        self.in_flight >= least
    }

    /// Frees a read without a future, with its memory.
    pub(super) fn forget(&mut self, key: Key) {
        let forgotten = self.slots.remove(key);
        #[cfg(debug_assertions)]
        forgotten.into_iter().for_each(|slot| quarantine::add(Quarantined::Heap(slot.read.bytes)));
        #[cfg(not(debug_assertions))]
        drop(forgotten);
    }
}

impl Uring {
    pub(crate) fn start_read(&mut self, mut read: Box<FileRead>, waiter: &mut Waiter<'_>) -> Start {
        if self.torn_down {
            return Start::NoRing(read);
        }
        if self.files.is_full() {
            self.files.waiters.add(waiter);
            return Start::Full(read);
        }
        self.files.waiters.leave(waiter);
        read.bytes.reserve(read.most);
        let into = read.bytes.spare_capacity_mut().as_mut_ptr().cast();
        let fd = Fd(read.on.file.as_raw_fd());
        let mut entry = opcode::Read::new(fd, into, read.most as u32).offset(read.offset).build();
        if read.on.storage == Storage::Elsewhere {
            // Without first trying what does not wait: a network filesystem may ask its server even
            // for that.
            entry = entry.flags(Flags::ASYNC);
        }
        let slot = Slot { read, ended: None, waker: Some(waiter.waker()), abandoned: false };
        let key = self.files.slots.insert(slot);
        self.files.in_flight += 1;
        self.counters.file_operations.add(1);
        // SAFETY: the slot owns the memory that the entry names until the completion; a slot whose future
        // is gone is kept for that.
        unsafe { self.ring.push(entry.user_data(Op::File.tag(key))) };
        Start::OnRing(key)
    }

    pub(crate) fn poll_read(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<(Box<FileRead>, io::Result<()>)>> {
        let Some(slot) = self.files.slots.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        match slot.ended.take() {
            None => {
                waiter.store(&mut slot.waker);
                Poll::Pending
            }
            Some(ended) => {
                let slot = self.files.slots.remove(key);
                Poll::Ready(slot.map(|slot| (slot.read, ended)).ok_or_else(closed))
            }
        }
    }

    /// The future was dropped: of a read that has begun, or of one that found no room.
    pub(crate) fn forget_read(&mut self, key: Option<Key>, token: &mut WaitToken) -> Option<Waker> {
        match key {
            Some(key) => self.abandon_read(key),
            None => self.files.waiters.remove(token),
        }
    }

    /// A read that is with the kernel is cancelled, if possible.
    fn abandon_read(&mut self, key: Key) -> Option<Waker> {
        let slot = self.files.slots.get_mut(key)?;
        let waker = slot.waker.take();
        if slot.ended.is_some() {
            self.files.forget(key);
        } else if !std::mem::replace(&mut slot.abandoned, true) {
            let cancel = opcode::AsyncCancel::new(Op::File.tag(key)).build();
            // SAFETY: a cancel names no memory.
            unsafe { self.ring.push_uncounted(cancel) };
        }
        waker
    }

    pub(super) fn abandon_files(&mut self, wakes: &mut Vec<Waker>) {
        self.files.waiters.wake(wakes);
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
        if slot.abandoned {
            self.files.forget(key);
        }
        self.files.in_flight -= 1;
        if self.files.in_flight == READS_MAX / 2 {
            self.files.waiters.wake(wakes);
        }
    }
}
