//! Requests over connections, of any protocol: what a thread of such a load shares, and its run.
//!
//! A [`Protocol`] is what one connection speaks. Everything else is here: opening connections and replacing those that
//! end (`lives.rs`), which requests begin when and what becomes of them (`connection.rs`), answers that take too long
//! and the schedule (`pace.rs`), and the sums (`share.rs`).

mod connection;
mod lives;
mod pace;
mod share;

pub(crate) use self::connection::{Connection, Ending, Lost, Protocol, Shared, Tally};
pub(crate) use self::lives::advice;
pub(crate) use self::share::{LATE, Share};

use self::pace::{keep_pace, watch};
use self::share::OVERDUE;
use crate::cpu::CpuUse;
use crate::recorder::{Recorder, Trouble};
use crate::run::{Client, Control, Note, work};
use crate::schedule::Schedule;
use crate::settings::Common;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinring::{measure::monotonic_ns, sleep, spawn};

const CONNECTS_AT_ONCE: usize = 256;

/// How long outstanding answers are waited for after the window.
const DRAIN_MAX: Duration = OVERDUE;

/// How often outstanding answers are checked at the end.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// How long connections are waited for that could end.
const PARTING_MAX: Duration = Duration::from_millis(20);

type Connections<P> = Vec<Rc<RefCell<Connection<P>>>>;

/// What the tasks of one thread share.
pub(crate) struct Worker<P: Protocol> {
    index: usize,
    pub(crate) control: Arc<Control>,
    pub(crate) shared: Arc<P::Shared>,
    /// What only this protocol needs.
    pub(crate) local: <P::Shared as Shared>::Local,
    pub(crate) recorder: RefCell<Recorder>,
    /// The schedule of an open loop, once its start is known.
    schedule: Cell<Option<Schedule>>,
    /// Connections that have not ended.
    alive: Cell<usize>,
    /// Connections that ended with an error, and were not replaced.
    lost: Cell<u64>,
    reconnects: Cell<u64>,
}

impl<P: Protocol> Worker<P> {
    fn common(&self) -> &Common {
        self.shared.common()
    }

    /// Those of these connections, by number, that belong to this thread.
    fn share_of(&self, numbers: Range<u64>) -> impl Iterator<Item = u64> + use<P> {
        let (index, threads) = (self.index as u64, self.common().workers.threads as u64);
        numbers.filter(move |number| number % threads == index)
    }

    /// A connection has ended and is not replaced.
    fn ended(&self, lost: bool) {
        self.lost.set(self.lost.get() + u64::from(lost));
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
        self.control.show_errors(self.index, recorder.troubles.total());
    }

    pub(crate) fn show_progress(&self, recorder: &Recorder) {
        self.control.show(self.index, recorder.window.answered, recorder.latency_sum_ns);
    }
}

struct Requests<P: Protocol> {
    worker: Rc<Worker<P>>,
    /// Open, and without a request so far.
    links: Vec<(u64, P::Link)>,
    /// Connections that only stay open.
    idle: Vec<(u64, P::Link)>,
    connections: Connections<P>,
}

pub(crate) async fn run_thread<P: Protocol>(
    index: usize,
    control: Arc<Control>,
    shared: Arc<P::Shared>,
) -> Share {
    let warmup = shared.common().warmup;
    let worker = Rc::new(Worker {
        index,
        local: shared.local(),
        recorder: RefCell::new(Recorder::new(shared.common().is_open(), shared.urls())),
        schedule: Cell::new(None),
        alive: Cell::new(0),
        lost: Cell::new(0),
        reconnects: Cell::new(0),
        control: Arc::clone(&control),
        shared,
    });
    let (links, idle, connections) = (Vec::new(), Vec::new(), Vec::new());
    work(Requests::<P> { worker, links, idle, connections }, &control, warmup).await
}

impl<P: Protocol> Requests<P> {
    /// Opens the connections with these numbers that belong to this thread, some at a time. Failures are counted.
    async fn connect(&self, numbers: Range<u64>) -> Vec<(u64, P::Link)> {
        let mine: Vec<u64> = self.worker.share_of(numbers).collect();
        let at_once = CONNECTS_AT_ONCE.min(mine.len());
        let left = Rc::new(RefCell::new(mine.into_iter()));
        let made = Rc::new(RefCell::new(Vec::new()));
        let connectors: Vec<_> = (0..at_once)
            .map(|_| {
                let (worker, left) = (Rc::clone(&self.worker), Rc::clone(&left));
                let made = Rc::clone(&made);
                spawn(async move {
                    loop {
                        let Some(number) = left.borrow_mut().next() else { return };
                        let link = worker.connect(number, 0).await;
                        made.borrow_mut().extend(link.map(|link| (number, link)));
                    }
                })
            })
            .collect();
        for connector in connectors {
            // Ends by itself; only the end of the runtime can abort it, as can a panic.
            let _aborted = connector.await;
        }
        let mut made = made.take();
        made.sort_by_key(|(number, _)| *number);
        made
    }
}

impl<P: Protocol> Client for Requests<P> {
    type Outcome = Share;

    async fn open(&mut self) -> u64 {
        if let Err(lost) = self.worker.shared.prepare() {
            self.worker.trouble(0, lost);
            return 0;
        }
        let (active, idle) = (self.worker.common().connections, self.worker.shared.idle());
        self.links = self.connect(0..active).await;
        // The numbers of idle connections follow those of the active ones.
        self.idle = self.connect(active..active + idle).await;
        self.worker.alive.set(self.links.len());
        self.links.len() as u64
    }

    fn begin(&mut self, first_ns: u64) {
        let worker = &self.worker;
        let common = worker.common();
        worker.schedule.set(common.schedule(first_ns));
        for (number, link) in self.links.drain(..) {
            let connection = Rc::new(RefCell::new(Connection::new(worker, number)));
            self.connections.push(Rc::clone(&connection));
            spawn(Rc::clone(worker).serve(connection, link));
        }
        spawn(watch(self.connections.clone(), common.timeout));
        if let Some(schedule) = worker.schedule.get() {
            spawn(keep_pace(self.connections.clone(), schedule));
        }
    }

    fn window_ends(&mut self) {
        self.connections.iter().for_each(|connection| connection.borrow().wake());
    }

    /// Waits for outstanding answers; then gives connections a moment to close in order.
    async fn drain(&mut self) {
        let (until, worker) = (Instant::now() + DRAIN_MAX, &self.worker);
        while worker.recorder.borrow().whole.in_flight() > 0 && Instant::now() < until {
            sleep(DRAIN_LOOK).await;
        }
        let until = Instant::now() + PARTING_MAX;
        while worker.alive.get() > 0 && Instant::now() < until {
            sleep(DRAIN_LOOK).await;
        }
    }

    fn outcome(self, cpu: CpuUse) -> Share {
        Share::of(&self.worker, &self.connections, self.idle.len() as u64, cpu)
    }
}
