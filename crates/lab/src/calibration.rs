//! The rates of cells that say only a share of what can be served: equal work that every subject
//! can do, on any machine.
//!
//! Before anything is compared, each subject serves the same cell in a closed loop, in several windows that take
//! turns. The slowest subject, by its median, is 100 %. These runs are stored, and in no figure; the rate that
//! follows stands in each run after it.

use std::collections::HashMap;

use crate::error::LabError;
use crate::experiment::{Axis, Cell, Experiment};
use crate::progress::Progress;
use crate::record::RunRecord;
use crate::runner::Slot;

const WINDOWS: usize = 3;

/// The digits of a rate: more would claim a precision that it does not have.
const DIGITS: u32 = 2;

pub(crate) type Rates = HashMap<Cell, u32>;

/// Finds the rates of all cells that give a share. A cell in which no subject answers gets none. `run` makes and
/// stores a run.
pub(crate) fn calibrate(
    experiment: &Experiment,
    cells: &[Cell],
    progress: &Progress,
    run: &mut dyn FnMut(&Slot<'_>) -> Result<RunRecord, LabError>,
) -> Result<Rates, LabError> {
    let mut rates = Rates::new();
    let mut known: HashMap<Cell, Option<f64>> = HashMap::new();
    for cell in cells.iter().filter(|cell| cell.point.load_percent() > 0) {
        let saturated = Cell { point: cell.point.with(Axis::LoadPercent, 0), ..*cell };
        let slowest = match known.get(&saturated) {
            Some(slowest) => *slowest,
            None => slowest(experiment, saturated, progress, run)?,
        };
        known.insert(saturated, slowest);
        let share = f64::from(cell.point.load_percent()) / 100.0;
        let left_out = |why: &str| progress.say(&format!("{cell} is left out: {why}"));
        // Each of several load generators gets a whole number.
        let parts = experiment.via.as_ref().map_or(1, |via| via.generators);
        match slowest.map(|served| rounded(served * share) / parts * parts) {
            None => left_out("no subject answered in a closed loop"),
            Some(0) => left_out("that share is less than one request per second"),
            Some(rate_per_s) => {
                progress.say(&format!("{cell}: {rate_per_s} requests/s"));
                rates.insert(*cell, rate_per_s);
            }
        }
    }
    Ok(rates)
}

/// What the slowest subject serves in a closed loop, if any answers.
fn slowest(
    experiment: &Experiment,
    cell: Cell,
    progress: &Progress,
    run: &mut dyn FnMut(&Slot<'_>) -> Result<RunRecord, LabError>,
) -> Result<Option<f64>, LabError> {
    let subjects = experiment.subjects_of(cell.protocol());
    let mut served: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
    for _ in 0..WINDOWS {
        for (position, subject) in subjects.iter().enumerate() {
            let subject = &experiment.subjects[*subject];
            progress.look(&cell, &subject.name);
            let record = run(&Slot { cell, block: None, subject, rate_per_s: None })?;
            if let Some(failure) = record.failures.first() {
                progress.say(&format!("{cell}, {}: {failure}", subject.name));
            }
            if let Some(Ok(load)) = record.load_result() {
                served[position].push(load.done() as f64 / load.window().seconds.max(1e-9));
            }
        }
    }
    Ok(served.iter_mut().filter_map(|served| median(served)).min_by(f64::total_cmp))
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().filter(|it| *it > 0.0)
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

    #[test]
    fn one_disturbed_window_of_three_decides_nothing() {
        assert_eq!(median(&mut [9.0, 1.0, 10.0]), Some(9.0));
        assert_eq!((median(&mut []), median(&mut [0.0])), (None, None));
    }
}
