//! The result of a run: the JSON of `docs/json.md`.

use crate::gates::Gate;
use crate::recorder::{Trouble, Troubles};
use crate::report::{Cpu, EncodedHistogram, Lag, Latency, RequestsReport, WholeRun, Window};
use crate::run::Share;
use crate::time_series::TimeSeriesReport;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::path::PathBuf;
use twinring::{CounterSnapshot, Features};

/// The `result` line of `twinring load http`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always `"result"`.
    pub event: &'static str,
    /// Always `"twinring.load.http/1"`.
    pub schema: &'static str,
    /// Scheme, host and port of the server.
    pub target: String,
    /// The engine of the load generator.
    pub engine: String,
    /// The engine's features in use.
    pub features: Features,
    /// Why `auto` did not take io_uring.
    pub why_not: Option<String>,
    /// The run was ended by a signal.
    pub interrupted: bool,
    /// What was asked for.
    pub settings: SettingsReport,
    /// The measured window.
    pub window: Window,
    /// Requests inside the window.
    pub requests: RequestsReport,
    /// Requests from the first connection to the last byte.
    pub whole_run: WholeRun,
    /// Bytes of the requests and answers inside the window.
    pub bytes: Bytes,
    /// Final answers of the whole run by class.
    pub statuses: Statuses,
    /// Latencies of the answers inside the window.
    pub latency_us: Latency,
    /// `"send"`, `"connect"`, or `"intended"` in an open loop.
    pub latency_from: &'static str,
    /// The same answers from when their requests really began, in an open loop.
    pub raw_latency_us: Option<Latency>,
    /// Time to the first byte of the answers inside the window.
    pub ttfb_us: Latency,
    /// Time to make a connection.
    pub connect_us: Latency,
    /// How late requests began against the schedule, in an open loop.
    pub schedule_lag_us: Option<Lag>,
    /// All latencies.
    pub histogram: EncodedHistogram,
    /// Those of the other times.
    pub histograms: Histograms,
    /// The window in intervals.
    pub time_series: TimeSeriesReport,
    /// What became of the requests by URL, for the first [`URLS_REPORTED_MAX`].
    pub urls: Vec<UrlReport>,
    /// Connections.
    pub connections: Connections,
    /// What went wrong, by kind.
    pub errors: ErrorCounts,
    /// The first of it in words.
    pub first_error: Option<String>,
    /// The gates that were asked for.
    pub gates: Vec<Gate>,
    /// CPU use of the worker threads inside the window.
    pub cpu: Cpu,
    /// Counters of the runtime, over the whole run.
    pub runtime_counters: CounterSnapshot,
    /// The latencies themselves.
    #[serde(skip)]
    pub latency_ns: Histogram<u64>,
}

/// URLs that a report lists.
pub const URLS_REPORTED_MAX: usize = 100;

impl Report {
    /// Why the run counts as failed, if it does.
    pub fn failure(&self) -> Option<String> {
        let errors = &self.errors;
        let wrong = errors.malformed + errors.length + errors.hash;
        if wrong > 0 {
            let ErrorCounts { malformed, length, hash, .. } = errors;
            return Some(format!(
                "{wrong} answers were wrong: {malformed} malformed, {length} of another length, \
                 {hash} of other content"
            ));
        }
        let Connections { lost, established, .. } = self.connections;
        if lost > 0 && lost == established {
            return Some("all connections were lost before the end".into());
        }
        if self.requests.answered == 0 && !self.interrupted {
            return Some("no request was answered as expected inside the window".into());
        }
        None
    }
}

/// What was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct SettingsReport {
    /// URLs.
    pub urls: u64,
    /// Method of the requests.
    pub method: String,
    /// Length of their content.
    pub body_bytes: u64,
    /// Connections.
    pub connections: u64,
    /// Requests in flight per connection, at most.
    pub pipeline: u64,
    /// Connections have more than one request.
    pub keepalive: bool,
    /// Worker threads.
    pub threads: u64,
    /// `"closed"` or `"open"`.
    pub mode: &'static str,
    /// Requests a second in an open loop.
    pub rate_per_s: Option<u64>,
    /// Number of requests after which the window ends.
    pub requests: Option<u64>,
    /// Decides which URL each request is for.
    pub seed: u64,
    /// Statuses that count as success.
    pub expect_status: String,
    /// What the lengths of content are compared with.
    pub length: Length,
    /// What content is compared with: `"first"`, `"file"`, or nothing.
    pub verify_body: Option<&'static str>,
    /// For https.
    pub tls: Option<TlsReport>,
    /// Load before the window, in seconds.
    pub warmup_s: f64,
    /// Length of the window, in seconds; with `requests`, its longest.
    pub duration_s: f64,
}

/// What the lengths of content are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Length {
    /// A number of bytes.
    Bytes(u64),
    /// `"first"` or `"any"`.
    Rule(&'static str),
}

/// TLS: what was asked for, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct TlsReport {
    /// The file with trusted certificates; without, those of the system are.
    pub ca: Option<PathBuf>,
    /// The certificate was not checked.
    pub insecure: bool,
    /// No session was resumed.
    pub full_handshake: bool,
    /// Of the first handshake.
    pub protocol: Option<String>,
    /// Of the first handshake.
    pub cipher_suite: Option<String>,
    /// Handshakes.
    pub handshakes: u64,
    /// Of them, those that resumed a session.
    pub resumed: u64,
}

/// Bytes inside the window, before TLS.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bytes {
    /// Of the requests sent.
    pub sent: u64,
    /// Of the whole answers.
    pub received: u64,
    /// Of their content.
    pub bodies: u64,
}

/// Final answers by class.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Statuses {
    #[serde(rename = "2xx")]
    pub of_2xx: u64,
    #[serde(rename = "3xx")]
    pub of_3xx: u64,
    #[serde(rename = "4xx")]
    pub of_4xx: u64,
    #[serde(rename = "5xx")]
    pub of_5xx: u64,
    pub other: u64,
}

/// Histograms beside that of the latency.
#[derive(Clone, Debug, Serialize)]
pub struct Histograms {
    /// Of `raw_latency_us`, in an open loop.
    pub raw: Option<EncodedHistogram>,
    /// Of `ttfb_us`.
    pub ttfb: EncodedHistogram,
    /// Of `connect_us`.
    pub connect: EncodedHistogram,
}

/// What became of the requests for one URL, over the whole run.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct UrlReport {
    pub url: String,
    pub weight: u32,
    pub sent: u64,
    pub answered: u64,
    pub failed: u64,
}

/// Connections.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Connections {
    /// Asked for.
    pub asked: u64,
    /// Stood before the load began.
    pub established: u64,
    /// Got at least one answer.
    pub served: u64,
    /// The largest number that stood and had been answered at the same time.
    pub served_at_once_max: u64,
    /// Of the established ones, those that could not be made again.
    pub lost: u64,
    /// New connections made in place of ones that had ended.
    pub reconnects: u64,
    /// Connections that the server did not close although it was asked to, or had said so.
    pub kept_open: u64,
    /// Fewest answers inside the window to any established connection.
    pub min_answered: u64,
    /// Most answers inside the window to any connection.
    pub max_answered: u64,
}

impl Connections {
    pub(super) fn of(all: &Share, asked: u64, at_once: u64, kept_open: u64) -> Connections {
        let shared = crate::report::Connections::of(all, asked, at_once, 0);
        Connections {
            asked,
            established: shared.established,
            served: shared.served,
            served_at_once_max: shared.served_at_once_max,
            lost: shared.lost,
            reconnects: shared.reconnects,
            kept_open,
            min_answered: shared.min_answered,
            max_answered: shared.max_answered,
        }
    }
}

/// What went wrong, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ErrorCounts {
    /// Attempts to connect that failed or took too long.
    pub connect: u64,
    /// Connections lost to TLS, most of them in the handshake.
    pub tls: u64,
    /// Connections that the server reset.
    pub reset: u64,
    /// Connections that the server closed before or inside an answer.
    pub closed_early: u64,
    /// Connections given up because an answer took too long.
    pub timeout: u64,
    /// Connections given up because something came that is no answer.
    pub malformed: u64,
    /// Answers with another status than expected.
    pub status: u64,
    /// Answers with content of another length.
    pub length: u64,
    /// Answers with other content.
    pub hash: u64,
    /// Connections lost otherwise.
    pub other: u64,
}

impl ErrorCounts {
    pub(super) fn of(troubles: &Troubles) -> ErrorCounts {
        ErrorCounts {
            connect: troubles.count(Trouble::Connect),
            tls: troubles.count(Trouble::Tls),
            reset: troubles.count(Trouble::Reset),
            closed_early: troubles.count(Trouble::ClosedEarly),
            timeout: troubles.count(Trouble::Timeout),
            malformed: troubles.count(Trouble::Malformed),
            status: troubles.count(Trouble::Status),
            length: troubles.count(Trouble::Length),
            hash: troubles.count(Trouble::Hash),
            other: troubles.count(Trouble::Other),
        }
    }

    pub(super) fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("connect", self.connect),
            ("tls", self.tls),
            ("reset", self.reset),
            ("closed early", self.closed_early),
            ("timeout", self.timeout),
            ("malformed", self.malformed),
            ("status", self.status),
            ("length", self.length),
            ("hash", self.hash),
            ("other", self.other),
        ]
    }
}
