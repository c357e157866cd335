//! A ratio over several occasions, hours or machines apart.
//!
//! The occasion is a level of the analysis: pairs of one occasion share what differs from the next,
//! so the pooled ratio is the mean of the occasions' means on the log scale, and its interval rests on
//! the spread of these means. It is the interval of Hartung, Knapp, Sidik and Jonkman for a
//! random-effects meta-analysis with equal weights (J. Hartung, G. Knapp, Statistics in Medicine
//! 20(24), 2001; K. Sidik, J. N. Jonkman, Statistics in Medicine 21(21), 2002), with the usual
//! modification that occasions which agree by chance make it no narrower than their own pairs do (C.
//! Röver, G. Knapp, T. Friede, BMC Medical Research Methodology 15:99, 2015).

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{CONFIDENCE, Ends, Equivalence, Interval, POWER, deviation, logs_of, student_quantile};

/// The fewest occasions whose spread says anything.
pub const MIN_OCCASIONS: usize = 3;

/// A mean log ratio this close to 0 is a ratio of 1.
const ROUNDING: f64 = 1e-12;

/// How far apart occasions are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// From the lowest ratio of an occasion to the highest, in percent of the lowest.
    pub percent: f64,
    /// How many occasions.
    pub occasions: usize,
}

/// The mean over occasions, and how well it is known.
struct Pooled {
    mean: f64,
    standard_error: f64,
    freedom: usize,
    pairs: usize,
}

impl Pooled {
    /// Of the log ratios of each of two or more occasions, two or more ratios each.
    fn of(occasions: &[Vec<f64>]) -> Option<Pooled> {
        let all: Option<Vec<Vec<f64>>> = occasions.iter().map(|it| logs_of(it)).collect();
        let all = all.filter(|all| all.len() > 1)?;
        let count = all.len() as f64;
        let means: Vec<f64> =
            all.iter().map(|logs| logs.iter().sum::<f64>() / logs.len() as f64).collect();
        let own = all.iter().map(|logs| deviation(logs).powi(2) / logs.len() as f64);
        let within = own.sum::<f64>() / count.powi(2);
        let between = deviation(&means).powi(2) / count;
        Some(Pooled {
            mean: means.iter().sum::<f64>() / count,
            standard_error: between.max(within).sqrt(),
            freedom: all.len() - 1,
            pairs: all.iter().map(Vec::len).sum(),
        })
    }

    /// The probability of a mean as far above a shift, if that were the truth. Without any scatter a mean
    /// is where it is: above, below, or at the shift, which speaks for neither side.
    fn upper(&self, shift: f64) -> f64 {
        let distance = (self.mean - shift) / self.standard_error.max(f64::MIN_POSITIVE);
        let t = StudentsT::new(0.0, 1.0, self.freedom as f64);
        // One degree of freedom or more is always valid.
        t.map_or(1.0, |t| t.sf(distance))
    }

    fn ends(&self, level: f64) -> Ends {
        let reach = student_quantile(self.freedom, 1.0 - level / 2.0) * self.standard_error;
        Ends::of_logs([self.mean - reach, self.mean + reach])
    }
}

/// The ratio over several occasions. Two occasions have a ratio and no interval, and a p value of 1:
/// their spread says next to nothing.
pub(super) fn pooled(occasions: &[Vec<f64>], confidence: f64) -> Option<Interval> {
    let pooled = Pooled::of(occasions)?;
    let enough = occasions.len() >= MIN_OCCASIONS;
    let one_side = if pooled.mean.abs() < ROUNDING { 0.5 } else { pooled.upper(0.0) };
    let reach = student_quantile(pooled.freedom, 1.0 - (1.0 - CONFIDENCE) / 2.0)
        + student_quantile(pooled.freedom, POWER);
    Some(Interval {
        ratio: pooled.mean.exp(),
        ends: enough.then(|| pooled.ends(1.0 - confidence)),
        pairs: pooled.pairs,
        p_value: if enough { 2.0 * one_side.min(1.0 - one_side) } else { 1.0 },
        detectable_percent: (reach * pooled.standard_error).exp_m1() * 100.0,
    })
}

/// Whether two are equivalent over three or more occasions.
pub(super) fn pooled_equivalence(
    occasions: &[Vec<f64>],
    confidence: f64,
    bound_percent: f64,
) -> Option<Equivalence> {
    let pooled = Pooled::of(occasions).filter(|_| occasions.len() >= MIN_OCCASIONS)?;
    let bound = (bound_percent / 100.0).ln_1p();
    let level = 1.0 - confidence;
    Some(Equivalence {
        bound_percent,
        ends: Some(pooled.ends(2.0 * level)),
        confidence: 1.0 - 2.0 * level,
        p_value: pooled.upper(-bound).max(1.0 - pooled.upper(bound)),
        q_value: None,
    })
}

/// How far apart the ratios of two or more occasions are.
pub(super) fn spread(ratios: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let ratios: Vec<f64> = ratios.into_iter().filter(|it| it.is_finite() && *it > 0.0).collect();
    let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let high = ratios.iter().copied().fold(0.0, f64::max);
    let percent = (high / low - 1.0) * 100.0;
    (ratios.len() > 1).then_some(Spread { percent, occasions: ratios.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: three means of 0.1, 0.2 and 0.3 have a standard deviation of 0.1, and Student's t
    /// with 2 degrees of freedom has its 97.5 % quantile at 4.302653 (NIST, table 1.3.6.7.2).
    #[test]
    fn three_occasions_have_the_interval_of_their_means() {
        let occasion = |mean: f64| vec![(mean - 0.001).exp(), (mean + 0.001).exp()];
        let occasions = [occasion(0.1), occasion(0.2), occasion(0.3)];
        let found = pooled(&occasions, CONFIDENCE).unwrap();
        let ends = found.ends.unwrap();
        let reach = 4.302_653 * 0.1 / 3.0_f64.sqrt();
        assert!((found.ratio.ln() - 0.2).abs() < 1e-12);
        assert!((ends.low.ln() - (0.2 - reach)).abs() < 1e-6, "{ends:?}");
        assert!((ends.high.ln() - (0.2 + reach)).abs() < 1e-6, "{ends:?}");
        assert_eq!(ends.excludes_one(), found.p_value <= 1.0 - CONFIDENCE);
        let spread = spread(occasions.iter().map(|it| interval_ratio(it))).unwrap();
        assert!((spread.percent - (0.2_f64.exp() - 1.0) * 100.0).abs() < 1e-9, "{spread:?}");
    }

    fn interval_ratio(ratios: &[f64]) -> f64 {
        super::super::interval(ratios, 1).unwrap().ratio
    }

    #[test]
    fn occasions_that_agree_by_chance_are_no_surer_than_their_pairs() {
        let occasion = || vec![1.1, 1.3, 1.2, 1.15, 1.25];
        let found = pooled(&[occasion(), occasion(), occasion()], CONFIDENCE).unwrap();
        assert!(found.ends.unwrap().high > 1.25, "{found:?}");
    }

    #[test]
    fn two_occasions_claim_no_interval() {
        let found = pooled(&[vec![1.2, 1.21], vec![1.3, 1.31]], CONFIDENCE).unwrap();
        assert_eq!((found.ends, found.p_value), (None, 1.0));
        assert_eq!(pooled(&[vec![1.2, 1.21]], CONFIDENCE), None);
        assert_eq!(pooled_equivalence(&[vec![1.0, 1.01], vec![1.0, 1.01]], 0.95, 3.0), None);
        // Without any scatter.
        let same = pooled(&[vec![1.2; 3], vec![1.2; 3], vec![1.2; 3]], CONFIDENCE).unwrap();
        assert_eq!(same.p_value, 0.0);
        let one = pooled(&[vec![1.0; 3], vec![1.0; 3], vec![1.0; 3]], CONFIDENCE).unwrap();
        assert_eq!(one.p_value, 1.0);
    }

    /// Student's t with two degrees of freedom has a closed form: the probability above `t`.
    fn above(t: f64) -> f64 {
        0.5 - t / (2.0 * (2.0 + t * t).sqrt())
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-7, "{found} {expected}");
    }

    /// Three occasions with these means of their logarithms, and next to no scatter of their own.
    fn occasions(means: [f64; 3]) -> [Vec<f64>; 3] {
        means.map(|mean| vec![(mean - 1e-6).exp(), (mean + 1e-6).exp()])
    }

    #[test]
    fn p_value_and_power_are_those_of_student() {
        for sign in [1.0, -1.0] {
            let found =
                pooled(&occasions([0.1, 0.2, 0.3].map(|it| it * sign)), CONFIDENCE).unwrap();
            let error = 0.1 / 3.0_f64.sqrt();
            close(found.p_value, 2.0 * above(0.2 / error));
            assert_eq!(found.pairs, 6);
            // The 80 % quantile of t is the root of 1.125.
            let reach = 4.302_652_73 + 1.125_f64.sqrt();
            close(found.detectable_percent / 100.0, (reach * error).exp_m1());
        }
        // The means agree: what is left is the scatter of the pairs, 0.02 / 2 in each of three.
        let own = vec![(-0.1_f64).exp(), 0.1_f64.exp()];
        let found = pooled(&[own.clone(), own.clone(), own], CONFIDENCE).unwrap();
        let ends = found.ends.unwrap();
        close(found.p_value, 1.0);
        close(ends.high.ln(), 4.302_652_73 * (0.03_f64 / 9.0).sqrt());
        close(ends.low.ln(), -ends.high.ln());
    }

    #[test]
    fn equivalence_is_two_tests_of_student() {
        let found = pooled_equivalence(&occasions([-0.005, 0.005, 0.015]), 0.95, 3.0).unwrap();
        let (error, bound) = (0.01 / 3.0_f64.sqrt(), 1.03_f64.ln());
        close(found.p_value, above((bound - 0.005) / error));
        close(found.confidence, 0.9);
        // The 95 % quantile.
        let (ends, reach) = (found.ends.unwrap(), 2.919_985_58 * error);
        close(ends.low.ln(), 0.005 - reach);
        close(ends.high.ln(), 0.005 + reach);
        let below = pooled_equivalence(&occasions([-0.025, -0.015, -0.005]), 0.95, 3.0).unwrap();
        close(below.p_value, above((bound - 0.015) / error));
        // Without any scatter.
        for (ratio, p_value) in [(1.0, 0.0), (1.2, 1.0), (0.8, 1.0)] {
            let same = [vec![ratio; 3], vec![ratio; 3], vec![ratio; 3]];
            assert_eq!(pooled_equivalence(&same, 0.95, 3.0).unwrap().p_value, p_value);
        }
    }

    #[test]
    fn a_spread_takes_two_ratios() {
        assert_eq!(spread([1.0, f64::INFINITY, 0.0, -1.0]), None);
        let found = spread([1.1, f64::NAN, 1.0, 1.05]).unwrap();
        close(found.percent, 10.0);
        assert_eq!(found.occasions, 3);
    }
}
