//! A small ring to try operations whose effect no flag and no list of the kernel shows.

use super::Mapping;
use super::ring::{self, RingFd, Wait};
use io_uring::register::Restriction;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, Probe, cqueue, opcode};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// How long an operation may take to complete. All can complete when they are submitted, so this
/// bounds only a faulty kernel.
const ANSWER_MS_MAX: libc::c_int = 100;

const ENTRIES: u32 = 8;
const BUFFERS: u16 = 8;
const BUFFER_BYTES: usize = 64;
/// Where the buffers start: behind a page for the entries of the buffer ring.
const BUFFERS_AT: usize = 4096;
const GROUP: u16 = 0;
/// Marks the user data of accepts, whose results are descriptors.
const ACCEPT: u64 = 1 << 63;

/// An operation to try.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation<'a> {
    /// A no-op, which with `silent` posts no completion.
    Nothing { silent: bool },
    /// Accepts until cancelled.
    MultishotAccept(BorrowedFd<'a>),
    /// Receives into provided buffers until cancelled.
    MultishotRecv(BorrowedFd<'a>),
    /// Reports readability until cancelled.
    MultishotPoll(BorrowedFd<'a>),
    /// Receives into as many provided buffers as necessary.
    RecvBundle(BorrowedFd<'a>),
    /// Sends one byte without copying it.
    SendZeroCopy(BorrowedFd<'a>),
}

/// The kernel's completion of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) user_data: u64,
    pub(crate) result: i32,
    /// More completions of the same operation will follow.
    pub(crate) more: bool,
}

/// A plain ring of eight entries with a few small buffers.
pub(crate) struct TrialRing {
    uring: IoUring,
    memory: ManuallyDrop<Mapping>,
    /// Operations whose last completion has not been taken.
    unfinished: u32,
    /// User data of the last operation.
    last: u64,
}

/// Creates a disabled ring, restricts it, and enables it.
pub(crate) fn restrict_a_ring() -> io::Result<()> {
    let uring: IoUring =
        ring::charged(|| IoUring::builder().setup_r_disabled().dontfork().build(ENTRIES))?;
    let submitter = uring.submitter();
    submitter.register_restrictions(&mut [Restriction::sqe_op(opcode::Nop::CODE)])?;
    submitter.register_enable_rings()
}

impl TrialRing {
    pub(crate) fn new() -> io::Result<TrialRing> {
        let memory = Mapping::new(BUFFERS_AT + usize::from(BUFFERS) * BUFFER_BYTES)?;
        let uring = ring::charged(|| IoUring::builder().dontfork().build(ENTRIES))?;
        Ok(TrialRing { uring, memory: ManuallyDrop::new(memory), unfinished: 0, last: 0 })
    }

    /// Lists the operations that the kernel knows (Linux 5.6).
    pub(crate) fn list_operations(&self) -> io::Result<Probe> {
        let mut probe = Probe::new();
        self.uring.submitter().register_probe(&mut probe)?;
        Ok(probe)
    }

    /// Registers the ring's descriptor with this thread and unregisters it.
    pub(crate) fn register_own_descriptor(&self) -> io::Result<()> {
        match ring::register_ring_fd(self.descriptor())? {
            RingFd::Registered(index) => ring::unregister_ring_fd(self.descriptor(), index),
            RingFd::Plain(_) => Ok(()),
        }
    }

    /// Registers an empty table for direct descriptors.
    pub(crate) fn register_files(&self) -> io::Result<()> {
        self.uring.submitter().register_files_sparse(1)
    }

    /// Registers a ring of provided buffers and fills it. With `incremental`, large buffers would
    /// be filled incrementally.
    pub(crate) fn register_buffers(&mut self, incremental: bool) -> io::Result<()> {
        let flags = if incremental { io_uring::types::IOU_PBUF_RING_INC as u16 } else { 0 };
        let entries = self.memory.start().as_ptr().cast::<BufRingEntry>();
        // SAFETY: the first page of the mapping holds the eight entries, is aligned to a page,
        // and stays mapped at least as long as the ring: see `drop`.
        ring::charged(|| unsafe {
            let submitter = self.uring.submitter();
            submitter.register_buf_ring_with_flags(entries as u64, BUFFERS, GROUP, flags)
        })?;
        for id in 0..BUFFERS {
            let at = BUFFERS_AT + usize::from(id) * BUFFER_BYTES;
            // SAFETY: `id` is below the number of entries, and the kernel reads no entry before
            // the tail below is stored; the buffer lies inside the mapping.
            unsafe {
                let entry = &mut *entries.add(usize::from(id));
                entry.set_addr(self.memory.start().as_ptr().add(at) as u64);
                entry.set_len(BUFFER_BYTES as u32);
                entry.set_bid(id);
            }
        }
        // SAFETY: the tail lies in the first entry, aligned for u16, in the live mapping.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        tail.store(BUFFERS, Ordering::Release);
        Ok(())
    }

    /// Unregisters the ring of provided buffers.
    pub(crate) fn unregister_buffers(&self) -> io::Result<()> {
        self.uring.submitter().unregister_buf_ring(GROUP)
    }

    /// Waits for `timeout`, and at least `min_wait_us`, without a completion to come.
    pub(crate) fn wait_in_vain(&self, timeout: Duration, min_wait_us: u32) -> io::Result<()> {
        let wait = Wait { completions: 1, timeout: Some(timeout), min_wait_us };
        let fd = RingFd::Plain(self.uring.as_raw_fd());
        ring::enter(fd, 0, ring::ENTER_GETEVENTS, wait).map(drop)
    }

    /// Submits one operation and returns its user data.
    pub(crate) fn submit(&mut self, operation: Operation<'_>) -> io::Result<u64> {
        let silent = matches!(operation, Operation::Nothing { silent: true });
        let accept = matches!(operation, Operation::MultishotAccept(_));
        let user_data = self.next_user_data() | if accept { ACCEPT } else { 0 };
        self.submit_entry(self.entry(operation).user_data(user_data), !silent)?;
        Ok(user_data)
    }

    fn next_user_data(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn entry(&self, operation: Operation<'_>) -> Entry {
        let fd = |fd: BorrowedFd<'_>| Fd(fd.as_raw_fd());
        match operation {
            Operation::Nothing { silent: false } => opcode::Nop::new().build(),
            Operation::Nothing { silent: true } => {
                opcode::Nop::new().build().flags(Flags::SKIP_SUCCESS)
            }
            Operation::MultishotAccept(listener) => {
                opcode::AcceptMulti::new(fd(listener)).flags(libc::SOCK_CLOEXEC).build()
            }
            Operation::MultishotRecv(socket) => opcode::RecvMulti::new(fd(socket), GROUP).build(),
            Operation::MultishotPoll(target) => {
                opcode::PollAdd::new(fd(target), libc::POLLIN as u32).multi(true).build()
            }
            Operation::RecvBundle(socket) => opcode::RecvBundle::new(fd(socket), GROUP).build(),
            Operation::SendZeroCopy(socket) => {
                opcode::SendZc::new(fd(socket), self.memory.start().as_ptr(), 1).build()
            }
        }
    }

    fn submit_entry(&mut self, entry: Entry, answers: bool) -> io::Result<()> {
        // SAFETY: the entry names no memory but the ring's own mapping, which stays mapped until
        // every operation has finished: see `drop`.
        unsafe { self.uring.submission().push(&entry) }
            .map_err(|_| io::Error::other("the submission queue of the trial ring is full"))?;
        self.unfinished += u32::from(answers);
        self.uring.submit().map(drop)
    }

    /// The next completion; `None` if it does not come in time.
    pub(crate) fn answer(&mut self) -> io::Result<Option<Answer>> {
        // Not io_uring_enter with a timeout: old kernels lack that.
        let mut ready =
            libc::pollfd { fd: self.uring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        super::retry_eintr(|| {
            // SAFETY: one live, exclusively borrowed pollfd is passed as such.
            unsafe { libc::poll(&raw mut ready, 1, ANSWER_MS_MAX) as isize }
        })?;
        let Some(entry) = self.uring.completion().next() else { return Ok(None) };
        let more = cqueue::more(entry.flags());
        if !more {
            self.unfinished = self.unfinished.saturating_sub(1);
        }
        if entry.user_data() & ACCEPT != 0 && entry.result() >= 0 {
            // SAFETY: the completion of an accept returns a new descriptor, exactly once.
            drop(unsafe { OwnedFd::from_raw_fd(entry.result()) });
        }
        Ok(Some(Answer { user_data: entry.user_data(), result: entry.result(), more }))
    }

    /// Cancels an operation and takes all completions, until no operation is unfinished.
    pub(crate) fn cancel(&mut self, user_data: u64) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(user_data).build();
        let entry = entry.user_data(self.next_user_data());
        self.submit_entry(entry, true)?;
        while self.unfinished > 0 && self.answer()?.is_some() {}
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring, which the lifetime ties it to.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

impl Drop for TrialRing {
    fn drop(&mut self) {
        // Closing the ring is not a barrier: memory that an operation may still write to stays
        // mapped for ever. Two pages, and only if the kernel failed to complete.
        if self.unfinished == 0 {
            // SAFETY: dropped once, here, and no operation names the memory any more. The kernel
            // only reads the entries of the buffer ring, and only for operations.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
