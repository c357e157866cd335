//! The result line of `twinring load http`.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::EncodedHistogram;
use super::requests::RequestResult;

/// The schema of this line.
pub(super) const SCHEMA: &str = "twinring.load.http/1";

/// The result of `twinring load http`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct HttpResult {
    pub(crate) settings: Settings,
    #[serde(flatten)]
    pub(crate) all: RequestResult,
    pub(crate) bytes: Bytes,
    pub(crate) ttfb_us: Quantiles,
    pub(crate) connect_us: Quantiles,
    /// Those of whole answers are with all requests.
    pub(crate) histograms: Option<HttpHistograms>,
    pub(crate) errors: Errors,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Settings {
    pub(crate) urls: u64,
    pub(crate) connections: u64,
    pub(crate) pipeline: u64,
    pub(crate) keepalive: bool,
    pub(crate) mode: String,
    /// What content is compared with; nothing if only status and length are looked at.
    pub(crate) verify_body: Option<String>,
    /// There if TLS was spoken.
    pub(crate) tls: Option<IgnoredAny>,
}

/// Bytes of the window.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Bytes {
    /// Content of the answers, without their heads.
    pub(crate) bodies: u64,
}

/// In nanoseconds.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct HttpHistograms {
    /// From the request to the first byte of its answer.
    pub(crate) ttfb: EncodedHistogram,
    /// Of connections being made.
    pub(crate) connect: EncodedHistogram,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Errors {
    pub(crate) connect: u64,
    pub(crate) tls: u64,
    pub(crate) reset: u64,
    pub(crate) closed_early: u64,
    pub(crate) timeout: u64,
    pub(crate) malformed: u64,
    pub(crate) status: u64,
    pub(crate) length: u64,
    pub(crate) hash: u64,
    pub(crate) other: u64,
}

impl Errors {
    /// Connections that broke or were never made.
    pub(crate) fn failures(&self) -> u64 {
        self.connect + self.tls + self.reset + self.closed_early + self.timeout + self.other
    }

    /// Answers that came and were wrong.
    pub(crate) fn wrong(&self) -> u64 {
        self.malformed + self.status + self.length + self.hash
    }
}
