//! The ring itself: setup, submission with an overflow list, and the enter.

use crate::config::UringOptions;
use crate::counters::Counters;
use crate::driver::common::DriverSetup;
use crate::sys::ring::{self, KernelRing, Setup, Wait};
use io_uring::squeue::{Entry, Flags};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// User data of operations whose completion is ignored.
pub(super) const NOBODY: u64 = u64::MAX;

/// Deferred work that the kernel runs before it checks for completions (IO_LOCAL_TW_DEFAULT_MAX in
/// io_uring.c). After that many, there may be more.
const BURST_MIN: usize = 20;

/// Completions that are taken beyond those of a wait. More would leave the cache before they are
/// answered: 256 gained as much with 100 connections and lost 7 % with 1,000.
const BURST_MAX: u32 = 64;

/// How long an enter that the kernel refuses for lack of memory is not repeated.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Ring {
    pub(super) uring: KernelRing,
    /// Entries that found the submission queue full. Bounded by the operations of all sockets.
    backlog: VecDeque<Entry>,
    pub(super) sqpoll: bool,
    /// Entries that the last enter left in the submission queue.
    left: u32,
    /// Flags of every wait beside its own: [`ring::ENTER_NO_IOWAIT`] or none.
    wait_flags: u32,
    counters: Arc<Counters>,
}

impl Ring {
    pub(super) fn new(features: &UringOptions, setup: &DriverSetup) -> io::Result<Ring> {
        let uring = KernelRing::new(Setup {
            sq_entries: features.sq_entries,
            cq_entries: features.cq_entries,
            disabled: setup.confined.is_some(),
            sqpoll_idle_ms: features.sqpoll_idle_ms,
        })?;
        Ok(Ring {
            uring,
            backlog: VecDeque::new(),
            left: 0,
            sqpoll: features.sqpoll_idle_ms > 0,
            wait_flags: if features.no_iowait { ring::ENTER_NO_IOWAIT } else { 0 },
            counters: Arc::clone(&setup.counters),
        })
    }

    /// True until the first enter: nothing is being served yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.counters.enters.get() == 0
    }

    /// Queues an operation.
    ///
    /// # Safety
    /// The memory that the entry refers to (bytes, addresses, message headers) must stay in place
    /// and valid until the last completion of the operation was taken. The driver's slots own it
    /// that long.
    #[inline(never)]
    pub(super) unsafe fn push(&mut self, entry: Entry) {
        self.counters.submissions.add(1);
        // SAFETY: the obligation is the caller's.
        unsafe { self.push_quick(entry) };
    }

    /// As [`push`](Ring::push), where each message passes; whoever settles it counts it.
    ///
    /// # Safety
    /// As for [`push`](Ring::push).
    #[inline(always)]
    pub(super) unsafe fn push_quick(&mut self, entry: Entry) {
        // SAFETY: the obligation is the caller's.
        if !self.backlog.is_empty() || !unsafe { self.uring.push(&entry) } {
            self.keep(entry);
        }
    }

    #[cold]
    fn keep(&mut self, entry: Entry) {
        self.backlog.push_back(entry);
    }

    /// Queues an operation whose outcome does not matter.
    ///
    /// # Safety
    /// As for [`push`](Ring::push). The completion is ignored, so the memory that the entry refers
    /// to must live as long as the ring.
    pub(super) unsafe fn push_uncounted(&mut self, entry: Entry) {
        // SAFETY: the obligation is the caller's.
        unsafe { self.push(entry.flags(Flags::SKIP_SUCCESS).user_data(NOBODY)) };
    }

    fn refill(&mut self) {
        while let Some(entry) = self.backlog.pop_front() {
            // SAFETY: what is in the backlog came through `push`.
            if !unsafe { self.uring.push(&entry) } {
                self.backlog.push_front(entry);
                return;
            }
        }
    }

    /// True when the kernel has taken every operation that was queued before the last enter.
    #[inline]
    pub(super) fn all_submitted(&mut self) -> bool {
        let left = if self.sqpoll { self.uring.queued() as u32 } else { self.left };
        self.backlog.is_empty() && left == 0
    }

    /// Submits everything that is queued and, if requested, waits for a completion at most
    /// `timeout` (`None`: for ever), which is not zero. Submitting alone calls the kernel only if something is
    /// queued, and does not run its deferred work: completions of receives stay there.
    #[inline(always)]
    pub(super) fn enter(&mut self, how: Enter, timeout: Option<Duration>) -> io::Result<()> {
        if how != Enter::Wait || !self.backlog.is_empty() {
            return self.enter_all(if how == Enter::Submit { 0 } else { ring::ENTER_GETEVENTS });
        }
        self.counters.waits.add(1);
        let flags = ring::ENTER_GETEVENTS | self.wait_flags;
        let arrived = self.enter_once(flags, Wait { completions: 1, timeout })?;
        // More completions if the wait returned as many as the kernel runs at a time. The answers then leave in
        // one burst, for which the CPU of the peer is interrupted less often: over a veth pair with receive
        // steering 0.5 times instead of 0.87 for each of 100 x 1024 bytes.
        if arrived >= BURST_MIN && !self.sqpoll {
            return self.enter_again(ring::ENTER_GETEVENTS, BURST_MAX);
        }
        Ok(())
    }

    /// Enters until all has been submitted, also if the queue was full, without waiting.
    #[cold]
    fn enter_all(&mut self, flags: u32) -> io::Result<()> {
        loop {
            self.refill();
            let queued = self.uring.queued();
            if queued == 0 && flags == 0 {
                return Ok(());
            }
            self.enter_again(flags, 0)?;
            // There is room now unless the kernel waits for us to take completions first, or leaves the rest to
            // the submission thread.
            if self.backlog.is_empty() || self.uring.queued() == queued {
                return Ok(());
            }
        }
    }

    /// An enter that does not wait; apart from those that do, which are the usual ones.
    #[inline(never)]
    fn enter_again(&mut self, flags: u32, completions: u32) -> io::Result<()> {
        // With a timeout of zero it takes so many at most.
        let timeout = (completions > 0).then_some(Duration::ZERO);
        self.enter_once(flags, Wait { completions, timeout }).map(drop)
    }

    /// Returns how many completions have arrived.
    #[inline(always)]
    fn enter_once(&mut self, mut flags: u32, wait: Wait) -> io::Result<usize> {
        let mut to_submit = self.uring.queued() as u32;
        if self.sqpoll {
            to_submit = 0;
            // The kernel thread reads the queue by itself; see io_uring_enter(2) for the barrier.
            fence(Ordering::SeqCst);
            if self.uring.needs_wakeup() {
                flags |= ring::ENTER_SQ_WAKEUP;
            } else if wait.completions == 0 && !self.uring.overflowed() {
                return Ok(self.uring.arrived());
            }
        }
        self.counters.enters.add(1);
        if wait.timeout.is_some() {
            self.enter_for_a_time(to_submit, flags, wait)?;
        } else {
            // Apart, because then the compiler keeps what the kernel returns in a register.
            match self.uring.enter(to_submit, flags, Wait { timeout: None, ..wait }) {
                Ok(taken) => self.left = to_submit - taken,
                Err(error) => self.refused(to_submit, error)?,
            }
        }
        Ok(self.uring.arrived())
    }

    #[inline(never)]
    fn enter_for_a_time(&mut self, to_submit: u32, flags: u32, wait: Wait) -> io::Result<()> {
        match self.uring.enter(to_submit, flags, wait) {
            Ok(taken) => self.left = to_submit - taken,
            Err(error) => self.refused(to_submit, error)?,
        }
        Ok(())
    }

    /// An enter has failed. The entries stay queued for the next one.
    #[cold]
    fn refused(&mut self, to_submit: u32, error: io::Error) -> io::Result<()> {
        self.left = to_submit;
        match error.raw_os_error() {
            // The completion queue overflowed and has to be emptied first; or there is no memory for a
            // request just now, which time may change.
            Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM) => {
                if self.uring.arrived() == 0 {
                    std::thread::sleep(REFUSED_PAUSE);
                }
                Ok(())
            }
            Some(libc::EBADR) => {
                let what = "the kernel had no memory for completions, and has lost some (EBADR)";
                Err(io::Error::other(what))
            }
            _ => Err(error),
        }
    }

    /// True if completions are there before an enter: only a submission thread posts them by itself.
    #[inline]
    pub(super) fn has_completions(&mut self) -> bool {
        self.sqpoll && self.uring.arrived() > 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enter {
    /// To submit operations.
    Submit,
    /// Also to take completions.
    Collect,
    /// Also to wait for a completion.
    Wait,
}
