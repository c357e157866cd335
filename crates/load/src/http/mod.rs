//! Requests over HTTP/1.1 or HTTP/2, with TLS or without.
//!
//! A run works as with [`tcp`](crate::tcp). Each connection is one task that speaks one protocol:
//! - `http1.rs`: requests are built once, as bytes; answers are parsed incrementally
//!   (`answer.rs`, `head.rs`).
//! - `http2.rs`: requests are streams of the h2 crate.
//!
//! Every answer is verified (`expect.rs`).

mod answer;
mod choice;
mod client;
mod expect;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod http1;
mod http2;
mod link;
mod settings;
mod table;
mod target;
mod tls;

pub use self::expect::{ExpectedBody, ExpectedLength, Statuses};
pub use self::settings::{BODY_BYTES_MAX, Settings};
pub(crate) use self::table::Table;
pub use self::target::{Request, Target};
pub use self::tls::TlsSettings;
/// The method of a request.
pub use http::Method;
/// Header fields of a request.
pub use http::{HeaderName, HeaderValue};

use self::client::Shared;
use self::http1::Http1;
use self::http2::Http2;
use crate::observer::Observer;
use crate::recorder::{Recorder, Trouble, Troubles};
use crate::report::{head, of_requests};
use crate::requests::{Protocol, Share, run_thread};
use crate::run::{LoadError, Ran, run};
use std::io;
use std::sync::Arc;
use twinring_wire::HttpResult;
use twinring_wire::histogram::{EncodedHistogram, Latency};
use twinring_wire::http as wire;
use twinring_wire::http::{Bytes, Errors, Histograms, Url};

const URLS_REPORTED_MAX: usize = 100;

/// A load that is ready to run.
pub type Load = crate::Load<Settings>;

impl Load {
    /// Chooses the engine. The settings must have been [checked](Settings::check).
    ///
    /// # Errors
    /// When the engine or a requested feature is refused.
    pub fn new(settings: Settings) -> io::Result<Load> {
        let runtime = settings.common.workers.builder(settings.tuned_uring()).build()?;
        Ok(Load::of(settings, runtime))
    }

    /// Connects, loads, measures. Returns when all connections have ended.
    ///
    /// # Errors
    /// When TLS cannot be set up as configured, the engine fails or no connection can be opened.
    pub fn run(self, observer: &mut dyn Observer) -> Result<HttpResult, LoadError> {
        match self.settings.http2 {
            true => self.run_as::<Http2>(observer),
            false => self.run_as::<Http1>(observer),
        }
    }

    fn run_as<P>(self, observer: &mut dyn Observer) -> Result<HttpResult, LoadError>
    where
        P: Protocol<Shared = Shared>,
    {
        let shared = Arc::new(Shared::new(self.settings).map_err(LoadError::Setup)?);
        let (settings, stopper) = (&shared.settings, &self.stopper);
        let (shares, ran) =
            run(self.runtime, stopper, &settings.common, observer, |index, control| {
                run_thread::<P>(index, control, Arc::clone(&shared))
            })?;
        let target = settings.targets.first().map_or_else(String::new, Target::origin);
        let shown = format!("{target} at {}", settings.common.shown_addresses());
        let all = Share::sum(shares, &ran, &shown)?;
        Ok(report(settings, &all, &ran, target))
    }
}

fn report(settings: &Settings, all: &Share, ran: &Ran, target: String) -> HttpResult {
    let (counts, open) = (&all.recorder, settings.common.is_open());
    let latency_from = match (open, settings.keepalive) {
        (true, _) => "intended",
        (false, true) => "send",
        (false, false) => "connect",
    };
    let mut requests = of_requests(all, ran, latency_from, &settings.common);
    requests.connections.idle_established = None;
    HttpResult {
        head: head(wire::SCHEMA, target, ran),
        settings: settings.report(counts),
        all: requests,
        bytes: Bytes {
            sent: counts.sent_bytes,
            received: counts.received_bytes,
            bodies: counts.content_bytes,
        },
        status_codes: (counts.codes.iter())
            .map(|(status, count)| (status.to_string(), *count))
            .collect(),
        ttfb_us: Latency::of(&counts.first_byte_ns),
        histograms: Some(Histograms {
            raw: open.then(|| EncodedHistogram::of(&counts.raw_ns)),
            ttfb: EncodedHistogram::of(&counts.first_byte_ns),
            connect: EncodedHistogram::of(&counts.connect_ns),
        }),
        urls: urls(settings, counts),
        errors: errors(&counts.troubles),
    }
}

fn urls(settings: &Settings, counts: &Recorder) -> Vec<Url> {
    let rows = settings.targets.iter().zip(&counts.urls).take(URLS_REPORTED_MAX);
    rows.map(|(target, counted)| Url {
        url: target.url.clone(),
        weight: target.weight,
        sent: counted.sent,
        answered: counted.answered,
        failed: counted.failed,
    })
    .collect()
}

fn errors(troubles: &Troubles) -> Errors {
    Errors {
        connect: troubles.count(Trouble::Connect),
        tls: troubles.count(Trouble::Tls),
        reset: troubles.count(Trouble::Reset),
        closed_early: troubles.count(Trouble::ClosedEarly),
        timeout: troubles.count(Trouble::Timeout),
        malformed: troubles.count(Trouble::Malformed),
        status: troubles.count(Trouble::Status),
        length: troubles.count(Trouble::Length),
        hash: troubles.count(Trouble::Hash),
        goaway: troubles.count(Trouble::GoAway),
        stream_reset: troubles.count(Trouble::StreamReset),
        refused_stream: troubles.count(Trouble::RefusedStream),
        other: troubles.count(Trouble::Other),
    }
}
