//! The result of one thread, or of all of them together.

use super::connection::Protocol;
use super::{Connections as Open, Worker};
use crate::cpu::CpuUse;
use crate::recorder::{Durations, Recorder};
use crate::run::{LoadError, Ran};
use crate::schedule::Schedule;
use std::collections::BTreeMap;
use std::time::Duration;
use twinring::measure::monotonic_ns;
use twinring_wire::requests::Connections;

/// A request that has waited for longer than this is overdue: as long as answers are awaited after
/// the window. Any due request may wait for a moment, and the window may end in that moment.
pub(crate) const OVERDUE: Duration = Duration::from_secs(1);

/// One that has waited for longer than this left too late for the rate that was asked for.
pub(crate) const LATE: Duration = Duration::from_millis(100);

/// How many of a connection are counted one by one; larger numbers in groups.
const LOOKED_AT: u64 = 256;

pub(crate) struct Share {
    pub(crate) recorder: Recorder,
    pub(crate) connections: Connections,
    /// Requests of an open loop that were due inside the window; `None` if there is no schedule.
    pub(crate) due: Option<u64>,
    /// Of an open loop.
    pub(crate) unsent: Unsent,
    /// The waiting times of requests without an answer at the end of the run.
    unanswered_ns: Durations,
    /// Age of the oldest of them since it was sent.
    pub(crate) oldest_ns: u64,
    pub(crate) cpu: Vec<CpuUse>,
}

impl Share {
    /// Takes the counts out of a thread.
    pub(super) fn of<P: Protocol>(
        worker: &Worker<P>,
        connections: &Open<P>,
        idle: u64,
        cpu: CpuUse,
    ) -> Share {
        let (now_ns, window) = (monotonic_ns(), worker.control.window());
        let each = || connections.iter().map(|connection| connection.borrow());
        let answered = || each().map(|connection| connection.tally.answered_in_window);
        let (mut due, mut unsent) = (None, Unsent::default());
        // With a quota fewer requests are wanted, and the schedule does not know that.
        if let Some(schedule) = worker.schedule.get().filter(|_| !worker.control.is_drawn()) {
            // A connection that could not be opened still has its part of the schedule.
            let mine = worker.share_of(0..schedule.connections);
            let mut sent: BTreeMap<u64, u64> = mine.map(|number| (number, 0)).collect();
            sent.extend(each().map(|it| (it.tally.number, it.tally.sent)));
            sent.iter()
                .for_each(|(number, sent)| unsent.add(&schedule, *number, *sent, window.end));
            due = Some(sent.keys().map(|number| schedule.due_within(*number, &window)).sum());
        }
        let mut unanswered_ns = Durations::default();
        for connection in each() {
            for (request, count) in connection.protocol.unanswered() {
                let waited_ns = now_ns.saturating_sub(request.since_ns).max(1);
                unanswered_ns.saturating_record_n(waited_ns, count);
            }
        }
        let recorder = worker.recorder.replace(Recorder::new(worker.common().is_open(), 0));
        Share {
            connections: Connections {
                established: connections.len() as u64,
                served: each().filter(|connection| connection.tally.was_served).count() as u64,
                lost: worker.lost.get(),
                reconnects: worker.reconnects.get(),
                idle_established: Some(idle),
                kept_open: Some(recorder.kept_open),
                // A thread without connections has none that got few answers.
                min_answered: answered().min().unwrap_or(u64::MAX),
                max_answered: answered().max().unwrap_or(0),
                ..Connections::default()
            },
            due,
            unsent,
            unanswered_ns,
            oldest_ns: each()
                .filter_map(|connection| connection.protocol.oldest_ns())
                .min()
                .map_or(0, |since_ns| now_ns.saturating_sub(since_ns)),
            cpu: vec![cpu],
            recorder,
        }
    }

    /// The waiting times of requests without hope: unanswered at the end of the run, for longer
    /// than [`OVERDUE`] and than any answer took. A server that stops leaves such requests; one
    /// that is slow, but answers, does not.
    pub(crate) fn hopeless_ns(&self) -> Durations {
        let slowest_ns = self.recorder.latency_ns.max().max(OVERDUE.as_nanos() as u64);
        let mut hopeless_ns = Durations::default();
        for waited in self.unanswered_ns.iter_recorded() {
            if waited.value_iterated_to() > slowest_ns {
                let (value_ns, count) = (waited.value_iterated_to(), waited.count_at_value());
                hopeless_ns.saturating_record_n(value_ns, count);
            }
        }
        hopeless_ns
    }

    fn merge(&mut self, other: Share) {
        self.recorder.merge(other.recorder);
        self.connections.add(&other.connections);
        self.due = [self.due, other.due].into_iter().flatten().reduce(|a, b| a + b);
        self.unsent.merge(&other.unsent);
        self.unanswered_ns.merge(&other.unanswered_ns);
        self.oldest_ns = self.oldest_ns.max(other.oldest_ns);
        self.cpu.extend(other.cpu);
    }

    /// The threads together; an error without a single connection, unless the run was interrupted.
    pub(crate) fn sum(
        shares: impl IntoIterator<Item = Share>,
        ran: &Ran,
        target: &str,
    ) -> Result<Share, LoadError> {
        let unreachable = |why: Option<String>| LoadError::Unreachable {
            target: target.to_owned(),
            why: why.unwrap_or_else(|| "no reason is known".into()),
        };
        let mut shares = shares.into_iter();
        let mut all = shares.next().ok_or_else(|| unreachable(None))?;
        shares.for_each(|share| all.merge(share));
        match all.connections.established == 0 && !ran.interrupted {
            true => Err(unreachable(all.recorder.first_error.take().map(|(_, what)| what))),
            false => Ok(all),
        }
    }
}

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
