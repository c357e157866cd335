//! Answers, failures and latencies by interval of the window.

use crate::recorder::LATENCY_NS_MAX;
use hdrhistogram::Histogram;
use std::ops::Range;
use std::time::Duration;
use twinring_wire::histogram::micros;
use twinring_wire::http as wire;

/// Shortest interval.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Most intervals.
const INTERVALS_MAX: u32 = 300;
/// Significant decimal digits of a latency. One less than in the histograms of a whole run, because
/// each interval has its own: 300 of them take 6 MB per thread.
const DIGITS: u8 = 2;

/// A series with intervals of the same length.
#[derive(Debug)]
pub(crate) struct TimeSeries {
    interval_ns: u64,
    intervals: Vec<Interval>,
    /// The interval of the last event, to find it again without a division.
    current: Range<u64>,
    current_number: usize,
}

#[derive(Debug)]
struct Interval {
    answered: u64,
    failed: u64,
    latency_ns: Histogram<u32>,
}

impl Interval {
    fn new() -> Interval {
        let latency_ns = match Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS) {
            Ok(histogram) => histogram,
            Err(error) => unreachable!("the bounds are constants and valid: {error}"),
        };
        Interval { answered: 0, failed: 0, latency_ns }
    }
}

impl TimeSeries {
    /// For a window of up to `longest`.
    pub(crate) fn new(longest: Duration) -> TimeSeries {
        let interval = INTERVAL_MIN.max(longest / INTERVALS_MAX);
        TimeSeries {
            interval_ns: interval.as_nanos() as u64,
            intervals: Vec::new(),
            current: 0..0,
            current_number: 0,
        }
    }

    /// An answer arrived at `now_ns`; counts if that is inside the window.
    pub(crate) fn answered(&mut self, latency_ns: u64, now_ns: u64, window: &Range<u64>) {
        if let Some(interval) = self.at(now_ns, window) {
            interval.answered += 1;
            interval.latency_ns.saturating_record(latency_ns.max(1));
        }
    }

    /// `count` requests failed at `now_ns`; counts if that is inside the window.
    pub(crate) fn failed(&mut self, count: u64, now_ns: u64, window: &Range<u64>) {
        if let Some(interval) = self.at(now_ns, window) {
            interval.failed += count;
        }
    }

    fn at(&mut self, now_ns: u64, window: &Range<u64>) -> Option<&mut Interval> {
        if !window.contains(&now_ns) {
            return None;
        }
        if !self.current.contains(&now_ns) {
            let number = (now_ns - window.start) / self.interval_ns;
            let start_ns = window.start + number * self.interval_ns;
            self.current = start_ns..start_ns + self.interval_ns;
            self.current_number = number as usize;
            while self.intervals.len() <= self.current_number {
                self.intervals.push(Interval::new());
            }
        }
        self.intervals.get_mut(self.current_number)
    }

    /// Adds the series of another thread in the same window.
    pub(crate) fn merge(&mut self, other: TimeSeries) {
        while self.intervals.len() < other.intervals.len() {
            self.intervals.push(Interval::new());
        }
        for (mine, theirs) in self.intervals.iter_mut().zip(other.intervals) {
            mine.answered += theirs.answered;
            mine.failed += theirs.failed;
            // Both have the same bounds, so every value fits.
            let _same_bounds = mine.latency_ns.add(&theirs.latency_ns);
        }
    }

    pub(crate) fn report(&self) -> wire::TimeSeries {
        let row = |(number, interval): (usize, &Interval)| wire::Interval {
            start_s: (number as u64 * self.interval_ns) as f64 / 1e9,
            answered: interval.answered,
            failed: interval.failed,
            p50_us: micros(interval.latency_ns.value_at_quantile(0.5)),
            p99_us: micros(interval.latency_ns.value_at_quantile(0.99)),
            max_us: micros(interval.latency_ns.max()),
        };
        wire::TimeSeries {
            interval_s: self.interval_ns as f64 / 1e9,
            intervals: self.intervals.iter().enumerate().map(row).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_in_the_interval_of_their_time() {
        const S: u64 = 1_000_000_000;
        let window = 10 * S..13 * S;
        let mut series = TimeSeries::new(Duration::from_secs(3));
        for (now, latency) in [(9 * S, 1), (10 * S, 1000), (11 * S - 1, 3000), (12 * S, 5000)] {
            series.answered(latency, now, &window);
        }
        series.failed(4, 13 * S, &window);
        let mut other = TimeSeries::new(Duration::from_secs(3));
        other.failed(2, 11 * S, &window);
        other.answered(9000, 12 * S + 5, &window);
        series.merge(other);
        let report = series.report();
        let rows: Vec<_> = report.intervals.iter().map(|i| (i.answered, i.failed)).collect();
        assert_eq!(rows, [(2, 0), (0, 2), (2, 0)]);
        assert_eq!(report.intervals[2].start_s, 2.0);
        assert!((report.intervals[2].max_us - 9.0).abs() < 0.1);
    }

    #[test]
    fn a_long_window_has_longer_intervals() {
        assert_eq!(TimeSeries::new(Duration::from_secs(3600)).report().interval_s, 12.0);
    }
}
