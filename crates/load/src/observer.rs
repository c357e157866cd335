//! Observers of a running load.

/// Watches a run.
pub trait Observer {
    /// All connections are open, or all sockets. Returns when the traffic begins on CLOCK_MONOTONIC, in nanoseconds, at
    /// once if that has passed; `None` if there is to be none.
    fn connected(&mut self) -> Option<u64>;
    /// The window begins or ends now: `window_start`, `window_end`.
    fn mark(&mut self, event: &str, monotonic_ns: u64);
    /// Called about four times a second.
    fn progress(&mut self, progress: &Progress);
}

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
