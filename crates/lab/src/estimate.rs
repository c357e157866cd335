//! An estimate of how long an experiment takes, printed before it runs.

use crate::analysis::family;
use crate::experiment::{Cell, Experiment, Protocol};
use crate::plan::groups;
use crate::statistics::{family_level, least_pairs};

/// What a run takes beyond warm-up and window: start, placement, end.
const OVERHEAD_S: f64 = 0.3;

/// The runs of an experiment and the time they take, without blocks that have to be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// Runs of all pairs.
    pub runs: usize,
    /// What they take.
    pub seconds: f64,
    /// What they take when every spare pair is needed.
    pub seconds_most: f64,
}

impl Estimate {
    /// For an experiment whose subjects are all present, on one network unless it names several.
    ///
    /// ```
    /// let quick = twinring_lab::Experiment::find("quick")?;
    /// assert!(twinring_lab::Estimate::of(&quick).seconds < 120.0);
    /// # Ok::<(), twinring_lab::LabError>(())
    /// ```
    pub fn of(experiment: &Experiment) -> Estimate {
        let nets = experiment.networks();
        let cells = experiment.cells(nets);
        let mut estimate = Estimate::default();
        for cell in cells.iter().filter(|cell| cell.point.load_percent() > 0) {
            // Three windows of each subject, to find the rate.
            let protocol = cell.protocol();
            let seconds =
                3.0 * block_s(experiment, experiment.subjects_of(protocol).len(), protocol);
            estimate.seconds += seconds;
            estimate.seconds_most += seconds;
        }
        for (runs, protocol) in cells.iter().flat_map(|cell| block_sizes(experiment, cell)) {
            let pairs = experiment.pairs;
            let seconds = block_s(experiment, runs, protocol);
            estimate.runs += runs * pairs;
            estimate.seconds += seconds * pairs as f64;
            estimate.seconds_most += seconds * (pairs + experiment.spare_pairs) as f64;
        }
        estimate
    }

    /// The time as people say it: `9 min to 16 min`, or `about 9 min` without spare pairs.
    pub fn words(&self) -> String {
        let (about, most) = (duration(self.seconds), duration(self.seconds_most));
        if about == most { format!("about {about}") } else { format!("{about} to {most}") }
    }
}

/// The duration of a block with this number of runs.
pub(crate) fn block_s(experiment: &Experiment, runs: usize, protocol: Protocol) -> f64 {
    let (warmup_s, window_s) = experiment.pace_s(protocol);
    runs as f64 * (warmup_s + window_s + OVERHEAD_S)
}

/// The runs of one block of each group of a cell, and what they speak.
fn block_sizes(experiment: &Experiment, cell: &Cell) -> Vec<(usize, Protocol)> {
    let protocol = cell.protocol();
    let groups = groups(0, &experiment.subjects_of(protocol), &experiment.contests(protocol));
    groups.iter().map(|group| (group.subjects.len(), protocol)).collect()
}

/// Says so if the plan can give no decision, before it is run.
pub(crate) fn too_few_pairs(experiment: &Experiment) -> Option<String> {
    let cells = experiment.cells(experiment.networks());
    let comparisons = family(experiment, &cells);
    let needed = least_pairs(family_level(comparisons));
    let pairs = experiment.pairs;
    (comparisons > 0 && pairs < needed).then(|| {
        format!(
            "{pairs} pairs can give no decision: a lone difference among {comparisons} comparisons takes \
             {needed} (--pairs {needed})"
        )
    })
}

/// Seconds up to a minute and a half, then minutes.
pub(crate) fn duration(seconds: f64) -> String {
    if seconds <= 90.0 {
        format!("{} s", seconds.round())
    } else {
        format!("{} min", (seconds / 60.0).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_takes_its_cells_times_its_subjects_times_its_pairs() {
        let grid = Experiment::find("grid").unwrap();
        let estimate = Estimate::of(&grid);
        assert_eq!(estimate.runs, grid.cells(grid.networks()).len() * 2 * grid.pairs);
        assert!(estimate.seconds < estimate.seconds_most);
        assert_eq!(duration(90.0), "90 s");
        assert_eq!(duration(91.0), "2 min");
    }

    #[test]
    fn a_plan_that_can_give_no_decision_says_so() {
        let mut experiment = Experiment::find("quick").unwrap();
        assert_eq!(too_few_pairs(&experiment), None);
        experiment.pairs = 4;
        let said = too_few_pairs(&experiment).unwrap();
        assert!(
            said.starts_with("4 pairs can give no decision") && said.contains("--pairs 8"),
            "{said}"
        );
    }
}
