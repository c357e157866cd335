//! Stands in for an eventfd(2), and for the drivers that watch it, in model checks: system calls
//! cannot be modelled, and a blocking one would stop all threads of a model.
//!
//! It guarantees no more order between threads than the kernel does: a thread that is notified of a
//! signal sees everything before the signal.

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::os::fd::RawFd;

pub(crate) struct EventFd {
    count: AtomicU64,
    /// Signalled since an edge was last reported.
    edge: AtomicBool,
    sleeper: Notify,
}

/// How a worker watches its eventfd.
#[derive(Clone, Copy)]
pub(crate) enum Watch {
    /// EPOLLET, and a multishot poll of io_uring: each signal is reported once, if it can still be
    /// read by then.
    Edge,
    /// A poll of io_uring that ended: it is armed again, which reports a level, after the eventfd
    /// was cleared.
    Rearmed,
}

impl EventFd {
    pub(crate) fn new() -> io::Result<EventFd> {
        Ok(EventFd {
            count: AtomicU64::new(0),
            edge: AtomicBool::new(false),
            sleeper: Notify::new(),
        })
    }

    pub(crate) fn signal(&self) {
        self.count.fetch_add(1, Ordering::Release);
        // Not a store: in loom, a store can be overtaken by earlier swaps.
        self.edge.swap(true, Ordering::Release);
        self.sleeper.notify();
    }

    pub(crate) fn clear(&self) {
        self.count.swap(0, Ordering::Acquire);
    }

    /// A turn of the driver: takes a report if there is one, or sleeps until there is.
    pub(crate) fn turn(&self, watch: Watch, sleeps: bool) {
        while !self.is_reported(watch) && sleeps {
            self.sleeper.wait();
        }
    }

    fn is_reported(&self, watch: Watch) -> bool {
        let readable = || self.count.load(Ordering::Acquire) > 0;
        match watch {
            Watch::Edge => self.edge.swap(false, Ordering::Acquire) && readable(),
            Watch::Rearmed => {
                let reported = readable();
                if reported {
                    self.clear();
                }
                reported
            }
        }
    }

    /// No model has a driver that would use it.
    pub(crate) fn fd(&self) -> RawFd {
        -1
    }
}
