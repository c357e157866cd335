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
use crate::task::{Executor, Registration};
use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::io;
use std::os::fd::RawFd;
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

/// Stands in for an eventfd(2), and for the drivers that watch it: system calls cannot be modelled, and a
/// blocking one would stop all threads of a model.
///
/// It guarantees no more order between threads than the kernel does: a thread that is notified of a
/// signal sees everything before the signal.
pub(crate) struct EventFd {
    count: AtomicU64,
    /// Signalled since an edge was last reported.
    edge: AtomicBool,
    sleeper: Notify,
}

/// How a worker watches its eventfd.
#[derive(Clone, Copy)]
enum Watch {
    /// EPOLLET, and a multishot poll of io_uring: each signal is reported once, if it can still be
    /// read by then.
    Edge,
    /// A poll of io_uring that ended: it is armed again, which reports a level, after the eventfd
    /// was cleared.
    Rearmed,
}

impl EventFd {
    pub(crate) fn new() -> io::Result<EventFd> {
        let (count, edge) = Default::default();
        Ok(EventFd { count, edge, sleeper: Notify::new() })
    }

    pub(crate) fn signal(&self) {
        self.count.fetch_add(1, Ordering::Release);
        // Not a store: in loom, a store can be overtaken by earlier swaps.
        self.edge.swap(true, Ordering::Release);
        self.sleeper.notify();
    }

    pub(crate) fn clear(&self) {
        self.count.swap(0, Ordering::Acquire);
    }

    /// A turn of the driver: takes a report if there is one, or sleeps until there is.
    fn turn(&self, watch: Watch, sleeps: bool) {
        while !self.is_reported(watch) && sleeps {
            self.sleeper.wait();
        }
    }

    fn is_reported(&self, watch: Watch) -> bool {
        let readable = || self.count.load(Ordering::Acquire) > 0;
        match watch {
            Watch::Edge => self.edge.swap(false, Ordering::Acquire) && readable(),
            Watch::Rearmed => {
                let reported = readable();
                if reported {
                    self.clear();
                }
                reported
            }
        }
    }

    /// No model has a driver that would use it.
    pub(crate) fn fd(&self) -> RawFd {
        -1
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
    fn spawn(&self, flags: Vec<Flag>) -> Waker {
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
}

/// Threads raise flags, and then wake the tasks that wait for one of them.
#[test]
fn no_wake_is_lost() {
    type Flags = &'static [&'static [usize]];
    // The flags that each task waits for, and those that each thread raises.
    let cases: [(Flags, Flags); 3] = [
        (&[&[0], &[1]], &[&[0], &[1]]),
        // Two threads wake one task.
        (&[&[0, 1]], &[&[0], &[1]]),
        // More than an inbox of a model remembers: two.
        (&[&[0], &[1], &[2]], &[&[0], &[1, 2]]),
    ];
    for (tasks, threads) in cases {
        check(move |machine| {
            let flags: [Flag; 3] = Default::default();
            let spawn =
                |flag: &&[usize]| machine.spawn(flag.iter().map(|it| flags[*it].clone()).collect());
            let wakers: Vec<_> = tasks.iter().map(spawn).collect();
            let raise = |raised: &&'static [usize]| {
                let (raised, flags) = (*raised, flags.clone());
                let waits = |task: &&[usize]| task.iter().any(|flag| raised.contains(flag));
                let woken = tasks.iter().zip(&wakers).filter(|(task, _)| waits(task));
                let woken: Vec<_> = woken.map(|(_, waker)| waker.clone()).collect();
                thread::spawn(move || {
                    raised.iter().for_each(|flag| flags[*flag].store(true, Ordering::Relaxed));
                    woken.into_iter().for_each(Waker::wake);
                })
            };
            let threads: Vec<_> = threads.iter().map(raise).collect();
            machine.run_until(|| machine.finished.get() == tasks.len());
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
    }
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
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}
