//! The difference between two sets of runs that were not made in pairs.
//!
//! Everything works on logarithms, so a difference is a ratio of geometric means. Runs under one
//! condition are compared with runs under the same condition only. `docs/statistics.md` gives the
//! sources and shows how the choices were checked.

use std::collections::BTreeMap;

use oorandom::Rand64;
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::{MIN_PAIRS, POWER};

/// Assignments that the permutation test draws: its smallest p-value is one in 20,001.
const PERMUTATIONS: usize = 20_000;

/// The fewest runs on either side; as many as a verdict needs pairs.
pub const MIN_RUNS: usize = MIN_PAIRS;

/// Why two sets of runs cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incomparable<C> {
    /// Too few runs, A or B, under conditions that both have: the runs under each condition.
    TooFew(BTreeMap<C, [usize; 2]>),
    /// In a run the figure was 0, which has no logarithm.
    Nothing,
}

/// The difference of the mean logarithms, B less A, and how sure it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TwoSamples {
    /// The difference.
    pub log: f64,
    standard_error: f64,
    freedom: f64,
    /// Runs of A and of B that it rests on.
    pub runs: [usize; 2],
    /// Of a difference at least this large if the runs of A and B did not differ.
    pub p_value: f64,
}

impl TwoSamples {
    /// The interval of the logarithm that holds the true difference with this confidence.
    pub fn interval(&self, confidence: f64) -> [f64; 2] {
        let reach = self.quantile(1.0 - (1.0 - confidence) / 2.0) * self.standard_error;
        [self.log - reach, self.log + reach]
    }

    /// The smallest difference, as a logarithm, that runs which scatter like these would have
    /// shown with probability [`POWER`].
    pub fn detectable(&self, confidence: f64) -> f64 {
        let reach = self.quantile(1.0 - (1.0 - confidence) / 2.0) + self.quantile(POWER);
        reach * self.standard_error
    }

    fn quantile(&self, share: f64) -> f64 {
        // The degrees of freedom are at least those of the smaller side, so one or more.
        StudentsT::new(0.0, 1.0, self.freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(share))
    }
}

/// The runs under one condition: A, B.
type Stratum = [Vec<f64>; 2];

/// Compares runs of `a` and `b`, each with its condition and the logarithm of its figure, within each
/// condition that both have runs of. The same seed gives the same estimate.
///
/// # Errors
/// Why there is none.
pub fn two_samples<C: Copy + Ord>(
    a: &[(C, f64)],
    b: &[(C, f64)],
    seed: u64,
) -> Result<TwoSamples, Incomparable<C>> {
    estimate(a, b, seed, PERMUTATIONS)
}

fn estimate<C: Copy + Ord>(
    a: &[(C, f64)],
    b: &[(C, f64)],
    seed: u64,
    permutations: usize,
) -> Result<TwoSamples, Incomparable<C>> {
    let mut strata: BTreeMap<C, Stratum> = BTreeMap::new();
    for (side, values) in [a, b].into_iter().enumerate() {
        for (condition, log) in values {
            strata.entry(*condition).or_default()[side].push(*log);
        }
    }
    let common: Vec<Stratum> =
        strata.values().filter(|[a, b]| !a.is_empty() && !b.is_empty()).cloned().collect();
    let runs = [0, 1].map(|side| common.iter().map(|stratum| stratum[side].len()).sum::<usize>());
    if runs.iter().any(|runs| *runs < MIN_RUNS) {
        let counts = |(condition, [a, b]): (C, Stratum)| (condition, [a.len(), b.len()]);
        return Err(Incomparable::TooFew(strata.into_iter().map(counts).collect()));
    }
    if common.iter().flatten().flatten().any(|log| !log.is_finite()) {
        return Err(Incomparable::Nothing);
    }
    let (log, standard_error, freedom) = welch(&common);
    let observed = log / standard_error.max(TINY);
    let p_value = permutation_test(common, observed, permutations, seed);
    Ok(TwoSamples { log, standard_error, freedom, runs, p_value })
}

/// Keeps the quotient of two sums of nothing but rounding errors a number.
const TINY: f64 = 1e-12;

/// Welch's comparison of two means, within strata: the difference, its standard error, and the
/// degrees of freedom by Satterthwaite. With one stratum it is the usual one. Each stratum weighs
/// as much as it knows, the scatter of a side is that around the means of its strata.
fn welch(strata: &[Stratum]) -> (f64, f64, f64) {
    let mut difference = 0.0;
    let mut weights = 0.0;
    let mut squares = [0.0; 2];
    let mut shares = [0.0; 2];
    let mut runs = [0.0; 2];
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

/// The two-sided permutation test of Welch's t: how often a t at least this large comes about when
/// runs under one condition are dealt to A and B at random. Of runs that may be swapped it is exact;
/// where A and B only have the same mean and scatter differently, it is right for many runs, which
/// the test of the plain difference is not.
fn permutation_test(
    mut strata: Vec<Stratum>,
    observed: f64,
    permutations: usize,
    seed: u64,
) -> f64 {
    let mut random = Rand64::new(u128::from(seed));
    let limit = observed.abs() * (1.0 - 1e-9);
    let mut far = 0;
    for _ in 0..permutations {
        for stratum in &mut strata {
            deal(stratum, &mut random);
        }
        let (log, standard_error, _) = welch(&strata);
        far += usize::from((log / standard_error.max(TINY)).abs() >= limit);
    }
    // The observed assignment is one of the possible ones.
    (far + 1) as f64 / (permutations + 1) as f64
}

/// Deals the runs of a stratum to both sides at random; each keeps its number.
fn deal([a, b]: &mut Stratum, random: &mut Rand64) {
    let all = a.len() + b.len();
    for place in 0..a.len() {
        let other = random.rand_range(place as u64..all as u64) as usize;
        match other.checked_sub(a.len()) {
            Some(in_b) => std::mem::swap(&mut a[place], &mut b[in_b]),
            None => a.swap(place, other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Normal deviates by Box and Muller.
    fn normal(random: &mut Rand64) -> f64 {
        let uniform = (1.0 - random.rand_float(), random.rand_float());
        (-2.0 * uniform.0.ln()).sqrt() * (std::f64::consts::TAU * uniform.1).cos()
    }

    // Computed with scipy 1.17.1 and numpy 2.4.6, a and b logarithms of these:
    //   r = ttest_ind(b, a, equal_var=False); r.confidence_interval(); r.df
    //   p: the share of all assignments with a t of Welch at least as large
    //   (t.ppf(.975, df) + t.ppf(.8, df)) * sqrt(var(a)/n + var(b)/m)
    const A: &[f64] = &[1502.0, 1480.0, 1519.0, 1491.0, 1533.0, 1470.0, 1507.0, 1495.0];
    const B: &[f64] = &[1561.0, 1530.0, 1588.0, 1547.0, 1549.0, 1602.0, 1523.0, 1570.0, 1555.0];

    fn under(figures: &[f64], condition: char) -> Vec<(char, f64)> {
        figures.iter().map(|figure| (condition, figure.ln())).collect()
    }

    fn close(found: f64, expected: f64, tolerance: f64) -> bool {
        (found - expected).abs() <= tolerance
    }

    #[test]
    fn figures_agree_with_an_independent_computation() {
        let found = two_samples(&under(A, '-'), &under(B, '-'), 1).unwrap();
        let [low, high] = found.interval(0.95);
        assert!(close(found.log, 0.03836372824412404, 1e-12), "{found:?}");
        assert!(close(found.freedom, 14.948268077564087, 1e-9), "{found:?}");
        assert!(close(low, 0.022887929742938934, 1e-7), "{low}");
        assert!(close(high, 0.053839526745309146, 1e-7), "{high}");
        assert!(close(found.detectable(0.95), 0.021764075956137347, 1e-7));
        assert_eq!(found.runs, [8, 9]);
        // 5 of 24,310 assignments.
        assert!(found.p_value < 0.001, "{found:?}");

        let a = [10.1, 9.9, 10.3, 10.0, 9.8, 10.2, 10.4, 9.7];
        let b = [10.0, 10.5, 9.9, 10.6, 10.1, 10.2, 10.4, 10.3];
        let found = two_samples(&under(&a, '-'), &under(&b, '-'), 1).unwrap();
        // Four standard errors of 20,000 draws.
        assert!(close(found.p_value, 0.1299, 0.0095), "{found:?}");
    }

    #[test]
    fn only_runs_under_one_condition_are_compared() {
        let dear = |figures: &[f64]| figures.iter().map(|it| it * 1.5).collect::<Vec<_>>();
        let mixed = |figures: &[f64], apart: usize| {
            let (apart, close) = figures.split_at(apart);
            [under(&dear(apart), 'f'), under(close, 'c')].concat()
        };
        // The mixes differ, and runs that are far apart cost half as much again.
        let found = two_samples(&mixed(A, 2), &mixed(B, 6), 1).unwrap();
        let plain = two_samples(&under(A, '-'), &under(B, '-'), 1).unwrap();
        assert!(close(found.log, plain.log, 0.01), "{found:?} {plain:?}");
        assert!(found.interval(0.95)[1] < 0.1, "{found:?}");
        // What only one side has does not count, and then there may be too few.
        let too_few = |a: &[(char, f64)], counts: &[(char, [usize; 2])]| {
            let why = Incomparable::TooFew(counts.iter().copied().collect());
            assert_eq!(two_samples(a, &under(B, 'f'), 1), Err(why));
        };
        too_few(&under(A, 'c'), &[('c', [8, 0]), ('f', [0, 9])]);
        too_few(&under(&A[1..], 'f'), &[('f', [7, 9])]);
        too_few(&[], &[('f', [0, 9])]);
    }

    /// The difference is that of a linear model by least squares with a mean for each condition (computed in
    /// fractions, with the variances of its coefficient from the scatter of each side).
    #[test]
    fn conditions_weigh_as_in_a_linear_model() {
        let side = |close: &[f64], apart: &[f64]| -> Vec<(char, f64)> {
            let close = close.iter().map(|log| ('c', *log));
            close.chain(apart.iter().map(|log| ('f', *log))).collect()
        };
        let a = side(&[1.0, 2.0, 4.0], &[10.0, 12.0, 11.0, 15.0, 13.0]);
        let b = side(&[3.0, 5.0], &[14.0, 13.0, 18.0, 16.0, 19.0, 17.0]);
        let found = two_samples(&a, &b, 1).unwrap();
        assert!(close(found.log, 3.263888888888889, 1e-12), "{found:?}");
        assert!(close(found.standard_error, 1.0121673472858879, 1e-12), "{found:?}");
        assert!(close(found.freedom, 11.57343742954049, 1e-9), "{found:?}");
    }

    /// Of the 256 ways to swap one run of each of eight conditions, two are as far apart.
    #[test]
    fn assignments_that_are_as_far_apart_count() {
        let side = |log: f64| (0..8).map(|condition| (condition, log)).collect::<Vec<_>>();
        let found = two_samples(&side(0.0), &side(1.0), 1).unwrap();
        // Four standard errors of 20,000 draws.
        assert!(close(found.p_value, 2.0 / 256.0, 0.0025), "{found:?}");
    }

    #[test]
    fn runs_without_scatter_or_without_figures_do_no_harm() {
        let same = [5.0; 8];
        let found = two_samples(&under(&same, '-'), &under(&same, '-'), 1).unwrap();
        assert!(found.interval(0.95).iter().all(|end| end.abs() < 1e-12), "{found:?}");
        assert_eq!((found.log, found.p_value), (0.0, 1.0));
        let found = two_samples(&under(&same, '-'), &under(&[6.0; 8], '-'), 1).unwrap();
        assert!(close(found.log, 1.2_f64.ln(), 1e-12) && found.p_value < 0.01, "{found:?}");
        let why = two_samples(&under(&[0.0; 8], '-'), &under(&same, '-'), 1).unwrap_err();
        assert_eq!(why, Incomparable::Nothing);
    }

    /// The share of simulated comparisons whose interval holds the difference that there is, and
    /// the share in which a difference is claimed.
    fn simulate(
        runs: usize,
        difference: f64,
        mut scatter: impl FnMut(&mut Rand64) -> f64,
    ) -> [f64; 2] {
        let mut random = Rand64::new(42);
        let comparisons = 600;
        let mut counts = [0; 2];
        for seed in 0..comparisons {
            let mut side = |mean: f64| -> Vec<((), f64)> {
                (0..runs).map(|_| ((), mean + 0.03 * scatter(&mut random))).collect()
            };
            let (a, b) = (side(0.0), side(difference));
            let found = estimate(&a, &b, seed, 300).unwrap();
            let [low, high] = found.interval(0.95);
            counts[0] += usize::from(low <= difference && difference <= high);
            let is_seen = (low > 0.0 || high < 0.0) && found.p_value <= 0.05;
            counts[1] += usize::from(is_seen);
        }
        counts.map(|count| count as f64 / comparisons as f64)
    }

    type Shape = (&'static str, fn(&mut Rand64) -> f64);

    #[test]
    fn intervals_hold_the_truth_and_nothing_is_claimed_of_equals() {
        // Three standard errors of a share of 5 % in 600 comparisons.
        let slack = 3.0 * (0.05_f64 * 0.95 / 600.0).sqrt();
        for runs in [8, 12] {
            let shapes: [Shape; 3] = [
                ("normal", normal),
                ("with outliers", |random| {
                    let spread = if random.rand_float() < 0.1 { 10.0 } else { 1.0 };
                    spread * normal(random)
                }),
                ("exponential", |random| -(1.0 - random.rand_float()).ln()),
            ];
            for (name, shape) in shapes {
                let [held, claimed] = simulate(runs, 0.0, shape);
                assert!(held >= 0.95 - slack, "{name}, {runs} runs: {held}");
                assert!(claimed <= 0.05 + slack, "{name}, {runs} runs: {claimed}");
            }
        }
    }

    #[test]
    fn the_stated_difference_is_found_with_the_stated_power() {
        // Both sides scatter by 3 %, so this is the standard error that eight runs of each have.
        let exact = TwoSamples {
            log: 0.0,
            standard_error: 0.03 / 2.0,
            freedom: 14.0,
            runs: [8, 8],
            p_value: 1.0,
        };
        let [held, found] = simulate(8, exact.detectable(0.95), normal);
        assert!(held > 0.9 && (POWER - 0.06..=0.9).contains(&found), "{held} {found}");
    }
}
