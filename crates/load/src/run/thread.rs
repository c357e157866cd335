//! The state of a worker thread in a run, and its result.

use super::connect::share_of;
use super::control::{Control, Note};
use super::pace::{Connections, Loaded, instant_at, keep_pace, watch};
use super::unsent::{OVERDUE, Unsent};
use crate::cpu::{CpuStart, CpuUse};
use crate::recorder::{Recorder, Trouble, histogram};
use crate::schedule::{Arrivals, Schedule};
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use twinring::{Either, monotonic_ns, race, shutdown_requested, sleep, sleep_until, spawn};

/// How long outstanding answers are waited for after the window.
const DRAIN_MAX: Duration = OVERDUE;

/// How often outstanding answers are checked at the end.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// How long connections are waited for that could end.
const PARTING_MAX: Duration = Duration::from_millis(20);

/// State of a worker thread that its tasks share, for any kind of load.
pub(crate) struct Thread {
    pub(crate) index: usize,
    pub(crate) control: Arc<Control>,
    pub(crate) recorder: RefCell<Recorder>,
    /// The schedule of an open loop, once its start is known.
    pub(crate) schedule: Cell<Option<Schedule>>,
    /// Connections that have not ended.
    alive: Cell<usize>,
    /// Connections that ended with an error.
    lost: Cell<u64>,
    reconnects: Cell<u64>,
}

impl Thread {
    pub(crate) fn new(index: usize, control: Arc<Control>) -> Thread {
        Thread {
            index,
            control,
            recorder: RefCell::new(Recorder::new()),
            schedule: Cell::new(None),
            alive: Cell::new(0),
            lost: Cell::new(0),
            reconnects: Cell::new(0),
        }
    }

    /// Reports `established` connections, and waits for the load to begin. False if it never will.
    pub(crate) async fn stand_ready(&self, established: usize) -> bool {
        self.alive.set(established);
        self.control.note(Note::Ready { established: established as u64 });
        matches!(race(self.control.announced(), shutdown_requested()).await, Either::Left(()))
    }

    /// Waits for the moment at which the traffic begins; with a rate, fixes the schedule.
    pub(crate) async fn first_moment(
        &self,
        warmup: Duration,
        rate: Option<(u64, Arrivals)>,
        connections: u64,
    ) {
        let first_ns = self.control.window().start - warmup.as_nanos() as u64;
        let schedule = |(rate, arrivals)| Schedule::new(first_ns, rate, connections, arrivals);
        self.schedule.set(rate.map(schedule));
        race(sleep_until(instant_at(first_ns)), shutdown_requested()).await;
    }

    /// Watches the connections: answers may take `limit`, and the schedule is kept.
    pub(crate) fn watch_over<C: Loaded + 'static>(
        &self,
        connections: &Connections<C>,
        limit: Option<Duration>,
    ) {
        if let Some(limit) = limit {
            spawn(watch(connections.clone(), limit));
        }
        if let Some(schedule) = self.schedule.get() {
            spawn(keep_pace(connections.clone(), schedule));
        }
    }

    /// Waits for the window and until it is over; reads the CPU clocks at both ends.
    pub(crate) async fn measure(&self) -> CpuUse {
        let window = self.control.window();
        let begins = sleep_until(instant_at(window.start));
        let Either::Left(()) = race(begins, shutdown_requested()).await else {
            return CpuUse::default();
        };
        let start = CpuStart::read();
        // The end may come earlier than planned; the conductor then requests it.
        race(sleep_until(instant_at(window.end)), shutdown_requested()).await;
        start.used()
    }

    /// Waits for outstanding answers.
    pub(crate) async fn drain(&self) {
        let deadline = Instant::now() + DRAIN_MAX;
        while self.recorder.borrow().whole.in_flight() > 0 && Instant::now() < deadline {
            sleep(DRAIN_LOOK).await;
        }
    }

    /// Gives connections without outstanding answers a moment to close in order, if their protocol
    /// supports it.
    pub(crate) async fn part(&self) {
        let deadline = Instant::now() + PARTING_MAX;
        while self.alive.get() > 0 && Instant::now() < deadline {
            sleep(DRAIN_LOOK).await;
        }
    }

    /// A connection has replaced one that ended.
    pub(crate) fn reconnected(&self) {
        self.reconnects.set(self.reconnects.get() + 1);
    }

    /// A connection has ended and is not replaced.
    pub(crate) fn ended(&self, lost: bool) {
        self.lost.set(self.lost.get() + u64::from(lost));
        self.alive.set(self.alive.get() - 1);
        if self.alive.get() == 0 {
            self.control.note(Note::Deserted);
        }
    }

    /// Counts something that went wrong on connection `number`.
    pub(crate) fn trouble(&self, number: u64, kind: Trouble, what: impl FnOnce() -> String) {
        self.trouble_in(&mut self.recorder.borrow_mut(), number, kind, what);
    }

    /// The same, for callers that have borrowed the recorder.
    pub(crate) fn trouble_in(
        &self,
        recorder: &mut Recorder,
        number: u64,
        kind: Trouble,
        what: impl FnOnce() -> String,
    ) {
        recorder.trouble(kind, monotonic_ns(), || format!("connection {number}: {}", what()));
        self.control.progress[self.index].errors.store(recorder.troubles.total(), Relaxed);
    }

    pub(crate) fn show_progress(&self, recorder: &Recorder) {
        let progress = &self.control.progress[self.index];
        progress.answered.store(recorder.window.answered, Relaxed);
        progress.latency_ns.store(recorder.latency_sum_ns, Relaxed);
    }
}

/// The result of one thread, or of all of them together.
pub(crate) struct Share {
    pub(crate) recorder: Recorder,
    /// Answers inside the window to each established connection.
    pub(crate) answered: Vec<u64>,
    pub(crate) served: u64,
    pub(crate) lost: u64,
    pub(crate) reconnects: u64,
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
    pub(crate) fn nothing() -> Share {
        Share {
            recorder: Recorder::new(),
            answered: Vec::new(),
            served: 0,
            lost: 0,
            reconnects: 0,
            due: None,
            unsent: Unsent::none(),
            unanswered_ns: histogram(),
            oldest_ns: 0,
            cpu: Vec::new(),
        }
    }

    /// Takes the counts out of a thread.
    pub(crate) fn of<C: Loaded>(
        thread: &Thread,
        connections: &Connections<C>,
        cpu: CpuUse,
    ) -> Share {
        let (now_ns, window) = (monotonic_ns(), thread.control.window());
        let each = || connections.iter().map(|connection| connection.borrow());
        let (mut due, mut unsent) = (None, Unsent::none());
        // With a quota fewer requests are wanted, and the schedule does not know that.
        if let Some(schedule) = thread.schedule.get().filter(|_| !thread.control.is_drawn()) {
            // A connection that could not be opened still has its part of the schedule.
            let threads = thread.control.progress.len();
            let mine = share_of(0..schedule.connections(), threads, thread.index);
            let mut sent: BTreeMap<u64, u64> = mine.map(|number| (number, 0)).collect();
            sent.extend(each().map(|it| (it.number(), it.sent())));
            sent.iter()
                .for_each(|(number, sent)| unsent.add(&schedule, *number, *sent, window.end));
            due = Some(sent.keys().map(|number| schedule.due_within(*number, &window)).sum());
        }
        let mut unanswered_ns = histogram();
        each().for_each(|it| {
            it.unanswered(&mut |since_ns, requests| {
                let waited_ns = now_ns.saturating_sub(since_ns).max(1);
                unanswered_ns.saturating_record_n(waited_ns, requests);
            });
        });
        Share {
            answered: each().map(|connection| connection.answered_in_window()).collect(),
            served: each().filter(|connection| connection.was_served()).count() as u64,
            lost: thread.lost.get(),
            reconnects: thread.reconnects.get(),
            due,
            unsent,
            unanswered_ns,
            oldest_ns: each()
                .filter_map(|connection| connection.oldest_ns())
                .min()
                .map_or(0, |since_ns| now_ns.saturating_sub(since_ns)),
            cpu: vec![cpu],
            recorder: thread.recorder.replace(Recorder::new()),
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
    pub(crate) fn merge(&mut self, other: Share) {
        self.recorder.merge(other.recorder);
        self.answered.extend(other.answered);
        self.served += other.served;
        self.lost += other.lost;
        self.reconnects += other.reconnects;
        self.due = [self.due, other.due].into_iter().flatten().reduce(|a, b| a + b);
        self.unsent.merge(&other.unsent);
        // Both have the same bounds, so every value fits.
        let _same_bounds = self.unanswered_ns.add(&other.unanswered_ns);
        self.oldest_ns = self.oldest_ns.max(other.oldest_ns);
        self.cpu.extend(other.cpu);
    }
}
