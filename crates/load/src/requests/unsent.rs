//! Due requests that an open loop could not send.

use crate::recorder::Durations;
use crate::schedule::Schedule;
use std::time::Duration;

/// A request that has waited for longer than this is overdue: as long as answers are awaited after
/// the window. Any due request may wait for a moment, and the window may end in that moment.
pub(crate) const OVERDUE: Duration = Duration::from_secs(1);

/// One that has waited for longer than this left too late for the rate that was asked for.
pub(crate) const LATE: Duration = Duration::from_millis(100);

/// How many of a connection are counted one by one; larger numbers in groups.
const LOOKED_AT: u64 = 256;

/// Due requests that an open loop could not send. Without them a server that stops would look good: its answers until
/// then were quick, and no request failed. They were due before the end of the window and not sent by then.
#[derive(Default)]
pub(crate) struct Unsent {
    pub(crate) count: u64,
    /// Requests that had waited for longer than [`OVERDUE`].
    pub(crate) overdue: u64,
    /// Requests that had waited for longer than [`LATE`].
    pub(crate) late: u64,
    /// How long each had waited when the window ended; a lower bound.
    pub(crate) waited_ns: Durations,
}

impl Unsent {
    /// Adds those of a connection that has sent `sent` requests of the schedule.
    pub(crate) fn add(&mut self, schedule: &Schedule, connection: u64, sent: u64, end_ns: u64) {
        // The last moment inside the window is one before its end.
        let last_ns = end_ns.saturating_sub(1);
        let due = schedule.due(connection, last_ns);
        let count = due.saturating_sub(sent);
        self.count += count;
        let longer_than = |limit: Duration| {
            let until_ns = last_ns.saturating_sub(limit.as_nanos() as u64);
            schedule.due(connection, until_ns).saturating_sub(sent)
        };
        self.overdue += longer_than(OVERDUE);
        self.late += longer_than(LATE);
        let group = count.div_ceil(LOOKED_AT);
        let mut counted = 0;
        while counted < count {
            // The last of a group stands for all of it, so no wait is overestimated.
            let of_group = group.min(count - counted);
            counted += of_group;
            let intended_ns = schedule.intended_ns(connection, sent + counted - 1);
            let waited_ns = end_ns.saturating_sub(intended_ns);
            self.waited_ns.saturating_record_n(waited_ns.max(1), of_group);
        }
    }

    pub(crate) fn merge(&mut self, other: &Unsent) {
        self.count += other.count;
        self.overdue += other.overdue;
        self.late += other.late;
        self.waited_ns.merge(&other.waited_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Arrivals;

    const MS: u64 = 1_000_000;

    /// A server that stops after a second of three; and one that stalls for a moment at the end.
    #[test]
    fn only_requests_that_waited_too_long_are_overdue() {
        // Two connections in turn, 1,000 requests per second: each has one every 2 ms.
        let unsent = |sent: u64| {
            let mut unsent = Unsent::default();
            unsent.add(&Schedule::new(0, 1_000_000_000, 2, Arrivals::Periodic), 0, sent, 3000 * MS);
            unsent
        };
        // Due from 1 s up to the end; and up to 1 s before it, that moment excluded.
        let stopped = unsent(500);
        assert_eq!((stopped.count, stopped.overdue, stopped.waited_ns.len()), (1000, 500, 1000));
        let longest_ns = stopped.waited_ns.max();
        assert!(longest_ns <= 2000 * MS && longest_ns > 1980 * MS, "{longest_ns}");
        let stalled = unsent(1400);
        assert_eq!((stalled.count, stalled.overdue, stalled.late), (100, 0, 50));
    }
}
