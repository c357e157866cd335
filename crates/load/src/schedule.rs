//! When the requests of an open loop are due: a pure function of time.
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

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::LazyLock;

/// How the requests of an open loop follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Periodic,
    /// Independently of each other.
    Poisson,
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Arrivals::Periodic => "periodic",
            Arrivals::Poisson => "poisson",
        })
    }
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Arrivals, String> {
        let all = [Arrivals::Periodic, Arrivals::Poisson];
        all.into_iter()
            .find(|arrivals| arrivals.to_string() == text)
            .ok_or_else(|| "expected periodic or poisson".to_owned())
    }
}

/// An open loop's schedule for all connections together.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start_ns: u64,
    rate_per_s: u64,
    connections: u64,
    arrivals: Arrivals,
}

/// The highest rate of a schedule: one request per nanosecond.
pub const RATE_PER_S_MAX: u64 = NS_PER_S;

const NS_PER_S: u64 = 1_000_000_000;

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
    /// `rate_per_s` requests a second (1 to [`RATE_PER_S_MAX`]), spread over `connections` (at
    /// least 1), from `start_ns` on.
    pub fn new(start_ns: u64, rate_per_s: u64, connections: u64, arrivals: Arrivals) -> Schedule {
        let rate_per_s = rate_per_s.clamp(1, RATE_PER_S_MAX);
        Schedule { start_ns, rate_per_s, connections: connections.max(1), arrivals }
    }

    /// How many connections share it.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// When request `sequence` (from 0) of `connection` (from 0) is due.
    pub fn intended_ns(&self, connection: u64, sequence: u64) -> u64 {
        let number = sequence * self.connections + connection;
        let after_ns = match self.arrivals {
            Arrivals::Periodic => self.periodic_ns(number),
            Arrivals::Poisson => {
                let (interval, within) = (number / TOGETHER, number % TOGETHER);
                self.drawn_ns(interval, DRAWN[within as usize])
            }
        };
        self.start_ns + after_ns
    }

    /// How many requests of `connection` were to be sent until `now_ns`, that moment included.
    pub fn due(&self, connection: u64, now_ns: u64) -> u64 {
        let Some(elapsed) = now_ns.checked_sub(self.start_ns) else { return 0 };
        let periodic = self.periodic_by(elapsed);
        let of_all = match self.arrivals {
            Arrivals::Periodic => periodic,
            Arrivals::Poisson => {
                // Its interval began with a periodic request, so at least one of those is due.
                let interval = (periodic - 1) / TOGETHER;
                let by_now = |time: &u32| self.drawn_ns(interval, *time) <= elapsed;
                interval * TOGETHER + DRAWN.partition_point(by_now) as u64
            }
        };
        of_all.saturating_sub(connection).div_ceil(self.connections)
    }

    /// How many requests of `connection` are due inside the window.
    pub(crate) fn due_within(&self, connection: u64, window: &Range<u64>) -> u64 {
        let before = |end_ns: u64| end_ns.checked_sub(1).map_or(0, |now| self.due(connection, now));
        before(window.end).saturating_sub(before(window.start))
    }

    /// When a request is due, after the start, if all are at equal distances.
    fn periodic_ns(&self, number: u64) -> u64 {
        let (seconds, rest) = (number / self.rate_per_s, number % self.rate_per_s);
        seconds * NS_PER_S + rest * NS_PER_S / self.rate_per_s
    }

    /// How many are then due, `elapsed` after the start.
    fn periodic_by(&self, elapsed: u64) -> u64 {
        // Request `m` is due at floor(m * NS_PER_S / rate), so it is due by `elapsed` exactly if
        // m * NS_PER_S < (elapsed + 1) * rate.
        let end = elapsed + 1;
        let (seconds, rest) = (end / NS_PER_S, end % NS_PER_S);
        seconds * self.rate_per_s + (rest * self.rate_per_s).div_ceil(NS_PER_S)
    }

    /// A drawn time of an interval, after the start.
    fn drawn_ns(&self, interval: u64, time: u32) -> u64 {
        let from = self.periodic_ns(interval * TOGETHER);
        let length = self.periodic_ns((interval + 1) * TOGETHER) - from;
        from + ((u128::from(length) * u128::from(time)) >> 32) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            let schedule = Schedule::new(start, rate, connections, arrivals);
            let connection = pick.index(connections as usize) as u64;
            let now = start + elapsed;
            let due = schedule.due(connection, now);
            if due > 0 {
                prop_assert!(schedule.intended_ns(connection, due - 1) <= now);
            }
            prop_assert!(schedule.intended_ns(connection, due) > now);
        }

        /// After any whole number of seconds exactly rate x seconds requests are due: no drift.
        #[test]
        fn nothing_drifts(
            start in 0..YEAR_NS, rate in 1u64..10_000_000, connections in 1u64..64,
            seconds in 1u64..1_000_000,
        ) {
            let schedule = Schedule::new(start, rate, connections, Arrivals::Periodic);
            let now = start + seconds * NS_PER_S - 1;
            let due: u64 = (0..connections).map(|c| schedule.due(c, now)).sum();
            prop_assert_eq!(due, rate * seconds);
        }

        /// Consecutive requests, of all and of each connection, keep their distance to 1 ns.
        #[test]
        fn requests_are_spread_evenly(
            rate in 1u64..10_000_000, connections in 1u64..1000, sequence in 0u64..1_000_000,
        ) {
            let schedule = Schedule::new(0, rate, connections, Arrivals::Periodic);
            let at = |m: u64| schedule.intended_ns(m % connections, m / connections);
            let of_all = at(sequence + 1) - at(sequence);
            prop_assert!(of_all.abs_diff(NS_PER_S / rate) <= 1);
            let own = schedule.intended_ns(0, sequence + 1) - schedule.intended_ns(0, sequence);
            prop_assert!(own.abs_diff(connections * NS_PER_S / rate) <= 1);
        }

        /// A sender that checks rarely finds all missed requests, each with its own intended time:
        /// the counted lag is exact.
        #[test]
        fn a_stall_is_caught_up_and_counted(
            rate in 1u64..1_000_000, looks in proptest::collection::vec(0u64..NS_PER_S, 1..40),
        ) {
            let schedule = Schedule::new(0, rate, 1, Arrivals::Periodic);
            let (mut now, mut sent, mut last_look) = (0, 0, None);
            for pause in looks {
                now += pause;
                // Bounded work for high rates: only the first and the last that were missed.
                let due = schedule.due(0, now);
                if due > sent {
                    let newest = schedule.intended_ns(0, due - 1);
                    prop_assert!(newest <= now && now - newest <= NS_PER_S / rate + 1);
                    let oldest = schedule.intended_ns(0, sent);
                    prop_assert!(last_look.is_none_or(|look| oldest > look));
                }
                (sent, last_look) = (due, Some(now));
            }
        }
    }

    #[test]
    fn nothing_is_due_before_the_start() {
        let schedule = Schedule::new(1000, 1_000_000, 2, Arrivals::Periodic);
        assert_eq!((schedule.due(0, 999), schedule.due(0, 1000), schedule.due(1, 1000)), (0, 1, 0));
        assert_eq!(schedule.due(1, 2000), 1);
    }

    /// The number of random arrivals in a window is not rate x window, and was taken to be.
    #[test]
    fn requests_due_within_a_window_are_counted() {
        for arrivals in [Arrivals::Periodic, Arrivals::Poisson] {
            let schedule = Schedule::new(1_000, 1_500, 3, arrivals);
            let window = 1_000 + NS_PER_S / 4..1_000 + NS_PER_S / 2;
            for connection in 0..3 {
                let times = (0..).map(|sequence| schedule.intended_ns(connection, sequence));
                let inside = times.take_while(|time| *time < window.end);
                let inside = inside.filter(|time| window.contains(time)).count() as u64;
                assert_eq!(schedule.due_within(connection, &window), inside, "{arrivals}");
            }
        }
        let due = |arrivals| Schedule::new(0, 1_500, 1, arrivals).due_within(0, &(0..NS_PER_S / 4));
        assert_eq!(due(Arrivals::Periodic), 375);
        assert_ne!(due(Arrivals::Poisson), 375);
    }

    /// The distances between independent arrivals have an exponential distribution: their standard
    /// deviation is their mean, and a share of exp(-2) is longer than twice the mean.
    #[test]
    fn poisson_arrivals_have_exponential_distances() {
        let schedule = Schedule::new(0, 100_000, 7, Arrivals::Poisson);
        let at = |m: u64| schedule.intended_ns(m % 7, m / 7);
        let gaps: Vec<f64> = (0..3 * TOGETHER).map(|m| (at(m + 1) - at(m)) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let long = gaps.iter().filter(|gap| **gap > 2.0 * mean).count() as f64 / gaps.len() as f64;
        assert!((mean - 10_000.0).abs() < 10.0, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{}", variance.sqrt() / mean);
        assert!((long - (-2.0_f64).exp()).abs() < 0.01, "{long}");
    }

    /// As much is asked for as with periodic arrivals.
    #[test]
    fn poisson_arrivals_keep_the_rate() {
        for rate in [1, 1_000, 999_999, RATE_PER_S_MAX] {
            let of = |arrivals| Schedule::new(5, rate, 1, arrivals);
            let (periodic, poisson) = (of(Arrivals::Periodic), of(Arrivals::Poisson));
            for interval in 1..4 {
                let end_ns = periodic.intended_ns(0, interval * TOGETHER) - 1;
                assert_eq!(poisson.due(0, end_ns), interval * TOGETHER, "{rate}");
            }
        }
    }
}
