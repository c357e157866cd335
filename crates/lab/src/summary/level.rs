//! What a subject needs by itself, with an interval, for curves along an axis.

use serde::{Deserialize, Serialize};

use super::comparison::Record;
use super::figures::Figures;
use super::judged::Judged;
use crate::statistics;

/// The primary metric of one subject: CPU per unit in nanoseconds, of the runs that count and did
/// the work that was asked for.
///
/// The interval holds what differs from run to run for all subjects, such as where the
/// hypervisor had put the CPUs. Pairs have no part of that, so the interval of a ratio may exclude 1
/// although two of these overlap; verdicts rest on the ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// Geometric mean.
    pub mean_ns: f64,
    /// Lower end of its interval at [`statistics::CONFIDENCE`]; none of fewer than 6 runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_ns: Option<f64>,
    /// Upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_ns: Option<f64>,
    /// Of how many runs.
    pub runs: usize,
}

/// The level of these runs; nothing for fewer than [`statistics::MIN_VALUES`].
pub(super) fn level(
    record: Record,
    counted: &[&Judged<'_>],
    did_its_work: &dyn Fn(&Figures) -> Option<bool>,
    seed: u64,
) -> Option<Level> {
    let figures = counted.iter().filter_map(|it| Some((it.run.occasion, it.figures()?)));
    let at_work = figures.filter(|(_, figures)| did_its_work(figures).unwrap_or(true));
    let values: Vec<(usize, f64)> =
        at_work.map(|(occasion, figures)| (occasion, figures[record.metric()])).collect();
    let interval = statistics::interval_of(&values, seed, statistics::CONFIDENCE)
        .filter(|_| values.len() >= statistics::MIN_VALUES)?;
    Some(Level {
        mean_ns: interval.ratio,
        low_ns: interval.ends.map(|it| it.low),
        high_ns: interval.ends.map(|it| it.high),
        runs: values.len(),
    })
}
