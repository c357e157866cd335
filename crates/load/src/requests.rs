//! Requests over connections, of any protocol: what a thread of such a load shares, and its run.
//!
//! A [`Protocol`] is what one connection speaks. Everything else is here: opening connections and replacing those that
//! end (`lives.rs`), which requests begin when and what becomes of them (`connection.rs`, `choice.rs`), answers that
//! take too long and the schedule (`pace.rs`).

mod choice;
mod connection;
mod lives;
mod pace;

pub(crate) use self::choice::Choice;
pub(crate) use self::connection::{Connection, Ending, Lost, Protocol, Tally};
pub(crate) use self::lives::advice;
pub(crate) use self::pace::{LATE, OVERDUE, Unsent};

use self::pace::{keep_pace, watch};
use crate::recorder::{Recorder, Trouble};
use crate::run::{Client, Control, Environment, Note, Ran, run, unreachable, work};
use crate::schedule::Schedule;
use crate::settings::RequestSettings;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use twinring::{measure::monotonic_ns, sleep, spawn};
use twinring_wire::load::Cpu;

/// A virtual link that polls holds 256 packets (VETH_RING_SIZE in the kernel's drivers/net/veth.c): with more at once, SYNs
/// were lost and sent again after 1, 2 and 4 s.
const CONNECTS_AT_ONCE: usize = 128;

/// How often outstanding answers are checked at the end.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// How long connections are waited for that could end.
const PARTING_MAX: Duration = Duration::from_millis(20);

type Places<P> = Vec<Rc<RefCell<Connection<P>>>>;

/// A load, the same for all threads.
pub(crate) struct Plan<S> {
    pub(crate) requests: RequestSettings,
    /// Connections that only stay open.
    pub(crate) idle: u64,
    /// Requests of one life of a connection.
    pub(crate) life: u64,
    /// A request begins with the attempt to connect.
    pub(crate) connects_for_each: bool,
    /// Among the URLs, if there are several.
    pub(crate) choice: Choice,
    /// By URL, the bytes that count as sent when its request begins.
    pub(crate) request_bytes: Vec<u64>,
    /// What only its protocol needs.
    pub(crate) own: S,
}

/// What the tasks of one thread share.
pub(crate) struct Worker<P: Protocol> {
    index: usize,
    pub(crate) control: Arc<Control>,
    pub(crate) plan: Arc<Plan<P::Own>>,
    pub(crate) local: P::Local,
    pub(crate) recorder: RefCell<Recorder>,
    /// The schedule of an open loop, once its start is known.
    schedule: Cell<Option<Schedule>>,
    /// Connections that have not ended.
    alive: Cell<usize>,
}

impl<P: Protocol> Worker<P> {
    /// Those of these connections, by number, that belong to this thread.
    fn share_of(&self, numbers: Range<u64>) -> impl Iterator<Item = u64> + use<P> {
        let (index, threads) = (self.index as u64, self.plan.requests.common.workers.threads);
        numbers.filter(move |number| number % u64::from(threads) == index)
    }

    /// A connection has ended and is not replaced.
    fn ended(&self, lost: bool) {
        self.recorder.borrow_mut().connections.lost += u64::from(lost);
        self.alive.set(self.alive.get() - 1);
        if self.alive.get() == 0 {
            self.control.note(Note::Deserted);
        }
    }

    /// Reads the window again, before something is counted. Returns its end.
    pub(crate) fn look(&self) -> u64 {
        let window = self.control.window();
        let end_ns = window.end;
        self.recorder.borrow_mut().range_ns = window;
        end_ns
    }

    /// Counts something that went wrong on connection `number`.
    fn trouble(&self, number: u64, Lost(kind, what): Lost) {
        self.trouble_in(&mut self.recorder.borrow_mut(), number, kind, || what);
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
        let errors = recorder.errors.failures() + recorder.errors.wrong();
        self.control.progress[self.index].errors.store(errors, Relaxed);
    }

    pub(crate) fn show_progress(&self, recorder: &Recorder) {
        let shown = &self.control.progress[self.index];
        shown.answered.store(recorder.window.answered, Relaxed);
        shown.latency_ns.store(recorder.latency_sum_ns, Relaxed);
    }
}

/// A thread of the load.
struct Requester<P: Protocol> {
    worker: Rc<Worker<P>>,
    /// Open, and without a request so far.
    links: Vec<(u64, P::Link)>,
    /// Connections that only stay open.
    idle: Vec<(u64, P::Link)>,
    places: Places<P>,
}

/// Runs a load. Returns the counts of all threads; an error without a single connection, unless it was interrupted.
pub(crate) fn run_requests<P: Protocol>(
    plan: &Arc<Plan<P::Own>>,
    target: &str,
    environment: Environment<'_>,
) -> Result<(Recorder, Ran), String> {
    let limits = (&plan.requests.common, plan.requests.requests);
    let (threads, ran) = run(environment, limits, |index, control| {
        let plan = Arc::clone(plan);
        async move {
            let requester = Requester::<P>::new(index, Arc::clone(&control), plan);
            let warmup = requester.worker.plan.requests.common.warmup;
            work(requester, &control, warmup).await
        }
    })?;
    let mut threads = threads.into_iter();
    let mut all = threads.next().unwrap_or_default();
    threads.for_each(|thread| all.merge(thread));
    if all.connections.established == 0 && !ran.interrupted {
        return unreachable(target, all.first_error.as_ref().map(|(_, what)| what.as_str()));
    }
    Ok((all, ran))
}

impl<P: Protocol> Requester<P> {
    fn new(index: usize, control: Arc<Control>, plan: Arc<Plan<P::Own>>) -> Requester<P> {
        let recorder = Recorder::new(plan.requests.is_open(), plan.request_bytes.len());
        let worker = Rc::new(Worker {
            index,
            control,
            local: P::local(&plan.own),
            recorder: RefCell::new(recorder),
            schedule: Cell::new(None),
            alive: Cell::new(0),
            plan,
        });
        Requester { worker, links: Vec::new(), idle: Vec::new(), places: Vec::new() }
    }

    /// Opens the connections with these numbers that belong to this thread, some at a time. Failures are counted.
    async fn connect(&self, numbers: Range<u64>) -> Vec<(u64, P::Link)> {
        let left = Rc::new(RefCell::new(self.worker.share_of(numbers)));
        // One that waits for long, as after a lost SYN, does not hold up the others.
        let connector = |_| {
            let (worker, left) = (Rc::clone(&self.worker), Rc::clone(&left));
            spawn(async move {
                let mut made = Vec::new();
                loop {
                    let Some(number) = left.borrow_mut().next() else { return made };
                    made.extend(worker.connect(number, 0).await.map(|link| (number, link)));
                }
            })
        };
        let connectors: Vec<_> = (0..CONNECTS_AT_ONCE).map(connector).collect();
        let mut made = Vec::new();
        for connector in connectors {
            // Aborted only by the end of the runtime, or by a panic.
            made.extend(connector.await.unwrap_or_default());
        }
        made.sort_unstable_by_key(|(number, _)| *number);
        made
    }
}

impl<P: Protocol> Client for Requester<P> {
    type Outcome = Recorder;

    async fn open(&mut self) -> u64 {
        if let Err(lost) = P::prepare(&self.worker.plan.own) {
            self.worker.trouble(0, lost);
            return 0;
        }
        let (active, idle) = (self.worker.plan.requests.connections, self.worker.plan.idle);
        self.links = self.connect(0..active).await;
        // The numbers of idle connections follow those of the active ones.
        self.idle = self.connect(active..active + idle).await;
        self.worker.alive.set(self.links.len());
        self.links.len() as u64
    }

    fn begin(&mut self, first_ns: u64) {
        let worker = &self.worker;
        worker.schedule.set(worker.plan.requests.schedule(first_ns));
        for (number, link) in self.links.drain(..) {
            let connection = Rc::new(RefCell::new(Connection::new(worker, number)));
            self.places.push(Rc::clone(&connection));
            spawn(Rc::clone(worker).serve(connection, link));
        }
        spawn(watch(self.places.clone(), worker.plan.requests.timeout));
        if let Some(schedule) = worker.schedule.get() {
            spawn(keep_pace(self.places.clone(), schedule));
        }
    }

    fn window_ends(&mut self) {
        self.places.iter().for_each(|connection| connection.borrow().wake());
    }

    /// Waits for outstanding answers; then gives connections a moment to close in order.
    async fn drain(&mut self) {
        let (until, worker) = (Instant::now() + OVERDUE, &self.worker);
        while worker.recorder.borrow().whole.in_flight() > 0 && Instant::now() < until {
            sleep(DRAIN_LOOK).await;
        }
        let until = Instant::now() + PARTING_MAX;
        while worker.alive.get() > 0 && Instant::now() < until {
            sleep(DRAIN_LOOK).await;
        }
    }

    fn outcome(self, cpu: Cpu) -> Recorder {
        let (worker, now_ns) = (&self.worker, monotonic_ns());
        let window = worker.control.window();
        let mut all = worker.recorder.take();
        let each = || self.places.iter().map(|connection| connection.borrow());
        // With a quota fewer requests are wanted, and the schedule does not know that.
        if let Some(schedule) = worker.schedule.get().filter(|_| !worker.control.is_drawn()) {
            // A connection that could not be opened still has its part of the schedule.
            let mine = worker.share_of(0..schedule.connections);
            let mut sent: BTreeMap<u64, u64> = mine.map(|number| (number, 0)).collect();
            sent.extend(each().map(|it| (it.tally.number, it.tally.sent)));
            sent.iter().for_each(|(it, sent)| all.unsent.add(&schedule, *it, *sent, window.end));
            all.due = Some(sent.keys().map(|it| schedule.due_within(*it, &window)).sum());
        }
        for (request, count) in each().flat_map(|it| Vec::from_iter(it.protocol.unanswered())) {
            let waited_ns = now_ns.saturating_sub(request.since_ns).max(1);
            all.unanswered_ns.saturating_record_n(waited_ns, count);
            all.oldest_ns = all.oldest_ns.max(now_ns.saturating_sub(request.began_ns));
        }
        let answered = || each().map(|connection| connection.tally.answered_in_window);
        let connections = &mut all.connections;
        connections.established = self.places.len() as u64;
        connections.served = each().filter(|connection| connection.tally.was_served).count() as u64;
        connections.idle_established = Some(self.idle.len() as u64);
        connections.kept_open.get_or_insert(0);
        // A thread without connections has none that got few answers.
        connections.min_answered = answered().min().unwrap_or(u64::MAX);
        connections.max_answered = answered().max().unwrap_or(0);
        all.cpu = cpu;
        all
    }
}
