//! The result of one thread, or of all of them together.

use super::connect::share_of;
use super::connection::Protocol;
use super::unsent::{OVERDUE, Unsent};
use super::{Connections, Worker};
use crate::cpu::CpuUse;
use crate::recorder::{Recorder, histogram};
use crate::run::{LoadError, Ran};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use twinring::measure::monotonic_ns;

/// See the module.
pub(crate) struct Share {
    pub(crate) recorder: Recorder,
    /// Answers inside the window to each established connection.
    pub(crate) answered: Vec<u64>,
    pub(crate) served: u64,
    pub(crate) lost: u64,
    pub(crate) reconnects: u64,
    /// Connections that only stayed open.
    pub(crate) idle: u64,
    /// Requests of an open loop that were due inside the window; `None` if there is no schedule.
    pub(crate) due: Option<u64>,
    /// Of an open loop.
    pub(crate) unsent: Unsent,
    /// The waiting times of requests without an answer at the end of the run.
    unanswered_ns: Histogram<u64>,
    /// Age of the oldest of them since it was sent.
    pub(crate) oldest_ns: u64,
    /// Of each thread.
    pub(crate) cpu: Vec<CpuUse>,
}

impl Share {
    /// Takes the counts out of a thread.
    pub(super) fn of<P: Protocol>(
        worker: &Worker<P>,
        connections: &Connections<P>,
        idle: u64,
        cpu: CpuUse,
    ) -> Share {
        let (now_ns, window) = (monotonic_ns(), worker.control.window());
        let each = || connections.iter().map(|connection| connection.borrow());
        let (mut due, mut unsent) = (None, Unsent::none());
        // With a quota fewer requests are wanted, and the schedule does not know that.
        if let Some(schedule) = worker.schedule.get().filter(|_| !worker.control.is_drawn()) {
            // A connection that could not be opened still has its part of the schedule.
            let threads = worker.common().workers.threads;
            let mine = share_of(0..schedule.connections(), threads, worker.index);
            let mut sent: BTreeMap<u64, u64> = mine.map(|number| (number, 0)).collect();
            sent.extend(each().map(|it| (it.number(), it.sent())));
            sent.iter()
                .for_each(|(number, sent)| unsent.add(&schedule, *number, *sent, window.end));
            due = Some(sent.keys().map(|number| schedule.due_within(*number, &window)).sum());
        }
        let mut unanswered_ns = histogram();
        for connection in each() {
            for (request, count) in connection.unanswered() {
                let waited_ns = now_ns.saturating_sub(request.since_ns).max(1);
                unanswered_ns.saturating_record_n(waited_ns, count);
            }
        }
        Share {
            answered: each().map(|connection| connection.answered_in_window()).collect(),
            served: each().filter(|connection| connection.was_served()).count() as u64,
            lost: worker.lost.get(),
            reconnects: worker.reconnects.get(),
            idle,
            due,
            unsent,
            unanswered_ns,
            oldest_ns: each()
                .filter_map(|connection| connection.oldest_ns())
                .min()
                .map_or(0, |since_ns| now_ns.saturating_sub(since_ns)),
            cpu: vec![cpu],
            recorder: worker.recorder.replace(worker.new_recorder()),
        }
    }

    /// The waiting times of requests without hope: unanswered at the end of the run, for longer
    /// than [`OVERDUE`] and than any answer took. A server that stops leaves such requests; one
    /// that is slow, but answers, does not.
    pub(crate) fn hopeless_ns(&self) -> Histogram<u64> {
        let slowest_ns = self.recorder.latency_ns.max().max(OVERDUE.as_nanos() as u64);
        let mut hopeless_ns = histogram();
        for waited in self.unanswered_ns.iter_recorded() {
            if waited.value_iterated_to() > slowest_ns {
                let (value_ns, count) = (waited.value_iterated_to(), waited.count_at_value());
                hopeless_ns.saturating_record_n(value_ns, count);
            }
        }
        hopeless_ns
    }

    /// Adds the result of another thread.
    fn merge(&mut self, other: Share) {
        self.recorder.merge(other.recorder);
        self.answered.extend(other.answered);
        self.served += other.served;
        self.lost += other.lost;
        self.reconnects += other.reconnects;
        self.idle += other.idle;
        self.due = [self.due, other.due].into_iter().flatten().reduce(|a, b| a + b);
        self.unsent.merge(&other.unsent);
        // Both have the same bounds, so every value fits.
        let _same_bounds = self.unanswered_ns.add(&other.unanswered_ns);
        self.oldest_ns = self.oldest_ns.max(other.oldest_ns);
        self.cpu.extend(other.cpu);
    }

    /// The threads together.
    ///
    /// # Errors
    /// Without a single connection there is nothing to report, unless the run was interrupted.
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
        match all.answered.is_empty() && !ran.interrupted {
            true => Err(unreachable(all.recorder.first_error.take().map(|(_, what)| what))),
            false => Ok(all),
        }
    }
}
