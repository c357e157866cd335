//! Figures that others have published about the same work. They are data of the experiment, exactly as they were
//! printed, and stand beside ours in the report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What was published about one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Under which name it was published.
    pub source: String,
    /// What was measured there, as its table calls it.
    pub program: String,
    /// The subject of ours that works the same way.
    pub subject: String,
    /// The subject that is the published program itself, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub itself: Option<String>,
    /// Machine, kernel and network, in words.
    pub conditions: String,
    /// The program that it was published beside, and whose ratio of ours answers that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<PublishedAgainst>,
    /// Measurements of requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Printed>,
    /// A measurement of datagrams on a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<PublishedDatagrams>,
}

/// One published measurement of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Connections open at once.
    pub connections: u32,
    /// Bytes of a message or a file.
    #[serde(alias = "message_bytes", alias = "file_bytes")]
    pub bytes: u32,
    /// Requests per second; missing where no number was printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<f64>,
    /// Mean latency in milliseconds, if it was printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// What has to be known about it: what stands there instead of a number, or what is odd.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A comparison that was published: this program beside another of the same source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PublishedAgainst {
    /// The other program, as its own entry names it.
    pub program: String,
    /// Subjects of ours whose ratio answers it, each as `[subject, baseline]`.
    pub here: Vec<[String; 2]>,
}

/// One published measurement of datagrams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PublishedDatagrams {
    /// Streams of the published run.
    pub streams: u32,
    /// Packets per second of each of its streams.
    pub packets_per_s: u32,
    /// CPU of the published program in percent of a core, as its own process time.
    pub cpu_percent: f64,
    /// Where its time went, call by call, by the columns of its table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<BTreeMap<String, Value>>,
}
