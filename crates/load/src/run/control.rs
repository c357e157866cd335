//! The state that the threads of a run share: the ends of the window, and notes to the conductor.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::Sender;
use std::time::Duration;
use twinring::sleep;

const UNKNOWN: u64 = u64::MAX;

/// How often a worker looks whether the window is known; the first request is due later than that.
const LOOK: Duration = Duration::from_millis(1);

pub(crate) enum Note {
    /// A worker thread has tried to open its connections or sockets; this many are open.
    Ready { opened: u64 },
    /// All connections of a worker thread were lost.
    Deserted,
    /// All requests of the quota were answered or failed.
    Exhausted,
    /// All worker threads have ended.
    Ended,
}

/// Progress of one thread. In its own cache line (two, because CPUs prefetch pairs), because its
/// thread writes it with each answer.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ThreadProgress {
    pub(crate) answered: AtomicU64,
    /// The latencies of these answers, added up.
    pub(crate) latency_ns: AtomicU64,
    pub(crate) errors: AtomicU64,
}

/// A number of requests that all threads share.
struct Quota {
    unsent: AtomicU64,
    unsettled: AtomicU64,
}

pub(crate) struct Control {
    start_ns: AtomicU64,
    end_ns: AtomicU64,
    quota: Option<Quota>,
    served_now: AtomicU64,
    /// The most connections at a time that had received an answer.
    pub(crate) served_max: AtomicU64,
    pub(crate) progress: Vec<ThreadProgress>,
    notes: Sender<Note>,
}

impl Control {
    pub(crate) fn new(threads: u32, requests: Option<u64>, notes: Sender<Note>) -> Control {
        Control {
            start_ns: AtomicU64::new(UNKNOWN),
            end_ns: AtomicU64::new(UNKNOWN),
            quota: requests.map(|requests| Quota {
                unsent: AtomicU64::new(requests),
                unsettled: AtomicU64::new(requests),
            }),
            served_now: AtomicU64::new(0),
            served_max: AtomicU64::new(0),
            progress: (0..threads).map(|_| ThreadProgress::default()).collect(),
            notes,
        }
    }

    pub(crate) fn note(&self, note: Note) {
        // Fails only after the conductor has ended, which needs no more notes.
        let _nobody_listens = self.notes.send(note);
    }

    /// The measured window on CLOCK_MONOTONIC. Empty until it is known.
    pub(crate) fn window(&self) -> Range<u64> {
        self.start_ns.load(Relaxed)..self.end_ns.load(Relaxed)
    }

    /// Fixes the window and lets the workers begin.
    pub(crate) fn announce(&self, window: Range<u64>) {
        self.end_ns.fetch_min(window.end, Relaxed);
        self.start_ns.store(window.start, Release);
    }

    pub(crate) async fn announced(&self) {
        while self.start_ns.load(Acquire) == UNKNOWN {
            sleep(LOOK).await;
        }
    }

    /// Ends the window, unless it ended before.
    pub(crate) fn end_window(&self, now_ns: u64) {
        self.end_ns.fetch_min(now_ns, Relaxed);
    }

    /// Takes permission for up to `count` requests from the quota, if there is one.
    pub(crate) fn draw(&self, count: u64) -> u64 {
        let Some(quota) = &self.quota else { return count };
        let left = quota
            .unsent
            .fetch_update(Relaxed, Relaxed, |left| (left > 0).then(|| left.saturating_sub(count)));
        left.map_or(0, |left| left.min(count))
    }

    /// Whether all requests of a quota have been drawn.
    pub(crate) fn is_drawn(&self) -> bool {
        self.quota.as_ref().is_some_and(|quota| quota.unsent.load(Relaxed) == 0)
    }

    /// `count` requests drawn from the quota were answered or failed.
    pub(crate) fn settle(&self, count: u64, now_ns: u64) {
        if let Some(quota) = &self.quota
            && quota.unsettled.fetch_sub(count, Relaxed) == count
        {
            // The last answer belongs to the window.
            self.end_window(now_ns + 1);
            self.note(Note::Exhausted);
        }
    }

    /// A connection got its first answer.
    pub(crate) fn served(&self) {
        let now = self.served_now.fetch_add(1, Relaxed) + 1;
        self.served_max.fetch_max(now, Relaxed);
    }

    /// A connection that had received an answer has ended.
    pub(crate) fn no_longer_served(&self) {
        self.served_now.fetch_sub(1, Relaxed);
    }
}
