//! Model checks of the wake-up of a worker.
//!
//! loom runs each of these models in every order in which its threads can meet, and with every
//! value that a load may return, up to [`PREEMPTIONS`]. The code under test is the production code:
//! inboxes, wakers, executor, and the stage of a runtime. Only eventfd and driver are stand-ins. A
//! lost wake-up shows as a worker that sleeps for ever, which loom calls a deadlock; a signal that
//! is never cleared as a worker that never sleeps, for which loom reports that the model is too
//! long.
//!
//! CONTRIBUTING.md has the command.

use super::{DRAINING, STOPPING, Shared};
use crate::sys::waker::waker;
use crate::task::{Executor, Registration, Watch};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// How often a thread is interrupted although it could continue, at most: a bound on the run time
/// of a model. Bugs of this kind need one or two; three take a minute, and found no further bug.
const PREEMPTIONS: usize = 2;

/// Checks a model with a worker, whose eventfd is watched in either way.
fn check(model: impl Fn(Machine) + Send + Sync + 'static) {
    let model = Arc::new(model);
    for watch in [Watch::Edge, Watch::Rearmed] {
        let mut builder = loom::model::Builder::new();
        // LOOM_MAX_PREEMPTIONS overrides this.
        builder.preemption_bound.get_or_insert(PREEMPTIONS);
        let model = Arc::clone(&model);
        builder.check(move || model(Machine::new(watch)));
    }
}

/// A worker without engine and timers.
struct Machine {
    registration: Arc<Registration>,
    executor: Executor,
    watch: Watch,
    finished: Rc<Cell<usize>>,
}

/// The event that a task waits for. Raising it establishes no order: the wake-up must.
type Flag = Arc<AtomicBool>;

impl Machine {
    fn new(watch: Watch) -> Machine {
        let registration = Arc::new(Registration::new().expect("a number"));
        let executor = Executor::new(registration.worker, Arc::default(), false);
        Machine { registration, executor, watch, finished: Rc::default() }
    }

    /// A task that waits for all of `flags`.
    fn spawn(&self, flags: &[Flag]) -> Waker {
        let flags = flags.to_vec();
        let finished = Rc::clone(&self.finished);
        let key = self.executor.spawn(Box::pin(poll_fn(move |_| {
            if !flags.iter().all(|flag| flag.load(Ordering::Relaxed)) {
                return Poll::Pending;
            }
            finished.set(finished.get() + 1);
            Poll::Ready(())
        })));
        waker(key)
    }

    /// Like `Worker::run_main` and `Worker::turn`, with the eventfd as the only event.
    fn run_until(&self, over: impl Fn() -> bool) {
        let inbox = &self.registration.inbox;
        loop {
            let idle = self.executor.run(&mut Vec::new());
            if over() {
                return;
            }
            inbox.eventfd.turn(self.watch, idle);
            if inbox.is_signalled() {
                self.executor.take_wakes(inbox);
            }
        }
    }

    fn run_until_finished(&self, tasks: usize) {
        self.run_until(|| self.finished.get() == tasks);
    }
}

fn flag() -> Flag {
    Arc::new(AtomicBool::new(false))
}

/// A thread that raises a flag and then wakes the waiting task.
fn raise(flag: &Flag, waker: Waker) -> thread::JoinHandle<()> {
    let flag = Arc::clone(flag);
    thread::spawn(move || {
        flag.store(true, Ordering::Relaxed);
        waker.wake();
    })
}

fn join<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn no_wake_is_lost() {
    check(|machine| {
        let threads = [flag(), flag()].map(|flag| raise(&flag, machine.spawn(&[flag.clone()])));
        machine.run_until_finished(2);
        join(threads);
    });
}

#[test]
fn no_wake_of_a_task_that_two_threads_wake_is_lost() {
    check(|machine| {
        let flags = [flag(), flag()];
        let waker = machine.spawn(&flags);
        let threads = flags.map(|flag| raise(&flag, waker.clone()));
        machine.run_until_finished(1);
        join(threads);
    });
}

/// The models' inboxes remember two wakes.
#[test]
fn no_wake_is_lost_when_an_inbox_overflows() {
    check(|machine| {
        let flags = [flag(), flag(), flag()];
        let wakers = flags.clone().map(|flag| machine.spawn(&[flag]));
        let [first, others @ ..] = flags;
        let [waker, other_wakers @ ..] = wakers;
        let many = thread::spawn(move || {
            others.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
            other_wakers.into_iter().for_each(Waker::wake);
        });
        let one = raise(&first, waker);
        machine.run_until_finished(3);
        join([many, one]);
    });
}

/// Shutdown and stop reach each worker through its inbox, without a task.
#[test]
fn no_shutdown_is_missed() {
    check(|machine| {
        machine.executor.spawn(Box::pin(pending()));
        let shared = Arc::new(Shared::new(vec![Arc::clone(&machine.registration)], Vec::new()));
        let threads = [DRAINING, STOPPING].map(|stage| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.advance_to(stage))
        });
        machine.run_until(|| shared.stage() >= DRAINING);
        machine.run_until(|| shared.stage() == STOPPING);
        join(threads);
    });
}
