//! When the requests of an open loop, or the packets of streams, are due: a pure function of time.
//!
//! Times are computed from the number of the request and not by adding intervals, so they do not
//! drift. Requests go to the connections in turn, which spreads each connection's requests evenly.
//!
//! *Periodic*: request `m` of all is due exactly `m / rate` after the start. Nothing arrives
//! together, so a server that works in batches finds few to work on. *Poisson*: requests arrive
//! independently of each other, as those of many users do, and so sometimes together. A Poisson
//! process of which one knows how many events an interval has is that number of times, drawn
//! uniformly and sorted; so each 16,384 requests arrive in the time that they take at the rate,
//! and the number of requests in a window is the same as for periodic ones. The times are drawn once
//! from a fixed seed and repeat: every subject gets the same schedule.

use clap::ValueEnum;
use std::ops::Range;
use std::sync::LazyLock;

/// How the requests of an open loop follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Periodic,
    /// Independently of each other, as those of many users do.
    Poisson,
}

/// A schedule for all connections together.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start_ns: u64,
    /// Requests in 1,000,000 seconds.
    moments: u64,
    pub(crate) connections: u64,
    arrivals: Arrivals,
}

/// The highest rate of a schedule: one request per nanosecond.
pub const RATE_PER_S_MAX: u64 = 1_000_000_000;

/// Nanoseconds in 1,000,000 seconds.
const NS: u128 = 1_000_000_000_000_000;

/// Requests of a Poisson schedule whose times are drawn together. Within this number they bunch up
/// as they like; 64 KiB of times.
const TOGETHER: u64 = 16 * 1024;

/// Sorted times in units of 2^-32 of the interval.
static DRAWN: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut random = oorandom::Rand32::new(2_017);
    let mut times: Vec<u32> = (0..TOGETHER).map(|_| random.rand_u32()).collect();
    times.sort_unstable();
    times
});

impl Schedule {
    /// `rate` millionths of a request a second in total, spread over `connections` (at least 1), from `start_ns` on.
    pub fn new(start_ns: u64, rate: u64, connections: u64, arrivals: Arrivals) -> Schedule {
        Schedule { start_ns, moments: rate.max(1), connections: connections.max(1), arrivals }
    }

    /// When request `sequence` (from 0) of `connection` (from 0) is due.
    #[inline]
    pub fn intended_ns(&self, connection: u64, sequence: u64) -> u64 {
        let number = sequence * self.connections + connection;
        let after_ns = match self.arrivals {
            Arrivals::Periodic => self.moment_ns(number),
            Arrivals::Poisson => {
                let (interval, within) = (number / TOGETHER, number % TOGETHER);
                self.drawn_ns(interval, DRAWN[within as usize])
            }
        };
        self.start_ns + after_ns
    }

    /// How many requests of `connection` were to be sent until `now_ns`, that moment included.
    pub fn due(&self, connection: u64, now_ns: u64) -> u64 {
        self.moments(now_ns).saturating_sub(connection).div_ceil(self.connections)
    }

    /// How many requests were due by `now_ns`.
    fn moments(&self, now_ns: u64) -> u64 {
        let Some(elapsed) = now_ns.checked_sub(self.start_ns) else { return 0 };
        // Moment `m` is due at floor(m * NS / moments), so it is due by `elapsed` exactly if
        // m * NS < (elapsed + 1) * moments.
        let periodic = ((u128::from(elapsed) + 1) * u128::from(self.moments)).div_ceil(NS) as u64;
        if self.arrivals != Arrivals::Poisson {
            return periodic;
        }
        // Its interval began with a periodic request, so at least one of those is due.
        let interval = (periodic - 1) / TOGETHER;
        let by_now = |time: &u32| self.drawn_ns(interval, *time) <= elapsed;
        interval * TOGETHER + DRAWN.partition_point(by_now) as u64
    }

    /// How many requests of `connection` are due inside the window.
    pub(crate) fn due_within(&self, connection: u64, window: &Range<u64>) -> u64 {
        let before = |end_ns: u64| end_ns.checked_sub(1).map_or(0, |now| self.due(connection, now));
        before(window.end).saturating_sub(before(window.start))
    }

    /// When a moment comes, after the start, if all are at equal distances.
    fn moment_ns(&self, number: u64) -> u64 {
        (u128::from(number) * NS / u128::from(self.moments)) as u64
    }

    /// A drawn time of an interval, after the start.
    fn drawn_ns(&self, interval: u64, time: u32) -> u64 {
        let from = self.moment_ns(interval * TOGETHER);
        let length = self.moment_ns((interval + 1) * TOGETHER) - from;
        from + ((u128::from(length) * u128::from(time)) >> 32) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NS_PER_S: u64 = 1_000_000_000;
    const YEAR_NS: u64 = 365 * 86_400 * NS_PER_S;

    fn any_arrivals() -> impl Strategy<Value = Arrivals> {
        prop::sample::select(vec![Arrivals::Periodic, Arrivals::Poisson])
    }

    proptest! {
        #[test]
        fn due_counts_exactly_the_packets_due_by_then(
            start in 0..YEAR_NS, rate in 1..=RATE_PER_S_MAX, connections in 1u64..20_000,
            pick in any::<prop::sample::Index>(), elapsed in 0..86_400 * NS_PER_S,
            arrivals in any_arrivals(),
        ) {
            let schedule = Schedule::new(start, rate * 1_000_000, connections, arrivals);
            let connection = pick.index(connections as usize) as u64;
            let now = start + elapsed;
            let due = schedule.due(connection, now);
            if due > 0 {
                prop_assert!(schedule.intended_ns(connection, due - 1) <= now);
            }
            prop_assert!(schedule.intended_ns(connection, due) > now);
        }
    }

    /// The number of random arrivals in a window is not rate x window, and was taken to be.
    #[test]
    fn requests_due_within_a_window_are_counted() {
        for arrivals in [Arrivals::Periodic, Arrivals::Poisson] {
            let schedule = Schedule::new(1_000, 1_500_000_000, 3, arrivals);
            let window = 1_000 + NS_PER_S / 4..1_000 + NS_PER_S / 2;
            for connection in 0..3 {
                let times = (0..).map(|sequence| schedule.intended_ns(connection, sequence));
                let inside = times.take_while(|time| *time < window.end);
                let inside = inside.filter(|time| window.contains(time)).count() as u64;
                assert_eq!(schedule.due_within(connection, &window), inside, "{arrivals:?}");
            }
        }
        let due = |arrivals| {
            Schedule::new(0, 1_500_000_000, 1, arrivals).due_within(0, &(0..NS_PER_S / 4))
        };
        assert_eq!(due(Arrivals::Periodic), 375);
        assert_ne!(due(Arrivals::Poisson), 375);
    }

    /// The distances between independent arrivals have an exponential distribution: their standard
    /// deviation is their mean, and a share of exp(-2) is longer than twice the mean.
    #[test]
    fn poisson_arrivals_have_exponential_distances() {
        let schedule = Schedule::new(0, 100_000_000_000, 7, Arrivals::Poisson);
        let at = |m: u64| schedule.intended_ns(m % 7, m / 7);
        let gaps: Vec<f64> = (0..3 * TOGETHER).map(|m| (at(m + 1) - at(m)) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let long = gaps.iter().filter(|gap| **gap > 2.0 * mean).count() as f64 / gaps.len() as f64;
        assert!((mean - 10_000.0).abs() < 10.0, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{}", variance.sqrt() / mean);
        assert!((long - (-2.0_f64).exp()).abs() < 0.01, "{long}");
    }
}
