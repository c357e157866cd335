//! The settings of a runtime, and the choice of its engine.

use super::{Notice, RUNNING, Runtime, RuntimeError, Shared, tick};
use crate::config::{EngineChoice, EpollOptions, Features, UringOptions};
use crate::confine::Uses;
use crate::counters::Counters;
use crate::probe::{self, Rights};
use crate::sync::{AtomicU8, Mutex};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(super) type NoticeHandler = Arc<dyn Fn(Notice) + Send + Sync>;

/// Settings of a [`Runtime`].
#[derive(Clone)]
pub struct Builder {
    pub(super) engine: EngineChoice,
    pub(super) uring: UringOptions,
    pub(super) epoll: EpollOptions,
    pub(super) workers: usize,
    pub(super) pin: Vec<usize>,
    pub(super) linger: Duration,
    pub(super) tick: Option<Duration>,
    pub(super) tick_phase: Duration,
    pub(super) call_times: bool,
    pub(super) confined: Option<Uses>,
    rights: Rights,
    pub(super) on_notice: NoticeHandler,
    pub(super) stop_on_panic: bool,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("engine", &self.engine)
            .field("workers", &self.workers)
            .field("pin", &self.pin)
            .field("tick", &self.tick)
            .field("tick_phase", &self.tick_phase)
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            engine: EngineChoice::Auto,
            uring: UringOptions::default(),
            epoll: EpollOptions::default(),
            workers: 1,
            pin: Vec::new(),
            linger: Duration::from_secs(5),
            tick: None,
            tick_phase: Duration::ZERO,
            call_times: false,
            confined: None,
            rights: Rights::default(),
            on_notice: Arc::new(|_| {}),
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

    /// Features of io_uring; the best the kernel allows by default.
    pub fn uring(mut self, options: UringOptions) -> Builder {
        self.uring = options;
        self
    }

    /// Features of epoll; edge-triggered by default.
    pub fn epoll(mut self, options: EpollOptions) -> Builder {
        self.epoll = options;
        self
    }

    /// Number of worker threads, 1 to 1,024; 1 by default.
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = workers;
        self
    }

    /// CPUs for the workers, one each in turn; empty (the default) leaves them to the scheduler.
    pub fn pin(mut self, cpus: Vec<usize>) -> Builder {
        self.pin = cpus;
        self
    }

    /// How long a dropped stream may go on sending what it had queued; 5 seconds by default.
    pub fn linger(mut self, limit: Duration) -> Builder {
        self.linger = limit;
        self
    }

    /// Tick mode: workers wake once per `period` (50 us to 1 s; 1 ms is typical), where
    /// CLOCK_MONOTONIC is a multiple of it, whatever arrives in between. In each tick timers fire
    /// and what their tasks send goes out first; what has arrived is handled after that. Saves much
    /// CPU under many small packets, and delays everything by up to a period. A worker to which nothing
    /// came for 100 ms, and for two ticks, sleeps until something does, and takes that at once. Off by
    /// default.
    pub fn tick(mut self, period: Duration) -> Builder {
        self.tick = Some(period);
        self
    }

    /// Ticks come this much after the multiples of their period. Two programs of one machine that
    /// send to each other cost more CPU when their ticks coincide, up to 1.7 times at 200,000
    /// datagrams a second: each is interrupted in what it does.
    pub fn tick_phase(mut self, phase: Duration) -> Builder {
        self.tick_phase = phase;
        self
    }

    /// Time the system calls that wait and those of datagram sockets, one by one, for
    /// [`call_times`](crate::call_times). Costs two readings of the clock for each. Off by default.
    pub fn call_times(mut self, on: bool) -> Builder {
        self.call_times = on;
        self
    }

    /// Has the kernel refuse whatever the program does not use, in each worker's ring (Linux 5.10;
    /// see [`confine`](crate::confine)). On epoll there is no ring, and nothing to do. Off by
    /// default.
    pub fn confine(mut self, uses: Uses) -> Builder {
        self.confined = Some(uses);
        self
    }

    /// Says which rights the process will have when the workers start and make their rings, if it gives
    /// some up before. By default it keeps those that it has.
    pub fn starts_with(mut self, rights: Rights) -> Builder {
        self.rights = rights;
        self
    }

    /// Has the first task that panics end the runtime: all workers stop, and
    /// [`run`](Runtime::run) or [`block_on`](Runtime::block_on) passes the panic on. For a program whose
    /// results are wrong when a task is missing. Off by default: a task that panics ends alone.
    pub fn stop_on_panic(mut self, on: bool) -> Builder {
        self.stop_on_panic = on;
        self
    }

    /// Called, on a worker thread, with things an operator should hear about.
    pub fn on_notice(mut self, handler: impl Fn(Notice) + Send + Sync + 'static) -> Builder {
        self.on_notice = Arc::new(handler);
        self
    }

    /// Chooses the engine and its features. No thread is started yet.
    ///
    /// # Errors
    /// When a requested engine or feature is refused (the message names the layer that refuses
    /// and what to change), or the number of workers or the tick is out of range.
    pub fn build(self) -> Result<Runtime, RuntimeError> {
        if !(1..=1024).contains(&self.workers) {
            let what = format!("{} workers: expected 1 to 1024", self.workers);
            return Err(RuntimeError::new(what, None));
        }
        if let Some(period) = self.tick.filter(|period| !tick::PERIODS.contains(period)) {
            let what = format!("a tick of {period:?}: expected 50 us to 1 s");
            return Err(RuntimeError::new(what, None));
        }
        let (features, why_not) = match self.engine {
            #[cfg(feature = "sim")]
            _ if crate::sim::World::current().is_some() => {
                (crate::sim::features(self.engine, &self.epoll, &self.uring), None)
            }
            EngineChoice::Epoll => (Features::Epoll(self.epoll.resolve()), None),
            choice => match probe::select_uring_with(&self.uring, self.workers, &self.rights) {
                Ok(features) => (Features::IoUring(features), None),
                Err(refusal) if choice == EngineChoice::Auto && refusal.allows_fallback() => {
                    (Features::Epoll(self.epoll.resolve()), Some(refusal.to_string()))
                }
                Err(refusal) => return Err(RuntimeError::new(refusal.to_string(), None)),
            },
        };
        let counters = |_| Arc::new(Counters::with_call_times(self.call_times));
        let workers = (0..self.workers).map(counters).collect();
        let shared = Arc::new(Shared {
            stage: AtomicU8::new(RUNNING),
            inboxes: Mutex::default(),
            blocking: Arc::default(),
            workers,
        });
        Ok(Runtime { builder: self, features, why_not, shared })
    }
}
