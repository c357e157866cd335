//! A ring: its queues, its registrations, and the enter.
//!
//! The queues are those of the `io-uring` crate, which stores a registered ring descriptor only
//! inside a borrowed `Submitter`; so `io_uring_enter` is called here.

use io_uring::IoUring;
use io_uring::cqueue::{self, CompletionQueue};
use io_uring::register::Restriction;
use io_uring::squeue::{Entry, SubmissionQueue};
use rustix::io::Errno;
use rustix::io_uring::IoringRegisterOp::{RegisterRingFds, UnregisterRingFds};
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, Timespec, io_uring_enter, io_uring_enter_arg,
    io_uring_getevents_arg, io_uring_ptr, io_uring_register, io_uring_rsrc_update,
};
use std::io;
use std::mem::transmute;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::without_provenance_mut;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The kernel destroys a ring after its descriptor is closed or its process has ended, and only
/// then releases the memory charged to the user's RLIMIT_MEMLOCK (6.14 and later, and before 5.12).
/// A restarted service finds the limit used up by its predecessor, and a probe by its own last
/// ring.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(2);

/// Creates an object that is charged to RLIMIT_MEMLOCK, retrying ENOMEM for a while. Sleeps, so a
/// serving worker must not call it.
pub(crate) fn charged<T>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let began = Instant::now();
    loop {
        match make() {
            Err(error)
                if error.raw_os_error() == Some(libc::ENOMEM)
                    && Instant::now() - began < GIVEN_BACK_WITHIN =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            made => return made,
        }
    }
}

/// Wait for completions and run deferred task work.
pub(crate) const ENTER_GETEVENTS: u32 = IoringEnterFlags::GETEVENTS.bits();
/// Wake the kernel's submission thread.
pub(crate) const ENTER_SQ_WAKEUP: u32 = IoringEnterFlags::SQ_WAKEUP.bits();
/// The wait is idle time, not iowait (Linux 6.15; IORING_FEAT_NO_IOWAIT).
pub(crate) const ENTER_NO_IOWAIT: u32 = 1 << 7;

/// The entry of an IORING_OP_SEND, from its numbers: the builder of the crate costs more than the rest of a
/// send.
#[inline(always)]
pub(crate) fn send_entry(fd: RawFd, bytes: &[u8], message_flags: u32, flags: u8) -> Entry {
    const _: () = assert!(size_of::<Entry>() == 64);
    const SEND: u64 = io_uring::opcode::Send::CODE as u64;
    let head = SEND | u64::from(flags) << 8 | u64::from(fd as u32) << 32;
    let length = bytes.len() as u64 | u64::from(message_flags) << 32;
    let fields = [head, 0, bytes.as_ptr() as u64, length, 0, 0, 0, 0];
    // SAFETY: an entry is a struct io_uring_sqe, of which these are the opcode, flags and descriptor, the
    // address, the length and the flags of the message (on a machine that begins a number with its last
    // byte); any numbers are valid.
    unsafe { transmute::<[u64; 8], Entry>(fields) }
}

#[cfg(not(target_endian = "little"))]
compile_error!("twinring writes entries of a ring as little-endian numbers");

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Completions to wait for; with 0 it does not wait.
    pub(crate) completions: u32,
    /// Longest wait; `None` waits for ever.
    pub(crate) timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) sq_entries: u32,
    pub(crate) cq_entries: u32,
    /// It accepts no entry before [`KernelRing::restrict`].
    pub(crate) disabled: bool,
    /// How long the kernel's submission thread polls for entries before it sleeps; 0 is without
    /// one.
    pub(crate) sqpoll_idle_ms: u32,
}

/// A ring. What is pushed and taken is known to the kernel from the next enter on, or from the next look at
/// the queues.
pub(crate) struct KernelRing {
    // Both refer to the ring, which is dropped behind them.
    submission: SubmissionQueue<'static>,
    completion: CompletionQueue<'static>,
    uring: Rc<IoUring>,
    /// The index of the ring among those registered with the thread, which saves a lookup (Linux 5.18), if
    /// the flag says so, or else its descriptor.
    fd: RawFd,
    fd_flag: IoringEnterFlags,
    #[cfg(feature = "faults")]
    faults: Option<super::faults::RingFaults>,
}

impl KernelRing {
    pub(crate) fn new(setup: Setup) -> io::Result<KernelRing> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(setup.cq_entries).setup_submit_all().setup_single_issuer().dontfork();
        if setup.disabled {
            builder.setup_r_disabled();
        }
        // With a submission thread, completions run in that.
        match setup.sqpoll_idle_ms {
            0 => builder.setup_defer_taskrun(),
            idle_ms => builder.setup_sqpoll(idle_ms),
        };
        let uring = Rc::new(charged(|| builder.build(setup.sq_entries))?);
        let own = uring.as_raw_fd() as usize;
        let (fd, fd_flag) = match update_ring_fd(&uring, RegisterRingFds, u32::MAX, own) {
            Ok(index) => (index as RawFd, IoringEnterFlags::REGISTERED_RING),
            Err(_) => (uring.as_raw_fd(), IoringEnterFlags::empty()),
        };
        // SAFETY: they are the only queues of this ring, and refer to nothing but its memory, which does not
        // move and is dropped after them.
        let (submission, completion) = unsafe {
            (
                transmute::<SubmissionQueue<'_>, SubmissionQueue<'static>>(
                    uring.submission_shared(),
                ),
                transmute::<CompletionQueue<'_>, CompletionQueue<'static>>(
                    uring.completion_shared(),
                ),
            )
        };
        Ok(KernelRing {
            submission,
            completion,
            uring,
            fd,
            fd_flag,
            #[cfg(feature = "faults")]
            faults: super::faults::RingFaults::asked_for(),
        })
    }

    /// Puts an entry into the submission queue; false if that is full.
    ///
    /// # Safety
    /// The memory that the entry names stays in place, and valid for the kernel's use, until the
    /// last completion of the operation was taken.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, entry: &Entry) -> bool {
        if self.submission.is_full() {
            self.submission.sync();
        }
        // An entry that finds the queue full is pushed again, and meets its faults then.
        #[cfg(feature = "faults")]
        let entry = &match &mut self.faults {
            Some(faults) if !self.submission.is_full() => faults.submit(entry.clone()),
            _ => entry.clone(),
        };
        // SAFETY: the obligation is the caller's.
        unsafe { self.submission.push(entry).is_ok() }
    }

    /// Entries that the kernel has not taken.
    #[inline]
    pub(crate) fn queued(&mut self) -> usize {
        self.submission.sync();
        self.submission.len()
    }

    /// True if the kernel's submission thread sleeps.
    #[inline]
    pub(crate) fn needs_wakeup(&mut self) -> bool {
        self.submission.need_wakeup()
    }

    /// True if completions that found the queue full wait in the kernel.
    #[inline]
    pub(crate) fn overflowed(&mut self) -> bool {
        self.submission.cq_overflow()
    }

    /// Completions that have not been taken.
    #[inline]
    pub(crate) fn arrived(&mut self) -> usize {
        self.completion.sync();
        #[cfg(feature = "faults")]
        if self.faults.as_ref().is_some_and(|it| it.holds_back()) {
            return self.completion.len().max(1);
        }
        self.completion.len()
    }

    /// Appends the completions that [`arrived`](KernelRing::arrived) has counted. Their places are given back by the
    /// next enter.
    #[inline]
    pub(crate) fn take_completions(&mut self, into: &mut Vec<cqueue::Entry>) {
        #[cfg(not(feature = "faults"))]
        for completion in &mut self.completion {
            into.push(completion);
        }
        #[cfg(feature = "faults")]
        into.extend({
            let fresh = self.completion.by_ref().collect();
            super::faults::delivered(&mut self.faults, fresh)
        });
    }

    /// One `io_uring_enter`: submits `to_submit` entries, then waits as specified. Returns how many
    /// entries the kernel consumed. `ETIME` and `EINTR` end a wait and are not errors.
    #[inline(always)]
    pub(crate) fn enter(&mut self, to_submit: u32, flags: u32, wait: Wait) -> io::Result<u32> {
        self.completion.sync();
        #[cfg(feature = "faults")]
        let wait = self.faults.as_ref().map_or(wait, |faults| faults.wait(wait));
        let flags = self.fd_flag | IoringEnterFlags::from_bits_retain(flags);
        // SAFETY: the kernel takes it for a descriptor, which is open, or for an index, as the flag says.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        if let Some(timeout) = wait.timeout {
            return enter_timed(fd, to_submit, wait.completions, flags, timeout);
        }
        // SAFETY: memory named by submitted entries is the obligation of those who pushed them.
        match unsafe { io_uring_enter(fd, to_submit, wait.completions, flags) } {
            Ok(taken) => Ok(taken),
            Err(errno) => not_entered(errno),
        }
    }

    /// Restricts a ring that was created disabled, and enables it.
    pub(crate) fn restrict(&self, list: &mut [Restriction]) -> io::Result<()> {
        self.uring.submitter().register_restrictions(list)?;
        self.uring.submitter().register_enable_rings()
    }

    /// Registers a ring of `count` buffers.
    ///
    /// # Safety
    /// `start` names page-aligned memory for `count` entries, which lives until the ring is
    /// destroyed. Entries written into it name memory that the kernel may write to for the same
    /// time.
    pub(crate) unsafe fn register_buffers(
        &self,
        start: u64,
        count: u16,
        group: u16,
    ) -> io::Result<()> {
        let submitter = self.uring.submitter();
        // SAFETY: the obligation is the caller's.
        unsafe { submitter.register_buf_ring_with_flags(start, count, group, 0) }
    }
}

#[inline(never)]
fn enter_timed(
    fd: BorrowedFd<'_>,
    to_submit: u32,
    completions: u32,
    flags: IoringEnterFlags,
    timeout: Duration,
) -> io::Result<u32> {
    let timeout = Timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    let argument = io_uring_getevents_arg {
        ts: io_uring_ptr::new((&raw const timeout).cast_mut().cast()),
        ..io_uring_getevents_arg::default()
    };
    let flags = flags | IoringEnterFlags::EXT_ARG;
    // SAFETY: as without it; the argument, and the timeout that it names, live until the call returns.
    unsafe { io_uring_enter_arg(fd, to_submit, completions, flags, Some(&argument)) }
        .or_else(not_entered)
}

/// The kernel reports either only when it submitted nothing; the entries stay queued.
#[cold]
fn not_entered(errno: Errno) -> io::Result<u32> {
    if matches!(errno, Errno::TIME | Errno::INTR) { Ok(0) } else { Err(errno.into()) }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        if !self.fd_flag.is_empty() {
            // It would otherwise live as long as the thread, which has 16 of them.
            let index = self.fd as u32;
            let _or_ends_with_the_thread = update_ring_fd(&self.uring, UnregisterRingFds, index, 0);
        }
    }
}

/// Registers a ring's own descriptor with the calling thread (Linux 5.18), or releases it; returns its index.
fn update_ring_fd(
    uring: &IoUring,
    operation: IoringRegisterOp,
    index: u32,
    descriptor: usize,
) -> io::Result<u32> {
    let mut update = io_uring_rsrc_update::default();
    update.offset = index;
    update.data = io_uring_ptr::new(without_provenance_mut(descriptor));
    // SAFETY: the ring is open, and one live io_uring_rsrc_update is passed, as these two operations expect.
    unsafe {
        let ring = BorrowedFd::borrow_raw(uring.as_raw_fd());
        io_uring_register(ring, operation, (&raw mut update).cast(), 1)?;
    }
    Ok(update.offset)
}
