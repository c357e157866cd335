//! Operations on files that may wait for a disk.
//!
//! An operation belongs to a slot, with all memory that the kernel sees of it, until its
//! completion. A future that is dropped leaves its slot as an orphan, and a file that the operation
//! opens is closed at the completion.

use super::{Op, Uring};
#[cfg(debug_assertions)]
use crate::buf::quarantine::{self, Quarantined};
use crate::driver::common::closed;
use crate::fs::handle::Storage;
use crate::fs::operation::{FileOp, Start, WARM_BYTES, What};
use crate::slots::{Key, Slots};
use crate::sys::Mapping;
use crate::sys::file::STATUS_MASK;
use crate::task::{WaitQueue, WaitToken, Waiter};
use io_uring::opcode;
use io_uring::squeue::{Entry as Submission, Flags};
use io_uring::types::Fd;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::task::{Poll, Waker};

/// Operations of one worker that are with the kernel; further ones wait in their tasks.
const OPERATIONS_MAX: usize = 256;

/// The operations of one worker.
pub(super) struct Files {
    slots: Slots<Slot>,
    /// Those that are with the kernel; the others are complete, and their futures have not been
    /// polled.
    in_flight: usize,
    waiters: WaitQueue,
    /// The destination of reads that only fill the page cache. The kernel writes here for any
    /// number of reads at once, and the content is never used.
    bin: Option<Mapping>,
}

struct Slot {
    op: Box<FileOp>,
    ended: Option<io::Result<usize>>,
    waker: Option<Waker>,
    abandoned: bool,
}

impl Files {
    pub(super) fn new() -> Files {
        Files { slots: Slots::new(), in_flight: 0, waiters: WaitQueue::default(), bin: None }
    }

    /// Operations that have not ended, or whose futures have not seen it.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// True when the kernel holds nothing of ours.
    pub(super) fn is_drained(&self) -> bool {
        self.in_flight == 0
    }

    /// True if an operation has to wait for others. FIFO: newcomers queue behind waiters, which are
    /// woken when half the capacity is free.
    fn is_full(&self) -> bool {
        let least = if self.waiters.is_empty() { OPERATIONS_MAX } else { OPERATIONS_MAX / 2 + 1 };
        self.in_flight >= least
    }

    /// Frees an operation without a future, with its memory.
    pub(super) fn forget(&mut self, key: Key) {
        let forgotten = self.slots.remove(key);
        #[cfg(debug_assertions)]
        forgotten.into_iter().for_each(|slot| quarantine::add(Quarantined::Heap(slot.op.bytes)));
        #[cfg(not(debug_assertions))]
        drop(forgotten);
    }

    /// The submission for an operation. Its memory is that of the operation, which has to stay in
    /// place until the completion, or the bin's.
    fn submission(&mut self, op: &mut FileOp) -> io::Result<Submission> {
        let fd = Fd(op.on.fd.as_raw_fd());
        let entry = match op.what {
            What::Open => {
                opcode::OpenAt2::new(fd, op.path.as_ptr(), (&raw const op.how).cast()).build()
            }
            What::Status => {
                let into = op.status.as_mut_ptr().cast();
                opcode::Statx::new(fd, c"".as_ptr(), into)
                    .flags(libc::AT_EMPTY_PATH)
                    .mask(STATUS_MASK)
                    .build()
            }
            What::Read => {
                op.bytes.reserve(op.len);
                let into = op.bytes.spare_capacity_mut().as_mut_ptr().cast();
                opcode::Read::new(fd, into, op.len as u32).offset(op.offset).build()
            }
            What::Warm => {
                let bin = match &self.bin {
                    Some(bin) => bin,
                    None => self.bin.insert(Mapping::new(WARM_BYTES)?),
                };
                let into = bin.start().as_ptr();
                opcode::Read::new(fd, into, op.len as u32).offset(op.offset).build()
            }
        };
        // Without first trying a lookup that does not wait: a network filesystem may ask its server
        // even for that.
        let elsewhere = op.on.storage == Storage::Elsewhere;
        Ok(if elsewhere { entry.flags(Flags::ASYNC) } else { entry })
    }
}

impl Uring {
    pub(crate) fn start_file(&mut self, mut op: Box<FileOp>, waiter: &mut Waiter<'_>) -> Start {
        if self.torn_down {
            return Start::NoRing(op);
        }
        if self.files.is_full() {
            self.files.waiters.add(waiter);
            return Start::Full(op);
        }
        self.files.waiters.leave(waiter);
        // There is no memory for the bin: a thread has its own.
        let Ok(entry) = self.files.submission(&mut op) else { return Start::NoRing(op) };
        let slot = Slot { op, ended: None, waker: Some(waiter.waker()), abandoned: false };
        let key = self.files.slots.insert(slot);
        self.files.in_flight += 1;
        self.counters.file_operations.add(1);
        // SAFETY: the slot owns the memory that the entry names, boxed, until the completion; a slot
        // whose future is gone is kept for that. The bin lives as long as the driver.
        unsafe { self.ring.push(entry.user_data(Op::File.tag(key))) };
        Start::OnRing(key)
    }

    pub(crate) fn poll_file(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<(Box<FileOp>, io::Result<usize>)>> {
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
                Poll::Ready(slot.map(|slot| (slot.op, ended)).ok_or_else(closed))
            }
        }
    }

    /// The future was dropped. An operation that is with the kernel is cancelled, if possible.
    pub(crate) fn abandon_file(&mut self, key: Key) -> Option<Waker> {
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

    /// The same for one that found no room.
    pub(crate) fn forget_file(&mut self, token: &mut WaitToken) -> Option<Waker> {
        self.files.waiters.remove(token)
    }

    pub(super) fn abandon_files(&mut self, wakes: &mut Vec<Waker>) {
        self.files.waiters.wake(wakes);
        let keys = self.files.slots.keys();
        keys.into_iter().for_each(|key| wakes.extend(self.abandon_file(key)));
    }

    pub(super) fn on_file(&mut self, key: Key, result: i32, wakes: &mut Vec<Waker>) {
        let Some(slot) = self.files.slots.get_mut(key) else { return };
        let op = &mut slot.op;
        let ended = match result {
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            fd if op.what == What::Open => {
                // SAFETY: the completion of an open hands over a new descriptor, exactly once.
                op.opened = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                Ok(0)
            }
            bytes if op.what == What::Read => {
                // SAFETY: the kernel has initialised `bytes <= op.len` bytes behind the old end,
                // where `submission` has reserved `op.len`; nothing touched the vector since.
                unsafe { op.bytes.set_len(op.bytes.len() + bytes as usize) };
                Ok(bytes as usize)
            }
            bytes => Ok(bytes as usize),
        };
        slot.ended = Some(ended);
        wakes.extend(slot.waker.take());
        if slot.abandoned {
            self.files.forget(key);
        }
        self.files.in_flight -= 1;
        if self.files.in_flight == OPERATIONS_MAX / 2 {
            self.files.waiters.wake(wakes);
        }
    }
}
