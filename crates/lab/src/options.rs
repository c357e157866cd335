//! What an experiment is started with.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::experiment::Experiment;
use crate::host::HostOptions;

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
    /// Measure the machine's prices first, which takes seconds; without them, reports do not say what they
    /// explain.
    pub prices: bool,
    /// Look with perf, in further runs, where the time goes: see [`crate::profile`].
    pub profile: bool,
    /// Goes on with the bundle in this directory, whose experiment and seed these must be.
    pub resume: Option<PathBuf>,
    /// Measures between these hosts instead of on this one.
    pub hosts: Option<HostOptions>,
    /// Arguments that led here, recorded so that the experiment can be repeated.
    pub command: Vec<String>,
}
