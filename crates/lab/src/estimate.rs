//! An estimate of how long an experiment takes, printed before it runs.

use crate::experiment::{Cell, Correction, Experiment, Protocol};
use crate::plan::groups;
use crate::statistics::MIN_PAIRS;
use crate::statistics::{least_pairs, level_for};

/// What a run takes beyond warm-up and window: start, placement, end.
const OVERHEAD_S: f64 = 0.3;

/// The runs of an experiment and the time they take, without blocks that have to be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// Runs of all pairs.
    pub runs: usize,
    /// What they take.
    pub seconds: f64,
    /// What they take when every spare pair is needed, and every pair up to the cap of a stop rule.
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
        let nets = experiment.net.kinds();
        let cells = experiment.cells(nets);
        let mut estimate = Estimate::default();
        for cell in cells.iter().filter(|cell| cell.point.load_percent() > 0) {
            // Each subject once, to find the rate.
            let protocol = cell.protocol();
            let seconds = block_s(experiment, experiment.subjects_of(protocol).len(), protocol);
            estimate.seconds += seconds;
            estimate.seconds_most += seconds;
        }
        for (runs, protocol) in cells.iter().flat_map(|cell| block_sizes(experiment, cell)) {
            let pairs = experiment.pairs;
            let pairs_max = experiment.until.map_or(pairs, |until| pairs.max(until.max_pairs));
            let seconds = block_s(experiment, runs, protocol);
            estimate.runs += runs * pairs;
            estimate.seconds += seconds * pairs as f64;
            estimate.seconds_most += seconds * (pairs_max + experiment.spare_pairs) as f64;
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

/// Says so if the pairs cannot be enough: the more comparisons are judged together, the more a lone
/// difference has to be sure. The user learns this before the experiment, not after hours of it.
pub(crate) fn too_few_pairs(experiment: &Experiment, comparisons: usize) -> Option<String> {
    let count = match experiment.correction {
        Correction::None => 1,
        Correction::BenjaminiHochberg => comparisons,
    };
    let pairs = experiment.until.map_or(0, |until| until.max_pairs).max(experiment.pairs);
    let needed = least_pairs(level_for(1, count))?.max(MIN_PAIRS);
    (pairs < needed).then(|| {
        format!(
            "{comparisons} comparisons are judged together: if only one of them shows a difference, \
             to say so takes {needed} pairs (--pairs {needed}), and these are {pairs}"
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
        let grid = Experiment::find("tcp-grid").unwrap();
        let estimate = Estimate::of(&grid);
        assert_eq!(estimate.runs, 2 * 25 * 2 * grid.pairs);
        assert!(estimate.seconds < estimate.seconds_most);
        // With a stop rule it can take up to the cap.
        let until = Experiment::find("accounting-cost").unwrap();
        let cap = until.until.unwrap().max_pairs as f64;
        let estimate = Estimate::of(&until);
        assert!(estimate.seconds_most > estimate.seconds / until.pairs as f64 * cap);
        assert_eq!(duration(90.0), "90 s");
        assert_eq!(duration(91.0), "2 min");
    }

    #[test]
    fn too_few_pairs_are_told_before_they_are_run() {
        let mut experiment = Experiment::find("published-go-uring").unwrap();
        assert_eq!(too_few_pairs(&experiment, 8), None);
        experiment.pairs = 8;
        let said = too_few_pairs(&experiment, 8).unwrap();
        assert!(said.contains("8 comparisons") && said.contains("--pairs 9"), "{said}");
        assert_eq!(too_few_pairs(&experiment, 1), None);
        // Six pairs were said to be enough here, and eight in the verdict.
        experiment.pairs = 6;
        assert!(too_few_pairs(&experiment, 1).unwrap().contains("takes 8 pairs (--pairs 8)"));
        // Those that judge each comparison by itself, as old experiments did.
        experiment.pairs = 8;
        experiment.correction = Correction::None;
        assert_eq!(too_few_pairs(&experiment, 8), None);
    }
}
