//! Two sets of runs that are not paired: two bundles.

use std::collections::BTreeMap;

use super::{Ends, Estimate, Sample, student_quantile};

/// The fewest runs on either side of one session.
pub const RUNS_MIN: usize = 6;

/// How many times `a` the figure of `b` is: Welch's comparison of mean logarithms, within strata that both sides
/// have, with the degrees of freedom by Satterthwaite. Each stratum weighs as much as it knows. Nothing of fewer than
/// `least` runs of either side in common strata, or if a figure is not positive.
pub fn difference(a: &[Sample], b: &[Sample], least: usize, level: f64) -> Option<Estimate> {
    let mut strata: BTreeMap<usize, [Vec<f64>; 2]> = BTreeMap::new();
    for (side, runs) in [a, b].into_iter().enumerate() {
        for run in runs {
            strata.entry(run.stratum).or_default()[side].push(run.value.ln());
        }
    }
    let common: Vec<&[Vec<f64>; 2]> =
        strata.values().filter(|[a, b]| !a.is_empty() && !b.is_empty()).collect();
    let runs = [0, 1].map(|side| common.iter().map(|stratum| stratum[side].len()).sum::<usize>());
    let all = common.iter().flat_map(|it| it.iter().flatten());
    if runs.iter().any(|runs| *runs < least) || all.into_iter().any(|log| !log.is_finite()) {
        return None;
    }
    let (log, standard_error, freedom) = welch(&common);
    let reach = student_quantile(freedom, 1.0 - level / 2.0) * standard_error;
    Some(Estimate {
        ratio: log.exp(),
        ends: Some(Ends::of_logs([log - reach, log + reach])),
        pairs: runs[0].min(runs[1]),
    })
}

/// The difference of means, its standard error and the degrees of freedom. The scatter of a side is that around
/// the means of its strata.
fn welch(strata: &[&[Vec<f64>; 2]]) -> (f64, f64, f64) {
    let (mut difference, mut weights) = (0.0, 0.0);
    let (mut squares, mut shares, mut runs) = ([0.0; 2], [0.0; 2], [0.0; 2]);
    for stratum in strata {
        let counts = [0, 1].map(|side| stratum[side].len() as f64);
        let means = [0, 1].map(|side| stratum[side].iter().sum::<f64>() / counts[side]);
        let weight = counts[0] * counts[1] / (counts[0] + counts[1]);
        difference += weight * (means[1] - means[0]);
        weights += weight;
        for side in [0, 1] {
            let around = |log: &f64| (log - means[side]).powi(2);
            squares[side] += stratum[side].iter().map(around).sum::<f64>();
            shares[side] += weight.powi(2) / counts[side];
            runs[side] += counts[side];
        }
    }
    // Each stratum has a run of either side; with as many strata as runs nothing would be left.
    let freedoms = runs.map(|runs| (runs - strata.len() as f64).max(1.0));
    let variances =
        [0, 1].map(|side| squares[side] / freedoms[side] * shares[side] / weights.powi(2));
    let variance = variances[0] + variances[1];
    let spread = |side: usize| variances[side].powi(2) / freedoms[side];
    let freedom = variance.powi(2) / (spread(0) + spread(1));
    // Without any scatter there is nothing to divide.
    let freedom = if freedom.is_finite() { freedom } else { freedoms[0].min(freedoms[1]) };
    (difference / weights, variance.sqrt(), freedom)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Computed with scipy 1.17.1 and numpy 2.4.6, a and b logarithms of these:
    //   r = ttest_ind(b, a, equal_var=False); r.confidence_interval(); r.df
    const A: &[f64] = &[1502.0, 1480.0, 1519.0, 1491.0, 1533.0, 1470.0, 1507.0, 1495.0];
    const B: &[f64] = &[1561.0, 1530.0, 1588.0, 1547.0, 1549.0, 1602.0, 1523.0, 1570.0, 1555.0];

    fn under(figures: &[f64], stratum: usize) -> Vec<Sample> {
        figures.iter().map(|figure| Sample { value: *figure, stratum }).collect()
    }

    fn close(found: f64, expected: f64, tolerance: f64) -> bool {
        (found - expected).abs() <= tolerance
    }

    #[test]
    fn figures_agree_with_an_independent_computation() {
        let found = difference(&under(A, 0), &under(B, 0), RUNS_MIN, 0.05).unwrap();
        let Ends { low, high } = found.ends.unwrap();
        assert!(close(found.ratio.ln(), 0.03836372824412404, 1e-12), "{found:?}");
        assert!(close(low.ln(), 0.022887929742938934, 1e-7), "{low}");
        assert!(close(high.ln(), 0.053839526745309146, 1e-7), "{high}");
    }

    #[test]
    fn only_runs_under_one_condition_are_compared() {
        let dear = |figures: &[f64]| figures.iter().map(|it| it * 1.5).collect::<Vec<_>>();
        let mixed = |figures: &[f64], apart: usize| {
            let (apart, close) = figures.split_at(apart);
            [under(&dear(apart), 1), under(close, 0)].concat()
        };
        // The mixes differ, and runs that are far apart cost half as much again.
        let found = difference(&mixed(A, 2), &mixed(B, 6), RUNS_MIN, 0.05).unwrap();
        let plain = difference(&under(A, 0), &under(B, 0), RUNS_MIN, 0.05).unwrap();
        assert!(close(found.ratio.ln(), plain.ratio.ln(), 0.01), "{found:?} {plain:?}");
        // What only one side has does not count, and then there may be too few.
        assert_eq!(difference(&under(A, 0), &under(B, 1), RUNS_MIN, 0.05), None);
        assert_eq!(difference(&under(&A[3..], 0), &under(B, 0), RUNS_MIN, 0.05), None);
        assert_eq!(difference(&under(&[0.0; 8], 0), &under(B, 0), RUNS_MIN, 0.05), None);
    }

    /// The difference is that of a linear model by least squares with a mean for each condition (computed in
    /// fractions, with the variances of its coefficient from the scatter of each side).
    #[test]
    fn conditions_weigh_as_in_a_linear_model() {
        let near = [vec![1.0, 2.0, 4.0], vec![3.0, 5.0]];
        let far = [vec![10.0, 12.0, 11.0, 15.0, 13.0], vec![14.0, 13.0, 18.0, 16.0, 19.0, 17.0]];
        let (log, standard_error, freedom) = welch(&[&near, &far]);
        assert!(close(log, 3.263888888888889, 1e-12), "{log}");
        assert!(close(standard_error, 1.0121673472858879, 1e-12), "{standard_error}");
        assert!(close(freedom, 11.57343742954049, 1e-9), "{freedom}");
    }

    #[test]
    fn runs_without_scatter_do_no_harm() {
        let same = difference(&under(&[5.0; 8], 0), &under(&[5.0; 8], 0), RUNS_MIN, 0.05).unwrap();
        assert!(!same.shows_a_difference(), "{same:?}");
        let other = difference(&under(&[5.0; 8], 0), &under(&[6.0; 8], 0), RUNS_MIN, 0.05).unwrap();
        assert!(close(other.ratio, 1.2, 1e-12) && other.shows_a_difference(), "{other:?}");
    }
}
