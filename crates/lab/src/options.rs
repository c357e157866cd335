//! What an experiment is started with.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::experiment::Experiment;

/// The usual [`RunOptions::excluded_max`].
pub const EXCLUDED_MAX: usize = 6;

/// What to run and where to put it.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The experiment, options applied: see [`Experiment::with`].
    pub experiment: Experiment,
    /// The directory that gets a directory for this bundle.
    pub out: PathBuf,
    /// Seed of the order and the resampling; from the clock if not given.
    pub seed: Option<u64>,
    /// The `twinring` binary: `{twinring}` in commands.
    pub binary: PathBuf,
    /// Program and first arguments that lead to [`crate::helper()`].
    pub helper: Vec<OsString>,
    /// The directory in which peers are looked for first.
    pub peers: Option<PathBuf>,
    /// Measure the machine's prices first, and look for background load meanwhile; takes seconds.
    pub prices: bool,
    /// After so many excluded blocks in a row the experiment stops, if what disturbs it can be ended: see
    /// [`EXCLUDED_MAX`].
    pub excluded_max: usize,
    /// Arguments that led here, recorded so that the experiment can be repeated.
    pub command: Vec<String>,
}
