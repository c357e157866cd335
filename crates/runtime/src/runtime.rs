//! Workers: one thread, one executor, one driver each, and the loop that ties them together.

#[cfg(feature = "sim")]
mod course;
mod tick;

use self::tick::Ticks;
use crate::blocking;
use crate::calls::CallTime;
use crate::config::{Engine, EngineChoice, EpollOptions, Features, UringOptions};
use crate::confine::Uses;
use crate::counters::{CounterSnapshot, Counters};
use crate::driver::queues::Waiters;
use crate::driver::slots::{Key, Slots};
use crate::driver::{Driver, DriverSetup};
use crate::fs::{SendStrategy, Sending};
use crate::probe;
use crate::sys;
use crate::task::{Drained, Executor, Inbox, JoinHandle, Registration};
use crate::time::wheel::Wheel;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Why a runtime could not be built or had to stop.
#[derive(Debug)]
pub struct RuntimeError {
    what: String,
    source: Option<io::Error>,
}

impl RuntimeError {
    pub(crate) fn new(what: impl Into<String>, source: Option<io::Error>) -> RuntimeError {
        RuntimeError { what: what.into(), source }
    }
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl Error for RuntimeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<RuntimeError> for io::Error {
    fn from(error: RuntimeError) -> io::Error {
        let kind = error.source.as_ref().map_or(io::ErrorKind::Other, io::Error::kind);
        io::Error::new(kind, error)
    }
}

/// Something an operator should hear about once; the runtime itself goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Accepting waits for a free descriptor or for memory; the text is the kernel's reason.
    AcceptStalled(String),
    /// At the end of the runtime this many threads wait in a filesystem that does not answer.
    /// They are left behind, and end with their operation or with the process.
    FilesystemStuck(usize),
    /// Files are read and sent, because the strategy that was asked for cannot be used, with all
    /// of them or with this one.
    SendStrategy {
        /// What was asked for.
        wanted: SendStrategy,
        /// What is against it.
        why: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::AcceptStalled(reason) => write!(
                f,
                "accepting is paused ({reason}); connected peers are served, and accepting goes \
                 on when descriptors are free (raise `ulimit -n`, or lower --max-connections)"
            ),
            Notice::SendStrategy { wanted, why } => {
                write!(f, "files are read and sent where {wanted} cannot be used: {why}")
            }
            Notice::FilesystemStuck(threads) => write!(
                f,
                "{threads} threads are left waiting in a filesystem that does not answer (is its \
                 server or disk gone?); they end with the process"
            ),
        }
    }
}

type NoticeHandler = Arc<dyn Fn(Notice) + Send + Sync>;

/// Settings of a [`Runtime`].
#[derive(Clone)]
pub struct Builder {
    engine: EngineChoice,
    uring: UringOptions,
    epoll: EpollOptions,
    workers: usize,
    pin: Vec<usize>,
    linger: Duration,
    tick: Option<Duration>,
    tick_phase: Duration,
    call_times: bool,
    confined: Option<Uses>,
    on_notice: NoticeHandler,
    #[cfg(feature = "sim")]
    faults: Option<(u64, crate::sim::Faults)>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("engine", &self.engine)
            .field("workers", &self.workers)
            .field("pin", &self.pin)
            .field("tick", &self.tick)
            .field("tick_phase", &self.tick_phase)
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            engine: EngineChoice::Auto,
            uring: UringOptions::default(),
            epoll: EpollOptions::default(),
            workers: 1,
            pin: Vec::new(),
            linger: Duration::from_secs(5),
            tick: None,
            tick_phase: Duration::ZERO,
            call_times: false,
            confined: None,
            on_notice: Arc::new(|_| {}),
            #[cfg(feature = "sim")]
            faults: None,
        }
    }
}

impl Builder {
    /// The engine; `Auto` by default.
    pub fn engine(mut self, engine: EngineChoice) -> Builder {
        self.engine = engine;
        self
    }

    /// Features of io_uring; the best the kernel allows by default.
    pub fn uring(mut self, options: UringOptions) -> Builder {
        self.uring = options;
        self
    }

    /// Features of epoll; edge-triggered by default.
    pub fn epoll(mut self, options: EpollOptions) -> Builder {
        self.epoll = options;
        self
    }

    /// Number of worker threads, 1 to 1,024; 1 by default.
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = workers;
        self
    }

    /// CPUs for the workers, one each in turn; empty (the default) leaves them to the scheduler.
    pub fn pin(mut self, cpus: Vec<usize>) -> Builder {
        self.pin = cpus;
        self
    }

    /// How long a dropped stream may go on sending what it had queued; 5 seconds by default.
    pub fn linger(mut self, limit: Duration) -> Builder {
        self.linger = limit;
        self
    }

    /// Tick mode: workers wake once per `period` (50 us to 1 s; 1 ms is typical), where
    /// CLOCK_MONOTONIC is a multiple of it, whatever arrives in between. In each tick timers fire
    /// and what their tasks send goes out first; what has arrived is handled after that. Saves much
    /// CPU under many small packets, and delays everything by up to a period. Off by default.
    pub fn tick(mut self, period: Duration) -> Builder {
        self.tick = Some(period);
        self
    }

    /// Ticks come this much after the multiples of their period. Two programs of one machine that
    /// send to each other cost more CPU when their ticks coincide, up to 1.7 times at 200,000
    /// datagrams a second: each is interrupted in what it does.
    pub fn tick_phase(mut self, phase: Duration) -> Builder {
        self.tick_phase = phase;
        self
    }

    /// Time the system calls that wait and those of datagram sockets, one by one, for
    /// [`call_times`]. Costs two readings of the clock for each. Off by default.
    pub fn call_times(mut self, on: bool) -> Builder {
        self.call_times = on;
        self
    }

    /// Has the kernel refuse whatever the program does not use, in each worker's ring (Linux 5.10;
    /// see [`confine`](crate::confine)). On epoll there is no ring, and nothing to do. Off by
    /// default.
    pub fn confine(mut self, uses: Uses) -> Builder {
        self.confined = Some(uses);
        self
    }

    /// Called, on a worker thread, with things an operator should hear about.
    pub fn on_notice(mut self, handler: impl Fn(Notice) + Send + Sync + 'static) -> Builder {
        self.on_notice = Arc::new(handler);
        self
    }

    /// Puts faults between the real kernel and the engines, as TWINRING_FAULTS does; only those of
    /// [`Faults::harmless`](crate::sim::Faults::harmless) have an effect there. In a simulated
    /// world this changes nothing: it has its own.
    #[cfg(feature = "sim")]
    pub fn faults(mut self, seed: u64, faults: crate::sim::Faults) -> Builder {
        self.faults = Some((seed, faults));
        self
    }

    /// Chooses the engine and its features. No thread is started yet.
    ///
    /// # Errors
    /// When a requested engine or feature is refused (the message names the layer that refuses
    /// and what to change), or the number of workers or the tick is out of range.
    pub fn build(self) -> Result<Runtime, RuntimeError> {
        if !(1..=1024).contains(&self.workers) {
            let what = format!("{} workers: expected 1 to 1024", self.workers);
            return Err(RuntimeError::new(what, None));
        }
        if let Some(period) = self.tick.filter(|period| !tick::PERIODS.contains(period)) {
            let what = format!("a tick of {period:?}: expected 50 us to 1 s");
            return Err(RuntimeError::new(what, None));
        }
        let (features, why_not) = match self.engine {
            #[cfg(feature = "sim")]
            _ if crate::driver::sim::World::current().is_some() => {
                (Features::Sim(crate::config::SimFeatures::chosen()), None)
            }
            EngineChoice::Epoll => (Features::Epoll(self.epoll.resolve()), None),
            choice => match probe::select_uring_for(&self.uring, self.workers) {
                Ok(features) => (Features::IoUring(features), None),
                Err(refusal) if choice == EngineChoice::Auto && refusal.allows_fallback() => {
                    (Features::Epoll(self.epoll.resolve()), Some(refusal.to_string()))
                }
                Err(refusal) => return Err(RuntimeError::new(refusal.to_string(), None)),
            },
        };
        let counters = |_| Arc::new(Counters::with_call_times(self.call_times));
        let workers = (0..self.workers).map(counters).collect();
        let shared = Arc::new(Shared {
            stage: AtomicU8::new(RUNNING),
            inboxes: Mutex::default(),
            blocking: Arc::default(),
            workers,
        });
        Ok(Runtime { builder: self, features, why_not, shared })
    }
}

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const STOPPING: u8 = 2;

/// What the threads of a runtime share with its handles.
struct Shared {
    stage: AtomicU8,
    inboxes: Mutex<Vec<Arc<Inbox>>>,
    /// Threads for what can only be done by waiting; none until they are needed.
    blocking: Arc<blocking::Pool>,
    workers: Vec<Arc<Counters>>,
}

impl Shared {
    fn advance_to(&self, stage: u8) {
        self.stage.fetch_max(stage, Ordering::AcqRel);
        let inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        inboxes.iter().for_each(|inbox| inbox.signal());
    }
}

/// Controls a runtime from any thread.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Asks the services to finish: [`shutdown_requested`] becomes ready on every worker.
    pub fn shutdown(&self) {
        self.shared.advance_to(DRAINING);
    }

    /// Ends every worker at once; tasks are dropped where they stand.
    pub fn stop(&self) {
        self.shared.advance_to(STOPPING);
    }

    /// The counters summed over all workers, at this moment.
    pub fn counters(&self) -> CounterSnapshot {
        let mut sum = CounterSnapshot::default();
        self.shared.workers.iter().for_each(|counters| sum.merge(&counters.snapshot()));
        sum
    }
}

/// An engine that was chosen, and the settings of its workers.
pub struct Runtime {
    builder: Builder,
    features: Features,
    why_not: Option<String>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("features", &self.features).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts from the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The engine in use and its features.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Why `Auto` did not take io_uring; `None` if it did or was not asked.
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    /// Number of workers that [`run`](Runtime::run) starts.
    pub fn workers(&self) -> usize {
        self.builder.workers
    }

    /// A handle that works from any thread, before, during and after the run.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }

    /// Runs `service` once on each worker, given the worker's number from 0, and returns their
    /// results in order. The threads end when their futures have; other tasks are then dropped,
    /// and streams dropped with bytes queued go on sending within the linger limit.
    ///
    /// # Errors
    /// When a worker cannot be set up (then all are stopped) or its engine fails. A worker that
    /// was stopped by [`Handle::stop`] yields `None`.
    ///
    /// # Panics
    /// When a task panics, its panic is passed on after the other workers were stopped.
    pub fn run<F, Fut>(self, service: F) -> Result<Vec<Option<Fut::Output>>, RuntimeError>
    where
        F: Fn(usize) -> Fut + Sync,
        Fut: Future + 'static,
        Fut::Output: Send,
    {
        let _at_the_end = CloseBlocking { runtime: &self };
        let run_one = |index: usize| {
            let stop_others = StopUnlessDisarmed { shared: &self.shared, armed: Cell::new(true) };
            let outcome = Worker::start(&self, index).and_then(|worker| worker.run(service(index)));
            stop_others.armed.set(outcome.is_err());
            outcome
        };
        if self.builder.workers == 1 {
            return run_one(0).map(|output| vec![output]);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.builder.workers)
                .map(|index| {
                    std::thread::Builder::new()
                        .name(format!("twinring-{index}"))
                        .spawn_scoped(scope, move || run_one(index))
                })
                .collect();
            let mut outputs = Vec::with_capacity(threads.len());
            let mut failed = None;
            for thread in threads {
                let outcome = match thread {
                    Ok(thread) => {
                        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    }
                    Err(error) => {
                        self.shared.advance_to(STOPPING);
                        Err(RuntimeError::new("starting a worker thread", Some(error)))
                    }
                };
                match outcome {
                    Ok(output) => outputs.push(output),
                    Err(error) => drop(failed.get_or_insert(error)),
                }
            }
            match failed {
                None => Ok(outputs),
                Some(error) => Err(error),
            }
        })
    }

    /// Runs one future on a worker on the calling thread.
    ///
    /// # Errors
    /// As [`run`](Runtime::run); also if the runtime was built for several workers, or stopped.
    pub fn block_on<Fut>(self, future: Fut) -> Result<Fut::Output, RuntimeError>
    where
        Fut: Future + 'static,
    {
        if self.builder.workers != 1 {
            return Err(RuntimeError::new("block_on needs a runtime with one worker", None));
        }
        let _at_the_end = CloseBlocking { runtime: &self };
        Worker::start(&self, 0)?
            .run(future)?
            .ok_or_else(|| RuntimeError::new("the runtime was stopped", None))
    }
}

/// Ends the threads of [`blocking`] after the workers, however those end.
struct CloseBlocking<'a> {
    runtime: &'a Runtime,
}

impl Drop for CloseBlocking<'_> {
    fn drop(&mut self) {
        let stuck = self.runtime.shared.blocking.close();
        if stuck > 0 {
            (self.runtime.builder.on_notice)(Notice::FilesystemStuck(stuck));
        }
    }
}

/// Stops the other workers when one fails or panics.
struct StopUnlessDisarmed<'a> {
    shared: &'a Shared,
    armed: Cell<bool>,
}

impl Drop for StopUnlessDisarmed<'_> {
    fn drop(&mut self) {
        if self.armed.get() {
            self.shared.advance_to(STOPPING);
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}

/// The worker of this thread.
///
/// # Panics
/// Outside a runtime, which is a mistake in the program and not in its input.
pub(crate) fn current() -> Rc<Worker> {
    let worker = CURRENT.with_borrow(Option::clone);
    worker.expect("this must run inside a twinring runtime (Runtime::run or block_on)")
}

/// Calls `f` with the worker of this thread, if there is one.
pub(crate) fn with_current<R>(f: impl FnOnce(&Worker) -> R) -> Option<R> {
    CURRENT.try_with(|current| current.borrow().as_deref().map(f)).ok().flatten()
}

/// Everything that belongs to one worker thread.
pub(crate) struct Worker {
    registration: Registration,
    pub(crate) executor: Executor,
    pub(crate) timers: RefCell<Wheel>,
    pub(crate) driver: RefCell<Driver>,
    pub(crate) counters: Arc<Counters>,
    /// Tasks that wait for a descriptor to be closed, because accepting ran out of them.
    pub(crate) descriptor_waiters: RefCell<Waiters>,
    pub(crate) sending: Sending,
    shutdown_waiters: RefCell<Slots<Waker>>,
    /// Empty between steps; kept for its allocation.
    wakes: RefCell<Vec<Waker>>,
    started: Instant,
    ticks: Option<Ticks>,
    shared: Arc<Shared>,
    on_notice: NoticeHandler,
}

impl Worker {
    fn start(runtime: &Runtime, index: usize) -> Result<Rc<Worker>, RuntimeError> {
        let builder = &runtime.builder;
        if !builder.pin.is_empty() {
            let cpu = builder.pin[index % builder.pin.len()];
            sys::pin_current_thread(cpu).map_err(|error| {
                RuntimeError::new(format!("pinning worker {index} to CPU {cpu}"), Some(error))
            })?;
        }
        if builder.tick.is_some() {
            sys::set_timer_slack(tick::TIMER_SLACK);
        }
        let registration = Registration::new().map_err(|error| {
            RuntimeError::new(format!("setting up worker {index}"), Some(error))
        })?;
        let counters = Arc::clone(&runtime.shared.workers[index]);
        let setup = DriverSetup {
            wake_fd: registration.inbox().eventfd(),
            confined: builder.confined,
            counters: Arc::clone(&counters),
            linger: builder.linger,
            #[cfg(feature = "sim")]
            faults: builder.faults.clone(),
        };
        let driver = Driver::new(&runtime.features, &setup).map_err(|error| {
            let engine = runtime.features.engine();
            let what = format!("setting up {engine} for worker {index}");
            match probe::ring_refused(&error).filter(|_| engine == Engine::IoUring) {
                Some(refusal) => RuntimeError::new(format!("{what}: {refusal}"), None),
                None => RuntimeError::new(what, Some(error)),
            }
        })?;
        let mut inboxes = runtime.shared.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        inboxes.push(Arc::clone(registration.inbox()));
        let started = Instant::now();
        Ok(Rc::new(Worker {
            executor: Executor::new(registration.worker()),
            registration,
            timers: RefCell::new(Wheel::new()),
            driver: RefCell::new(driver),
            counters,
            descriptor_waiters: RefCell::default(),
            sending: Sending::default(),
            shutdown_waiters: RefCell::new(Slots::new()),
            wakes: RefCell::default(),
            started,
            ticks: builder
                .tick
                .map(|period| Ticks::new(started, sys::monotonic_ns(), period, builder.tick_phase)),
            shared: Arc::clone(&runtime.shared),
            on_notice: Arc::clone(&builder.on_notice),
        }))
    }

    pub(crate) fn id(&self) -> u16 {
        self.registration.worker()
    }

    /// Nanoseconds from the start of the worker to `moment`: the time scale of its timers.
    pub(crate) fn since_start_ns(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.started).as_nanos() as u64
    }

    pub(crate) fn notice(&self, notice: Notice) {
        (self.on_notice)(notice);
    }

    /// A socket was closed: whoever waits for a descriptor may try again.
    pub(crate) fn wake_descriptor_waiters(&self) {
        let mut waiters = self.descriptor_waiters.borrow_mut();
        if !waiters.is_empty() {
            let mut wakes = Vec::new();
            waiters.wake(&mut wakes);
            drop(waiters);
            wakes.into_iter().for_each(Waker::wake);
        }
    }

    /// Threads for what can only be done by waiting.
    pub(crate) fn blocking(&self) -> &Arc<blocking::Pool> {
        &self.shared.blocking
    }

    fn stage(&self) -> u8 {
        self.shared.stage.load(Ordering::Acquire)
    }

    /// Runs `main` to its end, then takes everything down. `None` if the runtime was stopped.
    fn run<F: Future + 'static>(
        self: Rc<Worker>,
        main: F,
    ) -> Result<Option<F::Output>, RuntimeError> {
        let _leave = Enter::new(Rc::clone(&self))?;
        let output = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&output);
        let main = JoinHandle::spawn(&self, async move {
            let finished = main.await;
            *slot.borrow_mut() = Some(finished);
        });
        let failed = |error| RuntimeError::new("the worker's engine failed", Some(error));
        loop {
            self.executor.run_ready();
            // Asked before the wait: when `main` is over, perhaps nothing will ever end it.
            if main.is_finished() || self.stage() == STOPPING {
                break;
            }
            self.turn().map_err(failed)?;
        }
        self.executor.abort_all();
        while self.driver.borrow_mut().is_lingering() && self.stage() != STOPPING {
            self.turn().map_err(failed)?;
        }
        let finished = output.borrow_mut().take();
        Ok(finished)
    }

    /// Lets the driver hand over, wait and report, and queues the tasks that it woke.
    fn turn(&self) -> io::Result<()> {
        if let Some(ticks) = &self.ticks {
            return self.turn_in_ticks(ticks);
        }
        let mut wakes = self.wakes.take();
        let deadline = self.next_deadline();
        let idle = !self.executor.has_ready()
            && !self.registration.inbox().is_signalled()
            && !self.driver.borrow().has_arrivals();
        let timeout = match (idle, deadline) {
            (false, _) => Some(Duration::ZERO),
            (true, None) => None,
            (true, Some(deadline)) => Some(deadline.saturating_duration_since(Instant::now())),
        };
        self.driver.borrow_mut().turn(timeout, &mut wakes)?;
        if let Some(deadline) = deadline {
            let now = self.fire_timers(&mut wakes);
            if timeout.is_some_and(|asked| !asked.is_zero()) && now >= deadline {
                self.counters.wait_overrun.record(now - deadline);
            }
        }
        self.wake_all(wakes);
        if self.registration.inbox().is_signalled() {
            self.take_inbox();
        }
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.borrow_mut().next_deadline_ns();
        let timer = timer.map(|ns| self.started + Duration::from_nanos(ns));
        let driver = self.driver.borrow_mut().next_deadline();
        match (timer, driver) {
            (Some(timer), Some(driver)) => Some(timer.min(driver)),
            (timer, driver) => timer.or(driver),
        }
    }

    /// Fires the timers that are due, and returns the time by which.
    fn fire_timers(&self, wakes: &mut Vec<Waker>) -> Instant {
        let now = Instant::now();
        let now_ns = self.since_start_ns(now);
        self.timers.borrow_mut().advance(now_ns, |waker| wakes.push(waker));
        now
    }

    fn take_inbox(&self) {
        match self.registration.inbox().drain() {
            Drained::Tasks(tasks) => {
                self.counters.wakes.add(tasks.len() as u64);
                tasks.into_iter().for_each(|task| self.executor.wake(task));
            }
            Drained::All => self.executor.wake_all(),
        }
        if self.stage() >= DRAINING {
            let keys = self.shutdown_waiters.borrow().keys();
            for key in keys {
                let waker = self.shutdown_waiters.borrow_mut().remove(key);
                waker.into_iter().for_each(Waker::wake);
            }
        }
    }
}

/// Makes a worker the current one of its thread; takes it down when dropped.
struct Enter {
    worker: Rc<Worker>,
}

impl Enter {
    fn new(worker: Rc<Worker>) -> Result<Enter, RuntimeError> {
        CURRENT.with_borrow_mut(|current| {
            if current.is_some() {
                return Err(RuntimeError::new("a runtime runs on this thread already", None));
            }
            *current = Some(Rc::clone(&worker));
            Ok(Enter { worker })
        })
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        self.worker.executor.abort_all();
        self.worker.driver.borrow_mut().teardown();
        CURRENT.with_borrow_mut(Option::take);
    }
}

/// Starts a task on the current worker.
///
/// # Panics
/// Outside a twinring runtime.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    JoinHandle::spawn(&current(), future)
}

/// Hands what was queued on this worker's sockets to the kernel now, instead of when the worker
/// next waits. For a sender that stamps what it sends: stamp, send, submit. On epoll a send has
/// reached the kernel already, and this does nothing.
///
/// # Errors
/// When the engine has failed as a whole.
///
/// # Panics
/// Outside a twinring runtime.
pub fn submit() -> io::Result<()> {
    current().submit()
}

/// What the system calls of this worker took since it started, or since
/// [`restart_call_times`]; empty without [`Builder::call_times`].
///
/// # Panics
/// Outside a twinring runtime.
pub fn call_times() -> Vec<CallTime> {
    current().counters.calls.table()
}

/// Lets [`call_times`] count from now on.
///
/// # Panics
/// Outside a twinring runtime.
pub fn restart_call_times() {
    current().counters.calls.restart();
}

/// How late the last wait for a tick of this thread's worker ended, in tick mode; `None` also if
/// there was no wait, because the worker was busy until the tick was due.
pub(crate) fn tick_overrun() -> Option<Duration> {
    with_current(|worker| worker.ticks.as_ref().and_then(Ticks::overrun)).flatten()
}

/// The last tick of this thread's worker, if it is in tick mode.
pub(crate) fn tick_origin() -> Option<Instant> {
    with_current(|worker| worker.ticks.as_ref().map(Ticks::origin)).flatten()
}

/// Becomes ready when [`Handle::shutdown`] was called; at once if that was before.
///
/// # Panics
/// When polled outside a twinring runtime.
pub fn shutdown_requested() -> ShutdownRequested {
    ShutdownRequested { registered: None }
}

/// The future of [`shutdown_requested`].
pub struct ShutdownRequested {
    registered: Option<(Rc<Worker>, Key)>,
}

impl fmt::Debug for ShutdownRequested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownRequested").finish_non_exhaustive()
    }
}

impl Future for ShutdownRequested {
    type Output = ();

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<()> {
        let worker = match self.registered.take() {
            Some((worker, key)) => {
                worker.shutdown_waiters.borrow_mut().remove(key);
                worker
            }
            None => current(),
        };
        if worker.stage() >= DRAINING {
            return std::task::Poll::Ready(());
        }
        let key = worker.shutdown_waiters.borrow_mut().insert(cx.waker().clone());
        self.registered = Some((worker, key));
        std::task::Poll::Pending
    }
}

impl Drop for ShutdownRequested {
    fn drop(&mut self) {
        if let Some((worker, key)) = self.registered.take() {
            worker.shutdown_waiters.borrow_mut().remove(key);
        }
    }
}
