//! What a number of pairs can show, and how many it takes to show a difference.

use super::sign_flip::EXACT_VALUES;
use super::{POWER, student_quantile};
use crate::MIN_PAIRS;

/// More pairs than this are not worth stating.
pub const MAX_REQUIRED_PAIRS: usize = 10_000;

/// The difference in percent that a paired t test of this many pairs, two at least, at this level
/// finds with [`POWER`]. `deviation` is that of the logarithms of the ratios.
pub fn detectable_percent(deviation: f64, pairs: usize, level: f64) -> f64 {
    let quantile = |share| student_quantile(pairs - 1, share);
    let reach = quantile(1.0 - level / 2.0) + quantile(POWER);
    (reach * deviation / (pairs as f64).sqrt()).exp_m1() * 100.0
}

/// The fewest pairs whose sign-flip test can give a p value of `level` at all: of all assignments of
/// signs, at least the observed one and its mirror image are as far out. None if it would draw its
/// assignments at random, which are fewer than all of `EXACT_VALUES` pairs.
pub fn least_pairs(level: f64) -> Option<usize> {
    (1..=EXACT_VALUES).find(|pairs| 2.0 / (1_u64 << pairs) as f64 <= level)
}

/// How many pairs show a difference of this many percent at this level with [`POWER`], if they
/// scatter with this deviation: the fewest for which [`detectable_percent`] is as small, and no
/// fewer than a verdict takes. None if it is more than [`MAX_REQUIRED_PAIRS`].
pub fn required_pairs(deviation: f64, percent: f64, level: f64) -> Option<usize> {
    let enough = |pairs: usize| detectable_percent(deviation, pairs, level) <= percent;
    let mut low = least_pairs(level)?.max(MIN_PAIRS);
    let mut high = MAX_REQUIRED_PAIRS;
    if !deviation.is_finite() || !enough(high) {
        return None;
    }
    // It falls with every pair: the quantiles of t do, and so does the root.
    while low < high {
        let middle = low.midpoint(high);
        if enough(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with scipy 1.17.1 from the noncentral t distribution, which is exact where
    /// [`detectable_percent`] adds two quantiles:
    ///   power = lambda n: nct.sf(t.ppf(1 - a/2, n-1), n-1, log1p(d/100)/s*sqrt(n))
    ///                   + nct.cdf(-t.ppf(1 - a/2, n-1), n-1, log1p(d/100)/s*sqrt(n))
    ///   next(n for n in count(8) if power(n) >= 0.8)
    #[test]
    fn required_pairs_agree_with_an_independent_computation() {
        // Deviation, percent, level, pairs.
        let references = [
            (0.03, 3.0, 0.05, 11),
            (0.02, 1.0, 0.05, 34),
            (0.02, 2.0, 0.05, 11),
            (0.05, 5.0, 0.05, 11),
            (0.05, 2.0, 0.05, 52),
            (0.03, 1.0, 0.05, 74),
            (0.03, 3.0, 0.05 / 8.0, 17),
            (0.02, 2.0, 0.05 / 24.0, 21),
            (0.01, 5.0, 0.05, 8),
        ];
        for (deviation, percent, level, expected) in references {
            let found = required_pairs(deviation, percent, level).unwrap();
            assert!(found.abs_diff(expected) <= 1, "{deviation} {percent} {level}: {found}");
        }
    }

    #[test]
    fn fewer_pairs_would_not_do() {
        for (deviation, percent) in [(0.02, 1.0), (0.05, 2.0), (0.1, 5.0)] {
            let pairs = required_pairs(deviation, percent, 0.05).unwrap();
            assert!(detectable_percent(deviation, pairs, 0.05) <= percent);
            assert!(detectable_percent(deviation, pairs - 1, 0.05) > percent);
        }
        assert_eq!(required_pairs(0.0, 1.0, 0.05), Some(MIN_PAIRS));
        assert_eq!(required_pairs(0.5, 0.1, 0.05), None);
        assert_eq!(required_pairs(f64::NAN, 1.0, 0.05), None);
    }

    #[test]
    fn a_strict_level_takes_pairs_of_its_own() {
        // 2/256 is 0.8 %: enough for six comparisons of which one is claimed, and not for seven.
        assert_eq!(least_pairs(0.05), Some(6));
        assert_eq!(least_pairs(0.05 / 6.0), Some(8));
        assert_eq!(least_pairs(0.05 / 7.0), Some(9));
        assert_eq!(least_pairs(0.05 / 24.0), Some(10));
        assert_eq!(least_pairs(0.05 / 1000.0), Some(16));
        assert_eq!(least_pairs(0.05 / 2000.0), None);
        assert_eq!(required_pairs(0.0, 1.0, 0.05 / 24.0), Some(10));
    }
}
