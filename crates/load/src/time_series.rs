//! Answers, failures and latencies by interval of the window.
//!
//! The length of a run may not be known before its end, so intervals begin short and double whenever there would be
//! too many.

use crate::recorder::LATENCY_NS_MAX;
use hdrhistogram::Histogram;
use std::ops::Range;
use twinring_wire::histogram::micros;
use twinring_wire::requests as wire;

/// Shortest interval.
const INTERVAL_NS: u64 = 100_000_000;
/// Most intervals.
const INTERVALS_MAX: usize = 100;
/// Significant decimal digits of a latency. One less than in the histograms of a whole run, because
/// each interval has its own.
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

    fn merge(&mut self, other: &Interval) {
        self.answered += other.answered;
        self.failed += other.failed;
        // Both have the same bounds, so every value fits.
        let _same_bounds = self.latency_ns.add(&other.latency_ns);
    }
}

impl TimeSeries {
    pub(crate) fn new() -> TimeSeries {
        let (interval_ns, intervals) = (INTERVAL_NS, Vec::new());
        TimeSeries { interval_ns, intervals, current: 0..0, current_number: 0 }
    }

    /// `count` answers arrived at `now_ns`; they count if that is inside the window.
    pub(crate) fn answered(
        &mut self,
        latency_ns: u64,
        count: u64,
        now_ns: u64,
        window: &Range<u64>,
    ) {
        if let Some(interval) = self.at(now_ns, window) {
            interval.answered += count;
            let count = count.try_into().unwrap_or(u32::MAX);
            interval.latency_ns.saturating_record_n(latency_ns.max(1), count);
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
            while (now_ns - window.start) / self.interval_ns >= INTERVALS_MAX as u64 {
                self.coarsen();
            }
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

    /// Makes intervals of double the length.
    fn coarsen(&mut self) {
        self.interval_ns *= 2;
        let mut pairs: Vec<Interval> = Vec::new();
        for (number, interval) in std::mem::take(&mut self.intervals).into_iter().enumerate() {
            match pairs.last_mut().filter(|_| number % 2 == 1) {
                Some(first) => first.merge(&interval),
                None => pairs.push(interval),
            }
        }
        self.intervals = pairs;
        self.current = 0..0;
    }

    /// Adds the series of another thread in the same window.
    pub(crate) fn merge(&mut self, mut other: TimeSeries) {
        while self.interval_ns < other.interval_ns {
            self.coarsen();
        }
        while other.interval_ns < self.interval_ns {
            other.coarsen();
        }
        while self.intervals.len() < other.intervals.len() {
            self.intervals.push(Interval::new());
        }
        let pairs = self.intervals.iter_mut().zip(&other.intervals);
        pairs.for_each(|(mine, theirs)| mine.merge(theirs));
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

    const MS: u64 = 1_000_000;

    #[test]
    fn events_are_in_the_interval_of_their_time() {
        let window = 1000 * MS..1300 * MS;
        let mut series = TimeSeries::new();
        for (now, latency) in [(900, 1), (1000, 1000), (1099, 3000), (1200, 5000)] {
            series.answered(latency, 1, now * MS, &window);
        }
        series.failed(4, 1300 * MS, &window);
        let mut other = TimeSeries::new();
        other.failed(2, 1100 * MS, &window);
        other.answered(9000, 1, 1205 * MS, &window);
        series.merge(other);
        let report = series.report();
        let rows: Vec<_> = report.intervals.iter().map(|i| (i.answered, i.failed)).collect();
        assert_eq!(rows, [(2, 0), (0, 2), (2, 0)]);
        assert_eq!(report.intervals[2].start_s, 0.2);
        assert!((report.intervals[2].max_us - 9.0).abs() < 0.1);
    }

    /// With `-n`, intervals were 12 s, so that a short run was one point.
    #[test]
    fn any_run_has_many_intervals_and_no_more_than_a_hundred() {
        for (seconds, interval_s, count) in
            [(1, 0.1, 10), (10, 0.1, 100), (11, 0.2, 55), (3600, 51.2, 71)]
        {
            let mut series = TimeSeries::new();
            let window = 0..seconds * 1000 * MS;
            for now in (0..window.end).step_by((50 * MS) as usize) {
                series.answered(1000, 1, now, &window);
            }
            let report = series.report();
            assert_eq!(
                (report.interval_s, report.intervals.len()),
                (interval_s, count),
                "{seconds}"
            );
            let answered: u64 = report.intervals.iter().map(|interval| interval.answered).sum();
            assert_eq!(answered, seconds * 20);
        }
    }

    #[test]
    fn threads_with_intervals_of_different_lengths_are_added() {
        let window = 0..60_000 * MS;
        let (mut short, mut long) = (TimeSeries::new(), TimeSeries::new());
        short.answered(1, 7, 250 * MS, &window);
        long.answered(1, 3, 59_000 * MS, &window);
        short.merge(long);
        let report = short.report();
        assert_eq!((report.interval_s, report.intervals[0].answered), (0.8, 7));
        assert_eq!(report.intervals.last().map(|last| last.answered), Some(3));
    }
}
