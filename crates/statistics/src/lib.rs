//! Intervals on paired ratios, for few pairs and without an assumption about their distribution.
//!
//! Everything works on the logarithms of the per-pair ratios, so that "twice" and "half" are equally far from
//! "equal"; the estimate is their geometric mean. [`estimate`] is of the pairs of one session, [`over_sessions`] of several
//! sessions, [`difference()`] of runs that are not paired. `docs/statistics.md` has the sources; `simulations.rs` makes its tables.

mod difference;
mod sessions;
mod sign_flip;
#[cfg(test)]
mod simulations;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

use sign_flip::SubsetMeans;

pub use difference::{RUNS_MIN, difference};
pub use sessions::{MIN_SESSIONS, SESSION_PAIRS_MIN, Session, over_sessions};

/// The probability with which all intervals of a family hold the true ratios.
pub const CONFIDENCE: f64 = 0.95;

/// Fewer pairs than this of one stratum do not say how they scatter.
const STRATUM_MIN: usize = 3;

/// The ratio of one pair of runs, or the figure of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The value, positive.
    pub value: f64,
    /// The condition under which it was measured, such as the placement of the CPUs.
    pub stratum: usize,
}

/// A ratio and its interval. The interval is the decision: there is a difference if 1 is outside.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Estimate {
    /// Geometric mean of the per-pair ratios, or of the sessions' means.
    pub ratio: f64,
    /// Where the true ratio lies; none if so few pairs or sessions cannot exclude any ratio.
    #[serde(flatten)]
    pub ends: Option<Ends>,
    /// How many pairs.
    pub pairs: usize,
}

impl Estimate {
    /// Whether the interval excludes a ratio of 1.
    pub fn shows_a_difference(&self) -> bool {
        self.ends.is_some_and(Ends::excludes_one)
    }
}

/// The two ends of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Ends {
    /// The lower one.
    pub low: f64,
    /// The upper one.
    pub high: f64,
}

impl Ends {
    fn of_logs([low, high]: [f64; 2]) -> Ends {
        Ends { low: low.exp(), high: high.exp() }
    }

    /// Whether a ratio of 1 is outside.
    pub fn excludes_one(self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// The level of each interval of a family of so many, so that all of them hold together with [`CONFIDENCE`]
/// (Bonferroni).
pub fn family_level(comparisons: usize) -> f64 {
    (1.0 - CONFIDENCE) / comparisons.max(1) as f64
}

/// The fewest pairs that can show a difference at this level: all of them agree, and of all assignments of
/// signs two are as far out.
pub fn least_pairs(level: f64) -> usize {
    (2..64)
        .find(|pairs| 2.0_f64.powi(1 - pairs) <= level)
        .map_or(usize::MAX, |pairs| pairs as usize)
}

/// The estimate of two or more pairs of one session; nothing of fewer, or if a ratio is not positive. The same
/// seed gives the same interval.
///
/// Each pair had a coin of its own that decided which of the two ran first, so every assignment of signs to the
/// distances from the true ratio was equally likely: the sign-flip test is exact by design. If pairs were measured
/// in several strata, their distances are from the mean of their own stratum.
pub fn estimate(pairs: &[Sample], level: f64, seed: u64) -> Option<Estimate> {
    let logs = aligned(pairs)?;
    let means = SubsetMeans::of(&logs, level, seed);
    Some(Estimate {
        ratio: means.mean().exp(),
        ends: means.interval(level).map(Ends::of_logs),
        pairs: logs.len(),
    })
}

/// The logarithms, without what strata differ by: their mean is the mean of all, their scatter that within
/// strata, as wide as if the means of the strata had been known. Where a stratum has too few pairs for that, the
/// difference between strata stays a part of the scatter.
fn aligned(pairs: &[Sample]) -> Option<Vec<f64>> {
    let usable = |pair: &Sample| pair.value.is_finite() && pair.value > 0.0;
    if pairs.len() < 2 || !pairs.iter().all(usable) {
        return None;
    }
    let mut logs: Vec<f64> = pairs.iter().map(|pair| pair.value.ln()).collect();
    let mut strata: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, pair) in pairs.iter().enumerate() {
        strata.entry(pair.stratum).or_default().push(at);
    }
    if strata.len() < 2 || strata.values().any(|members| members.len() < STRATUM_MIN) {
        return Some(logs);
    }
    let all = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / all;
    for members in strata.values() {
        let count = members.len() as f64;
        let own = members.iter().map(|at| logs[*at]).sum::<f64>() / count;
        let widened = (count / (count - 1.0) * (all - 1.0) / all).sqrt();
        members.iter().for_each(|at| logs[*at] = mean + widened * (logs[*at] - own));
    }
    Some(logs)
}

fn student_quantile(freedom: f64, share: f64) -> f64 {
    // One degree of freedom or more is always valid; a distribution without any has no quantile.
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(share))
}

/// The geometric mean of positive values; of values with one that is not, the arithmetic mean; nothing of none.
pub fn mean(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    if values.iter().all(|value| *value > 0.0) {
        let logs: f64 = values.iter().map(|value| value.ln()).sum();
        return (count > 0.0).then(|| (logs / count).exp());
    }
    Some(values.iter().sum::<f64>() / count)
}

/// The exact sign test, two-sided: the probability that trials go one way as unequally as these if either way
/// were as likely.
pub fn sign_test(one_way: u64, other_way: u64) -> f64 {
    let coin = Binomial::new(0.5, one_way + other_way);
    coin.map_or(1.0, |coin| (2.0 * coin.cdf(one_way.min(other_way))).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ratios: &[(f64, usize)]) -> Vec<Sample> {
        ratios.iter().map(|(ratio, stratum)| Sample { value: *ratio, stratum: *stratum }).collect()
    }

    fn interval(ratios: &[f64], seed: u64) -> Option<Estimate> {
        let ratios: Vec<(f64, usize)> = ratios.iter().map(|ratio| (*ratio, 0)).collect();
        estimate(&pairs(&ratios), 1.0 - CONFIDENCE, seed)
    }

    #[test]
    fn what_cannot_be_estimated_is_not() {
        for ratios in [&[][..], &[1.1], &[1.1, 0.0], &[1.1, f64::NAN], &[-1.0, 1.0]] {
            assert_eq!(interval(ratios, 1), None, "{ratios:?}");
        }
        // Five pairs cannot exclude any ratio at 5 %, six can.
        assert_eq!(interval(&[1.1; 5], 1).unwrap().ends, None);
        let six = interval(&[1.1, 1.2, 1.3, 1.4, 1.5, 1.6], 1).unwrap();
        assert!(six.shows_a_difference() && six.pairs == 6, "{six:?}");
        assert!(
            (six.ratio - (1.1_f64 * 1.2 * 1.3 * 1.4 * 1.5 * 1.6).powf(1.0 / 6.0)).abs() < 1e-12
        );
    }

    #[test]
    fn more_comparisons_take_more_pairs() {
        for (comparisons, pairs) in [(1, 6), (2, 7), (3, 7), (6, 8), (7, 9), (64, 12)] {
            assert_eq!(least_pairs(family_level(comparisons)), pairs, "{comparisons}");
            let level = family_level(comparisons);
            let agree = |count: usize| {
                let ratios: Vec<(f64, usize)> =
                    (0..count).map(|at| (1.1 + at as f64 / 100.0, 0)).collect();
                estimate(&super::tests::pairs(&ratios), level, 1).unwrap().shows_a_difference()
            };
            assert!(agree(pairs) && !agree(pairs - 1), "{comparisons}");
        }
    }

    /// Two placements whose ratios differ by 1.3 made an interval so wide that nothing was found.
    #[test]
    fn what_strata_differ_by_is_no_scatter_and_the_mean_stays() {
        let ratios: Vec<(f64, usize)> = (0..8)
            .map(|at| {
                (if at % 2 == 0 { 1.05 } else { 1.35 } + f64::from(at) / 1000.0, at as usize % 2)
            })
            .collect();
        let stratified = estimate(&pairs(&ratios), 0.05, 1).unwrap();
        let plain: Vec<f64> = ratios.iter().map(|it| it.0).collect();
        let together = interval(&plain, 1).unwrap();
        assert!((stratified.ratio - together.ratio).abs() < 1e-12);
        let width = |it: Estimate| it.ends.map(|ends| ends.high / ends.low - 1.0).unwrap();
        assert!(width(stratified) < 0.02 && width(together) > 0.1, "{stratified:?} {together:?}");
        // A stratum of two says too little about itself.
        let mut few = ratios;
        (2..8).for_each(|at| few[at].1 = 0);
        assert!(width(estimate(&pairs(&few), 0.05, 1).unwrap()) > 0.1);
    }

    #[test]
    fn the_mean_is_geometric_unless_a_count_is_zero() {
        assert_eq!(mean(&[]), None);
        assert!((mean(&[1.0, 4.0]).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(mean(&[0.0, 4.0]), Some(2.0));
    }

    #[test]
    fn the_sign_test_is_binomial() {
        for (one, other, expected) in
            [(8, 0, 2.0 / 256.0), (7, 1, 18.0 / 256.0), (4, 4, 1.0), (0, 0, 1.0)]
        {
            assert!((sign_test(one, other) - expected).abs() < 1e-12, "{one} {other}");
        }
    }
}
