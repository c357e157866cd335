//! An estimate of how long an experiment takes, printed before it runs.

use crate::analysis::family;
use crate::experiment::{Axis, Cell, Experiment, Protocol};
use crate::plan::groups;
use crate::statistics::{family_level, least_pairs};
use std::collections::BTreeSet;

/// What a run takes beyond warm-up and window: start, placement, end.
const OVERHEAD_S: f64 = 0.3;

/// How long an experiment takes whose subjects are all present, on one network unless it names several: `9 min to 16
/// min` without and with every spare pair.
pub fn how_long(experiment: &Experiment) -> String {
    let cells = experiment.cells(experiment.networks());
    let windows = |saturated: &Cell| {
        let protocol = saturated.protocol();
        // Three of each subject, to find the rate.
        3.0 * block_s(experiment, experiment.subjects_of(protocol).len(), protocol)
    };
    let of_pair = |cell: &Cell| -> f64 {
        let protocol = cell.protocol();
        let groups = groups(0, &experiment.subjects_of(protocol), &experiment.contests(protocol));
        groups.iter().map(|group| block_s(experiment, group.subjects.len(), protocol)).sum()
    };
    let shares = cells.iter().filter(|cell| cell.point.load_percent() > 0);
    let saturated: BTreeSet<Cell> =
        shares.map(|cell| Cell { point: cell.point.with(Axis::LoadPercent, 0), ..*cell }).collect();
    let calibrations: f64 = saturated.iter().map(windows).sum();
    let each_s: f64 = cells.iter().map(of_pair).sum();
    let pairs = [experiment.pairs, experiment.pairs + experiment.spare_pairs];
    let [about, most] = pairs.map(|pairs| duration(calibrations + each_s * pairs as f64));
    if about == most { format!("about {about}") } else { format!("{about} to {most}") }
}

fn block_s(experiment: &Experiment, runs: usize, protocol: Protocol) -> f64 {
    let (warmup_s, window_s) = experiment.pace_s(protocol);
    runs as f64 * (warmup_s + window_s + OVERHEAD_S)
}

/// Says so if the plan can give no decision, before it is run.
pub(crate) fn too_few_pairs(experiment: &Experiment) -> Option<String> {
    let cells = experiment.cells(experiment.networks());
    let comparisons = family(experiment, &cells);
    let needed = least_pairs(family_level(comparisons));
    let pairs = experiment.pairs;
    (comparisons > 0 && pairs < needed).then(|| {
        format!("too few pairs for a decision: {pairs}, where it takes {needed} (--pairs {needed})")
    })
}

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
    fn an_experiment_takes_its_pairs_and_perhaps_the_spare_ones() {
        let mut quick = Experiment::find("quick").unwrap();
        assert_eq!(how_long(&quick), "2 min to 4 min");
        quick.spare_pairs = 0;
        assert!(how_long(&quick).starts_with("about "));
        assert_eq!([90.0, 91.0].map(duration), ["90 s", "2 min"]);
    }

    #[test]
    fn a_plan_that_can_give_no_decision_says_so() {
        let mut experiment = Experiment::find("quick").unwrap();
        assert_eq!(too_few_pairs(&experiment), None);
        experiment.pairs = 4;
        let said = too_few_pairs(&experiment).unwrap();
        assert!(
            said.starts_with("too few pairs for a decision: 4") && said.contains("--pairs 8"),
            "{said}"
        );
    }
}
