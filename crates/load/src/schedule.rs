//! When the requests of an open loop are due: a pure function of time.
//!
//! Request `m` of all is due exactly `m / rate` after the start: times are computed from the number
//! of the request and not by adding intervals, so they do not drift. Requests go to the connections
//! in turn, which spreads each connection's requests and their phases evenly.

/// An open loop's schedule for all connections together.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start_ns: u64,
    rate_per_s: u64,
    connections: u64,
}

/// The highest rate of a schedule: one request per nanosecond.
pub const RATE_PER_S_MAX: u64 = NS_PER_S;

const NS_PER_S: u64 = 1_000_000_000;

impl Schedule {
    /// `rate_per_s` requests a second (1 to [`RATE_PER_S_MAX`]), spread over `connections` (at
    /// least 1), the first at `start_ns`.
    pub fn new(start_ns: u64, rate_per_s: u64, connections: u64) -> Schedule {
        let rate_per_s = rate_per_s.clamp(1, RATE_PER_S_MAX);
        Schedule { start_ns, rate_per_s, connections: connections.max(1) }
    }

    /// How many connections share it.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// When request `sequence` (from 0) of `connection` (from 0) is due.
    pub fn intended_ns(&self, connection: u64, sequence: u64) -> u64 {
        let number = sequence * self.connections + connection;
        let (seconds, rest) = (number / self.rate_per_s, number % self.rate_per_s);
        self.start_ns + seconds * NS_PER_S + rest * NS_PER_S / self.rate_per_s
    }

    /// How many requests of `connection` were to be sent until `now_ns`, that moment included.
    pub fn due(&self, connection: u64, now_ns: u64) -> u64 {
        let Some(elapsed) = now_ns.checked_sub(self.start_ns) else { return 0 };
        // Request `m` is due at floor(m * NS_PER_S / rate), so it is due by `elapsed` exactly if
        // m * NS_PER_S < (elapsed + 1) * rate.
        let end = elapsed + 1;
        let (seconds, rest) = (end / NS_PER_S, end % NS_PER_S);
        let of_all = seconds * self.rate_per_s + (rest * self.rate_per_s).div_ceil(NS_PER_S);
        of_all.saturating_sub(connection).div_ceil(self.connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const YEAR_NS: u64 = 365 * 86_400 * NS_PER_S;

    proptest! {
        #[test]
        fn due_counts_exactly_the_packets_due_by_then(
            start in 0..YEAR_NS, rate in 1..=RATE_PER_S_MAX, connections in 1u64..20_000,
            pick in any::<prop::sample::Index>(), elapsed in 0..86_400 * NS_PER_S,
        ) {
            let schedule = Schedule::new(start, rate, connections);
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
            let schedule = Schedule::new(start, rate, connections);
            let now = start + seconds * NS_PER_S - 1;
            let due: u64 = (0..connections).map(|c| schedule.due(c, now)).sum();
            prop_assert_eq!(due, rate * seconds);
        }

        /// Consecutive requests, of all and of each connection, keep their distance to 1 ns.
        #[test]
        fn requests_are_spread_evenly(
            rate in 1u64..10_000_000, connections in 1u64..1000, sequence in 0u64..1_000_000,
        ) {
            let schedule = Schedule::new(0, rate, connections);
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
            let schedule = Schedule::new(0, rate, 1);
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
        let schedule = Schedule::new(1000, 1_000_000, 2);
        assert_eq!((schedule.due(0, 999), schedule.due(0, 1000), schedule.due(1, 1000)), (0, 1, 0));
        assert_eq!(schedule.due(1, 2000), 1);
    }
}
