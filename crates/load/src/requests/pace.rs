//! Common to all connections of a thread: due requests, also those that could not be sent, and answers that take too
//! long.

use super::Places;
use super::connection::Protocol;
use crate::recorder::Durations;
use crate::run::instant_at;
use crate::schedule::Schedule;
use std::time::Duration;
use twinring::{measure::monotonic_ns, sleep, sleep_until, yield_now};

/// Abandons connections whose oldest request has waited for longer than `limit`. A periodic scan
/// over all of them costs less than a timer for each request.
pub(super) async fn watch<P: Protocol>(connections: Places<P>, limit: Duration) {
    let pause = (limit / 8).clamp(Duration::from_millis(1), Duration::from_millis(100));
    loop {
        let slept_from_ns = monotonic_ns();
        sleep(pause).await;
        let now_ns = monotonic_ns();
        // After a stall of our own, answers may be here that no task has seen yet.
        if now_ns - slept_from_ns > 2 * pause.as_nanos() as u64 {
            continue;
        }
        let overdue_ns = now_ns.saturating_sub(limit.as_nanos() as u64);
        for connection in &connections {
            let mut connection = connection.borrow_mut();
            if connection.protocol.oldest_ns().is_some_and(|sent_ns| sent_ns < overdue_ns) {
                connection.give_up();
            }
        }
    }
}

/// Wakes the connections of an open loop when their requests are due, in turn. A connection sends
/// all its due requests when it wakes, so being late costs one round and not one wake-up for each
/// request.
pub(super) async fn keep_pace<P: Protocol>(connections: Places<P>, schedule: Schedule) {
    if connections.is_empty() {
        return;
    }
    let mut sequence = 0;
    loop {
        let mut number = 0;
        for connection in &connections {
            number = connection.borrow().tally.number;
            let intended_ns = schedule.intended_ns(number, sequence);
            if monotonic_ns() < intended_ns {
                sleep_until(instant_at(intended_ns)).await;
            }
            connection.borrow().wake();
        }
        sequence = next_round(schedule.due(number, monotonic_ns()), sequence);
        // Without a sleep in this round the connections have not run yet.
        yield_now().await;
    }
}

/// The round after `sequence`, when `due` requests of its last connection are due by now. After a
/// stall the newest round that is completely due runs at once: connections at the head of the list
/// had their turn before the stall, and would otherwise wait for another round.
fn next_round(due: u64, sequence: u64) -> u64 {
    due.saturating_sub(1).max(sequence + 1)
}

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
    use proptest::prelude::*;

    proptest! {
        /// The first connections had their turn before the stall, and waited for up to one more
        /// round.
        #[test]
        fn after_a_stall_all_that_is_due_leaves_at_once(
            rate in 1u64..1_000_000, connections in 1u64..1000, round in 0u64..1000,
            rounds_late in 0u64..50, rest in any::<prop::sample::Index>(),
        ) {
            let (schedule, last) = (Schedule::new(0, rate * 1_000_000, connections, Arrivals::Periodic), connections - 1);
            // Within the round, some rounds later.
            let late = schedule.intended_ns(last, round + rounds_late);
            let length = schedule.intended_ns(last, round + rounds_late + 1) - late;
            let now_ns = late + rest.index(length as usize) as u64;
            let next = next_round(schedule.due(last, now_ns), round);
            prop_assert!(next > round);
            if rounds_late == 0 {
                prop_assert_eq!(next, round + 1);
            }
            for connection in [0, connections / 2, last] {
                let due = schedule.due(connection, now_ns);
                // Woken at once for the newest due request, unless that happened in this round.
                let woken_at_once = schedule.intended_ns(connection, next) <= now_ns;
                prop_assert!(woken_at_once || due <= round + 1, "{} due, {}", due, next);
            }
        }
    }

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
