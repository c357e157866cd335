//! When each packet is due: a pure function of stream and sequence, so that times do not drift.
//!
//! Spread evenly, the packets of all streams form one sequence with equal intervals, in which the
//! streams take turns; in bursts, all streams send at the same times. A thread has every n-th
//! stream, and the packets due to its own streams are a number of packets in a fixed order: the
//! number is computed without visiting any stream.

use std::fmt;

const NS_PER_S: u128 = 1_000_000_000;

/// Packets a second and stream, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// Lowest and highest rate of one stream: one packet per 1,000 seconds, and one per 10 ns.
    pub const RANGE: std::ops::RangeInclusive<Rate> = Rate(1_000)..=Rate(100_000_000_000_000);

    /// From packets a second, rounded to a millionth of a packet.
    pub fn per_second(packets: f64) -> Rate {
        // Negative and not a number become 0, which is outside the range.
        Rate((packets * 1e6).round() as u64)
    }

    /// In packets a second.
    pub fn packets_per_s(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// In millionths of a packet a second.
    pub(super) fn millionths(self) -> u64 {
        self.0
    }

    /// From millionths of a packet a second.
    pub fn from_millionths(rate: u64) -> Rate {
        Rate(rate)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.packets_per_s().fmt(f)
    }
}

/// The relative timing of different streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Evenly over the period.
    Even,
    /// All at once.
    Burst,
}

/// The schedule of one thread's streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    start_ns: u64,
    /// Interval between two times at which packets are due, in nanoseconds << 32: within a week of
    /// packets 100 ns apart, rounding moves none by more than 0.1 us.
    step: u128,
    spread: Spread,
    /// Streams of all threads.
    streams: u64,
    thread: u64,
    threads: u64,
    /// Streams of this thread: its first, `threads` further the second, and so on.
    own: u64,
}

/// One packet of the schedule, as this thread numbers its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) stream: u32,
    pub(super) sequence: u64,
}

impl Plan {
    /// `streams` in all, of which thread number `thread` of `threads` has `own`; the first packet
    /// is due at `start_ns`.
    pub(super) fn new(
        rate: Rate,
        spread: Spread,
        streams: u64,
        (thread, threads): (u64, u64),
        own: u64,
        start_ns: u64,
    ) -> Plan {
        let moments_per_period = match spread {
            Spread::Even => u128::from(streams),
            Spread::Burst => 1,
        };
        let rate = u128::from(rate.0.max(1)) * moments_per_period;
        // Rounded up, so that a packet due at a whole second is not a nanosecond early.
        let step = ((NS_PER_S * 1_000_000) << 32).div_ceil(rate);
        Plan { start_ns, step, spread, streams, thread, threads, own }
    }

    /// The number among all streams of this thread's stream `own`.
    pub(super) fn global(&self, own: u32) -> u64 {
        u64::from(own) * self.threads + self.thread
    }

    /// This thread's number of a stream, if it has that stream.
    pub(super) fn local(&self, global: u64) -> Option<u32> {
        let own = global / self.threads;
        let mine = global % self.threads == self.thread && own < self.own;
        mine.then_some(own as u32)
    }

    /// When a packet of this thread's stream `own` is due.
    #[inline]
    pub(super) fn intended_ns(&self, own: u32, sequence: u64) -> u64 {
        let moment = match self.spread {
            Spread::Even => sequence * self.streams + self.global(own),
            Spread::Burst => sequence,
        };
        self.start_ns + ((u128::from(moment) * self.step) >> 32) as u64
    }

    /// How many packets of this thread's streams were to leave until `now_ns`, inclusive.
    pub(super) fn due(&self, now_ns: u64) -> u64 {
        let Some(elapsed_ns) = now_ns.checked_sub(self.start_ns) else { return 0 };
        // Moment m lies at (m * step) >> 32, which is at most e if m * step < (e + 1) << 32.
        let beyond = ((u128::from(elapsed_ns) + 1) << 32) - 1;
        let moments = (beyond / self.step) as u64 + 1;
        match self.spread {
            Spread::Burst => moments * self.own,
            Spread::Even => {
                let (rounds, rest) = (moments / self.streams, moments % self.streams);
                let of_rest = rest.saturating_sub(self.thread).div_ceil(self.threads);
                rounds * self.own + of_rest.min(self.own)
            }
        }
    }

    /// The packet behind `due`, in the order in which this thread sends.
    #[inline]
    pub(super) fn next(&self, due: Due) -> Due {
        let stream = due.stream + 1;
        match u64::from(stream) < self.own {
            true => Due { stream, ..due },
            false => Due { stream: 0, sequence: due.sequence + 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates() -> impl Strategy<Value = Rate> {
        prop_oneof![1_000u64..1_000_000, 1_000_000u64..100_000_000_000_000].prop_map(Rate)
    }

    proptest! {
        /// Counting up from the first packet, `due` returns exactly the packets due by then.
        #[test]
        fn due_requests_are_those_intended_by_then(
            rate in rates(), burst: bool, streams in 1u64..40, threads in 1u64..5,
            thread in 0u64..5, packets in 1u64..400, start in 0u64..1 << 60,
        ) {
            let thread = thread % threads;
            let own = (streams + threads - 1 - thread) / threads;
            prop_assume!(own > 0);
            let spread = if burst { Spread::Burst } else { Spread::Even };
            let plan = Plan::new(rate, spread, streams, (thread, threads), own, start);
            let mut due = Due { stream: 0, sequence: 0 };
            let mut last = start;
            for number in 0..packets {
                let at = plan.intended_ns(due.stream, due.sequence);
                prop_assert!(at >= last);
                prop_assert!(plan.due(at) > number);
                prop_assert!(at == start || plan.due(at - 1) <= number);
                prop_assert_eq!(plan.local(plan.global(due.stream)), Some(due.stream));
                last = at;
                due = plan.next(due);
            }
            prop_assert_eq!(start.checked_sub(1).map_or(0, |before| plan.due(before)), 0);
        }

        /// The threads together send what one would.
        #[test]
        fn threads_share_one_schedule(
            rate in rates(), streams in 1u64..40, threads in 1u64..5, elapsed in 0u64..1 << 40,
        ) {
            let of = |thread, threads| {
                let own = (streams + threads - 1 - thread) / threads;
                Plan::new(rate, Spread::Even, streams, (thread, threads), own, 7).due(7 + elapsed)
            };
            prop_assert_eq!((0..threads).map(|t| of(t, threads)).sum::<u64>(), of(0, 1));
        }

        /// A week later each packet is still at its time, to a microsecond.
        #[test]
        fn nothing_drifts(packets_per_s in 1u64..1_000_000, seconds in 1u64..604_800) {
            let rate = Rate::per_second(packets_per_s as f64);
            let plan = Plan::new(rate, Spread::Even, 1, (0, 1), 1, 0);
            let at = plan.intended_ns(0, packets_per_s * seconds);
            prop_assert!(at.abs_diff(seconds * 1_000_000_000) <= 1_000);
            // A second holds exactly its packets, unless they are billions.
            if packets_per_s * seconds < 1 << 32 {
                prop_assert_eq!(plan.due(seconds * 1_000_000_000 - 1), packets_per_s * seconds);
            }
        }
    }

    #[test]
    fn streams_take_turns_or_send_together() {
        let rate = Rate::per_second(50.0);
        let of = |spread, stream, sequence| {
            Plan::new(rate, spread, 4, (0, 1), 4, 0).intended_ns(stream, sequence)
        };
        let even: Vec<_> = (0..4).map(|stream| of(Spread::Even, stream, 1)).collect();
        assert_eq!(even, [20_000_000, 25_000_000, 30_000_000, 35_000_000]);
        let burst: Vec<_> = (0..4).map(|stream| of(Spread::Burst, stream, 1)).collect();
        assert_eq!(burst, [20_000_000; 4]);
    }

    #[test]
    fn rates_take_fractions() {
        assert_eq!(Rate::per_second(33.333333), Rate(33_333_333));
        assert!(!Rate::RANGE.contains(&Rate::per_second(-1.0)));
        assert!(!Rate::RANGE.contains(&Rate::per_second(f64::NAN)));
        assert_eq!(Rate::per_second(0.5).packets_per_s(), 0.5);
    }
}
