//! A worker: the state of one thread, and its loop.

use super::builder::EventHandler;
use super::{DRAINING, Runtime, STOPPING, Shared, failed};
use crate::config::Engine;
use crate::counters::Counters;
use crate::driver::{Driver, DriverSetup};
use crate::probe;
use crate::sys;
use crate::sys::lend::{Lent, lend};
use crate::task::{Executor, JoinHandle, OUTSIDE, Registration, WaitQueue, wait, wake_all};
use crate::time::{Timers, sleep_until};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}

/// The worker of this thread.
///
/// # Panics
/// Outside a runtime, which is a mistake in the program and not in its input.
pub(crate) fn current() -> Rc<Worker> {
    with_current(Rc::clone).expect(OUTSIDE)
}

/// Calls `f` with the worker of this thread, if there is one.
pub(crate) fn with_current<R>(f: impl FnOnce(&Rc<Worker>) -> R) -> Option<R> {
    CURRENT.try_with(|current| current.borrow().as_ref().map(f)).ok().flatten()
}

/// True on the thread of a worker that has begun to serve, which must not sleep. Before that, while
/// the main future is polled for the first time, no connection waits.
pub(crate) fn is_serving() -> bool {
    with_current(|worker| worker.round() > 0) == Some(true)
}

pub(crate) struct Worker {
    pub(crate) registration: Arc<Registration>,
    pub(crate) executor: Executor,
    pub(crate) timers: Timers,
    /// Portions of arrivals that are handled before timers fire.
    timers_await: Cell<usize>,
    pub(crate) driver: RefCell<Driver>,
    pub(crate) counters: Arc<Counters>,
    /// Tasks that wait for a descriptor to be closed, because accepting ran out of them.
    pub(crate) descriptor_waiters: RefCell<WaitQueue>,
    pub(super) shutdown_waiters: RefCell<WaitQueue>,
    /// The main future has ended, or the runtime was stopped.
    over: Cell<bool>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) on_event: EventHandler,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({})", self.registration.worker)
    }
}

impl Worker {
    pub(super) fn start(runtime: &Runtime, index: usize) -> io::Result<Rc<Worker>> {
        let builder = &runtime.builder;
        if !builder.pin.is_empty() {
            let cpu = builder.pin[index % builder.pin.len()];
            sys::pin_current_thread(cpu).map_err(|error| {
                failed(format_args!("pinning worker {index} to CPU {cpu}"), &error)
            })?;
        }
        let registration = Arc::clone(&runtime.shared.registrations[index]);
        let counters = Arc::clone(&runtime.shared.workers[index]);
        let setup = DriverSetup {
            wake_fd: registration.inbox.eventfd.fd(),
            confined: builder.confined,
            counters: Arc::clone(&counters),
            linger: builder.linger,
        };
        let features = runtime.features_of(index);
        let driver = Driver::new(features, &setup).map_err(|error| {
            let engine = features.engine();
            let what = format!("setting up {engine} for worker {index}");
            match probe::ring_refused(&error).filter(|_| engine == Engine::IoUring) {
                Some(refusal) => io::Error::other(format!("{what}: {refusal}")),
                None => failed(what, &error),
            }
        })?;
        Ok(Rc::new(Worker {
            executor: Executor::new(
                registration.worker,
                Arc::clone(&counters),
                builder.stop_on_panic,
            ),
            registration,
            timers: Timers::default(),
            timers_await: Cell::new(0),
            driver: RefCell::new(driver),
            counters,
            descriptor_waiters: RefCell::default(),
            shutdown_waiters: RefCell::default(),
            over: Cell::new(runtime.shared.stage() == STOPPING),
            shared: Arc::clone(&runtime.shared),
            on_event: Arc::clone(&builder.on_event),
        }))
    }

    /// The number of the round: data that tasks handle in a round had arrived when it began.
    pub(crate) fn round(&self) -> u64 {
        self.driver.borrow().round()
    }

    /// Runs `main` to its end, then shuts down. With `patience`, a peer that takes no queued data for
    /// so long is not waited for. `None` if the runtime was stopped.
    pub(super) fn run<F: Future>(
        self: Rc<Worker>,
        main: F,
        patience: Option<Duration>,
    ) -> io::Result<Option<F::Output>> {
        let _leave = CurrentWorker::new(Rc::clone(&self))?;
        let output = RefCell::new(None);
        let mut main = Box::pin(async {
            // Also after a panic.
            let _over = Over(&self.over);
            let finished = main.await;
            *output.borrow_mut() = Some(finished);
        });
        lend(main.as_mut(), |main| self.run_main(main))?;
        // What it owns is dropped inside the runtime, and before the wait for queued data.
        drop(main);
        self.executor.abort_all();
        self.linger(patience)?;
        Ok(output.into_inner())
    }

    fn linger(&self, patience: Option<Duration>) -> io::Result<()> {
        let mut wakes = Vec::new();
        let (mut sent, mut since) = (self.counters.sent.get(), Instant::now());
        let mut acked = self.driver.borrow().acked_by_lingering();
        while self.driver.borrow_mut().next_deadline().is_some() && self.shared.stage() != STOPPING
        {
            if sent != self.counters.sent.get() {
                (sent, since) = (self.counters.sent.get(), Instant::now());
            }
            // Bounds the turn.
            let mut tick = patience.map(|patience| sleep_until(since + patience));
            if let Some(tick) = &mut tick
                && Pin::new(tick).poll(&mut Context::from_waker(Waker::noop())).is_ready()
            {
                // One send may be under way for long, and says nothing until it is over.
                let before =
                    std::mem::replace(&mut acked, self.driver.borrow().acked_by_lingering());
                if acked == before {
                    break;
                }
                since = Instant::now();
                continue;
            }
            self.turn(true, &mut wakes).map_err(engine_failed)?;
            self.executor.run(&mut wakes);
        }
        Ok(())
    }

    /// Runs until `main` has ended, or the runtime was stopped.
    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    fn run_main(self: &Rc<Worker>, main: Lent) -> io::Result<()> {
        let main = JoinHandle::spawn(self, main);
        let mut wakes = Vec::new();
        loop {
            let idle = self.executor.run(&mut wakes);
            // Checked before the wait: when `main` has ended, there may be no further event.
            if self.over.get() {
                break;
            }
            self.turn(idle, &mut wakes).map_err(engine_failed)?;
        }
        match main.take_panic() {
            Some(panic) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }

    /// Lets the driver submit, wait and report, and collects the tasks that it woke.
    #[inline(always)]
    fn turn(&self, idle: bool, wakes: &mut Vec<Waker>) -> io::Result<()> {
        let mut driver = self.driver.borrow_mut();
        let deadline = earlier(self.timers.first(), driver.next_deadline());
        let timeout = if idle { deadline.map(until) } else { Some(Duration::ZERO) };
        driver.turn(timeout, wakes)?;
        drop(driver);
        if deadline.is_some() {
            self.after_deadline(wakes);
        }
        if self.registration.inbox.is_signalled() {
            self.take_inbox();
        }
        Ok(())
    }

    /// A turn that had a deadline: fires the timers that are due, and closes sockets that have lingered long enough.
    /// What has arrived comes first, as it may have met its deadline; but not what arrives meanwhile, perhaps for ever.
    #[inline(never)]
    fn after_deadline(&self, wakes: &mut Vec<Waker>) {
        let mut driver = self.driver.borrow_mut();
        let portions = driver.portions_left().min(self.timers_await.get().wrapping_sub(1));
        self.timers_await.set(portions);
        if portions == 0 {
            self.timers.fire(Instant::now(), wakes);
            driver.expire_lingering();
        }
    }

    #[cold]
    pub(super) fn take_inbox(&self) {
        self.counters.wakes.add(self.executor.take_wakes(&self.registration.inbox));
        if self.shared.stage() == STOPPING {
            self.over.set(true);
        }
        if self.shared.stage() >= DRAINING {
            wake_all(&self.shutdown_waiters);
        }
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// How long a wait for `deadline` may take.
#[inline(never)]
fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn engine_failed(error: io::Error) -> io::Error {
    failed("the worker's engine failed", &error)
}

/// Ends the loop of a worker when it is dropped.
struct Over<'a>(&'a Cell<bool>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// Makes a worker the current one of its thread; shuts it down when dropped.
struct CurrentWorker(Rc<Worker>);

impl CurrentWorker {
    fn new(worker: Rc<Worker>) -> io::Result<CurrentWorker> {
        if CURRENT.with_borrow(Option::is_some) {
            return Err(io::Error::other("a runtime runs on this thread already"));
        }
        if !worker.registration.inbox.open() {
            return Err(io::Error::other("the runtime runs on another thread already"));
        }
        CURRENT.set(Some(Rc::clone(&worker)));
        Ok(CurrentWorker(worker))
    }
}

impl Drop for CurrentWorker {
    fn drop(&mut self) {
        let worker = &self.0;
        worker.executor.abort_all();
        let wakes = worker.driver.borrow_mut().teardown(worker.shared.patience());
        // A timer that outlives this is added to the next worker.
        drop((wakes, worker.timers.queue.take()));
        worker.counters.slots_in_use.set(0);
        worker.counters.buffers_in_use.set(0);
        // From now on another thread may count.
        worker.registration.inbox.end();
        CURRENT.take();
    }
}

/// Submits the queued sends of this worker's sockets to the kernel now, instead of when the worker
/// next waits. For a sender that stamps its packets: stamp, send, submit. Fails when the engine has
/// failed as a whole.
pub fn submit() -> io::Result<()> {
    current().driver.borrow_mut().submit()
}

/// Becomes ready when [`Handle::shutdown`](crate::Handle::shutdown) is called; at once if that was
/// before.
pub async fn shutdown_requested() {
    let worker = current();
    while worker.shared.stage() < DRAINING {
        wait(&worker.shutdown_waiters).await;
    }
}
