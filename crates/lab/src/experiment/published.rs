//! Figures that others have published about the same work. They are data of the experiment and
//! stand beside ours in the report; nothing is computed from them but their units.

use serde::{Deserialize, Serialize};

/// One published measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
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
