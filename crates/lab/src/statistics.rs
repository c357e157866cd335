//! Intervals on paired ratios, for few pairs and without a belief in their distribution.
//!
//! Everything works on the logarithms of the per-pair ratios, so that "twice" and "half" are
//! equally far from "equal", and the figure reported is their geometric mean. `docs/method.md`
//! gives the sources and shows how these choices were checked.

use oorandom::Rand64;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal, StudentsT};

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
        (self.low > 1.0 || self.high < 1.0) && self.p_value <= 1.0 - CONFIDENCE
    }
}

/// The interval of per-pair ratios, or nothing for fewer than [`MIN_PAIRS_FOR_INTERVAL`] of them
/// or any that is not a positive number. The same seed gives the same interval.
pub fn interval(ratios: &[f64], seed: u64) -> Option<Interval> {
    interval_with(ratios, seed, RESAMPLES)
}

fn interval_with(ratios: &[f64], seed: u64, resamples: usize) -> Option<Interval> {
    let usable = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
    if ratios.len() < MIN_PAIRS_FOR_INTERVAL || !ratios.iter().all(usable) {
        return None;
    }
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let (mean, deviation) = mean_and_deviation(&logs);
    let mut random = Rand64::new(u128::from(seed));
    let [low, high] = bootstrap(&logs, &mut random, resamples);
    Some(Interval {
        ratio: mean.exp(),
        low: low.exp(),
        high: high.exp(),
        pairs: logs.len(),
        p_value: sign_flip_p_value(&logs, &mut random),
        detectable_percent: detectable_percent(deviation, logs.len()),
    })
}

/// The expanded percentile interval of the mean, by resampling pairs with replacement (Hesterberg,
/// What Teachers Should Know About the Bootstrap, The American Statistician 69(4), 2015). The plain
/// percentile interval is too narrow for few pairs; this one takes quantiles further out, by as
/// much as it takes to be right for values from a normal distribution.
fn bootstrap(logs: &[f64], random: &mut Rand64, resamples: usize) -> [f64; 2] {
    let count = logs.len();
    let mut means: Vec<f64> = (0..resamples)
        .map(|_| {
            let draw = |_| logs[random.rand_range(0..count as u64) as usize];
            (0..count).map(draw).sum::<f64>() / count as f64
        })
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    let tail = expanded_tail(count);
    [tail, 1.0 - tail].map(|share| quantile(&means, share))
}

/// The share of resamples to leave out on each side.
fn expanded_tail(count: usize) -> f64 {
    let pairs = count as f64;
    let reach = student_quantile(count - 1, 1.0 - (1.0 - CONFIDENCE) / 2.0);
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

/// The difference that a paired t test of this many pairs finds with [`POWER`], in percent.
fn detectable_percent(deviation: f64, pairs: usize) -> f64 {
    let quantile = |share| student_quantile(pairs - 1, share);
    let reach = quantile(1.0 - (1.0 - CONFIDENCE) / 2.0) + quantile(POWER);
    (reach * deviation / (pairs as f64).sqrt()).exp_m1() * 100.0
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

#[cfg(test)]
mod tests {
    use super::*;

    // Computed with scipy 1.17.1 and numpy 2.4.6, x = log(ratios), n = len(x):
    //   exp(mean(x))
    //   a = norm.cdf(-sqrt(n/(n-1)) * t.ppf(.975, n-1))
    //   exp(bootstrap((x,), mean, confidence_level=1-2*a, n_resamples=1_000_000,
    //                 method='percentile', random_state=default_rng(1)).confidence_interval)
    //   permutation_test((x,), mean, permutation_type='samples', n_resamples=inf).pvalue
    //   expm1((t.ppf(.975, n-1) + t.ppf(.8, n-1)) * x.std(ddof=1) / sqrt(n)) * 100
    struct Reference {
        ratios: &'static [f64],
        ratio: f64,
        low: f64,
        high: f64,
        p_value: f64,
        detectable_percent: f64,
    }

    const REFERENCES: &[Reference] = &[
        Reference {
            ratios: &[1.21, 1.25, 1.19, 1.28, 1.23, 1.17, 1.26, 1.30],
            ratio: 1.235540961832966,
            low: 1.1985122238742918,
            high: 1.2721534222792943,
            p_value: 0.0078125,
            detectable_percent: 4.266304077808414,
        },
        Reference {
            ratios: &[1.02, 0.97, 1.05, 0.99, 0.96, 1.03, 1.01, 0.98, 1.04],
            ratio: 1.005100562979071,
            low: 0.9808639243507498,
            high: 1.029653680198365,
            p_value: 0.6796875,
            detectable_percent: 3.4584383957050586,
        },
        Reference {
            ratios: &[1.01, 1.03, 0.995, 1.04, 1.02, 1.05, 0.99, 1.03],
            ratio: 1.020433278847087,
            low: 1.0029743879981832,
            high: 1.0374305145540912,
            p_value: 0.046875,
            detectable_percent: 2.419461747363822,
        },
    ];

    #[test]
    fn figures_agree_with_an_independent_computation() {
        for Reference { ratios, ratio, low, high, p_value, detectable_percent } in REFERENCES {
            let found = interval(ratios, 1).unwrap();
            let close = |a: f64, b: f64, tolerance: f64| (a / b - 1.0).abs() < tolerance;
            assert!(close(found.ratio, *ratio, 1e-12), "{found:?}");
            assert!(close(found.p_value, *p_value, 1e-12), "{found:?}");
            assert!(close(found.detectable_percent, *detectable_percent, 1e-6), "{found:?}");
            // Two random resamplings differ by their sampling error, here under 0.2 %.
            assert!(close(found.low, *low, 0.002) && close(found.high, *high, 0.002), "{found:?}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_published_tables() {
        // NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
        for (freedom, upper) in [(7, 2.365), (10, 2.228), (30, 2.042)] {
            assert!((student_quantile(freedom, 0.975) - upper).abs() < 5e-4);
        }
        // With many pairs nothing is left to expand.
        assert!((expanded_tail(100_000) - 0.025).abs() < 1e-4);
    }

    /// Normal deviates by Box and Muller, from the generator under test's own family but another
    /// stream.
    fn normal(random: &mut Rand64) -> f64 {
        let uniform = (1.0 - random.rand_float(), random.rand_float());
        (-2.0 * uniform.0.ln()).sqrt() * (std::f64::consts::TAU * uniform.1).cos()
    }

    /// The share of experiments of `pairs` pairs in which a difference is claimed.
    fn claims(
        experiments: u64,
        pairs: usize,
        mut log_ratio: impl FnMut(&mut Rand64) -> f64,
    ) -> f64 {
        let mut random = Rand64::new(42);
        let claimed = (0..experiments).filter(|seed| {
            let ratios: Vec<f64> = (0..pairs).map(|_| log_ratio(&mut random).exp()).collect();
            interval_with(&ratios, *seed, 500).unwrap().shows_a_difference()
        });
        claimed.count() as f64 / experiments as f64
    }

    /// Upper end of what a true share of 5 % gives in so many experiments: three standard errors.
    fn at_most_5_percent(experiments: u64) -> f64 {
        0.05 + 3.0 * (0.05 * 0.95 / experiments as f64).sqrt()
    }

    #[test]
    fn equal_subjects_are_seldom_told_apart() {
        let experiments = 2000;
        let limit = at_most_5_percent(experiments);
        for pairs in [8, 12] {
            let share = claims(experiments, pairs, |random| 0.03 * normal(random));
            assert!(share <= limit, "normal, {pairs} pairs: {share}");
            // One pair in ten is ten times as noisy.
            let share = claims(experiments, pairs, |random| {
                let spread = if random.rand_float() < 0.1 { 0.3 } else { 0.03 };
                spread * normal(random)
            });
            assert!(share <= limit, "with outliers, {pairs} pairs: {share}");
            // The difference of two skewed times.
            let share = claims(experiments, pairs, |random| {
                0.03 * ((1.0 - random.rand_float()).ln() - (1.0 - random.rand_float()).ln())
            });
            assert!(share <= limit, "exponential, {pairs} pairs: {share}");
        }
        let share = claims(200, 20, |random| 0.03 * normal(random));
        assert!(share <= at_most_5_percent(200), "random flips: {share}");
    }

    #[test]
    fn the_stated_difference_is_found_with_the_stated_power() {
        let (pairs, spread) = (8, 0.03);
        let difference = (detectable_percent(spread, pairs) / 100.0).ln_1p();
        let share = claims(2000, pairs, |random| difference + spread * normal(random));
        assert!((POWER - 0.05..=1.0).contains(&share), "found in {share} of the experiments");
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let ratios = [1.1, 1.2, 1.15, 1.3, 1.05, 1.22, 1.18, 1.09];
        assert_eq!(interval(&ratios, 9), interval(&ratios, 9));
        assert_ne!(interval(&ratios, 9).unwrap().low, interval(&ratios, 10).unwrap().low);
    }

    #[test]
    fn what_cannot_be_judged_is_not() {
        assert_eq!(interval(&[1.1; 4], 1), None);
        assert_eq!(interval(&[1.0, 1.1, f64::NAN, 1.0, 1.0], 1), None);
        assert_eq!(interval(&[1.0, 1.1, 0.0, 1.0, 1.0], 1), None);
        let equal = interval(&[1.1; 8], 1).unwrap();
        assert!((equal.low - 1.1).abs() < 1e-12 && (equal.high - 1.1).abs() < 1e-12);
        assert!(equal.shows_a_difference());
        let one = interval(&[1.0; 8], 1).unwrap();
        assert!(!one.shows_a_difference() && one.p_value == 1.0);
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([f64::NAN]), None);
    }

    #[test]
    fn the_sign_test_is_exact() {
        // By hand: of 2^n outcomes, those at least as unequal, on both sides.
        for ((one, other), expected) in [
            ((0, 0), 1.0),
            ((5, 0), 2.0 / 32.0),
            ((0, 6), 2.0 / 64.0),
            ((8, 0), 2.0 / 256.0),
            ((7, 1), 2.0 * 9.0 / 256.0),
            ((4, 4), 1.0),
        ] {
            assert!((sign_test(one, other) - expected).abs() < 1e-12, "{one} to {other}");
        }
    }
}
