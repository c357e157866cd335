//! A worker that is led step by step, by the world it lives in, instead of running by itself.

use super::worker::{CURRENT, Worker};
use super::{Runtime, RuntimeError, STOPPING};
use crate::driver::sim::{Course, Outputs, Running, World};
use crate::sys;
use crate::task::JoinHandle;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

impl Runtime {
    /// As [`run`](Runtime::run), in the world of the calling thread: returns at once, and the
    /// workers run when the world is told to go on.
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
        let runtime = Rc::new(self);
        let count = runtime.builder.workers;
        let outputs: Outputs<Fut::Output> =
            Rc::new(RefCell::new((0..count).map(|_| None).collect()));
        for index in 0..count {
            let worker = Worker::start(&runtime, index)?;
            worker.driver.borrow_mut().be_led();
            let slot = Rc::new(RefCell::new(None));
            let (main, output) = (service(index), Rc::clone(&slot));
            let main = JoinHandle::spawn(&worker, async move {
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
            world.add(Box::new(Led { runtime, worker, main, over, lingers: false }));
        }
        Ok(Running { outputs })
    }
}

struct Led {
    // Its threads, if it had any, end with the last of its workers.
    #[expect(dead_code, reason = "kept until the last worker is gone")]
    runtime: Rc<Runtime>,
    worker: Rc<Worker>,
    main: JoinHandle<()>,
    /// To be told how the worker ended; taken when it has.
    over: Option<Box<dyn FnOnce(Option<RuntimeError>)>>,
    /// The program is over; what it had queued is still being sent.
    lingers: bool,
}

impl Led {
    fn end(&mut self, error: Option<RuntimeError>) {
        self.worker.executor.abort_all();
        let mut wakes = Vec::new();
        self.worker.driver.borrow_mut().teardown(Duration::ZERO, &mut wakes);
        drop(wakes);
        if let Some(over) = self.over.take() {
            over(error);
        }
    }

    fn turn(&mut self) {
        let turned = match &self.worker.ticks {
            Some(ticks) => self.worker.turn_if_due(ticks),
            None => self.worker.turn(),
        };
        if let Err(error) = turned {
            self.end(Some(RuntimeError::new("the worker's engine failed", Some(error))));
        }
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
        let arrivals = !ticks && worker.driver.borrow().has_arrivals();
        let due = || self.next_deadline_ns().is_some_and(|at_ns| at_ns <= sys::monotonic_ns());
        let over = || self.lingers && !worker.driver.borrow_mut().is_lingering();
        worker.executor.has_ready() || signalled || arrivals || due() || over()
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        let deadline = match &self.worker.ticks {
            Some(ticks) => self.worker.next_turn(ticks),
            None => self.worker.next_deadline(),
        };
        let now = sys::now();
        let ahead = deadline?.saturating_duration_since(now);
        Some(sys::monotonic_ns() + ahead.as_nanos() as u64)
    }

    fn step(&mut self) {
        let _here = Here::enter(&self.worker);
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

    fn check(&self, resting: bool) -> Result<(), String> {
        self.worker.driver.borrow().check(resting)
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

/// Makes a worker the current one of its thread for the time of a step. There may be another one,
/// which waits in the middle of its own step.
struct Here {
    before: Option<Rc<Worker>>,
}

impl Here {
    fn enter(worker: &Rc<Worker>) -> Here {
        Here { before: CURRENT.replace(Some(Rc::clone(worker))) }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}
