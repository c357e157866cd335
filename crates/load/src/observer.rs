//! Observers of a running load.

/// Watches a run.
pub trait Observer {
    /// All connections are open, or all sockets.
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
    /// There will be no traffic.
    Never,
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
