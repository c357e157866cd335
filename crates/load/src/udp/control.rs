//! The state that the threads of a run share: the ends of the window, reasons to end early, and
//! notes to the conductor.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;

/// A moment that is not known yet.
const UNKNOWN: u64 = u64::MAX;

/// Notes to the conductor.
pub(super) enum Note {
    /// A worker thread has tried to open its sockets; this many are open.
    Ready { opened: u64 },
    /// All worker threads have ended.
    Ended,
}

/// Progress of one thread. In its own cache line (two, because CPUs prefetch pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ThreadProgress {
    pub(super) received: AtomicU64,
    /// The round trips of these replies, added up.
    pub(super) round_trip_ns: AtomicU64,
    pub(super) errors: AtomicU64,
}

pub(super) struct Control {
    start_ns: AtomicU64,
    end_ns: AtomicU64,
    /// The run was interrupted.
    stopped: Arc<AtomicBool>,
    /// There will be no window.
    cancelled: AtomicBool,
    pub(super) progress: Vec<ThreadProgress>,
    notes: Sender<Note>,
}

impl Control {
    pub(super) fn new(threads: usize, stopped: Arc<AtomicBool>, notes: Sender<Note>) -> Control {
        Control {
            start_ns: AtomicU64::new(UNKNOWN),
            end_ns: AtomicU64::new(UNKNOWN),
            stopped,
            cancelled: AtomicBool::new(false),
            progress: (0..threads).map(|_| ThreadProgress::default()).collect(),
            notes,
        }
    }

    pub(super) fn note(&self, note: Note) {
        // Fails only after the conductor has ended, which needs no more notes.
        let _nobody_listens = self.notes.send(note);
    }

    /// The measured window on CLOCK_MONOTONIC; `None` until it is known.
    pub(super) fn window(&self) -> Option<Range<u64>> {
        let start_ns = self.start_ns.load(Relaxed);
        (start_ns != UNKNOWN).then(|| start_ns..self.end_ns.load(Relaxed))
    }

    /// Fixes the window. Workers read it with each tick.
    pub(super) fn announce(&self, window: Range<u64>) {
        self.end_ns.store(window.end, Relaxed);
        self.start_ns.store(window.start, Relaxed);
    }

    /// Ends the window, unless it ended before.
    pub(super) fn end_window(&self, now_ns: u64) {
        self.end_ns.fetch_min(now_ns, Relaxed);
    }

    /// Releases workers that wait for the window.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    /// True if the run was interrupted.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }
}
