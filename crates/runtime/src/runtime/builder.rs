//! The settings of a runtime, and the choice of its engine.

use super::{Runtime, Shared, failed};
use crate::config::{Engine, EngineChoice, EpollOptions, Features, UringOptions};
use crate::confine::Uses;
use crate::event::Event;
use crate::probe::{self, Environment};
use crate::task::Registration;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub(super) type EventHandler = Arc<dyn Fn(Event) + Send + Sync>;

/// Settings of a [`Runtime`].
#[derive(Clone)]
pub struct Builder {
    pub(super) engine: EngineChoice,
    side_by_side: bool,
    pub(super) uring: UringOptions,
    pub(super) epoll: EpollOptions,
    pub(super) workers: usize,
    pub(super) pin: Vec<usize>,
    pub(super) linger: Duration,
    pub(super) confined: Option<Uses>,
    environment: Option<Environment>,
    pub(super) on_event: EventHandler,
    pub(super) stop_on_panic: bool,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            engine: EngineChoice::Auto,
            side_by_side: false,
            uring: UringOptions::default(),
            epoll: EpollOptions::default(),
            workers: 1,
            pin: Vec::new(),
            linger: Duration::from_secs(5),
            confined: None,
            environment: None,
            on_event: Arc::new(|_| {}),
            stop_on_panic: false,
        }
    }
}

impl Builder {
    /// The engine; `Auto` by default.
    pub fn engine(mut self, engine: EngineChoice) -> Builder {
        self.engine = engine;
        self
    }

    /// Runs the two engines beside each other, to compare them under the same traffic: workers with
    /// an even number use io_uring, those with an odd number epoll. Off by default, and without
    /// effect if the chosen engine is epoll.
    pub fn side_by_side(mut self, on: bool) -> Builder {
        self.side_by_side = on;
        self
    }

    /// Features of io_uring; the best the kernel allows by default.
    pub fn uring(mut self, options: UringOptions) -> Builder {
        self.uring = options;
        self
    }

    /// Features of epoll.
    pub fn epoll(mut self, options: EpollOptions) -> Builder {
        self.epoll = options;
        self
    }

    /// Number of worker threads, 1 to 1,024; 1 by default.
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = workers;
        self
    }

    /// CPUs for the workers, assigned in turn; empty (the default) leaves them to the scheduler.
    pub fn pin(mut self, cpus: Vec<usize>) -> Builder {
        self.pin = cpus;
        self
    }

    /// How long a dropped stream may continue to send its queued data; 5 seconds by default.
    pub fn linger(mut self, limit: Duration) -> Builder {
        self.linger = limit;
        self
    }

    /// Makes the kernel refuse operations that the program does not use, in each worker's ring
    /// (Linux 5.10; see [`confine`](crate::confine)). Has no effect on epoll, which has no ring.
    /// Off by default.
    pub fn confine(mut self, uses: Uses) -> Builder {
        self.confined = Some(uses);
        self
    }

    /// Declares the environment in which the workers start and create their rings, if the process
    /// drops rights before: capabilities or its group. By default it is the current one.
    pub fn starts_in(mut self, environment: Environment) -> Builder {
        self.environment = Some(environment);
        self
    }

    /// Makes the first task that panics end the runtime: all workers stop, and
    /// [`run`](Runtime::run) or [`block_on`](Runtime::block_on) passes the panic on. For programs
    /// whose results are wrong if a task is missing. Off by default: a panic ends its task only.
    pub fn stop_on_panic(mut self, on: bool) -> Builder {
        self.stop_on_panic = on;
        self
    }

    /// Called, on a worker thread, with notices for the operator.
    pub fn on_event(mut self, handler: impl Fn(Event) + Send + Sync + 'static) -> Builder {
        self.on_event = Arc::new(handler);
        self
    }

    /// Chooses the engine and its features. No thread is started yet. Fails when a requested engine
    /// or feature is refused (the message names the layer that refuses and what to change), or the
    /// number of workers is out of range.
    pub fn build(self) -> io::Result<Runtime> {
        if !(1..=1024).contains(&self.workers) {
            let what = format!("{} workers: expected 1 to 1024", self.workers);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let later = self.environment.as_ref();
        let (features, fallback_reason) = match self.engine {
            EngineChoice::Epoll => (Features::Epoll(self.epoll.clone()), None),
            choice => match probe::select_uring(&self.uring, self.workers, later) {
                Ok(features) => (Features::IoUring(features), None),
                Err(refusal) if choice == EngineChoice::Auto && refusal.allows_fallback() => {
                    (Features::Epoll(self.epoll.clone()), Some(refusal.to_string()))
                }
                Err(refusal) => return Err(io::Error::other(refusal)),
            },
        };
        let second = (self.side_by_side && features.engine() == Engine::IoUring)
            .then(|| Features::Epoll(self.epoll.clone()));
        let registrations = (0..self.workers).map(|_| Registration::new().map(Arc::new));
        let registrations = registrations
            .collect::<io::Result<_>>()
            .map_err(|error| failed("setting up the workers", &error))?;
        let workers = (0..self.workers).map(|_| Arc::default()).collect();
        let shared = Arc::new(Shared::new(registrations, workers));
        Ok(Runtime { builder: self, features, second, fallback_reason, shared })
    }
}
