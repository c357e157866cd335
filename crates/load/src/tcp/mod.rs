//! Requests over TCP to a server that echoes them.
//!
//! A request is a message of a fixed size, its answer the same bytes. Each worker thread has its
//! own engine and its share of the connections, and each connection is one task (`connection.rs`).
//! All connections are opened before any traffic; then all threads begin together and count inside
//! the same window of CLOCK_MONOTONIC.
//!
//! - Closed loop: a connection keeps `depth` requests in flight and sends another with each
//!   answer. The time of an answer is the time at which the next request begins, so requests in
//!   flight, rate and mean latency obey Little's law exactly.
//! - Open loop: requests leave on a [schedule](crate::schedule) regardless of answers, with up to
//!   `depth` in flight. Latency counts from the scheduled time, so a stalled server is charged for
//!   every request that it delays.
//! - Slow reader: connections send until the sockets are full and read [`SLOW_READ_BYTES_PER_S`],
//!   to test a server under backpressure.

mod connection;
mod settings;
mod summary;
mod table;
mod worker;

pub use settings::{
    OPEN_LOOP_DEPTH, SLOW_READ_BYTES_PER_S, SLOW_RECV_BUFFER_BYTES, SLOW_UNANSWERED_BYTES_MAX,
    Settings,
};

pub use self::table::Table;
pub use crate::observer::{Observer, Phase, Progress};
pub use crate::run::{LoadError, Stopper};

use crate::run::{Plan, Stage};
use std::fmt;
use std::sync::Arc;
use twinring::{Features, RuntimeError};
use twinring_wire::TcpResult;

/// A load that is ready to run.
pub struct Load {
    settings: Arc<Settings>,
    stage: Stage,
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Load {
    /// Chooses the engine. The settings must have been [checked](Settings::check).
    ///
    /// # Errors
    /// When the engine or a requested feature is refused.
    pub fn new(settings: Settings) -> Result<Load, RuntimeError> {
        let runtime = settings.workers.builder(settings.tuned_uring()).build()?;
        Ok(Load { settings: Arc::new(settings), stage: Stage::new(runtime) })
    }

    /// The engine and its features.
    pub fn features(&self) -> &Features {
        self.stage.runtime().features()
    }

    /// Why `auto` did not choose io_uring.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.stage.runtime().fallback_reason()
    }

    /// A handle to end the run early.
    pub fn stopper(&self) -> Stopper {
        self.stage.stopper()
    }

    /// Connects, loads, measures. Returns when all connections have ended.
    ///
    /// # Errors
    /// When the engine fails or no connection can be opened.
    pub fn run(self, observer: &mut dyn Observer) -> Result<TcpResult, LoadError> {
        let Load { settings, stage } = self;
        let plan = Plan {
            threads: settings.workers.threads,
            warmup: settings.warmup,
            duration: settings.duration,
            requests: settings.messages,
        };
        let shared = Arc::clone(&settings);
        let (outcomes, ran) = stage.run(plan, observer, move |index, control| {
            worker::work(index, Arc::clone(&shared), control)
        })?;
        summary::report(&settings, &ran, outcomes)
    }
}
