//! A worker: the state of one thread, and its loop.

use super::builder::EventHandler;
use super::{DRAINING, Runtime, RuntimeError, STOPPING, Shared};
use crate::blocking;
use crate::calls::CallTime;
use crate::config::Engine;
use crate::counters::Counters;
use crate::driver::{Driver, DriverSetup};
use crate::event::Event;
use crate::probe;
use crate::sys;
use crate::sys::lend::{Lent, lend};
use crate::task::{
    self, Executor, JoinHandle, OUTSIDE, Registration, WaitQueue, WaitToken, Waiter,
};
use crate::time::{sleep_until, wheel::Wheel};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}

/// Sets the worker of this thread; returns the one before.
pub(super) fn set_current(worker: Option<Rc<Worker>>) -> Option<Rc<Worker>> {
    task::set_current(worker.as_ref().map(|worker| Rc::clone(&worker.executor)));
    CURRENT.replace(worker)
}

/// The worker of this thread.
///
/// # Panics
/// Outside a runtime, which is a mistake in the program and not in its input.
pub(crate) fn current() -> Rc<Worker> {
    let worker = CURRENT.with_borrow(Option::clone);
    worker.expect(OUTSIDE)
}

/// Calls `f` with the worker of this thread, if there is one.
fn with_current<R>(f: impl FnOnce(&Worker) -> R) -> Option<R> {
    CURRENT.try_with(|current| current.borrow().as_deref().map(f)).ok().flatten()
}

/// True on the thread of a worker that has begun to serve, which must not sleep. Before that, while
/// the main future is polled for the first time, no connection waits.
pub(crate) fn is_serving() -> bool {
    with_current(|worker| worker.serves.get()) == Some(true)
}

/// The state of one worker thread.
pub(crate) struct Worker {
    pub(super) registration: Registration,
    pub(crate) executor: Rc<Executor>,
    pub(crate) timers: RefCell<Wheel>,
    pub(crate) driver: RefCell<Driver>,
    pub(crate) counters: Arc<Counters>,
    /// Tasks that wait for a descriptor to be closed, because accepting ran out of them.
    pub(crate) descriptor_waiters: RefCell<WaitQueue>,
    pub(super) shutdown_waiters: RefCell<WaitQueue>,
    pub(super) started: Instant,
    /// It has had a turn.
    serves: Cell<bool>,
    /// Counts the turns of the engine.
    round: Cell<u64>,
    pub(super) shared: Arc<Shared>,
    pub(super) on_event: EventHandler,
}

impl Worker {
    pub(super) fn start(runtime: &Runtime, index: usize) -> Result<Rc<Worker>, RuntimeError> {
        let builder = &runtime.builder;
        if !builder.pin.is_empty() {
            let cpu = builder.pin[index % builder.pin.len()];
            sys::pin_current_thread(cpu).map_err(|error| {
                RuntimeError::new(format!("pinning worker {index} to CPU {cpu}"), Some(error))
            })?;
        }
        let lock = |error: PoisonError<_>| error.into_inner();
        let unused = runtime.registrations.lock().unwrap_or_else(lock)[index].take();
        let registration = match unused {
            Some(registration) => registration,
            None => {
                let new = Registration::new().map_err(|error| {
                    RuntimeError::new(format!("setting up worker {index}"), Some(error))
                })?;
                let inboxes = runtime.shared.inboxes.lock();
                inboxes.unwrap_or_else(PoisonError::into_inner)[index] = Arc::clone(new.inbox());
                new
            }
        };
        let counters = Arc::clone(&runtime.shared.workers[index]);
        let setup = DriverSetup {
            wake_fd: registration.inbox().eventfd().as_raw_fd(),
            confined: builder.confined,
            counters: Arc::clone(&counters),
            linger: builder.linger,
        };
        let features = runtime.features_of(index);
        let driver = Driver::new(features, &setup).map_err(|error| {
            let engine = features.engine();
            let what = format!("setting up {engine} for worker {index}");
            match probe::ring_refused(&error).filter(|_| engine == Engine::IoUring) {
                Some(refusal) => RuntimeError::new(format!("{what}: {refusal}"), None),
                None => RuntimeError::new(what, Some(error)),
            }
        })?;
        let started = sys::now();
        Ok(Rc::new(Worker {
            executor: Rc::new(Executor::new(
                registration.worker(),
                Arc::clone(&counters),
                builder.stop_on_panic,
            )),
            registration,
            timers: RefCell::new(Wheel::new()),
            driver: RefCell::new(driver),
            counters,
            descriptor_waiters: RefCell::default(),
            shutdown_waiters: RefCell::default(),
            started,
            serves: Cell::new(false),
            round: Cell::new(0),
            shared: Arc::clone(&runtime.shared),
            on_event: Arc::clone(&builder.on_event),
        }))
    }

    /// Nanoseconds from the start of the worker to `moment`: the time scale of its timers.
    pub(crate) fn since_start_ns(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.started).as_nanos() as u64
    }

    pub(crate) fn notice(&self, notice: Event) {
        (self.on_event)(notice);
    }

    /// A socket was closed: tasks that wait for a descriptor may try again.
    pub(crate) fn wake_descriptor_waiters(&self) {
        let mut waiters = self.descriptor_waiters.borrow_mut();
        if !waiters.is_empty() {
            let mut wakes = Vec::new();
            waiters.wake(&mut wakes);
            drop(waiters);
            wakes.into_iter().for_each(Waker::wake);
        }
    }

    /// Threads for work of the program.
    pub(crate) fn spawned(&self) -> &Arc<blocking::Pool> {
        &self.shared.spawned
    }

    /// Threads for blocking work on files.
    pub(crate) fn blocking(&self) -> &Arc<blocking::Pool> {
        &self.shared.blocking
    }

    /// The number of the round: data that tasks handle in a round had arrived when it began.
    pub(crate) fn round(&self) -> u64 {
        self.round.get()
    }

    pub(super) fn stage(&self) -> u8 {
        self.shared.stage()
    }

    /// Runs `main` to its end, then shuts down. With `patience`, a peer that takes no queued data for
    /// so long is not waited for. `None` if the runtime was stopped.
    pub(super) fn run<F: Future>(
        self: Rc<Worker>,
        main: F,
        patience: Option<Duration>,
    ) -> Result<Option<F::Output>, RuntimeError> {
        let _leave = Enter::new(Rc::clone(&self))?;
        let output = RefCell::new(None);
        let mut main = Box::pin(async {
            let finished = main.await;
            *output.borrow_mut() = Some(finished);
        });
        lend(main.as_mut(), |main| self.run_main(main))?;
        // What it owns is dropped inside the runtime, and before the wait for queued data.
        drop(main);
        self.abort_tasks();
        self.linger(patience)?;
        Ok(output.into_inner())
    }

    /// Sends the queued data of closed sockets.
    fn linger(&self, patience: Option<Duration>) -> Result<(), RuntimeError> {
        let mut wakes = Vec::new();
        let (mut sent, mut since) = (self.counters.sent.get(), sys::now());
        while self.driver.borrow_mut().is_lingering() && self.stage() != STOPPING {
            if sent != self.counters.sent.get() {
                (sent, since) = (self.counters.sent.get(), sys::now());
            }
            // Bounds the turn.
            let mut tick = patience.map(|patience| sleep_until(since + patience));
            if let Some(tick) = &mut tick
                && Pin::new(tick).poll(&mut Context::from_waker(Waker::noop())).is_ready()
            {
                break;
            }
            self.turn(&mut wakes).map_err(failed)?;
        }
        Ok(())
    }

    /// Runs until `main` has ended, or the runtime was stopped.
    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    fn run_main(self: &Rc<Worker>, main: Lent) -> Result<(), RuntimeError> {
        let main = JoinHandle::spawn(&self.executor, main);
        let mut wakes = Vec::new();
        loop {
            self.executor.run_ready();
            // Checked before the wait: when `main` has ended, there may be no further event.
            if main.is_finished() || self.stage() == STOPPING {
                break;
            }
            self.turn(&mut wakes).map_err(failed)?;
        }
        match main.take_panic() {
            Some(panic) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }

    /// Drops all tasks, and those that other threads want to start.
    pub(super) fn abort_tasks(&self) {
        self.registration.inbox().close();
        self.executor.abort_all();
    }

    /// Lets the driver submit, wait and report, and queues the tasks that it woke. `wakes` is empty
    /// between turns, and kept for its allocation.
    #[inline(always)]
    fn turn(&self, wakes: &mut Vec<Waker>) -> io::Result<()> {
        self.serves.set(true);
        let mut driver = self.driver.borrow_mut();
        let deadline = self.next_deadline(&mut driver);
        let mut timeout = Some(Duration::ZERO);
        if !driver.has_arrivals() {
            self.publish_in_use(&driver);
            self.round.set(self.round.get() + 1);
            if self.executor.is_idle(self.registration.inbox()) {
                timeout = deadline.map(until);
            }
        }
        driver.turn(timeout, wakes)?;
        drop(driver);
        if let Some(deadline) = deadline {
            self.after_deadline(deadline, timeout, wakes);
        }
        self.executor.wake_each(wakes);
        if self.registration.inbox().is_signalled() {
            self.take_inbox();
        }
        Ok(())
    }

    /// Publishes the gauges, with two plain stores, so that each wait may do it.
    #[inline]
    fn publish_in_use(&self, driver: &Driver) {
        let in_use = driver.in_use();
        self.counters.slots_in_use.set((in_use.sockets + in_use.operations) as u64);
        self.counters.buffers_in_use.set(in_use.buffers as u64);
    }

    #[inline]
    fn next_deadline(&self, driver: &mut Driver) -> Option<Instant> {
        let (no_timer, lingering) = (self.timers.borrow().is_empty(), driver.next_deadline());
        if no_timer { lingering } else { self.next_timer(lingering) }
    }

    #[inline(never)]
    fn next_timer(&self, lingering: Option<Instant>) -> Option<Instant> {
        let timer = self.timers.borrow_mut().next_deadline_ns();
        let timer = timer.map(|ns| self.started + Duration::from_nanos(ns));
        timer.into_iter().chain(lingering).min()
    }

    /// A turn that had a deadline: fires the timers that are due.
    #[inline(never)]
    fn after_deadline(&self, deadline: Instant, timeout: Option<Duration>, wakes: &mut Vec<Waker>) {
        let now = sys::now();
        let now_ns = self.since_start_ns(now);
        self.timers.borrow_mut().advance(now_ns, |waker| wakes.push(waker));
        if timeout.is_some_and(|asked| !asked.is_zero()) && now >= deadline {
            self.counters.wait_overrun.record(now - deadline);
        }
    }

    /// Hands queued operations to the kernel.
    fn submit(&self) -> io::Result<()> {
        let mut wakes = Vec::new();
        self.driver.borrow_mut().submit(&mut wakes)?;
        self.executor.wake_each(&mut wakes);
        Ok(())
    }

    #[inline(never)]
    pub(super) fn take_inbox(&self) {
        self.counters.wakes.add(self.executor.take_wakes(self.registration.inbox()));
        if self.stage() >= DRAINING {
            let mut wakes = Vec::new();
            self.shutdown_waiters.borrow_mut().wake(&mut wakes);
            wakes.into_iter().for_each(Waker::wake);
        }
    }
}

/// How long a wait for `deadline` may take.
#[inline(never)]
fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(sys::now())
}

fn failed(error: io::Error) -> RuntimeError {
    RuntimeError::new("the worker's engine failed", Some(error))
}

/// Makes a worker the current one of its thread; shuts it down when dropped.
struct Enter {
    worker: Rc<Worker>,
}

impl Enter {
    fn new(worker: Rc<Worker>) -> Result<Enter, RuntimeError> {
        if CURRENT.with_borrow(Option::is_some) {
            return Err(RuntimeError::new("a runtime runs on this thread already", None));
        }
        set_current(Some(Rc::clone(&worker)));
        Ok(Enter { worker })
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        self.worker.abort_tasks();
        let mut wakes = Vec::new();
        let patience = self.worker.shared.patience();
        self.worker.driver.borrow_mut().teardown(patience, &mut wakes);
        drop(wakes);
        self.worker.publish_in_use(&self.worker.driver.borrow());
        set_current(None);
    }
}

/// Submits the queued sends of this worker's sockets to the kernel now, instead of when the worker
/// next waits. For a sender that stamps its packets: stamp, send, submit.
///
/// # Errors
/// When the engine has failed as a whole.
///
/// # Panics
/// Outside a twinring runtime.
pub fn submit() -> io::Result<()> {
    current().submit()
}

/// The durations of this worker's system calls since it started, or since [`restart_call_times`];
/// empty without [`Builder::call_times`](crate::Builder::call_times).
///
/// # Panics
/// Outside a twinring runtime.
pub fn call_times() -> Vec<CallTime> {
    current().counters.calls.table()
}

/// Resets [`call_times`].
///
/// # Panics
/// Outside a twinring runtime.
pub fn restart_call_times() {
    current().counters.calls.restart();
}

/// Becomes ready when [`Handle::shutdown`](crate::Handle::shutdown) is called; at once if that was
/// before.
///
/// # Panics
/// When polled outside a twinring runtime.
pub fn shutdown_requested() -> ShutdownRequested {
    ShutdownRequested { worker: None, token: WaitToken::default() }
}

/// The future of [`shutdown_requested`].
pub struct ShutdownRequested {
    /// Of the first poll.
    worker: Option<Rc<Worker>>,
    token: WaitToken,
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
        let ShutdownRequested { worker, token } = &mut *self;
        let worker = worker.get_or_insert_with(current);
        if worker.stage() >= DRAINING {
            return std::task::Poll::Ready(());
        }
        let mut waiter = Waiter::new(cx, token);
        worker.shutdown_waiters.borrow_mut().add(&mut waiter);
        std::task::Poll::Pending
    }
}

impl Drop for ShutdownRequested {
    fn drop(&mut self) {
        if let Some(worker) = &self.worker {
            let waker = worker.shutdown_waiters.borrow_mut().remove(&mut self.token);
            drop(waker);
        }
    }
}
