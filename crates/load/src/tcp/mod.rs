//! Requests over TCP to a server that echoes them.
//!
//! A request is a message of a fixed size, its answer the same bytes. Each worker thread has its
//! own engine and its share of the connections, and each connection is one task
//! (`connection.rs`). All connections are made before any traffic; then all threads begin together
//! and count inside the same window of CLOCK_MONOTONIC.
//!
//! - Closed loop: a connection keeps `depth` requests in flight and sends another with each
//!   answer. The time of an answer is the time at which the next request begins, so requests in
//!   flight, rate and mean latency obey Little's law exactly.
//! - Open loop: requests leave on a [schedule](crate::schedule) whether or not answers come, up
//!   to `depth` in flight. Latency counts from the scheduled time, so a stalled server is charged
//!   for every request it holds up.
//! - Slow reader: connections send until the sockets take no more and read
//!   [`SLOW_READ_BYTES_PER_S`], to see what a server does under backpressure.

mod conductor;
mod connection;
mod control;
mod settings;
mod summary;
mod worker;

pub use settings::{
    OPEN_LOOP_DEPTH, SLOW_READ_BYTES_PER_S, SLOW_RECV_BUFFER_BYTES, SLOW_UNANSWERED_BYTES_MAX,
    Settings,
};

pub use crate::observer::{Observer, Phase, Progress};

use self::conductor::Conductor;
use self::control::{Control, Note};
use self::settings::Pace;
use self::summary::Run;
use crate::report::Report;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;
use twinring::{Features, Runtime, RuntimeError};

/// Bytes that closed connections may still send when the run is over: they were given up.
const LINGER: Duration = Duration::from_millis(100);

/// Why a run has no result.
#[derive(Debug)]
pub enum LoadError {
    /// The engine failed.
    Engine(RuntimeError),
    /// Not a single connection could be made.
    NoConnection {
        /// Address of the server.
        target: String,
        /// The first failure.
        why: String,
        /// Attempts.
        attempts: u64,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Engine(error) => write!(f, "the load generator's engine: {error}"),
            LoadError::NoConnection { target, why, attempts } => write!(
                f,
                "no connection to {target} could be made ({attempts} tried; {why}); check that \
                 the server is running and listens on that address"
            ),
        }
    }
}

impl Error for LoadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LoadError::Engine(error) => Some(error),
            LoadError::NoConnection { .. } => None,
        }
    }
}

/// Ends a run early, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    notes: Sender<Note>,
}

impl Stopper {
    /// Ends the window now; the run then reports what it has.
    pub fn stop(&self) {
        // Fails only when the run is over.
        let _over = self.notes.send(Note::Stop);
    }
}

/// A load that is ready to run.
pub struct Load {
    settings: Arc<Settings>,
    runtime: Runtime,
    notes: Sender<Note>,
    heard: Receiver<Note>,
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Load {
    /// Chooses the engine. The settings are taken as [checked](Settings::check).
    ///
    /// # Errors
    /// When the engine or a feature that was asked for is refused.
    pub fn new(settings: Settings) -> Result<Load, RuntimeError> {
        let runtime = Runtime::builder()
            .engine(settings.engine)
            .uring(settings.tuned_uring())
            .epoll(settings.epoll.clone())
            .workers(settings.threads)
            .pin(settings.pin.clone())
            .linger(LINGER)
            .build()?;
        let (notes, heard) = channel();
        Ok(Load { settings: Arc::new(settings), runtime, notes, heard })
    }

    /// The engine and its features.
    pub fn features(&self) -> &Features {
        self.runtime.features()
    }

    /// Why `auto` did not take io_uring.
    pub fn why_not(&self) -> Option<&str> {
        self.runtime.why_not()
    }

    /// A handle to end the run early.
    pub fn stopper(&self) -> Stopper {
        Stopper { notes: self.notes.clone() }
    }

    /// Connects, loads, measures. Returns when everything has ended.
    ///
    /// # Errors
    /// When the engine fails or no connection can be made.
    pub fn run(self, observer: &mut dyn Observer) -> Result<Report, LoadError> {
        let Load { settings, runtime, notes, heard } = self;
        let control = Arc::new(Control::new(settings.threads, settings.messages, notes));
        let (handle, features) = (runtime.handle(), runtime.features().clone());
        let why_not = runtime.why_not().map(str::to_owned);
        let mut conductor = Conductor::new(&settings, &control, heard, &handle, observer);
        let outcomes = thread::scope(|scope| {
            let (control, settings) = (Arc::clone(&control), Arc::clone(&settings));
            let engine = scope.spawn(move || {
                let outcomes = runtime
                    .run(|index| worker::work(index, Arc::clone(&settings), Arc::clone(&control)));
                control.note(Note::Ended);
                outcomes
            });
            conductor.conduct();
            engine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let outcomes = outcomes.map_err(LoadError::Engine)?.into_iter().flatten().collect();
        let run = Run {
            settings: &settings,
            features,
            why_not,
            window: control.window(),
            interrupted: conductor.interrupted(),
            served_at_once_max: control.served_at_once_max(),
            counters: handle.counters(),
        };
        run.report(outcomes)
    }
}
