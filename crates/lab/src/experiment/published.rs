//! Figures that others have published about the same work. They are data of the experiment and
//! stand beside ours in the report; nothing is computed from them but their units.

use serde::{Deserialize, Serialize};

/// What was published about one program. The fields tell which kind it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Published {
    /// CPU of a program that exchanges datagrams on a schedule.
    Datagrams(PublishedDatagrams),
    /// Requests per second of a server of files.
    Requests(PublishedRequests),
}

impl Published {
    /// Under which name it was published.
    pub fn source(&self) -> &str {
        match self {
            Published::Datagrams(published) => &published.source,
            Published::Requests(published) => &published.source,
        }
    }

    /// The subject of ours that works the same way.
    pub fn subject(&self) -> &str {
        match self {
            Published::Datagrams(published) => &published.subject,
            Published::Requests(published) => &published.subject,
        }
    }

    /// Machine, kernel and network, in words.
    pub fn conditions(&self) -> &str {
        match self {
            Published::Datagrams(published) => &published.conditions,
            Published::Requests(published) => &published.conditions,
        }
    }
}

/// One published measurement of datagrams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedDatagrams {
    /// Under which name it was published.
    pub source: String,
    /// The subject of ours that works the same way.
    pub subject: String,
    /// Streams of the published run.
    pub streams: u32,
    /// Packets per second of each of its streams.
    pub packets_per_s: u32,
    /// CPU of the published program in percent of a core, as its own process time.
    pub cpu_percent: f64,
    /// Machine, kernel and network, in words.
    pub conditions: String,
    /// Where its time went, call by call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PublishedCall>,
}

/// Published measurements of one server of files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRequests {
    /// Under which name they were published.
    pub source: String,
    /// What was measured there, in a word or two.
    pub program: String,
    /// The subject of ours that is closest to it.
    pub subject: String,
    /// Machine, kernel and network, in words.
    pub conditions: String,
    /// The measurements.
    pub measured: Vec<PublishedRate>,
}

/// One published measurement of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRate {
    /// Connections open at once.
    pub connections: u32,
    /// Bytes of the file.
    pub file_bytes: u32,
    /// Requests per second.
    pub requests_per_s: f64,
    /// Mean latency in milliseconds.
    pub mean_ms: f64,
}

/// One row of a published table of calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedCall {
    /// The function.
    pub call: String,
    /// Seconds spent in it, all calls together.
    pub time_s: f64,
    /// How often it was called.
    pub count: u64,
    /// Its part of the run, in percent.
    pub run_percent: f64,
    /// The longest call, in milliseconds.
    pub max_ms: f64,
}

impl PublishedCall {
    /// Calls per second; the length of the run follows from time and part.
    pub fn per_second(&self) -> f64 {
        self.count as f64 / (self.time_s / (self.run_percent / 100.0))
    }

    /// Mean time of a call in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.time_s * 1e6 / self.count as f64
    }
}
