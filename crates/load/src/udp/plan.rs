//! The packets of one thread's streams, in the order in which it sends them: the thread has every n-th stream of a
//! [`Schedule`], and how many are due is computed without visiting any stream.

use crate::schedule::{Arrivals, Rate, Schedule};

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
    schedule: Schedule,
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
    /// `streams` in all, each with `rate`, of which thread number `thread` of `threads` has `own`; the first packet is
    /// due at `start_ns`.
    pub(super) fn new(
        rate: Rate,
        spread: Spread,
        streams: u64,
        (thread, threads): (u64, u64),
        own: u64,
        start_ns: u64,
    ) -> Plan {
        let arrivals = match spread {
            Spread::Even => Arrivals::Periodic,
            Spread::Burst => Arrivals::Burst,
        };
        let total = Rate::from_millionths(rate.millionths().saturating_mul(streams));
        let schedule = Schedule::with_rate(start_ns, total, streams, arrivals);
        Plan { schedule, spread, streams, thread, threads, own }
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
        self.schedule.intended_ns(self.global(own), sequence)
    }

    /// How many packets of this thread's streams were to leave until `now_ns`, inclusive.
    pub(super) fn due(&self, now_ns: u64) -> u64 {
        let moments = self.schedule.moments(now_ns);
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

    proptest! {
        /// Counting up from the first packet, `due` returns exactly the packets due by then.
        #[test]
        fn due_packets_are_those_intended_by_then(
            rate in prop_oneof![1_000u64..1_000_000, 1_000_000u64..10_000_000_000_000],
            burst: bool, streams in 1u64..40, threads in 1u64..5, thread in 0u64..5, packets in 1u64..400,
            start in 0u64..1 << 60,
        ) {
            let thread = thread % threads;
            let own = (streams + threads - 1 - thread) / threads;
            prop_assume!(own > 0);
            let spread = if burst { Spread::Burst } else { Spread::Even };
            let rate = Rate::from_millionths(rate);
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
    }
}
