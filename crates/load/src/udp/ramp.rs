//! The search for the highest rate without loss: doubling while the rate is good, then bisection.

use crate::schedule::Rate;

/// Steps of a search, at most: enough to double 20 times, or to come down and bisect.
pub(super) const STEPS_MAX: u32 = 24;
/// The search ends when the lowest rate that failed is this close to the highest that did not.
const CLOSE: f64 = 1.03;
/// Lowest rate tried, as a part of the first.
const LOWEST: u64 = 64;

/// The state of a search.
#[derive(Clone, Debug)]
pub(super) struct Ramp {
    first: u64,
    /// The highest rate allowed.
    most: u64,
    good: Option<u64>,
    bad: Option<u64>,
    steps: u32,
}

impl Ramp {
    pub(super) fn new(first: Rate, most: Rate) -> Ramp {
        let (first, most) = (first.millionths(), most.millionths());
        Ramp { first, most, good: None, bad: None, steps: 0 }
    }

    /// The rate to try next; `None` at the end.
    pub(super) fn next_rate(&self) -> Option<Rate> {
        let rate = match (self.good, self.bad) {
            _ if self.steps == STEPS_MAX => return None,
            (None, None) => self.first,
            (Some(good), None) if good < self.most => (2 * good).min(self.most),
            (Some(_), None) => return None,
            (None, Some(bad)) if bad / 2 >= (self.first / LOWEST).max(1_000) => bad / 2,
            (None, Some(_)) => return None,
            (Some(good), Some(bad)) if bad as f64 > good as f64 * CLOSE => good + (bad - good) / 2,
            (Some(_), Some(_)) => return None,
        };
        Some(Rate::from_millionths(rate))
    }

    /// Records the result of the rate that `next_rate` returned.
    pub(super) fn tried(&mut self, rate: Rate, good: bool) {
        self.steps += 1;
        let found = if good { &mut self.good } else { &mut self.bad };
        *found = Some(rate.millionths());
    }

    /// The highest rate that did well.
    pub(super) fn best(&self) -> Option<Rate> {
        self.good.map(Rate::from_millionths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: f64 = 1e8;

    fn search(first: f64, limit: f64) -> (Option<f64>, u32) {
        let mut ramp = Ramp::new(Rate::per_second(first), Rate::per_second(MOST));
        while let Some(rate) = ramp.next_rate() {
            ramp.tried(rate, rate.number_per_s() <= limit);
        }
        (ramp.best().map(Rate::number_per_s), ramp.steps)
    }

    proptest! {
        /// Any limit is found within 3 %, from above and from below, and in a bounded number of
        /// steps.
        #[test]
        fn the_limit_is_found(first in 1.0f64..1e5, factor in 0.02f64..5000.0) {
            let limit = (first * factor).min(MOST);
            let (best, steps) = search(first, limit);
            prop_assert!(steps <= STEPS_MAX);
            let best = best.unwrap();
            prop_assert!(best <= limit && best * CLOSE >= limit * 0.999, "{best} of {limit}");
        }
    }

    #[test]
    fn a_path_that_loses_everything_has_no_best_rate() {
        let (best, steps) = search(6400.0, 0.0);
        assert_eq!((best, steps), (None, 7));
    }

    #[test]
    fn the_highest_allowed_rate_ends_the_search() {
        let mut ramp = Ramp::new(Rate::per_second(50.0), Rate::per_second(300.0));
        while let Some(rate) = ramp.next_rate() {
            ramp.tried(rate, true);
        }
        assert_eq!(ramp.best(), Some(Rate::per_second(300.0)));
    }
}
