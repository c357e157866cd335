//! Whether something moves while it is measured.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use super::{MIN_VALUES, median};

/// Up to this many values the distribution is computed exactly.
const EXACT_VALUES: usize = 100;

/// How far values moved over an experiment, and whether that may be chance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Probability of a trend at least this consistent if their order meant nothing, by the test of
    /// Mann and Kendall.
    pub p_value: f64,
    /// From the first to the last, in percent, by the median slope.
    pub percent: f64,
}

/// The drift of series of (position, value), each in the order of time, or nothing for fewer than
/// [`MIN_VALUES`] values in all. Values are positive.
///
/// It is the test of Mann and Kendall (H. B. Mann, Econometrica 13, 1945) in the form for several
/// seasons (R. M. Hirsch, J. R. Slack, R. A. Smith, Water Resources Research 18(1), 1982): only
/// values of the same series are compared, here those measured with the CPUs in the same placement,
/// so that a step between placements is no trend. The size is by the median of their slopes (P. K.
/// Sen, JASA 63, 1968), which a few outliers cannot move.
pub fn drift(series: &[Vec<(f64, f64)>]) -> Option<Drift> {
    let logs: Vec<Vec<(f64, f64)>> = series
        .iter()
        .map(|values| values.iter().map(|(at, value)| (*at, value.ln())).collect())
        .collect();
    let all = || logs.iter().flatten();
    if all().count() < MIN_VALUES || all().any(|(_, log)| !log.is_finite()) {
        return None;
    }
    let pairs = || {
        logs.iter().flat_map(|values| {
            let later = |index: usize| values[index + 1..].iter();
            values.iter().enumerate().flat_map(move |(i, a)| later(i).map(move |b| (a, b)))
        })
    };
    let slope = median(pairs().map(|((t, a), (u, b))| (b - a) / (u - t)))?;
    let ats = || all().map(|(at, _)| *at);
    let span = ats().fold(f64::MIN, f64::max) - ats().fold(f64::MAX, f64::min);
    let (mut rises, mut falls) = (0_u64, 0_u64);
    for ((_, a), (_, b)) in pairs() {
        rises += u64::from(b > a);
        falls += u64::from(b < a);
    }
    let tied = pairs().count() as u64 != rises + falls;
    let p_value = if tied || all().count() > EXACT_VALUES {
        approximate(&logs, rises.abs_diff(falls))
    } else {
        exact(&logs, rises.min(falls))
    };
    Some(Drift { p_value, percent: (slope * span).exp_m1() * 100.0 })
}

/// The chance of so few rises, or so few falls, in random orders. The number of falls in a random
/// order of n is the sum of independent ones, evenly from 0 to k - 1 for each k up to n.
fn exact(series: &[Vec<(f64, f64)>], fewer: u64) -> f64 {
    let mut chances = vec![1.0];
    for step in series.iter().flat_map(|values| 1..=values.len()) {
        let mut next = vec![0.0; chances.len() + step - 1];
        let mut sum = 0.0;
        for (falls, chance) in next.iter_mut().enumerate() {
            sum += chances.get(falls).copied().unwrap_or(0.0);
            if falls >= step {
                sum -= chances[falls - step];
            }
            *chance = sum / step as f64;
        }
        chances = next;
    }
    (2.0 * chances.iter().take(fewer as usize + 1).sum::<f64>()).min(1.0)
}

/// The same by the normal distribution, for many values or equal ones.
fn approximate(series: &[Vec<(f64, f64)>], difference: u64) -> f64 {
    let spread = |count: f64| count * (count - 1.0) * (2.0 * count + 5.0) / 18.0;
    let mut variance = 0.0;
    for values in series {
        let mut sorted: Vec<f64> = values.iter().map(|(_, log)| *log).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        variance += spread(sorted.len() as f64);
        for equal in sorted.chunk_by(|a, b| a == b) {
            variance -= spread(equal.len() as f64);
        }
    }
    if variance <= 0.0 || difference == 0 {
        return 1.0;
    }
    // Less one for continuity.
    2.0 * Normal::standard().sf((difference as f64 - 1.0) / variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Vec<(f64, f64)> {
        values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect()
    }

    /// Computed with scipy 1.17.1, x = range(len(y)):
    ///   kendalltau(x, y, method="exact").pvalue
    ///   expm1(theilslopes(log(y), x).slope * (len(y) - 1)) * 100
    #[test]
    fn one_series_agrees_with_an_independent_computation() {
        let references: [(&[f64], f64, f64); 3] = [
            (
                &[100.0, 101.0, 103.0, 102.0, 104.0, 106.0, 105.0, 108.0],
                0.001736111111111111,
                7.0865182324237965,
            ),
            (
                &[1.0, 0.97, 1.02, 0.99, 1.04, 1.01, 0.95, 1.03, 1.05],
                0.25951829805996474,
                6.527315921394678,
            ),
            (
                &[9.0, 8.5, 8.7, 8.2, 8.0, 8.1, 7.7, 7.5, 7.6, 7.2, 7.0, 6.9],
                1.4655483405483405e-06,
                -21.737105597621337,
            ),
        ];
        for (values, p_value, percent) in references {
            let found = drift(&[series(values)]).unwrap();
            assert!((found.p_value / p_value - 1.0).abs() < 1e-9, "{found:?} {p_value}");
            assert!((found.percent / percent - 1.0).abs() < 1e-9, "{found:?} {percent}");
        }
    }

    #[test]
    fn a_step_between_two_series_is_no_trend() {
        let close = [1.0, 1.02, 0.99, 1.01, 1.03];
        let apart = [1.4, 1.38, 1.41, 1.39, 1.37];
        let together: Vec<f64> = close.iter().chain(&apart).copied().collect();
        assert!(drift(&[series(&together)]).unwrap().p_value < 0.05);
        assert!(drift(&[series(&close), series(&apart)]).unwrap().p_value > 0.3);
    }

    #[test]
    fn two_series_are_as_unlikely_as_all_their_orders() {
        // Three and three values that only rise: 1 of 36 orders, and as many that only fall.
        let rising = || series(&[1.0, 1.1, 1.2]);
        let found = drift(&[rising(), rising()]).unwrap();
        assert!((found.p_value - 2.0 / 36.0).abs() < 1e-12, "{found:?}");
        // One fall among them: 4 more orders.
        let found = drift(&[rising(), series(&[1.0, 1.2, 1.1])]).unwrap();
        assert!((found.p_value - 2.0 * 5.0 / 36.0).abs() < 1e-12, "{found:?}");
    }

    /// Computed with scipy 1.17.1 and numpy: the variance of Kendall's S with ties, the continuity
    /// correction, and norm.sf.
    #[test]
    fn equal_values_and_many_values_are_judged_by_the_normal_distribution() {
        let tied = drift(&[series(&[1.0, 1.0, 1.1, 1.2, 1.2, 1.3, 1.1, 1.4])]).unwrap();
        assert!((tied.p_value / 0.022614700538547305 - 1.0).abs() < 1e-9, "{tied:?}");
        let many: Vec<f64> = (0..150_u32).map(|i| 1.0 + f64::from(i * 37 % 101) / 1000.0).collect();
        let many = drift(&[series(&many)]).unwrap();
        assert!((many.p_value / 0.8441131031331216 - 1.0).abs() < 1e-9, "{many:?}");
    }

    #[test]
    fn up_to_a_hundred_different_values_are_judged_exactly() {
        for (count, is_exact) in [(100_u32, true), (101, false)] {
            // 37 has no divisor in common with 211.
            let values: Vec<f64> = (0..count).map(|i| 1.0 + f64::from(i * 37 % 211)).collect();
            let later = |at: usize| values[at + 1..].iter();
            let falls = |at: usize| later(at).filter(|value| **value < values[at]).count() as u64;
            let falls: u64 = (0..values.len()).map(falls).sum();
            let rises = u64::from(count * (count - 1) / 2) - falls;
            let values = [series(&values)];
            let expected = match is_exact {
                true => exact(&values, rises.min(falls)),
                false => approximate(&values, rises.abs_diff(falls)),
            };
            assert_eq!(drift(&values).map(|it| it.p_value), Some(expected));
        }
    }

    #[test]
    fn what_cannot_be_judged_is_not() {
        assert_eq!(drift(&[series(&[1.0, 1.1, 1.2, 1.3])]), None);
        assert_eq!(drift(&[series(&[1.0, 1.1, 1.2, 1.3, 0.0])]), None);
        for no_trend in [[1.0; 5], [1.0, 1.2, 1.1, 1.2, 1.0]] {
            assert_eq!(drift(&[series(&no_trend)]).map(|it| it.p_value), Some(1.0));
        }
    }

    /// Five rising values are the fewest: 1 of 120 orders, and as many that fall.
    #[test]
    fn positions_count_from_the_first() {
        let rising = series(&[1.0, 1.1, 1.2, 1.3, 1.4]);
        let later: Vec<_> = rising.iter().map(|(at, value)| (at + 100.0, *value)).collect();
        let (found, later) = (drift(&[rising]).unwrap(), drift(&[later]).unwrap());
        assert!((found.p_value - 2.0 / 120.0).abs() < 1e-12, "{found:?}");
        assert!((found.percent - later.percent).abs() < 1e-9, "{found:?} {later:?}");
    }
}
