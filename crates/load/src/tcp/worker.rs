//! One worker thread of the load: it connects, begins when told, and hands in what it counted.

use super::connection::{Connection, Ending};
use super::control::{Control, Note};
use super::{Pace, Settings};
use crate::cpu::{CpuStart, CpuUse};
use crate::recorder::{Recorder, Trouble};
use crate::schedule::Schedule;
use crate::turn::yield_now;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use twinring::{
    Either, JoinHandle, TcpStream, monotonic_ns, race, shutdown_requested, sleep, sleep_until,
    spawn, timeout,
};

/// Attempts to connect that a thread makes at the same time.
const CONNECTS_AT_ONCE: u64 = 256;

/// How long outstanding answers are waited for after the window.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// How often is looked whether all outstanding answers have come.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// State of the thread that its tasks share.
pub(super) struct Worker {
    index: usize,
    pub(super) settings: Arc<Settings>,
    pub(super) pace: Pace,
    pub(super) control: Arc<Control>,
    pub(super) recorder: RefCell<Recorder>,
    /// Of an open loop, once it is known when it starts.
    pub(super) schedule: Cell<Option<Schedule>>,
    /// Connections that have not ended.
    alive: Cell<usize>,
    /// Connections that ended because they could not go on.
    lost: Cell<u64>,
    reconnects: Cell<u64>,
}

/// What a thread hands in.
pub(super) struct Outcome {
    pub(super) recorder: Recorder,
    /// Answers inside the window to each established connection.
    pub(super) answered: Vec<u64>,
    pub(super) served: u64,
    pub(super) idle_established: u64,
    pub(super) lost: u64,
    pub(super) reconnects: u64,
    pub(super) unsent: u64,
    /// Age of the oldest request without an answer.
    pub(super) oldest_ns: u64,
    pub(super) cpu: CpuUse,
}

type Connections = Vec<Rc<RefCell<Connection>>>;

/// Runs the share of the load of thread `index`.
pub(super) async fn work(index: usize, settings: Arc<Settings>, control: Arc<Control>) -> Outcome {
    let worker = Rc::new(Worker {
        index,
        pace: settings.pace(),
        settings,
        control,
        recorder: RefCell::new(Recorder::new()),
        schedule: Cell::new(None),
        alive: Cell::new(0),
        lost: Cell::new(0),
        reconnects: Cell::new(0),
    });
    worker.run().await
}

impl Worker {
    async fn run(self: &Rc<Worker>) -> Outcome {
        let interrupted = || Outcome::of(self, &Vec::new(), 0, CpuUse::default());
        let Either::Left((streams, idle)) = race(self.connect_all(), shutdown_requested()).await
        else {
            return interrupted();
        };
        self.alive.set(streams.len());
        self.control.note(Note::Ready { established: streams.len() as u64 });
        let Either::Left(()) = race(self.control.announced(), shutdown_requested()).await else {
            return interrupted();
        };
        let connections = self.begin(streams).await;
        let cpu = self.measure().await;
        connections.iter().for_each(|connection| connection.borrow().wake());
        self.drain().await;
        Outcome::of(self, &connections, idle.len() as u64, cpu)
    }

    /// Makes this thread's connections, a bounded number at the same time. Failures are counted.
    async fn connect_all(self: &Rc<Worker>) -> (Vec<(u64, TcpStream)>, Vec<(u64, TcpStream)>) {
        let (total, idle) = (self.settings.connections, self.settings.idle);
        let streams = self.connect_range(0..total).await;
        // The numbers of idle connections follow those of the others.
        (streams, self.connect_range(total..total + idle).await)
    }

    async fn connect_range(self: &Rc<Worker>, all: std::ops::Range<u64>) -> Vec<(u64, TcpStream)> {
        let threads = self.settings.threads as u64;
        let mine = all.filter(move |number| number % threads == self.index as u64);
        let mine: Rc<RefCell<Vec<u64>>> = Rc::new(RefCell::new(mine.collect()));
        mine.borrow_mut().reverse();
        let streams = Rc::new(RefCell::new(Vec::new()));
        let at_once = CONNECTS_AT_ONCE.min(mine.borrow().len() as u64);
        let connectors: Vec<JoinHandle<()>> = (0..at_once)
            .map(|_| {
                let (worker, mine, streams) = (Rc::clone(self), Rc::clone(&mine), streams.clone());
                spawn(async move {
                    loop {
                        let Some(number) = mine.borrow_mut().pop() else { return };
                        let connected = worker.connect(number, 0).await;
                        streams.borrow_mut().extend(connected.map(|stream| (number, stream)));
                    }
                })
            })
            .collect();
        for connector in connectors {
            // It ends by itself; only the end of the runtime could abort it.
            let _aborted = connector.await;
        }
        let mut streams = streams.take();
        streams.sort_by_key(|(number, _)| *number);
        streams
    }

    /// One attempt to connect, counted if it fails.
    async fn connect(&self, number: u64, life: u64) -> Option<TcpStream> {
        let settings = &self.settings;
        let local = match settings.local.len() as u64 {
            0 => None,
            // Each life takes the next address, so that ports in TIME_WAIT spread as well.
            count => settings.local.get(((number + life) % count) as usize),
        };
        let local = local.map(|address| SocketAddr::new(*address, 0));
        let attempt = TcpStream::connect_from(local, settings.target);
        let connected = match timeout(settings.connect_timeout, attempt).await {
            Ok(connected) => connected,
            Err(_) => {
                let limit = settings.connect_timeout;
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("not done within {limit:?}")))
            }
        };
        let limited = |stream: TcpStream| match self.pace {
            Pace::SlowReader => {
                stream.set_recv_buffer_bytes(super::SLOW_RECV_BUFFER_BYTES).map(|_| stream)
            }
            _ => Ok(stream),
        };
        match connected.and_then(limited) {
            Ok(stream) => Some(stream),
            Err(error) => {
                self.trouble(number, Trouble::Connect, || connect_failure(&error));
                None
            }
        }
    }

    /// Starts the traffic.
    async fn begin(self: &Rc<Worker>, streams: Vec<(u64, TcpStream)>) -> Connections {
        let first_ns = self.control.window().start - self.settings.warmup.as_nanos() as u64;
        if let Some(rate) = self.settings.rate_per_s {
            let schedule = Schedule::new(first_ns, rate, self.settings.connections);
            self.schedule.set(Some(schedule));
        }
        race(sleep_until(instant_at(first_ns)), shutdown_requested()).await;
        let mut connections = Connections::new();
        for (number, stream) in streams {
            let connection = Rc::new(RefCell::new(Connection::new(self, number)));
            connections.push(Rc::clone(&connection));
            spawn(Rc::clone(self).serve(connection, stream));
        }
        if self.pace != Pace::SlowReader {
            spawn(watch(connections.clone(), self.settings.timeout));
        }
        if let Some(schedule) = self.schedule.get() {
            spawn(keep_pace(connections.clone(), schedule));
        }
        connections
    }

    /// Runs a connection through its lives.
    async fn serve(self: Rc<Worker>, connection: Rc<RefCell<Connection>>, first: TcpStream) {
        let mut stream = first;
        let lost = loop {
            let ending = poll_fn(|cx| connection.borrow_mut().poll(&stream, cx)).await;
            connection.borrow_mut().end_life();
            drop(stream);
            let (number, life) = (connection.borrow().number(), connection.borrow().life());
            match ending {
                Ending::Finished => break false,
                Ending::Lost(kind, what) => {
                    self.trouble(number, kind, || what);
                    break true;
                }
                Ending::Churned => {}
            }
            let Some(next) = self.connect(number, life + 1).await else { break true };
            self.reconnects.set(self.reconnects.get() + 1);
            connection.borrow_mut().begin_life();
            stream = next;
        };
        self.lost.set(self.lost.get() + u64::from(lost));
        self.alive.set(self.alive.get() - 1);
        if self.alive.get() == 0 {
            self.control.note(Note::Deserted);
        }
    }

    /// Waits for the window and until it is over; reads the CPU clocks at both ends.
    async fn measure(&self) -> CpuUse {
        let window = self.control.window();
        let begins = sleep_until(instant_at(window.start));
        let Either::Left(()) = race(begins, shutdown_requested()).await else {
            return CpuUse::default();
        };
        let start = CpuStart::read();
        // The end may come earlier than planned; then the conductor calls for it.
        race(sleep_until(instant_at(window.end)), shutdown_requested()).await;
        start.used()
    }

    /// Waits for outstanding answers.
    async fn drain(&self) {
        let deadline = Instant::now() + DRAIN_MAX;
        while self.recorder.borrow().whole.in_flight() > 0 && Instant::now() < deadline {
            sleep(DRAIN_LOOK).await;
        }
    }

    fn trouble(&self, number: u64, kind: Trouble, what: impl FnOnce() -> String) {
        let mut recorder = self.recorder.borrow_mut();
        recorder.trouble(kind, monotonic_ns(), || format!("connection {number}: {}", what()));
        self.control.progress[self.index].errors.store(recorder.errors.total(), Relaxed);
    }

    pub(super) fn show_progress(&self, recorder: &Recorder) {
        self.control.progress[self.index].answered.store(recorder.window.answered, Relaxed);
    }
}

impl Outcome {
    fn of(worker: &Worker, connections: &Connections, idle: u64, cpu: CpuUse) -> Outcome {
        let (now_ns, window) = (monotonic_ns(), worker.control.window());
        let each = || connections.iter().map(|connection| connection.borrow());
        // What was due before the end: the last moment inside the window is one before it.
        let due = |number| match worker.schedule.get() {
            Some(schedule) => schedule.due(number, window.end.saturating_sub(1)),
            None => 0,
        };
        Outcome {
            answered: each().map(|connection| connection.answered_in_window).collect(),
            served: each().filter(|connection| connection.was_served).count() as u64,
            idle_established: idle,
            lost: worker.lost.get(),
            reconnects: worker.reconnects.get(),
            unsent: each().map(|c| due(c.number()).saturating_sub(c.sent)).sum(),
            oldest_ns: each()
                .filter_map(|connection| connection.oldest_ns())
                .min()
                .map_or(0, |since_ns| now_ns.saturating_sub(since_ns)),
            cpu,
            recorder: worker.recorder.replace(Recorder::new()),
        }
    }
}

/// Gives up connections whose oldest request has waited for longer than `limit`. One look over
/// all of them now and then costs less than a timer for each request.
async fn watch(connections: Connections, limit: Duration) {
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
            if connection.oldest_ns().is_some_and(|sent_ns| sent_ns < overdue_ns) {
                connection.give_up();
            }
        }
    }
}

/// Wakes the connections of an open loop when their requests are due, in turn. A connection sends
/// all that is due to it when it wakes, so being late costs one round and not one wake for each
/// request.
async fn keep_pace(connections: Connections, schedule: Schedule) {
    let mut sequence = 0;
    loop {
        let mut number = 0;
        for connection in &connections {
            number = connection.borrow().number();
            let intended_ns = schedule.intended_ns(number, sequence);
            if monotonic_ns() < intended_ns {
                sleep_until(instant_at(intended_ns)).await;
            }
            connection.borrow().wake();
        }
        sequence = schedule.due(number, monotonic_ns()).max(sequence + 1);
        // Without a sleep in this round the connections have not had the thread yet.
        yield_now().await;
    }
}

/// A moment of CLOCK_MONOTONIC as the `Instant` that timers take.
fn instant_at(ns: u64) -> Instant {
    // A moment not known yet is as good as one in 30 years.
    let ahead = ns.saturating_sub(monotonic_ns()).min(946_080_000_000_000_000);
    Instant::now() + Duration::from_nanos(ahead)
}

fn connect_failure(error: &io::Error) -> String {
    /// No descriptor is left; has no `ErrorKind`.
    const EMFILE: i32 = 24;
    let advice = match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "; no local port is free: give more source addresses with --local, or wait a minute"
        }
        _ if error.raw_os_error() == Some(EMFILE) => {
            "; raise the limit of descriptors with `ulimit -n`"
        }
        _ => "",
    };
    format!("connecting: {error}{advice}")
}
