//! Values that lie apart from the others, counted and never left out.

use serde::{Deserialize, Serialize};

use super::quantile;

/// Fewer values than this have no quartiles worth the name.
const LEAST_VALUES: usize = 5;

/// How many values lie beyond the fences of Tukey (Exploratory Data Analysis, 1977): mild ones more
/// than 1.5 interquartile ranges outside the quartiles, severe ones more than 3. Of logarithms, so
/// that twice and half are equally far out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outliers {
    /// Far below.
    pub severe_low: usize,
    /// Below.
    pub mild_low: usize,
    /// Above.
    pub mild_high: usize,
    /// Far above.
    pub severe_high: usize,
}

impl Outliers {
    /// Those among positive values.
    pub fn among(values: impl IntoIterator<Item = f64>) -> Outliers {
        let mut logs: Vec<f64> =
            values.into_iter().filter(|value| *value > 0.0).map(f64::ln).collect();
        logs.sort_unstable_by(f64::total_cmp);
        if logs.len() < LEAST_VALUES {
            return Outliers::default();
        }
        let [lower, upper] = [0.25, 0.75].map(|share| quantile(&logs, share));
        let range = upper - lower;
        let below = |ranges: f64| logs.iter().filter(|log| **log < lower - ranges * range).count();
        let above = |ranges: f64| logs.iter().filter(|log| **log > upper + ranges * range).count();
        let (severe_low, severe_high) = (below(3.0), above(3.0));
        Outliers {
            severe_low,
            mild_low: below(1.5) - severe_low,
            mild_high: above(1.5) - severe_high,
            severe_high,
        }
    }

    /// How many are severe.
    pub fn severe(&self) -> usize {
        self.severe_low + self.severe_high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with numpy 2.4.6, x = log(values):
    ///   a, b = quantile(x, [.25, .75]); r = b - a
    ///   [(x < a-3*r).sum(), ((x < a-1.5*r) & (x >= a-3*r)).sum(),
    ///    ((x > b+1.5*r) & (x <= b+3*r)).sum(), (x > b+3*r).sum()]
    #[test]
    fn classes_agree_with_an_independent_computation() {
        let references: [(&[f64], [usize; 4]); 4] = [
            (&[1.0, 1.01, 1.02, 0.99, 0.98, 1.03, 1.0, 1.05], [0, 0, 0, 0]),
            (&[1.0, 1.01, 1.02, 0.99, 0.98, 1.03, 1.0, 1.6], [0, 0, 0, 1]),
            (&[1.0, 1.01, 1.02, 0.99, 0.98, 1.03, 1.0, 1.11, 0.92], [0, 1, 1, 0]),
            (&[5.0, 5.1, 5.2, 4.9, 4.8, 2.0, 5.05, 5.3, 5.0, 4.95, 9.9, 5.7, 4.4], [1, 1, 1, 1]),
        ];
        for (values, expected) in references {
            let found = Outliers::among(values.iter().copied());
            let Outliers { severe_low, mild_low, mild_high, severe_high } = found;
            assert_eq!([severe_low, mild_low, mild_high, severe_high], expected, "{values:?}");
        }
    }

    #[test]
    fn few_values_have_no_outliers() {
        assert_eq!(Outliers::among([1.0, 1.0, 1.0, 100.0]), Outliers::default());
        assert_eq!(Outliers::among([]), Outliers::default());
        assert_eq!(Outliers::among([0.0, f64::NAN, -1.0, 1.0, 1.0, 1.0]), Outliers::default());
        // Five are enough, and what lies on a fence is inside.
        let high = Outliers { severe_high: 1, ..Outliers::default() };
        assert_eq!(Outliers::among([1.0, 1.0, 1.0, 1.0, 100.0]), high);
        assert_eq!(Outliers::among([0.0, 1.0, 1.0, 1.0, 1.0, 1.0]), Outliers::default());
        assert_eq!(Outliers { severe_low: 2, mild_low: 7, ..high }.severe(), 3);
    }
}
