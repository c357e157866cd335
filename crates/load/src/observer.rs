//! Observers of a running load.

use std::time::Duration;

/// Watches a run.
pub trait Observer {
    /// All connections are open, or all sockets. Asked again every few milliseconds as long as the answer is
    /// [`Begin::NotYet`].
    fn connected(&mut self) -> Begin {
        Begin::Now
    }
    /// The window begins now.
    fn window_started(&mut self, monotonic_ns: u64);
    /// The window ends now.
    fn window_ended(&mut self, monotonic_ns: u64);
    /// Called up to four times a second.
    fn progress(&mut self, progress: &Progress);
}

/// When the traffic begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At once.
    Now,
    /// At this moment on CLOCK_MONOTONIC, in nanoseconds; at once if it has passed.
    At(u64),
    /// It is not known yet.
    NotYet,
    /// There will be no traffic.
    Never,
}

impl Begin {
    /// The moment, if it is decided; `soonest_ns` is the first that is possible.
    pub(crate) fn moment(self, soonest_ns: u64) -> Option<Option<u64>> {
        match self {
            Begin::Now => Some(Some(soonest_ns)),
            Begin::At(ns) => Some(Some(ns.max(soonest_ns))),
            Begin::Never => Some(None),
            Begin::NotYet => None,
        }
    }
}

/// How often an observer is asked for the moment.
pub(crate) const BEGIN_TICK: Duration = Duration::from_millis(5);

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Where it is.
    pub phase: Phase,
    /// Answers inside the window so far.
    pub answered: u64,
    /// The latencies of these answers, added up, in seconds.
    pub latency_s: f64,
    /// Errors so far.
    pub errors: u64,
    /// Seconds of the window so far.
    pub window_s: f64,
}

/// The parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connections are being opened, or sockets.
    Connecting,
    /// Traffic that is not measured.
    WarmingUp,
    /// The measured window.
    Measuring,
}
