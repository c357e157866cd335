//! The rates of cells that say only a share of what can be served: equal work that every subject
//! can do, on any machine.
//!
//! Before anything is compared, each subject serves the same cell in a closed loop once. The
//! slowest of them is 100 %. These runs are in no figure: what they decide, the rate, stands in
//! each run that follows.

use std::collections::HashMap;

use crate::bench::Slot;
use crate::error::LabError;
use crate::experiment::{Cell, Experiment};
use crate::progress::Progress;
use crate::record::RunRecord;
use crate::schedule::machine::{Attempt, Machine};
use crate::summary::{Metric, figures_of};

/// The digits of a rate: more would claim a precision that one run does not have.
const DIGITS: u32 = 2;

/// The requests per second of each cell that does not say them itself.
#[derive(Debug, Default)]
pub(crate) struct Rates(HashMap<Cell, u32>);

impl Rates {
    /// Nothing for a cell that says its rate, or is a closed loop.
    pub(crate) fn of(&self, cell: &Cell) -> Option<u32> {
        self.0.get(cell).copied()
    }

    /// Whether a run in this cell can be made.
    pub(crate) fn cover(&self, cell: &Cell) -> bool {
        cell.point.load_percent() == 0 || self.0.contains_key(cell)
    }

    /// Those of runs that were made already.
    pub(crate) fn of_runs<'a>(runs: impl Iterator<Item = &'a RunRecord>) -> Rates {
        Rates(runs.filter_map(|run| Some((run.cell, run.rate_per_s?))).collect())
    }

    /// Finds the rates of all other cells; nothing when it was stopped before. A cell in which nobody
    /// answers gets none.
    ///
    /// # Errors
    /// When a run could not even be tried.
    pub(crate) fn find(
        self,
        experiment: &Experiment,
        cells: &[Cell],
        machine: &mut dyn Machine,
        progress: &Progress,
    ) -> Result<Option<Rates>, LabError> {
        let mut found = self;
        for cell in cells {
            let percent = f64::from(cell.point.load_percent());
            if percent == 0.0 || found.0.contains_key(cell) {
                continue;
            }
            let saturated = Cell { point: cell.point.saturated(), ..*cell };
            let mut slowest: Option<f64> = None;
            for subject in experiment.subjects_of(cell.protocol()) {
                let subject = &experiment.subjects[subject];
                progress.look(&saturated, &subject.name);
                let slot = Slot { index: 0, cell: saturated, block: 0, subject, rate_per_s: None };
                let run = loop {
                    match machine.run(&slot)? {
                        Attempt::Made(run) => break run,
                        Attempt::Stopped => return Ok(None),
                        Attempt::Void => {}
                    }
                };
                let served = figures_of(&run).map(|it| it[Metric::RequestsPerS]);
                slowest = served.into_iter().chain(slowest).min_by(f64::total_cmp);
            }
            let rate_per_s = slowest.map_or(0, |served| rounded(served * percent / 100.0));
            if rate_per_s == 0 {
                let why = "nobody answered in a closed loop, so there is no rate";
                progress.say(&format!("{cell} is left out: {why}"));
                continue;
            }
            progress.say(&format!("{cell}: {rate_per_s} requests/s"));
            found.0.insert(*cell, rate_per_s);
        }
        Ok(Some(found))
    }
}

/// The rate without the digits that mean nothing, never more than it is.
fn rounded(rate_per_s: f64) -> u32 {
    let whole = rate_per_s as u32;
    let unit = 10_u32.pow(whole.checked_ilog10().unwrap_or(0).saturating_sub(DIGITS - 1));
    whole / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_two_digits_and_is_never_more_than_what_was_found() {
        let rates = [0.4, 7.9, 99.9, 123.4, 98_765.4, 1_999_999.0];
        assert_eq!(rates.map(rounded), [0, 7, 99, 120, 98_000, 1_900_000]);
    }
}
