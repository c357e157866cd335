//! Intervals on paired ratios, for few pairs and without a belief in their distribution.
//!
//! Everything works on the logarithms of the per-pair ratios, so that "twice" and "half" are
//! equally far from "equal", and the figure reported is their geometric mean. `docs/statistics.md`
//! gives the sources and shows how these choices were checked.

mod correction;
mod occasions;
mod outliers;
mod power;
mod sign_flip;
#[cfg(test)]
mod simulations;
#[cfg(test)]
mod tests;
mod trend;
mod two_samples;

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

use sign_flip::SubsetMeans;

pub use correction::{STOP_RULE_PENALTY, benjamini_hochberg, level_for};
pub use occasions::{MIN_OCCASIONS, Spread};
pub use outliers::Outliers;
pub use power::{MAX_REQUIRED_PAIRS, detectable_percent, least_pairs, required_pairs};
pub use trend::{Drift, drift};
pub use two_samples::{Incomparable, MIN_RUNS, TwoSamples, two_samples};

/// The share of intervals that hold the true ratio.
pub const CONFIDENCE: f64 = 0.95;

/// The chance with which [`Interval::detectable_percent`] would have been found.
pub const POWER: f64 = 0.80;

/// The fewest pairs a verdict may rest on.
pub const MIN_PAIRS: usize = 8;

/// Fewer values than this say nothing about how they scatter or whether they drift.
pub const MIN_VALUES: usize = 5;

/// What the pairs say about a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Geometric mean of the per-pair ratios.
    pub ratio: f64,
    /// Where the true ratio lies; none of so few pairs that the test cannot reject any ratio. At
    /// 95 % that is fewer than 6.
    #[serde(flatten)]
    pub ends: Option<Ends>,
    /// How many pairs.
    pub pairs: usize,
    /// Probability of a mean at least this far from equal if the two subjects did not differ, by
    /// the sign-flip test. The interval excludes 1 exactly if this is at most its level.
    pub p_value: f64,
    /// The smallest difference in percent that pairs which scatter like these would have shown
    /// with probability [`POWER`].
    pub detectable_percent: f64,
}

/// The two ends of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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

    /// The same interval of the inverse ratio.
    pub fn inverse(self) -> Ends {
        Ends { low: 1.0 / self.high, high: 1.0 / self.low }
    }

    /// Whether a ratio of 1 is outside.
    pub fn excludes_one(self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

impl Interval {
    /// From its lower to its upper end, in percent of the lower; nothing without ends.
    pub fn width_percent(&self) -> Option<f64> {
        self.ends.map(|Ends { low, high }| (high / low - 1.0) * 100.0)
    }

    /// Whether the test shows a difference at the usual level.
    pub fn shows_a_difference(&self) -> bool {
        self.p_value <= 1.0 - CONFIDENCE
    }
}

/// Whether two are equivalent: two one-sided sign-flip tests, of "at least this much less" and of "at
/// least this much more".
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Equivalence {
    /// The bound: the ratio is within it if neither of the two is this many percent better.
    pub bound_percent: f64,
    /// The interval at twice the level of each test, 90 % unless the experiment stopped by a rule; it
    /// lies within the bounds exactly if both tests reject.
    #[serde(flatten)]
    pub ends: Option<Ends>,
    /// Its confidence.
    pub confidence: f64,
    /// The larger p value of the two tests.
    pub p_value: f64,
    /// The q value among all comparisons of the experiment, if it corrects for their number. At most
    /// 5 % is needed for a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q_value: Option<f64>,
}

/// The interval of two or more per-pair ratios, or nothing of fewer, or if any is not a positive
/// number. The same seed gives the same interval.
pub fn interval(ratios: &[f64], seed: u64) -> Option<Interval> {
    interval_at(ratios, seed, CONFIDENCE)
}

/// As [`interval`], at another confidence.
pub fn interval_at(ratios: &[f64], seed: u64, confidence: f64) -> Option<Interval> {
    let logs = logs_of(ratios)?;
    let means = SubsetMeans::of(&logs, seed);
    Some(Interval {
        ratio: means.mean().exp(),
        ends: means.interval(1.0 - confidence).map(Ends::of_logs),
        pairs: logs.len(),
        p_value: means.p_value(0.0),
        detectable_percent: detectable_percent(deviation(&logs), logs.len(), 1.0 - CONFIDENCE),
    })
}

/// Per-pair ratios, each with the number of its occasion.
pub type OfOccasions = [(usize, f64)];

/// The ratios of each occasion that has [`MIN_VALUES`] of them or more, if those are several.
fn several(ratios: &OfOccasions) -> Option<Vec<Vec<f64>>> {
    let by_occasion = by_occasion(ratios).into_iter().map(|(_, ratios)| ratios);
    let all: Vec<Vec<f64>> = by_occasion.filter(|it| it.len() >= MIN_VALUES).collect();
    (all.len() > 1).then_some(all)
}

/// The ratios of each occasion, in the order of the occasions.
pub fn by_occasion(ratios: &OfOccasions) -> Vec<(usize, Vec<f64>)> {
    let mut all: Vec<(usize, Vec<f64>)> = Vec::new();
    for (occasion, ratio) in ratios {
        match all.iter_mut().find(|(known, _)| known == occasion) {
            Some((_, ratios)) => ratios.push(*ratio),
            None => all.push((*occasion, vec![*ratio])),
        }
    }
    all.sort_by_key(|(occasion, _)| *occasion);
    all
}

/// The interval of ratios of one occasion or of several: as [`interval_at`], or pooled over the
/// occasions.
pub fn interval_of(ratios: &OfOccasions, seed: u64, confidence: f64) -> Option<Interval> {
    match several(ratios) {
        Some(occasions) => occasions::pooled(&occasions, confidence),
        None => {
            let all: Vec<f64> = ratios.iter().map(|(_, ratio)| *ratio).collect();
            interval_at(&all, seed, confidence)
        }
    }
}

/// How far apart the occasions are, if there are several.
pub fn spread_of(ratios: &OfOccasions) -> Option<Spread> {
    let means = several(ratios)?.into_iter().filter_map(|it| {
        let logs = logs_of(&it)?;
        Some((logs.iter().sum::<f64>() / logs.len() as f64).exp())
    });
    occasions::spread(means)
}

/// As [`equivalence`], of ratios of one occasion or of several; none of two occasions.
pub fn equivalence_of(
    ratios: &OfOccasions,
    seed: u64,
    confidence: f64,
    bound_percent: f64,
) -> Option<Equivalence> {
    match several(ratios) {
        Some(occasions) => occasions::pooled_equivalence(&occasions, confidence, bound_percent),
        None => {
            let all: Vec<f64> = ratios.iter().map(|(_, ratio)| *ratio).collect();
            equivalence(&all, seed, confidence, bound_percent)
        }
    }
}

/// Whether these ratios are within a number of percent of 1, judged at the level of each test that belongs
/// to this confidence of a two-sided interval. Nothing of fewer than two ratios.
pub fn equivalence(
    ratios: &[f64],
    seed: u64,
    confidence: f64,
    bound_percent: f64,
) -> Option<Equivalence> {
    let means = SubsetMeans::of(&logs_of(ratios)?, seed);
    let bound = (bound_percent / 100.0).ln_1p();
    let level = 1.0 - confidence;
    // A mean on the far side of a bound speaks for it, with more than half of the assignments.
    let one_sided = |shift: f64, rejects: bool| match rejects {
        true => means.p_value(shift) / 2.0,
        false => 1.0 - means.p_value(shift) / 2.0,
    };
    let below = one_sided(-bound, means.mean() > -bound);
    let above = one_sided(bound, means.mean() < bound);
    Some(Equivalence {
        bound_percent,
        ends: means.interval(2.0 * level).map(Ends::of_logs),
        confidence: 1.0 - 2.0 * level,
        p_value: below.max(above),
        q_value: None,
    })
}

/// The logarithms of two or more positive ratios.
fn logs_of(ratios: &[f64]) -> Option<Vec<f64>> {
    let usable = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
    let all = ratios.len() > 1 && ratios.iter().all(usable);
    all.then(|| ratios.iter().map(|ratio| ratio.ln()).collect())
}

fn student_quantile(freedom: usize, share: f64) -> f64 {
    // One degree of freedom or more is always valid; a distribution without any has no quantile.
    StudentsT::new(0.0, 1.0, freedom as f64).map_or(f64::INFINITY, |t| t.inverse_cdf(share))
}

fn deviation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0)).sqrt()
}

/// Quantile of sorted values, linear between neighbours.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let below = sorted[position.floor() as usize];
    let above = sorted[position.ceil() as usize];
    if below == above { below } else { below + (above - below) * position.fract() }
}

/// The median, or nothing of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| quantile(&sorted, 0.5))
}

/// The exact sign test, two-sided: the probability of pairs that go one way as unequally as these
/// if either way were as likely. Pairs that go neither way are not given.
pub fn sign_test(one_way: u64, other_way: u64) -> f64 {
    let Ok(coin) = Binomial::new(0.5, one_way + other_way) else { return 1.0 };
    (2.0 * coin.cdf(one_way.min(other_way))).min(1.0)
}

/// The probability of `least` or more false claims among `of` independent ones that are each made
/// with probability `chance`.
pub fn at_least(least: u64, of: u64, chance: f64) -> f64 {
    match (least.checked_sub(1), Binomial::new(chance, of)) {
        (Some(fewer), Ok(claims)) => claims.sf(fewer),
        _ => 1.0,
    }
}

/// The standard deviation of the logarithms of these ratios, of two at least.
pub fn scatter(ratios: &[f64]) -> Option<f64> {
    logs_of(ratios).map(|logs| deviation(&logs))
}
