//! What the schedule needs from outside.

use std::time::{Duration, Instant};

use crate::bench::Slot;
use crate::error::LabError;
use crate::placement::Placement;
use crate::record::RunRecord;

/// The machine that is measured.
pub(crate) trait Machine {
    /// The time.
    fn now(&self) -> Instant;

    /// Waits.
    fn sleep(&self, duration: Duration);

    /// How the two CPUs lie to each other now, if that can be measured.
    fn placement(&self) -> Option<Placement>;

    /// Whether the user wants to stop.
    fn is_stopped(&self) -> bool;

    /// Makes one run.
    ///
    /// # Errors
    /// When the run could not even be tried.
    fn run(&mut self, slot: &Slot<'_>) -> Result<Attempt, LabError>;

    /// Stores the record of a run.
    ///
    /// # Errors
    /// When it cannot be written.
    fn store(&mut self, run: &RunRecord) -> Result<(), LabError>;
}

/// What became of a run.
pub(crate) enum Attempt {
    /// It was made.
    Made(Box<RunRecord>),
    /// It was stopped before its end.
    Stopped,
    /// It has no record, and its block is void and repeated: the host of a load generator was lost. Each time there is
    /// one host less, so this ends.
    Void,
}
