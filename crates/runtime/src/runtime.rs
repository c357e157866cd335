//! A runtime: an engine, and the worker threads that run on it.

mod builder;
#[cfg(all(test, loom))]
pub(crate) mod model;
mod worker;

use crate::blocking::{self, ThreadPool};
use crate::config::Features;
use crate::counters::{CounterSnapshot, Counters};
use crate::event::Event;
use crate::sync::AtomicU8;
use crate::task::Registration;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use builder::Builder;
pub(crate) use worker::{Worker, current, is_serving, with_current};
pub use worker::{shutdown_requested, submit};

pub(crate) fn failed(what: impl fmt::Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const STOPPING: u8 = 2;

/// State that the threads of a runtime share with its handles.
pub(crate) struct Shared {
    stage: AtomicU8,
    registrations: Vec<Arc<Registration>>,
    /// Threads for blocking work on files; none until they are needed.
    pub(crate) blocking: Arc<ThreadPool>,
    /// Others for files that may have to wait for a server: if it does not answer, its own files wait.
    pub(crate) remote: Arc<ThreadPool>,
    /// Likewise for [`spawn_blocking`](crate::spawn_blocking).
    pub(crate) spawned: Arc<ThreadPool>,
    workers: Vec<Arc<Counters>>,
}

impl Shared {
    fn new(registrations: Vec<Arc<Registration>>, workers: Vec<Arc<Counters>>) -> Shared {
        Shared {
            stage: AtomicU8::new(RUNNING),
            registrations,
            blocking: Arc::new(ThreadPool::new(blocking::FILES)),
            remote: Arc::new(ThreadPool::new(blocking::FILES)),
            spawned: Arc::new(ThreadPool::new(blocking::SPAWNED)),
            workers,
        }
    }

    fn stage(&self) -> u8 {
        self.stage.load(Ordering::Acquire)
    }

    /// How long the end of the runtime waits for operations on files, whose results are not needed
    /// any more. A dead filesystem server never answers; the operation is then abandoned with its
    /// memory. A program that continues prefers to wait for a slow disk. A program that was asked
    /// to end is being waited for, and gets here after its own deadline: then only the time of a
    /// cancellation on a busy machine is justified.
    fn patience(&self) -> Duration {
        match self.stage() {
            RUNNING => Duration::from_secs(1),
            _ => Duration::from_millis(500),
        }
    }

    fn advance_to(&self, stage: u8) {
        self.stage.fetch_max(stage, Ordering::AcqRel);
        self.registrations.iter().for_each(|worker| worker.inbox.signal());
    }
}

/// Controls a runtime from any thread.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Asks the services to finish: [`shutdown_requested`] becomes ready on every worker.
    pub fn shutdown(&self) {
        self.shared.advance_to(DRAINING);
    }

    /// Ends every worker at once; tasks are dropped at their current await.
    pub fn stop(&self) {
        self.shared.advance_to(STOPPING);
    }

    /// The counters of each worker, at this moment.
    pub fn worker_counters(&self) -> impl Iterator<Item = CounterSnapshot> {
        self.shared.workers.iter().map(|counters| counters.snapshot())
    }

    /// The counters summed over all workers, at this moment.
    pub fn counters(&self) -> CounterSnapshot {
        let mut sum = CounterSnapshot::default();
        self.worker_counters().for_each(|counters| sum.merge(&counters));
        sum
    }
}

/// An engine that was chosen, and the settings of its workers.
pub struct Runtime {
    builder: Builder,
    features: Features,
    /// Of the workers with odd numbers, if they use the other engine.
    second: Option<Features>,
    fallback_reason: Option<String>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("features", &self.features).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts from the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The engine in use and its features; those of worker 0, if the workers differ.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The engine of a worker and its features. They differ between workers only with
    /// [`Builder::side_by_side`].
    pub fn features_of(&self, worker: usize) -> &Features {
        self.second.as_ref().filter(|_| worker % 2 == 1).unwrap_or(&self.features)
    }

    /// Why `Auto` did not choose io_uring; `None` if it did or was not requested.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// Number of workers that [`run`](Runtime::run) starts.
    pub fn workers(&self) -> usize {
        self.builder.workers
    }

    /// A handle that works from any thread, before, during and after the run.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }

    /// Runs `service` once on each worker, with the worker's number from 0, and returns their
    /// results in order. A thread ends when its future has; its other tasks are then dropped, and
    /// streams dropped with queued data continue to send it within the linger limit. Fails when a
    /// worker cannot be set up (then all are stopped) or its engine fails. A worker that was
    /// stopped by [`Handle::stop`] yields `None`. A panic of one of the futures is passed on after
    /// the other workers were stopped; with [`Builder::stop_on_panic`] so is that of any task.
    pub fn run<F, Fut>(self, service: F) -> io::Result<Vec<Option<Fut::Output>>>
    where
        F: Fn(usize) -> Fut + Sync,
        Fut: Future,
        Fut::Output: Send,
    {
        let run_one = |index: usize| {
            let _stop_others = StopOnPanic(&self.shared);
            let outcome =
                Worker::start(&self, index).and_then(|worker| worker.run(service(index), None));
            outcome.inspect_err(|_| self.shared.advance_to(STOPPING))
        };
        if self.builder.workers == 1 {
            return run_one(0).map(|output| vec![output]);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.builder.workers)
                .map(|index| {
                    let thread = std::thread::Builder::new().name(format!("twinring-{index}"));
                    let started = thread.spawn_scoped(scope, move || run_one(index));
                    // At once: those that run are waited for first.
                    started.inspect_err(|_| self.shared.advance_to(STOPPING))
                })
                .collect();
            let joined = threads.into_iter().map(|thread| {
                let thread = thread.map_err(|error| failed("starting a worker thread", &error))?;
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            // All of them, before the first error counts.
            let outcomes: Vec<_> = joined.collect();
            outcomes.into_iter().collect()
        })
    }

    /// Runs one future on a worker on the calling thread. It may borrow from the caller; tasks that
    /// it spawns may not, and end with it. May be called again.
    ///
    /// Streams that were dropped with queued data continue to send it within the linger limit, but
    /// a peer that takes nothing for half a second is not waited for. Fails as
    /// [`run`](Runtime::run), and if the runtime was built for several workers, was stopped, or runs
    /// already.
    pub fn block_on<Fut>(&self, future: Fut) -> io::Result<Fut::Output>
    where
        Fut: Future,
    {
        if self.builder.workers != 1 {
            return Err(io::Error::other("block_on needs a runtime with one worker"));
        }
        Worker::start(self, 0)?
            .run(future, Some(STUCK))?
            .ok_or_else(|| io::Error::other("the runtime was stopped"))
    }
}

/// After [`Runtime::block_on`], a peer that takes nothing for this long is not waited for.
const STUCK: Duration = Duration::from_millis(500);

impl Drop for Runtime {
    fn drop(&mut self) {
        let shared = &self.shared;
        for (pool, stuck) in [
            (&shared.blocking, Event::FilesystemStuck as fn(usize) -> Event),
            (&shared.remote, Event::FilesystemStuck),
            (&shared.spawned, Event::BlockingStuck),
        ] {
            let threads = pool.close(shared.patience());
            if threads > 0 {
                (self.builder.on_event)(stuck(threads));
            }
        }
    }
}

/// Stops the other workers when one panics.
struct StopOnPanic<'a>(&'a Shared);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.advance_to(STOPPING);
        }
    }
}
