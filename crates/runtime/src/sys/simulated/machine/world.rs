//! The world: one simulated machine, the runtimes on it, and the order in which they run.
//!
//! One program runs at a time, a step of a worker or a thread until it waits (`threads`), and the
//! thread that created the world schedules them. When no program can run, the clock advances to the
//! next moment at which one can.

mod turns;

pub(crate) use self::turns::{give_way, has_reports, lead, rest, spend, wait, wait_readable};

use super::kernel::{FIRST_FD, Machine};
use super::threads::{self, Threads};
use crate::sys::faults::{Fault, Faults};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

/// The maximum duration of a worker's step.
const STEP_NS_MAX: u64 = 20_000;
/// After an idle period, a step takes this fraction of it, up to a maximum. Otherwise a busy loop
/// would take thousands of equal steps until a late event: a simulated second would cost a real
/// one.
const IDLE_PART: u64 = 16;
const IDLE_STEP_NS_MAX: u64 = 1_000_000;
/// How long packets in transit may take at the end: SYNs of abandoned connections.
const AFTERMATH_NS: u64 = 600_000_000_000;
/// Steps without the clock advancing to an event: a program runs in circles.
const STEPS_AT_ONCE_MAX: u32 = 5_000_000;
/// In real time, how long a world in which all programs wait keeps checking for a program outside
/// that has what they wait for: a lock that threads of several worlds share.
const OUTSIDERS_PATIENCE: Duration = Duration::from_secs(20);

/// A worker or thread of a world, as the world sees it.
pub(crate) trait Course {
    fn is_over(&self) -> bool;
    /// It has something to do now.
    fn is_runnable(&self) -> bool;
    /// When it has something to do at the latest, on the clock of the world.
    fn next_deadline_ns(&self) -> Option<u64>;
    fn step(&mut self);
    /// Checks the invariants; `resting` means that no program can run.
    fn check(&self, resting: bool) -> Result<(), String>;
}

pub(super) struct Inner {
    pub(super) machine: Rc<Machine>,
    pub(super) threads: Threads,
    seed: u64,
    faults: Faults,
    /// The command that repeats this run.
    replay: RefCell<String>,
    courses: RefCell<Vec<Box<dyn Course>>>,
    steps: Cell<u64>,
    started_ns: u64,
    /// The failure has been reported in full.
    told: Cell<bool>,
}

thread_local! {
    pub(super) static WORLD: RefCell<Option<Rc<Inner>>> = const { RefCell::new(None) };
}

/// The world of this thread. Callable at any time, also while the thread ends or the world is in
/// use: then it returns `None`.
pub(super) fn here() -> Option<Rc<Inner>> {
    WORLD.try_with(|world| world.try_borrow().ok()?.clone()).ok()?
}

/// Its machine.
pub(crate) fn machine() -> Option<Rc<Machine>> {
    here().map(|inner| Rc::clone(&inner.machine))
}

/// The machine that created `fd`, which may have ended, or be another thread's; `None` for
/// descriptors of the real kernel.
#[inline]
pub(crate) fn machine_of(fd: RawFd) -> Option<Option<Rc<Machine>>> {
    (fd >= FIRST_FD).then(|| machine().filter(|machine| machine.owns(fd)))
}

/// A simulated machine, and the thread that created it inside it: clock, sockets, runtimes and the
/// threads that this one starts belong to it until it is dropped. Where this thread would block, it
/// runs the others. Equal seeds and faults give equal histories, to the nanosecond, as long as the
/// program does not depend on threads outside.
///
/// # Panics
/// Most methods panic when an invariant is violated: bytes that were not sent, a task that waits
/// for available data, a bound that is exceeded. The message has the seed and the last events.
pub struct World {
    inner: Rc<Inner>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.inner.seed).finish_non_exhaustive()
    }
}

/// The history of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Time that passed in it.
    pub simulated: Duration,
    /// Steps of workers.
    pub steps: u64,
    /// Number of events.
    pub events: u64,
    /// A hash that two runs have in common if and (nearly always) only if they had the same events
    /// at the same times.
    pub trace_hash: u64,
    /// Faults that happened, by kind.
    pub injected: Vec<(Fault, u64)>,
    /// Payload that programs received, of streams and datagrams, counted by the machine, to verify
    /// the programs' own counts.
    pub received_bytes: u64,
}

impl World {
    /// Creates a world and puts the calling thread into it.
    ///
    /// # Panics
    /// When the thread is already in a world.
    pub fn new(seed: u64, faults: Faults) -> World {
        let machine = Machine::new(seed, faults.clone());
        let inner = Rc::new(Inner {
            started_ns: machine.clock.get(),
            machine,
            threads: Threads::default(),
            seed,
            faults,
            replay: RefCell::default(),
            courses: RefCell::default(),
            steps: Cell::new(0),
            told: Cell::new(false),
        });
        WORLD.with_borrow_mut(|world| {
            assert!(world.is_none(), "this thread is in a world already");
            *world = Some(Rc::clone(&inner));
        });
        World { inner }
    }

    /// The minimum one-way delay of the network; the maximum is four times that. By default the
    /// seed chooses.
    pub fn set_latency(&self, one_way: Duration) {
        self.inner.machine.kernel.borrow_mut().latency_ns = one_way.as_nanos() as u64;
    }

    /// The limit of descriptors of simulated sockets; beyond it EMFILE. By default the limit of the
    /// process (RLIMIT_NOFILE).
    pub fn set_descriptors_max(&self, most: usize) {
        self.inner.machine.kernel.borrow_mut().descriptors_max = most;
    }

    /// The world that the calling thread is in.
    pub fn current() -> Option<Place> {
        WORLD.with_borrow(Clone::clone).map(|inner| Place { inner })
    }

    /// A command that repeats this run; part of the message of a failure.
    pub fn replay_with(&self, command: impl Into<String>) {
        self.inner.replay.replace(command.into());
    }

    /// The faults of this world.
    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    /// Runs the world until `done`, for at most `limit` of its time. Returns whether it was done.
    pub fn run_until(&self, limit: Duration, done: impl FnMut() -> bool) -> bool {
        self.inner.run_until(limit, done)
    }

    /// Suspends the machine for `time`: its clock continues, and no program runs meanwhile. Due
    /// events occur at once afterwards.
    pub fn stand_still(&self, time: Duration) {
        self.inner.rest_until(self.inner.now_ns().saturating_add(time.as_nanos() as u64));
    }

    /// The history so far.
    pub fn summary(&self) -> Summary {
        let kernel = self.inner.machine.kernel.borrow();
        Summary {
            simulated: Duration::from_nanos(kernel.now_ns() - self.inner.started_ns),
            steps: self.inner.steps.get(),
            events: kernel.trace.events(),
            trace_hash: kernel.trace.hash(),
            injected: kernel.dice.injected(),
            received_bytes: kernel.received_bytes,
        }
    }

    /// Ends the world once it is empty: no worker, no descriptor.
    ///
    /// # Panics
    /// When it is not.
    pub fn finish(self) -> Summary {
        let inner = &self.inner;
        // The last closed sockets still have packets in transit.
        inner.go_on_until(inner.now_ns() + AFTERMATH_NS, &mut || false);
        if inner.courses.borrow().iter().any(|course| !course.is_over()) {
            inner.fail("a worker or a thread has not ended");
        }
        let open = inner.machine.kernel.borrow().open_descriptors();
        if open > 0 {
            inner.fail(&format!("{open} descriptors were never closed"));
        }
        self.summary()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.inner.told.get() {
            eprintln!("{}", self.inner.story());
        }
        // Inside the world, so that their descriptors are closed there.
        let courses =
            self.inner.courses.try_borrow_mut().map(|mut courses| std::mem::take(&mut *courses));
        drop(courses);
        let _ = WORLD.try_with(|world| world.try_borrow_mut().map(|mut world| world.take()));
    }
}

/// The world as other threads see it.
pub struct Place {
    inner: Rc<Inner>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("seed", &self.inner.seed).finish_non_exhaustive()
    }
}

impl Place {
    /// As [`World::run_until`]: for code that would block the only thread there is.
    pub fn run_until(&self, limit: Duration, done: impl FnMut() -> bool) -> bool {
        self.inner.run_until(limit, done)
    }

    /// Number of descriptors of simulated sockets.
    pub fn open_descriptors(&self) -> usize {
        self.inner.machine.kernel.borrow().open_descriptors()
    }

    pub(crate) fn add(&self, course: Box<dyn Course>) {
        self.inner.add(course);
    }

    /// A number below `limit` that the seed chooses.
    pub(crate) fn choose(&self, limit: u64) -> u64 {
        self.inner.machine.kernel.borrow_mut().dice.between(0..limit)
    }
}

impl Inner {
    pub(super) fn now_ns(&self) -> u64 {
        self.machine.clock.get()
    }

    pub(super) fn add(&self, course: Box<dyn Course>) {
        self.courses.borrow_mut().push(course);
    }

    fn deadline_ns(&self, timeout: Option<Duration>) -> Option<u64> {
        timeout.map(|timeout| self.now_ns().saturating_add(timeout.as_nanos() as u64))
    }

    fn run_until(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let limit_ns = self.now_ns().saturating_add(limit.as_nanos() as u64);
        self.wait(Some(limit_ns), &mut done)
    }

    fn wait(&self, until_ns: Option<u64>, ready: &mut dyn FnMut() -> bool) -> bool {
        if let Some(thread) = threads::current() {
            return thread.wait(until_ns, ready);
        }
        let mut looked = Duration::ZERO;
        loop {
            if let Some(was) = self.go_on_until(until_ns.unwrap_or(u64::MAX), ready) {
                return was;
            }
            if let Some(until_ns) = until_ns {
                self.rest_until(until_ns);
                return ready();
            }
            if looked > OUTSIDERS_PATIENCE {
                self.fail("all programs wait for each other");
            }
            looked += crate::sys::interposed::look_away();
        }
    }

    fn give_way(&self) {
        if let Some(thread) = threads::current() {
            thread.wait(Some(threads::GIVES_WAY_NS), &mut || false);
            return;
        }
        let others = self.courses.borrow().len() as u64;
        loop {
            let chosen = self.machine.kernel.borrow_mut().dice.between(0..others + 1);
            if chosen == others || !self.step() {
                return;
            }
            self.machine.kernel.borrow_mut().run_due();
        }
    }

    /// Lets others run until `done`, or until `limit_ns`; `None` if no event occurs before that,
    /// with the clock at the last event.
    fn go_on_until(&self, limit_ns: u64, done: &mut dyn FnMut() -> bool) -> Option<bool> {
        let mut at_once = 0;
        loop {
            // Its reports may be what the caller waits for.
            self.machine.kernel.borrow_mut().run_due();
            if done() {
                return Some(true);
            }
            if self.step() {
                at_once += 1;
                if at_once == STEPS_AT_ONCE_MAX {
                    self.fail("a program runs in circles");
                }
                if self.now_ns() >= limit_ns {
                    return Some(done());
                }
                continue;
            }
            at_once = 0;
            let next_ns =
                self.next_ns(&self.courses.borrow()).filter(|next_ns| *next_ns <= limit_ns)?;
            self.rest_until(next_ns);
        }
    }

    fn spend(&self, ns: u64) {
        self.machine.clock.set(self.now_ns() + ns);
    }

    fn rest_until(&self, until_ns: u64) {
        self.machine.clock.set(until_ns.max(self.now_ns()));
        self.machine.kernel.borrow_mut().idle_since_ns = self.now_ns();
    }

    /// The duration of a step: up to `most_ns`, or more after an idle period.
    fn step_ns(&self, most_ns: u64, courses: &[Box<dyn Course>]) -> u64 {
        let now_ns = self.now_ns();
        let mut kernel = self.machine.kernel.borrow_mut();
        let plain_ns = kernel.dice.between(200..most_ns);
        let idle_ns = (now_ns - kernel.idle_since_ns) / IDLE_PART;
        drop(kernel);
        if idle_ns <= plain_ns {
            return plain_ns;
        }
        // No future event is skipped.
        let next_ns = self.next_ns(courses).unwrap_or(u64::MAX);
        let ahead_ns = next_ns.saturating_sub(now_ns);
        plain_ns.max(idle_ns.min(IDLE_STEP_NS_MAX).min(ahead_ns))
    }

    /// Runs one of the other programs; false if none can run.
    fn step(&self) -> bool {
        let (mut over, mut courses) = (Vec::new(), self.courses.borrow_mut());
        for at in (0..courses.len()).rev() {
            if courses[at].is_over() {
                over.push(courses.remove(at));
            }
        }
        let runnable: Vec<usize> =
            (0..courses.len()).filter(|at| courses[*at].is_runnable()).collect();
        if runnable.is_empty() {
            let checked = courses.iter().try_for_each(|course| course.check(true));
            drop(courses);
            self.check(checked);
            return false;
        }
        let spent_ns = self.step_ns(STEP_NS_MAX, &courses);
        let mut kernel = self.machine.kernel.borrow_mut();
        let chosen = runnable[kernel.dice.between(0..runnable.len() as u64) as usize];
        kernel.trace.note(self.now_ns(), "step", chosen as i64, spent_ns as i64);
        drop(kernel);
        self.spend(spent_ns);
        // It is removed meanwhile: it may wait itself, and run the others for that time.
        let mut course = courses.remove(chosen);
        drop((courses, over));
        course.step();
        self.steps.set(self.steps.get() + 1);
        let checked = course.check(false);
        self.add(course);
        self.check(checked);
        true
    }

    fn check(&self, checked: Result<(), String>) {
        let mut kernel = self.machine.kernel.borrow_mut();
        kernel.check_bounds();
        let wrong = checked.err().or_else(|| kernel.wrong.take());
        drop(kernel);
        if let Some(wrong) = wrong {
            self.fail(&wrong);
        }
    }

    /// The time of the next event.
    fn next_ns(&self, courses: &[Box<dyn Course>]) -> Option<u64> {
        let event = self.machine.kernel.borrow().next_event_ns();
        let deadlines = courses.iter().filter(|course| !course.is_over());
        deadlines.filter_map(|course| course.next_deadline_ns()).chain(event).min()
    }

    fn fail(&self, what: &str) -> ! {
        self.told.set(true);
        panic!("{what}\n{}", self.story());
    }

    /// The explanation of a failure.
    fn story(&self) -> String {
        let seconds = (self.now_ns() - self.started_ns) as f64 / 1e9;
        let (seed, faults, replay) = (self.seed, &self.faults, self.replay.borrow());
        let tail = match self.machine.kernel.try_borrow() {
            Ok(kernel) => kernel.trace.tail(),
            Err(_) => String::new(),
        };
        format!(
            "world of seed {seed}, after {seconds} s\nfaults: {faults}\nreplay: {replay}\n\
             last events:\n{tail}"
        )
    }
}

/// The workers of a runtime that was started in a world.
pub struct Running<T> {
    pub(crate) outputs: Outputs<T>,
}

/// The results of workers; `None` for running ones.
pub(crate) type Outputs<T> = Rc<RefCell<Vec<Option<Result<Option<T>, crate::RuntimeError>>>>>;

impl<T> fmt::Debug for Running<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("over", &self.is_over()).finish_non_exhaustive()
    }
}

impl<T> Running<T> {
    /// True once all workers have ended.
    pub fn is_over(&self) -> bool {
        self.outputs.borrow().iter().all(Option::is_some)
    }

    /// The result of [`Runtime::run`](crate::Runtime::run); workers that have not ended are left
    /// out.
    ///
    /// # Errors
    /// The first of a worker.
    pub fn outcome(self) -> Result<Vec<Option<T>>, crate::RuntimeError> {
        self.outputs.take().into_iter().flatten().collect()
    }
}
