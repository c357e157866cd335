//! The result line of `twinring load http`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::{EncodedHistogram, Latency};
use crate::load::Head;
use crate::requests::RequestResult;

/// The schema of this line.
pub const SCHEMA: &str = "twinring.load.http/1";

/// The result of `twinring load http`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct HttpResult {
    /// How every result begins.
    #[serde(flatten)]
    pub head: Head,
    /// The requested settings.
    pub settings: HttpSettings,
    /// The common part of requests over connections.
    #[serde(flatten)]
    pub all: RequestResult,
    /// Bytes of the requests and answers inside the window, before TLS.
    pub bytes: HttpBytes,
    /// Final answers inside the window by status.
    #[serde(default)]
    pub status_codes: BTreeMap<String, u64>,
    /// From when a request really began to the first byte of the final head of its answer, of the
    /// answers inside the window.
    pub ttfb_us: Latency,
    /// Histograms beside that of the latency.
    pub histograms: Option<HttpHistograms>,
    /// The outcomes of requests by URL, for the first 100.
    pub urls: Vec<Url>,
    /// Errors by kind.
    pub errors: HttpErrors,
}

/// The settings of `load http`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct HttpSettings {
    /// Addresses of the server that are used in turn.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// URLs.
    pub urls: u64,
    /// Method of the requests; several with commas.
    pub method: String,
    /// Length of their content.
    pub body_bytes: u64,
    /// Connections.
    pub connections: u64,
    /// Version of HTTP: `1.1` or `2`.
    #[serde(default = "http_1_1")]
    pub http: String,
    /// HTTP/2: the fewest streams that the server allowed on a connection; missing in HTTP/1.1 and
    /// without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams_max: Option<u64>,
    /// Requests in flight per connection, at most. With HTTP/2 each is a stream.
    pub pipeline: u64,
    /// Connections serve more than one request.
    pub keepalive: bool,
    /// Worker threads.
    pub threads: u64,
    /// `closed` or `open`.
    pub mode: String,
    /// Requests a second in an open loop.
    pub rate_per_s: Option<u64>,
    /// How the requests of an open loop follow each other: `periodic` or `poisson`.
    pub arrivals: Option<String>,
    /// Number of requests after which the window ends.
    pub requests: Option<u64>,
    /// Decides, with the connection and the number of a request, which URL it is for.
    pub seed: u64,
    /// Statuses that count as success.
    pub expect_status: String,
    /// The reference of content lengths.
    pub length: Option<Length>,
    /// The reference of content, compared by length and CRC-32: `first`, `file`, or `null` for
    /// none.
    pub verify_body: Option<String>,
    /// TLS; `null` without.
    pub tls: Option<Tls>,
    /// Load before the window, in seconds.
    pub warmup_s: f64,
    /// Length of the window, in seconds; with `requests`, its longest.
    pub duration_s: f64,
}

fn http_1_1() -> String {
    "1.1".to_owned()
}

/// The reference of content lengths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Length {
    /// A number of bytes.
    Bytes(u64),
    /// `first`: the first expected answer of each URL in any thread; or `any`.
    Rule(String),
}

/// TLS: the settings, and the results.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Tls {
    /// The file of `--tls-ca`; `null` means the certificates that the system trusts.
    pub ca: Option<String>,
    /// The certificate was not checked.
    pub insecure: bool,
    /// No session was resumed.
    pub full_handshake: bool,
    /// Protocol of the first handshake.
    pub protocol: Option<String>,
    /// Cipher suite of the first handshake.
    pub cipher_suite: Option<String>,
    /// Handshakes.
    pub handshakes: u64,
    /// Handshakes that resumed a session.
    pub resumed: u64,
}

/// Bytes inside the window, before TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct HttpBytes {
    /// Of the requests sent; with HTTP/2, of all frames.
    pub sent: u64,
    /// Of the whole answers, wrong ones, heads and framing included; with HTTP/2, of all frames.
    pub received: u64,
    /// Of their content.
    pub bodies: u64,
}

/// Histograms beside that of the latency.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct HttpHistograms {
    /// Of `raw_latency_us`.
    pub raw: Option<EncodedHistogram>,
    /// Of `ttfb_us`.
    pub ttfb: EncodedHistogram,
    /// Of `connect_us`.
    pub connect: EncodedHistogram,
}

/// The outcomes of the requests for one URL, over the whole run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Url {
    /// The URL.
    pub url: String,
    /// Its weight relative to the other URLs.
    pub weight: u32,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered as expected.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// Errors of `load http`, by kind. An answer counts under one kind, the first of status, length,
/// hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct HttpErrors {
    /// Attempts to connect that failed or took too long.
    pub connect: u64,
    /// Connections lost to TLS, most of them in the handshake.
    pub tls: u64,
    /// Connections that the server reset.
    pub reset: u64,
    /// Connections that the server closed with requests in flight, or inside an answer.
    pub closed_early: u64,
    /// Connections abandoned because an answer took longer than `--timeout`.
    pub timeout: u64,
    /// Connections abandoned because of an answer that is not HTTP; with HTTP/2, also requests whose
    /// answer was malformed.
    pub malformed: u64,
    /// Answers with another status than expected.
    pub status: u64,
    /// Answers with content of another length.
    pub length: u64,
    /// Answers with other content.
    pub hash: u64,
    /// HTTP/2: connections that the server ended by GOAWAY with an error code, or with requests that
    /// it did not process.
    #[serde(default)]
    pub goaway: u64,
    /// HTTP/2: requests that the server reset, except refused ones.
    #[serde(default)]
    pub stream_reset: u64,
    /// HTTP/2: requests that the server reset with REFUSED_STREAM, before it processed them.
    #[serde(default)]
    pub refused_stream: u64,
    /// Connections lost otherwise.
    pub other: u64,
}

impl HttpErrors {
    /// Connections that broke or were never established, and requests that the server dropped.
    pub fn failures(&self) -> u64 {
        crate::sum([
            self.connect,
            self.tls,
            self.reset,
            self.closed_early,
            self.timeout,
            self.goaway,
            self.stream_reset,
            self.refused_stream,
            self.other,
        ])
    }

    /// Adds those of others.
    pub fn add(&mut self, other: &HttpErrors) {
        add_counts!(
            self, other;
            connect, tls, reset, closed_early, timeout, malformed, status, length, hash, goaway,
            stream_reset, refused_stream, other
        );
    }

    /// Wrong answers.
    pub fn wrong(&self) -> u64 {
        crate::sum([self.malformed, self.status, self.length, self.hash])
    }
}

impl HttpResult {
    /// Why the run counts as failed, if it does.
    pub fn failure(&self) -> Option<String> {
        let HttpErrors { malformed, length, hash, .. } = self.errors;
        let wrong = crate::sum([malformed, length, hash]);
        if wrong > 0 {
            return Some(format!(
                "{wrong} answers were wrong: {malformed} malformed, {length} of another length, \
                 {hash} of other content"
            ));
        }
        self.all.failure(self.head.interrupted)
    }

    pub(crate) fn add(&mut self, other: HttpResult) -> Result<(), String> {
        add_counts!(self.settings, other.settings; connections);
        if other.settings.verify_body.is_none() {
            self.settings.verify_body = None;
        }
        add_counts!(self.bytes, other.bytes; bodies);
        self.errors.add(&other.errors);
        self.all.add(other.all)
    }
}
