//! The world: one simulated machine, the runtimes on it, and the order in which they run.
//!
//! Everything runs on the thread that made the world, one step of one worker at a time. Whenever
//! nobody has anything to do, the clock moves on to the next moment at which somebody has.

use super::kernel::Machine;
use crate::buf::Pool;
use crate::driver::faults::{Fault, Faults};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// What one step of a worker takes at most.
const STEP_NS_MAX: u64 = 20_000;
/// What is on its way at the end may take so long: SYNs of connections that were given up.
const AFTERMATH_NS: u64 = 600_000_000_000;
/// Steps without the clock getting to a later event: somebody turns in circles.
const STEPS_AT_ONCE_MAX: u32 = 5_000_000;

/// A worker of a world, as the world sees it.
pub(crate) trait Course {
    fn is_over(&self) -> bool;
    /// It has something to do now.
    fn is_runnable(&self) -> bool;
    /// When it has something to do at the latest, on the clock of the world.
    fn next_deadline_ns(&self) -> Option<u64>;
    fn step(&mut self);
    /// What has to hold; `resting` says that nobody has anything to do.
    fn check(&self, resting: bool) -> Result<(), String>;
}

struct Inner {
    machine: Rc<Machine>,
    seed: u64,
    faults: Faults,
    /// How somebody can see what we saw.
    replay: RefCell<String>,
    courses: RefCell<Vec<Box<dyn Course>>>,
    pools: RefCell<Vec<Rc<Pool>>>,
    steps: Cell<u64>,
    started_ns: u64,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<Inner>>> = const { RefCell::new(None) };
}

/// The machine of the world that this thread is in. Callable at any time, also while the thread
/// ends or the world is in use: then there is none.
pub(crate) fn machine() -> Option<Rc<Machine>> {
    let inner = WORLD.try_with(|world| world.try_borrow().ok()?.clone()).ok()??;
    Some(Rc::clone(&inner.machine))
}

/// At the end of the world every buffer of this pool has to be back.
pub(super) fn keep_account_of(pool: &Rc<Pool>) {
    if let Some(inner) = WORLD.with_borrow(Clone::clone) {
        inner.pools.borrow_mut().push(Rc::clone(pool));
    }
}

/// A simulated machine, and the thread that made it inside it: clock, sockets and runtimes of this
/// thread are its own until it is dropped. Equal seeds and faults give equal histories, to the
/// nanosecond, as long as the program asks nothing of other threads.
///
/// # Panics
/// Most methods panic when something is found that must never be: bytes that were not sent, a task
/// that waits for what is there, a bound that is exceeded. The message has the seed and the last
/// events.
pub struct World {
    inner: Rc<Inner>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.inner.seed).finish_non_exhaustive()
    }
}

/// What a world has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Time that passed in it.
    pub simulated: Duration,
    /// Steps of workers.
    pub steps: u64,
    /// Things that happened.
    pub events: u64,
    /// A number that two runs have in common if and (nearly always) only if the same things
    /// happened in them at the same times.
    pub trace_hash: u64,
    /// Faults that happened, by kind.
    pub injected: Vec<(Fault, u64)>,
}

impl World {
    /// Makes a world and puts the calling thread into it.
    ///
    /// # Panics
    /// When the thread is in a world already.
    pub fn new(seed: u64, faults: Faults) -> World {
        let machine = Machine::new(seed, faults.clone());
        let inner = Rc::new(Inner {
            started_ns: machine.clock.get(),
            machine,
            seed,
            faults,
            replay: RefCell::default(),
            courses: RefCell::default(),
            pools: RefCell::default(),
            steps: Cell::new(0),
        });
        WORLD.with_borrow_mut(|world| {
            assert!(world.is_none(), "this thread is in a world already");
            *world = Some(Rc::clone(&inner));
        });
        World { inner }
    }

    /// The world that the calling thread is in.
    pub fn current() -> Option<Place> {
        WORLD.with_borrow(Clone::clone).map(|inner| Place { inner })
    }

    /// A command that repeats what happens here; part of the message of a failure.
    pub fn replay_with(&self, command: impl Into<String>) {
        self.inner.replay.replace(command.into());
    }

    /// The faults of this world.
    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    /// Lets the world go on until `done`, for at most `limit` of its time. Returns whether it was.
    pub fn run_until(&self, limit: Duration, done: impl FnMut() -> bool) -> bool {
        self.inner.run_until(limit, done)
    }

    /// What has happened so far.
    pub fn summary(&self) -> Summary {
        let kernel = self.inner.machine.kernel.borrow();
        Summary {
            simulated: Duration::from_nanos(kernel.now_ns() - self.inner.started_ns),
            steps: self.inner.steps.get(),
            events: kernel.trace.events(),
            trace_hash: kernel.trace.hash(),
            injected: kernel.dice.injected(),
        }
    }

    /// Ends the world once nothing is left in it: no worker, no descriptor, no buffer.
    ///
    /// # Panics
    /// When something is.
    pub fn finish(self) -> Summary {
        let inner = &self.inner;
        // What was closed last is still on its way.
        inner.go_on_until(inner.now_ns() + AFTERMATH_NS, || false);
        if inner.courses.borrow().iter().any(|course| !course.is_over()) {
            inner.fail("a worker has not ended");
        }
        let open = inner.machine.kernel.borrow().open_descriptors();
        if open > 0 {
            inner.fail(&format!("{open} descriptors were never closed"));
        }
        for pool in inner.pools.borrow().iter() {
            let (count, back) = (pool.count(), pool.released());
            if back != count || pool.available() != count {
                inner.fail(&format!("{back} of {count} receive buffers came back"));
            }
        }
        self.summary()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // In the world, so that what they close is closed there.
        let courses =
            self.inner.courses.try_borrow_mut().map(|mut courses| std::mem::take(&mut *courses));
        drop(courses);
        let _ = WORLD.try_with(|world| world.try_borrow_mut().map(|mut world| world.take()));
    }
}

/// The world around somebody who did not make it.
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

    pub(crate) fn add(&self, course: Box<dyn Course>) {
        self.inner.courses.borrow_mut().push(course);
    }

    /// A number below `limit` that the seed chooses.
    pub(crate) fn choose(&self, limit: u64) -> u64 {
        self.inner.machine.kernel.borrow_mut().dice.between(0..limit)
    }
}

impl Inner {
    fn now_ns(&self) -> u64 {
        self.machine.clock.get()
    }

    fn run_until(&self, limit: Duration, done: impl FnMut() -> bool) -> bool {
        let limit_ns = self.now_ns().saturating_add(limit.as_nanos() as u64);
        let was = self.go_on_until(limit_ns, done);
        if was.is_none() {
            self.machine.clock.set(limit_ns.max(self.now_ns()));
        }
        was.unwrap_or(false)
    }

    /// As `run_until`; `None` if nothing more happens before `limit_ns`, with the clock where the
    /// last thing did.
    fn go_on_until(&self, limit_ns: u64, mut done: impl FnMut() -> bool) -> Option<bool> {
        let mut at_once = 0;
        while !done() {
            if self.step() {
                at_once += 1;
                if at_once == STEPS_AT_ONCE_MAX {
                    self.fail("somebody turns in circles");
                }
                if self.now_ns() >= limit_ns {
                    return Some(done());
                }
                continue;
            }
            at_once = 0;
            let next_ns = self.next_ns().filter(|next_ns| *next_ns <= limit_ns)?;
            self.machine.clock.set(next_ns.max(self.now_ns()));
        }
        Some(true)
    }

    /// Lets one worker do what it has to do; false if none has anything.
    fn step(&self) -> bool {
        self.machine.kernel.borrow_mut().run_due();
        let mut courses = self.courses.take();
        courses.retain(|course| !course.is_over());
        let runnable: Vec<usize> =
            (0..courses.len()).filter(|at| courses[*at].is_runnable()).collect();
        let resting = runnable.is_empty();
        let checked = if resting {
            courses.iter().try_for_each(|course| course.check(true))
        } else {
            let mut kernel = self.machine.kernel.borrow_mut();
            let chosen = runnable[kernel.dice.between(0..runnable.len() as u64) as usize];
            let spent_ns = kernel.dice.between(200..STEP_NS_MAX);
            kernel.trace.note(self.now_ns(), "step", chosen as i64, spent_ns as i64);
            drop(kernel);
            self.machine.clock.set(self.now_ns() + spent_ns);
            courses[chosen].step();
            self.steps.set(self.steps.get() + 1);
            courses[chosen].check(false)
        };
        // A step may have started others.
        self.courses.borrow_mut().extend(courses);
        self.check(checked);
        !resting
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

    /// When the next thing happens.
    fn next_ns(&self) -> Option<u64> {
        let event = self.machine.kernel.borrow().next_event_ns();
        let courses = self.courses.borrow();
        let deadlines = courses.iter().filter(|course| !course.is_over());
        deadlines.filter_map(|course| course.next_deadline_ns()).chain(event).min()
    }

    fn fail(&self, what: &str) -> ! {
        let seconds = (self.now_ns() - self.started_ns) as f64 / 1e9;
        let (seed, faults, replay) = (self.seed, &self.faults, self.replay.borrow());
        let tail = match self.machine.kernel.try_borrow() {
            Ok(kernel) => kernel.trace.tail(),
            Err(_) => String::new(),
        };
        panic!(
            "{what}\nworld of seed {seed}, after {seconds} s\nfaults: {faults}\nreplay: {replay}\n\
             last events:\n{tail}"
        );
    }
}

/// The workers of a runtime that was started in a world.
pub struct Running<T> {
    pub(crate) outputs: Outputs<T>,
}

/// What workers have returned; `None` for those that run.
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

    /// What [`Runtime::run`](crate::Runtime::run) would have returned; workers that have not ended
    /// are left out.
    ///
    /// # Errors
    /// The first of a worker.
    pub fn outcome(self) -> Result<Vec<Option<T>>, crate::RuntimeError> {
        self.outputs.take().into_iter().flatten().collect()
    }
}
