//! The local executor: tasks, of which the main future is one, the ready queue, and waking from this
//! thread and from others.

mod inbox;
mod join;
mod join_set;
mod wait_queue;

pub(crate) use inbox::{Inbox, Registration, wake};
pub use join::{JoinError, JoinHandle, spawn};
pub(crate) use join::{OUTSIDE, Outcome, Panic, Promise};
pub use join_set::JoinSet;
pub(crate) use wait_queue::{WaitQueue, WaitToken, Waiter, wait, wake_all};

use self::inbox::WAKES_MAX;
use crate::counters::Counters;
use crate::slots::{Key, Slots};
use crate::sys::lend::InPlace;
use crate::sys::waker::{forget_all, task_of, waker};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

type BoxedFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    future: BoxedFuture,
    /// It is in `ready` or `yielded`.
    queued: bool,
}

struct Tasks {
    slots: Slots<Task>,
    /// Tasks that a task or another thread woke; those of the present round are in front.
    ready: Vec<Key>,
    /// Tasks that woke themselves, to yield to others.
    yielded: VecDeque<Key>,
}

/// Runs the tasks of one worker. All of its state belongs to one thread.
pub(crate) struct Executor {
    counters: Arc<Counters>,
    /// A panic of a task is passed on, which ends the worker.
    stop_on_panic: bool,
    tasks: RefCell<Tasks>,
    /// No task is in `ready` or `yielded`.
    idle: Cell<bool>,
    /// Tasks that had yielded before this round.
    yielded: Cell<usize>,
    /// The task that is being polled, or [`NO_TASK`]; and whether it aborted itself.
    running: Cell<Key>,
    aborted: Cell<bool>,
    /// What is left of [`BUDGET`] to it.
    budget: Cell<i64>,
}

const NO_TASK: Key = Key::from_all_bits(u64::MAX);

/// Tasks that yielded and are polled in one round. Thousands of them may have work at any time, and
/// up to [`OPERATIONS_PER_POLL`] x [`OPERATION_BYTES`] each; tasks that were just woken come first,
/// and the driver has its next turn soon.
const YIELDED_PER_ROUND: usize = 4;

/// Socket operations that a task may complete in one poll before it must yield. Otherwise a
/// connection that always has data would monopolise the thread.
const OPERATIONS_PER_POLL: i64 = 32;

/// The cost of an operation beside its bytes: a task may move 256 KiB in one poll.
const OPERATION_BYTES: i64 = 8 * 1024;

/// What a task may spend in one poll, in bytes.
const BUDGET: i64 = OPERATIONS_PER_POLL * OPERATION_BYTES;

impl Executor {
    /// The number of the worker is part of the names of its tasks.
    pub(crate) fn new(worker: usize, counters: Arc<Counters>, stop_on_panic: bool) -> Executor {
        let slots = Slots::with_mark(worker as u16);
        Executor {
            counters,
            stop_on_panic,
            tasks: RefCell::new(Tasks { slots, ready: Vec::new(), yielded: VecDeque::new() }),
            idle: Cell::new(true),
            yielded: Cell::new(0),
            running: Cell::new(NO_TASK),
            aborted: Cell::new(false),
            budget: Cell::new(BUDGET),
        }
    }

    pub(crate) fn spawn(&self, future: BoxedFuture) -> Key {
        let mut tasks = self.tasks.borrow_mut();
        let key = tasks.slots.insert(Task { future, queued: true });
        tasks.ready.push(key);
        self.idle.set(false);
        key
    }

    /// Queues a poll of the task unless one is queued or the task has ended.
    pub(crate) fn wake(&self, key: Key) {
        let tasks = &mut *self.tasks.borrow_mut();
        let Some(task) = tasks.slots.get_mut(key) else { return };
        if !std::mem::replace(&mut task.queued, true) {
            self.idle.set(false);
            if self.running.get() == key {
                // It wakes itself.
                tasks.yielded.push_back(key);
            } else {
                tasks.ready.push(key);
            }
        }
    }

    /// Takes the wakes of other threads; returns how many there were.
    pub(crate) fn take_wakes(&self, inbox: &Inbox) -> u64 {
        let mut tasks = inbox.drain();
        let count = tasks.len();
        if count > WAKES_MAX {
            // It has lost count.
            tasks = self.tasks.borrow().slots.keys();
        }
        tasks.into_iter().for_each(|task| self.wake(task));
        count as u64
    }

    /// Polls the tasks that the driver has woken, then those that tasks and other threads have woken by then,
    /// then some of those that had yielded before. Tasks that become ready meanwhile wait for the next round, so
    /// the driver has a turn between rounds. `woken` is empty afterwards and keeps its allocation. True if no
    /// task is ready: the worker may sleep, and the eventfd ends that when another thread wakes a task.
    #[inline(always)]
    pub(crate) fn run(&self, woken: &mut Vec<Waker>) -> bool {
        for waker in &mut *woken {
            let found = task_of(waker).is_some_and(|task| self.poll(task, waker, false));
            if !found {
                wake_foreign(waker);
            }
        }
        // What is left are numbers, which need not be dropped.
        forget_all(woken);
        if !self.idle.get() {
            self.run_ready();
        }
        self.idle.get()
    }

    #[inline(never)]
    fn run_ready(&self) {
        let ready = self.tasks.borrow().ready.len();
        for at in 0..ready {
            self.poll_queued(|tasks| tasks.ready.get(at).copied());
        }
        drop(self.tasks.borrow_mut().ready.drain(..ready));
        for _ in 0..self.yielded.get().min(YIELDED_PER_ROUND) {
            self.poll_queued(|tasks| tasks.yielded.pop_front());
        }
        let tasks = self.tasks.borrow();
        self.yielded.set(tasks.yielded.len());
        self.idle.set(tasks.ready.is_empty() && tasks.yielded.is_empty());
    }

    fn poll_queued(&self, next: impl FnOnce(&mut Tasks) -> Option<Key>) {
        let key = next(&mut self.tasks.borrow_mut());
        key.into_iter().for_each(|key| _ = self.poll(key, &waker(key), true));
    }

    /// Polls a task if `queued` says whether it is queued: what is queued has its turn then. False if it is no
    /// task here, or has ended.
    #[inline(always)]
    fn poll(&self, key: Key, waker: &Waker, queued: bool) -> bool {
        let mut tasks = self.tasks.borrow_mut();
        let Some(task) = tasks.slots.get_mut(key) else { return false };
        if task.queued != queued {
            return true;
        }
        if queued {
            task.queued = false;
        }
        let future = InPlace::of(&mut task.future);
        drop(tasks);
        self.running.set(key);
        self.budget.set(BUDGET);
        // SAFETY: the box stays in its slot while the task runs: `abort` leaves it there, and nothing here is
        // polled within a poll.
        let polled = unsafe { future.poll(&mut Context::from_waker(waker)) };
        self.running.set(NO_TASK);
        if polled.is_ready() || self.aborted.get() {
            self.aborted.set(false);
            self.end_task(key);
        }
        true
    }

    #[inline(never)]
    fn end_task(&self, key: Key) {
        debug_assert_ne!(self.running.get(), key, "it is polled in its box");
        let task = self.tasks.borrow_mut().slots.remove(key);
        task.into_iter().for_each(|task| self.drop_task(task.future));
    }

    /// Drops a task at its current await; its destructors run before this returns, unless the task
    /// aborts itself, in which case they run when its poll returns.
    pub(crate) fn abort(&self, key: Key) {
        if self.running.get() == key {
            self.aborted.set(true);
        } else {
            self.end_task(key);
        }
    }

    /// Drops a task. A panic of its destructors affects no other task.
    fn drop_task(&self, future: BoxedFuture) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(future))) {
            let _nobody_waits_for_it = self.task_panicked(panic);
        }
    }

    /// A task has panicked and ended. Returns the panic, for the task's join handle; or passes it on,
    /// which ends the worker, if the runtime was built so.
    fn task_panicked(&self, panic: Panic) -> Option<Panic> {
        self.counters.panics.add(1);
        if self.stop_on_panic && !std::thread::panicking() {
            std::panic::resume_unwind(panic);
        }
        Some(panic)
    }

    pub(crate) fn abort_all(&self) {
        // It may be a task that panicked and ends the worker.
        self.running.set(NO_TASK);
        loop {
            let keys = self.tasks.borrow().slots.keys();
            if keys.is_empty() {
                return;
            }
            keys.into_iter().for_each(|key| self.abort(key));
        }
    }

    /// True unless the budget of the task being polled is used up: then it is woken, and has to yield.
    #[inline]
    pub(crate) fn has_budget(&self, cx: &Context<'_>) -> bool {
        let allowed = self.budget.get() > 0;
        if !allowed {
            cx.waker().wake_by_ref();
        }
        allowed
    }

    /// Takes an operation that moved this many bytes from the budget of the task being polled.
    #[inline]
    pub(crate) fn charge(&self, bytes: usize) {
        self.budget.set(self.budget.get() - OPERATION_BYTES - bytes as i64);
    }

    /// Takes the cost of moving this many bytes from the budget of the task being polled.
    pub(crate) fn spend_bytes(&self, bytes: usize) {
        self.budget.set(self.budget.get() - bytes as i64);
    }

    /// Takes one operation from the budget, and yields first if that is used up.
    pub(crate) async fn spend_or_yield(&self) {
        if self.budget.get() <= 0 {
            yield_now().await;
        }
        self.charge(0);
    }
}

/// Calls a waker that is not of a task here, or of one that has ended, and leaves one that need not be
/// dropped. A panic of such foreign code ends the worker.
#[cold]
fn wake_foreign(waker: &mut Waker) {
    std::mem::replace(waker, Waker::noop().clone()).wake();
}

/// Gives every other task of this worker that is ready, and its engine, a turn.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}
