//! Intervals on paired ratios, for few pairs and without a belief in their distribution.
//!
//! Everything works on the logarithms of the per-pair ratios, so that "twice" and "half" are
//! equally far from "equal", and the figure reported is their geometric mean. `docs/statistics.md`
//! gives the sources and shows how these choices were checked.

mod correction;
mod outliers;
mod power;
#[cfg(test)]
mod simulations;
#[cfg(test)]
mod tests;
mod trend;

use oorandom::Rand64;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal, StudentsT};

pub use correction::{STOP_RULE_PENALTY, benjamini_hochberg, level_for};
pub use outliers::Outliers;
pub use power::{MAX_REQUIRED_PAIRS, detectable_percent, least_pairs, required_pairs};
pub use trend::{Drift, drift};

/// Resamples of the bootstrap.
pub const RESAMPLES: usize = 10_000;

/// The share of intervals that hold the true ratio.
pub const CONFIDENCE: f64 = 0.95;

/// The chance with which [`Interval::detectable_percent`] would have been found.
pub const POWER: f64 = 0.80;

/// Under this many pairs resampling has too little to choose from.
pub const MIN_PAIRS_FOR_INTERVAL: usize = 5;

/// Up to this many pairs the sign-flip test goes through all assignments of signs.
const EXACT_PAIRS: usize = 16;

/// Assignments drawn at random when there are too many.
const RANDOM_FLIPS: usize = 20_000;

/// What the pairs say about a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Geometric mean of the per-pair ratios.
    pub ratio: f64,
    /// Lower end of the interval at [`CONFIDENCE`].
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// How many pairs.
    pub pairs: usize,
    /// Probability of a mean at least this far from equal if the two subjects did not differ, by
    /// the sign-flip test.
    pub p_value: f64,
    /// The smallest difference in percent that pairs which scatter like these would have shown
    /// with probability [`POWER`].
    pub detectable_percent: f64,
}

impl Interval {
    /// From its lower to its upper end, in percent of the lower.
    pub fn width_percent(&self) -> f64 {
        (self.high / self.low - 1.0) * 100.0
    }

    /// Whether the interval lies on one side of 1 and the sign-flip test agrees.
    pub fn shows_a_difference(&self) -> bool {
        self.claim_p_value() <= 1.0 - CONFIDENCE
    }

    /// The p value with which this interval claims a difference: that of the sign-flip test if the
    /// interval lies on one side of 1, else 1. It is never smaller than that of the test, so what
    /// holds for p values holds for it: corrected for many comparisons, it decides alone.
    pub fn claim_p_value(&self) -> f64 {
        if self.low > 1.0 || self.high < 1.0 { self.p_value } else { 1.0 }
    }
}

/// The interval of per-pair ratios, or nothing for fewer than [`MIN_PAIRS_FOR_INTERVAL`] of them
/// or any that is not a positive number. The same seed gives the same interval.
pub fn interval(ratios: &[f64], seed: u64) -> Option<Interval> {
    interval_at(ratios, seed, CONFIDENCE)
}

/// As [`interval`], at another confidence.
pub fn interval_at(ratios: &[f64], seed: u64, confidence: f64) -> Option<Interval> {
    interval_with(ratios, seed, RESAMPLES, confidence)
}

fn interval_with(ratios: &[f64], seed: u64, resamples: usize, confidence: f64) -> Option<Interval> {
    let usable = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
    if ratios.len() < MIN_PAIRS_FOR_INTERVAL || !ratios.iter().all(usable) {
        return None;
    }
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let (mean, deviation) = mean_and_deviation(&logs);
    let mut random = Rand64::new(u128::from(seed));
    let [low, high] = bootstrap(&logs, &mut random, resamples, confidence);
    Some(Interval {
        ratio: mean.exp(),
        low: low.exp(),
        high: high.exp(),
        pairs: logs.len(),
        p_value: sign_flip_p_value(&logs, &mut random),
        detectable_percent: detectable_percent(deviation, logs.len(), 1.0 - CONFIDENCE),
    })
}

/// The expanded percentile interval of the mean, by resampling pairs with replacement (Hesterberg,
/// What Teachers Should Know About the Bootstrap, The American Statistician 69(4), 2015). The plain
/// percentile interval is too narrow for few pairs; this one takes quantiles further out, by as
/// much as it takes to be right for values from a normal distribution.
fn bootstrap(logs: &[f64], random: &mut Rand64, resamples: usize, confidence: f64) -> [f64; 2] {
    let count = logs.len();
    let mut means: Vec<f64> = (0..resamples)
        .map(|_| {
            let draw = |_| logs[random.rand_range(0..count as u64) as usize];
            (0..count).map(draw).sum::<f64>() / count as f64
        })
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    let tail = expanded_tail(count, confidence);
    [tail, 1.0 - tail].map(|share| quantile(&means, share))
}

/// The share of resamples to leave out on each side.
fn expanded_tail(count: usize, confidence: f64) -> f64 {
    let pairs = count as f64;
    let reach = student_quantile(count - 1, 1.0 - (1.0 - confidence) / 2.0);
    Normal::standard().cdf(-(pairs / (pairs - 1.0)).sqrt() * reach)
}

/// The two-sided sign-flip (Fisher-Pitman) test of "no difference": if swapping the two labels of
/// a pair changes nothing, every assignment of signs to the log ratios was equally likely.
fn sign_flip_p_value(logs: &[f64], random: &mut Rand64) -> f64 {
    let observed = logs.iter().sum::<f64>().abs();
    // Sums that differ by rounding only are equal.
    let limit = observed * (1.0 - 1e-9);
    let reaches = |signs: u64| {
        let signed = |(bit, log): (usize, &f64)| if signs >> bit & 1 == 1 { -log } else { *log };
        logs.iter().enumerate().map(signed).sum::<f64>().abs() >= limit
    };
    if logs.len() <= EXACT_PAIRS {
        let assignments = 1_u64 << logs.len();
        return (0..assignments).filter(|signs| reaches(*signs)).count() as f64
            / assignments as f64;
    }
    let far = (0..RANDOM_FLIPS).filter(|_| {
        let sum: f64 =
            logs.iter().map(|log| if random.rand_u64() >> 63 == 1 { -log } else { *log }).sum();
        sum.abs() >= limit
    });
    // The observed assignment is one of the possible ones.
    (far.count() + 1) as f64 / (RANDOM_FLIPS + 1) as f64
}

fn student_quantile(freedom: usize, share: f64) -> f64 {
    // One degree of freedom or more is always valid; a distribution without any has no quantile.
    StudentsT::new(0.0, 1.0, freedom as f64).map_or(f64::INFINITY, |t| t.inverse_cdf(share))
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
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
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let usable = logs.len() > 1 && logs.iter().all(|log| log.is_finite());
    usable.then(|| mean_and_deviation(&logs).1)
}
