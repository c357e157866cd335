//! What workloads of requests and answers have in common.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{is_zero, rate};
use crate::error::LabError;
use crate::experiment::Check;

/// The limits within which a subject has answered what a schedule asked for. CPU is compared
/// between runs within them only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswersInTime {
    /// Most of the requests due in the window that may be unanswered at its end, as a share.
    pub missing_ratio: f64,
    /// The longest that the 99th percentile of requests may take, from when they were due, in
    /// microseconds.
    pub latency_us_p99: f64,
}

impl Default for AnswersInTime {
    fn default() -> AnswersInTime {
        AnswersInTime { missing_ratio: 0.01, latency_us_p99: 10_000.0 }
    }
}

impl AnswersInTime {
    pub(super) fn is_default(&self) -> bool {
        *self == AnswersInTime::default()
    }

    /// # Errors
    /// [`LabError::BadExperiment`].
    pub(super) fn check(&self, section: &str, check: &Check<'_>) -> Result<(), LabError> {
        check.unless(
            (0.0..=1.0).contains(&self.missing_ratio) && self.latency_us_p99 > 0.0,
            &format!("{section}.keeps_up"),
            format!("{self:?}"),
            "missing_ratio from 0 to 1 and latency_us_p99 above 0",
        )
    }
}

/// How the requests of a schedule follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Periodic,
    /// Independently of each other.
    Poisson,
}

impl Arrivals {
    pub(super) fn is_default(&self) -> bool {
        *self == Arrivals::default()
    }
}

/// Checks the axes that say how requests are paced; returns whether any cell has a schedule.
///
/// # Errors
/// [`LabError::BadExperiment`].
pub(super) fn check_pace(
    section: &str,
    check: &Check<'_>,
    rate_per_s: &[u32],
    load_percent: &[u32],
) -> Result<bool, LabError> {
    let [by_rate, by_load] = [rate_per_s, load_percent].map(|axis| !is_zero(axis));
    check.unless(
        !(by_rate && by_load),
        &format!("{section}.load_percent"),
        "both rate_per_s and load_percent are given",
        "one of them: both say how many requests/s there are",
    )?;
    Ok(by_rate || by_load)
}

/// How the requests of a cell are paced, where they have a schedule.
pub(super) fn phrase_pace(
    f: &mut fmt::Formatter<'_>,
    rate_per_s: u32,
    load_percent: u32,
) -> fmt::Result {
    match (rate_per_s, load_percent) {
        (0, 0) => Ok(()),
        (0, _) => write!(f, " at {load_percent} % load"),
        _ => write!(f, " at {}/s", rate(rate_per_s)),
    }
}

/// Checks the command of the load generator, which gets the cell by `{options}` if `told`.
///
/// # Errors
/// [`LabError::BadExperiment`].
pub(super) fn check_load(
    key: &str,
    check: &Check<'_>,
    load: &[String],
    target: &str,
    told: bool,
) -> Result<(), LabError> {
    check.load(key, load, target)?;
    check.unless(
        !told || load.iter().any(|word| word == "{options}"),
        key,
        "the load's command has no {options}",
        "the word \"{options}\", which stands for --rate and --churn of the cell",
    )?;
    check.unless(
        !follows_subject(load),
        key,
        format!("{key} has {{engine}}"),
        "a fixed engine: the load generator never follows the server's",
    )
}

/// Whether a command depends on the subject.
pub(super) fn follows_subject(command: &[String]) -> bool {
    command.iter().any(|word| word.contains("{engine}"))
}
