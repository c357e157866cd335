//! Observers of a running load.

/// Watches a run.
pub trait Observer {
    /// The window begins now.
    fn window_started(&mut self, monotonic_ns: u64);
    /// The window ends now.
    fn window_ended(&mut self, monotonic_ns: u64);
    /// Called up to four times a second.
    fn progress(&mut self, progress: &Progress);
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Where it is.
    pub phase: Phase,
    /// Answers inside the window so far.
    pub answered: u64,
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
