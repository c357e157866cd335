//! A worker that its world runs step by step, instead of running by itself.

use super::tick::Ticks;
use super::worker::{Worker, set_current};
use super::{CloseBlocking, Runtime, RuntimeError, STOPPING};
use crate::driver::Side;
use crate::sim::World;
use crate::slots::Key;
use crate::sys;
use crate::sys::machine::world::{self, Course, Outputs, Running};
use crate::task::JoinHandle;
use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

impl Runtime {
    /// Like [`run`](Runtime::run), in the world of the calling thread: returns at once, and the
    /// workers run when the world runs.
    ///
    /// # Errors
    /// When a worker cannot be set up, or the calling thread is in no world.
    pub fn start<F, Fut>(self, service: F) -> Result<Running<Fut::Output>, RuntimeError>
    where
        F: Fn(usize) -> Fut,
        Fut: Future + 'static,
    {
        let nowhere = || RuntimeError::new("Runtime::start outside a simulated world", None);
        let world = World::current().ok_or_else(nowhere)?;
        let count = self.builder.workers;
        let runtime = Rc::new(Started(self));
        let outputs: Outputs<Fut::Output> =
            Rc::new(RefCell::new((0..count).map(|_| None).collect()));
        for index in 0..count {
            let worker = Worker::start(&runtime.0, index)?;
            let slot = Rc::new(RefCell::new(None));
            let (main, output) = (service(index), Rc::clone(&slot));
            let main = JoinHandle::spawn(&worker.executor, async move {
                let finished = main.await;
                *output.borrow_mut() = Some(finished);
            });
            let outputs = Rc::clone(&outputs);
            let over = move |error: Option<RuntimeError>| {
                let outcome = match error {
                    Some(error) => Err(error),
                    None => Ok(slot.borrow_mut().take()),
                };
                outputs.borrow_mut()[index] = Some(outcome);
            };
            let over = Some(Box::new(over) as Box<dyn FnOnce(Option<RuntimeError>)>);
            let runtime = Rc::clone(&runtime);
            world.add(Box::new(Led {
                runtime,
                worker,
                main,
                over,
                lingers: false,
                waits_for: None,
            }));
        }
        Ok(Running { outputs })
    }
}

/// Its threads end with the last of its workers.
struct Started(Runtime);

impl Drop for Started {
    fn drop(&mut self) {
        drop(CloseBlocking { runtime: &self.0 });
    }
}

struct Led {
    worker: Rc<Worker>,
    main: JoinHandle<()>,
    /// Called when the worker has ended; taken by then.
    over: Option<Box<dyn FnOnce(Option<RuntimeError>)>>,
    /// The program has ended; its queued data is still being sent.
    lingers: bool,
    /// The epoll set or ring on which the last step would have blocked; `None` if it continues.
    waits_for: Option<RawFd>,
    #[expect(dead_code, reason = "kept until the last worker is gone, and dropped last")]
    runtime: Rc<Started>,
}

impl Led {
    fn end(&mut self, error: Option<RuntimeError>) {
        self.worker.abort_tasks();
        let mut wakes = Vec::new();
        self.worker.driver.borrow_mut().teardown(Duration::ZERO, &mut wakes);
        drop(wakes);
        if let Some(over) = self.over.take() {
            over(error);
        }
    }

    fn turn(&mut self) {
        let turned = match &self.worker.ticks {
            Some(ticks) => turn_if_due(&self.worker, ticks),
            None => self.worker.turn(),
        };
        if let Err(error) = turned {
            self.end(Some(RuntimeError::new("the worker's engine failed", Some(error))));
        }
    }
}

/// As [`Worker::turn_in_ticks`], for a worker that must not wait itself.
fn turn_if_due(worker: &Worker, ticks: &Ticks) -> io::Result<()> {
    worker.run_and_submit(ticks)?;
    let signalled = worker.registration.inbox().is_signalled();
    let due = || worker.next_turn(ticks).is_none_or(|next| sys::now() >= next);
    match signalled || ticks.rests() || due() {
        true => worker.turn_in_ticks(ticks),
        false => Ok(()),
    }
}

impl Course for Led {
    fn is_over(&self) -> bool {
        self.over.is_none()
    }

    fn is_runnable(&self) -> bool {
        let worker = &self.worker;
        let signalled = worker.registration.inbox().is_signalled();
        let ticks = worker.ticks.as_ref().is_some_and(|ticks| !ticks.rests());
        let reports = || self.waits_for.is_none_or(world::has_reports);
        let arrivals = !ticks && (worker.driver.borrow().has_arrivals() || reports());
        let due = || self.next_deadline_ns().is_some_and(|at_ns| at_ns <= sys::monotonic_ns());
        let over = || self.lingers && !worker.driver.borrow_mut().is_lingering();
        worker.executor.has_ready() || signalled || arrivals || due() || over()
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        let deadline = match &self.worker.ticks {
            Some(ticks) => self.worker.next_turn(ticks),
            None => self.worker.next_deadline(),
        };
        let now = Instant::now();
        let ahead = deadline?.saturating_duration_since(now);
        Some(sys::monotonic_ns() + ahead.as_nanos() as u64)
    }

    fn step(&mut self) {
        let _here = Here::enter(&self.worker);
        self.waits_for = world::lead(|| self.take_step());
    }

    /// A task that waits for data that its socket has, of which the engine was notified, and will
    /// not be notified again, waits for ever.
    fn check(&self, resting: bool) -> Result<(), String> {
        let Some(set) = self.waits_for.filter(|_| resting) else { return Ok(()) };
        let Some(machine) = world::machine() else { return Ok(()) };
        let mut driver = self.worker.driver.borrow_mut();
        let told = machine.kernel.borrow_mut().told_of(set);
        for told in told.iter().filter(|told| told.bits & libc::EPOLLIN as u32 != 0) {
            let queue = driver.wait_queue(Key::from_bits(told.data), Side::Receive);
            if queue.is_some_and(|queue| !queue.is_empty()) {
                return Err("a task waits for data that has arrived".into());
            }
        }
        Ok(())
    }
}

impl Led {
    fn take_step(&mut self) {
        if !self.lingers {
            self.worker.executor.run_ready();
            if !self.main.is_finished() && self.worker.stage() != STOPPING {
                return self.turn();
            }
            if let Some(panic) = self.main.take_panic() {
                std::panic::resume_unwind(panic);
            }
            self.worker.executor.abort_all();
            self.lingers = true;
        }
        let lingering = self.worker.driver.borrow_mut().is_lingering();
        if lingering && self.worker.stage() != STOPPING {
            self.turn();
        } else {
            self.end(None);
        }
    }
}

impl Drop for Led {
    fn drop(&mut self) {
        let _here = Here::enter(&self.worker);
        self.worker.executor.abort_all();
        let mut wakes = Vec::new();
        if let Ok(mut driver) = self.worker.driver.try_borrow_mut() {
            driver.teardown(Duration::ZERO, &mut wakes);
        }
    }
}

/// Makes a worker the current one of its thread for a step. Another one may be waiting in the
/// middle of its own step.
struct Here {
    before: Option<Rc<Worker>>,
}

impl Here {
    fn enter(worker: &Rc<Worker>) -> Here {
        Here { before: set_current(Some(Rc::clone(worker))) }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        set_current(self.before.take());
    }
}
