//! Requests over HTTP/1.1 or HTTP/2, with TLS or without.
//!
//! A run works as with [`tcp`](crate::tcp): each worker thread has its own engine and its share of
//! the connections, and each connection is one task (`connection.rs`) that speaks one protocol:
//! - `http1.rs`: requests are built once, as bytes (`outbox.rs`); answers are parsed incrementally
//!   (`answer.rs`, `head.rs`).
//! - `http2.rs`: requests are streams of the h2 crate.
//!
//! Every answer is verified (`expect.rs`).
//!
//! - Closed loop: a connection keeps `pipeline` requests in flight and sends another with each
//!   answer.
//! - Open loop: each connection has its share of a [schedule](crate::schedule). Latency counts from
//!   the scheduled time, so a stalled server is charged for every request that it delays; the
//!   latency from the actual start is reported too.

mod answer;
mod choice;
mod chunked;
mod connection;
mod counts;
mod expect;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod http1;
mod http2;
mod link;
mod outbox;
mod settings;
mod summary;
mod table;
mod target;
mod tls;
mod work;
mod worker;

pub use self::expect::{ExpectedBody, ExpectedLength, Statuses};
pub use self::settings::{BODY_BYTES_MAX, Settings};
pub use self::table::Table;
pub use self::target::{Request, Target};
pub use self::tls::TlsSettings;
pub use crate::observer::{Observer, Phase, Progress};
pub use crate::run::{LoadError, Stopper};
/// The method of a request.
pub use http::Method;
/// Header fields of a request.
pub use http::{HeaderName, HeaderValue};

use self::choice::Choice;
use self::expect::Expectation;
use self::tls::TlsClient;
use self::worker::Shared;
use crate::run::{Plan, Stage};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use twinring_wire::HttpResult;

/// A load that is ready to run.
pub struct Load {
    shared: Arc<Shared>,
    stage: Stage,
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Load {
    /// Chooses the engine and reads certificates. The settings must have been
    /// [checked](Settings::check).
    ///
    /// # Errors
    /// When the engine or a requested feature is refused, or TLS cannot be set up as configured.
    pub fn new(settings: Settings) -> Result<Load, LoadError> {
        let tls = match settings.targets.first().filter(|target| target.is_tls()) {
            Some(target) => Some(
                TlsClient::new(&settings.tls, target.host(), settings.http2)
                    .map_err(LoadError::Tls)?,
            ),
            None => None,
        };
        let runtime =
            settings.workers.builder(settings.tuned_uring()).build().map_err(LoadError::Engine)?;
        let expectation = Expectation::new(
            settings.statuses.clone(),
            settings.length,
            &settings.body,
            settings.targets.len(),
        );
        let weights = settings.targets.iter().map(|target| target.weight);
        let choice = Choice::new(weights, settings.seed);
        let http2_requests = settings.http2_requests().map_err(LoadError::Request)?;
        let body = Bytes::from(settings.request.body.clone());
        let shared = Arc::new(Shared { expectation, choice, tls, http2_requests, body, settings });
        Ok(Load { shared, stage: Stage::new(runtime) })
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
    pub fn run(self, observer: &mut dyn Observer) -> Result<HttpResult, LoadError> {
        let Load { shared, stage } = self;
        let settings = &shared.settings;
        let plan = Plan {
            threads: settings.workers.threads,
            warmup: settings.warmup,
            duration: settings.duration,
            requests: settings.requests,
        };
        let for_threads = Arc::clone(&shared);
        let (outcomes, ran) = stage.run(plan, observer, move |index, control| {
            work::work(index, Arc::clone(&for_threads), control)
        })?;
        summary::report(&shared.settings, &ran, outcomes)
    }
}
