//! The comparison over slices of time. Pure: readings in, figures out.

use std::collections::VecDeque;

/// Units of work that each engine must do in a slice, or the slice is left out: with fewer, one
/// housekeeping task would decide.
pub(super) const UNITS_MIN: u64 = 100;

/// Slices that are kept for the ratio and its interval; with slices of a second, an hour.
pub(super) const KEPT_MAX: usize = 3600;

/// The slices are averaged in this many blocks of consecutive ones, or fewer: neighbours in time
/// resemble each other, blocks do less. The means of all of their 2^12 subsets can be sorted at any time.
const BLOCKS_MAX: usize = 12;

/// The work and the CPU time of one engine in one slice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Side {
    pub(super) cpu_us: u64,
    pub(super) units: f64,
    pub(super) bytes: u64,
}

impl Side {
    pub(super) fn merge(&mut self, other: Side) {
        self.cpu_us += other.cpu_us;
        self.units += other.units;
        self.bytes += other.bytes;
    }

    /// CPU time per unit, if there is enough work for one.
    pub(super) fn cost(self) -> Option<f64> {
        (self.units >= UNITS_MIN as f64 && self.cpu_us > 0).then(|| self.cpu_us as f64 / self.units)
    }
}

/// The logarithm of CPU per unit on epoll, divided by that on io_uring; `None` if the slice is left
/// out.
fn log_ratio(uring: Side, epoll: Side) -> Option<f64> {
    Some((epoll.cost()? / uring.cost()?).ln())
}

/// A ratio with its 95 % interval, which needs six blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) ratio: f64,
    pub(super) interval: Option<(f64, f64)>,
}

/// The slices so far.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    log_ratios: VecDeque<f64>,
    /// Sums over all compared slices.
    pub(super) uring: Side,
    pub(super) epoll: Side,
    pub(super) compared: u64,
    pub(super) left_out: u64,
}

impl History {
    /// Takes a slice, and returns its [`log_ratio`].
    pub(super) fn add(&mut self, uring: Side, epoll: Side) -> Option<f64> {
        let Some(log_ratio) = log_ratio(uring, epoll) else {
            self.left_out += 1;
            return None;
        };
        self.uring.merge(uring);
        self.epoll.merge(epoll);
        self.compared += 1;
        if self.log_ratios.len() == KEPT_MAX {
            self.log_ratios.pop_front();
        }
        self.log_ratios.push_back(log_ratio);
        Some(log_ratio)
    }

    pub(super) fn kept(&self) -> usize {
        self.log_ratios.len()
    }

    /// `None` without a slice.
    pub(super) fn estimate(&self) -> Option<Estimate> {
        let blocks = blocks(&self.log_ratios.iter().copied().collect::<Vec<_>>());
        let mean = mean(&blocks)?;
        let ratios: Vec<f64> = blocks.into_iter().map(f64::exp).collect();
        // So few are not drawn from, and need no seed.
        let ends = twinring_statistics::interval(&ratios, 0).and_then(|interval| interval.ends);
        let interval = ends.map(|ends| (ends.low, ends.high));
        Some(Estimate { ratio: mean.exp(), interval })
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The means of consecutive blocks of nearly equal length.
fn blocks(values: &[f64]) -> Vec<f64> {
    let count = values.len().min(BLOCKS_MAX);
    let edge = |block: usize| block * values.len() / count.max(1);
    (0..count).filter_map(|block| mean(&values[edge(block)..edge(block + 1)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(log_ratios: impl IntoIterator<Item = f64>) -> History {
        let mut history = History::default();
        for log_ratio in log_ratios {
            let side = |factor: f64| Side { cpu_us: (1e9 * factor) as u64, units: 1e3, bytes: 0 };
            assert!(history.add(side(1.0), side(f64::exp(log_ratio))).is_some());
        }
        history
    }

    #[test]
    fn a_slice_with_little_work_on_either_engine_is_left_out() {
        let side = |cpu_us, units| Side { cpu_us, units, bytes: 0 };
        let ratio = log_ratio(side(1000, 200.0), side(1500, 100.0)).expect("enough work");
        assert!((ratio.exp() - 3.0).abs() < 1e-9);
        assert_eq!(log_ratio(side(1000, 99.0), side(1500, 100.0)), None);
        assert_eq!(log_ratio(side(1000, 100.0), side(1500, 99.0)), None);
        assert_eq!(log_ratio(side(0, 100.0), side(1500, 100.0)), None);
        let mut history = history([0.1]);
        history.add(side(1000, 99.0), side(1500, 100.0));
        assert_eq!((history.compared, history.left_out, history.kept()), (1, 1, 1));
    }

    #[test]
    fn the_history_is_bounded_and_forgets_the_oldest() {
        let history = history((0..KEPT_MAX + 5).map(|slice| f64::from(u8::from(slice < 5))));
        assert_eq!((history.kept(), history.compared), (KEPT_MAX, KEPT_MAX as u64 + 5));
        let estimate = history.estimate().expect("slices");
        assert_eq!((estimate.ratio, estimate.interval), (1.0, Some((1.0, 1.0))));
    }

    #[test]
    fn an_interval_needs_six_slices_and_spans_them() {
        assert!(History::default().estimate().is_none());
        let few = history([0.1, 0.2, 0.3, 0.4, 0.5]).estimate().expect("slices");
        assert!(few.interval.is_none());
        // With six, one pattern of 64 in each tail: the interval is all of the range.
        let six = history([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).estimate().expect("slices");
        let (low, high) = six.interval.expect("six");
        assert!((low - 0.1_f64.exp()).abs() < 1e-6 && (high - 0.6_f64.exp()).abs() < 1e-6);
        assert!((six.ratio - 0.35_f64.exp()).abs() < 1e-6);
    }

    /// Symmetric noise, correlated in time or not: the interval misses the truth about as often as it
    /// says.
    #[test]
    fn the_interval_covers_the_truth_in_95_percent() {
        let mut state = 42_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as f64 / f64::from(1_u32 << 31) - 0.5
        };
        for slices in [6, 12, 50] {
            let missed = (0..1000)
                .filter(|_| {
                    let estimate = history((0..slices).map(|_| 0.2 + uniform())).estimate();
                    let (low, high) = estimate.and_then(|is| is.interval).expect("enough");
                    !(low..=high).contains(&0.2_f64.exp())
                })
                .count();
            assert!((15..=75).contains(&missed), "{slices} slices: {missed} of 1000");
        }
    }
}
