//! Figures that others have published about the same work. They are data of the experiment, exactly
//! as they were printed, and stand beside ours in the report. What is made of them there is in
//! `reproduction.rs`.

use serde::{Deserialize, Serialize};

/// What was published about one program. The fields tell which kind it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Published {
    /// CPU of a program that exchanges datagrams on a schedule.
    Datagrams(PublishedDatagrams),
    /// Requests per second of a server of files.
    Requests(PublishedRequests),
    /// Requests per second of an echo server.
    Echo(PublishedEcho),
}

/// One published measurement of requests, of whichever kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Printed<'a> {
    /// Connections open at once.
    pub connections: u32,
    /// Bytes of a message or a file.
    pub bytes: u32,
    /// Requests per second, if a number was printed.
    pub requests_per_s: Option<f64>,
    /// Mean latency in milliseconds, if it was printed.
    pub mean_ms: Option<f64>,
    /// What has to be known about it.
    pub note: &'a str,
}

impl Published {
    /// Under which name it was published.
    pub fn source(&self) -> &str {
        match self {
            Published::Datagrams(published) => &published.source,
            Published::Requests(published) => &published.source,
            Published::Echo(published) => &published.source,
        }
    }

    /// The subject of ours that works the same way.
    pub fn subject(&self) -> &str {
        match self {
            Published::Datagrams(published) => &published.subject,
            Published::Requests(published) => &published.subject,
            Published::Echo(published) => &published.subject,
        }
    }

    /// Machine, kernel and network, in words.
    pub fn conditions(&self) -> &str {
        match self {
            Published::Datagrams(published) => &published.conditions,
            Published::Requests(published) => &published.conditions,
            Published::Echo(published) => &published.conditions,
        }
    }

    /// What was measured there: the program, or where it has no name the subject of ours.
    pub fn program(&self) -> &str {
        match self {
            Published::Datagrams(published) => &published.subject,
            Published::Requests(published) => &published.program,
            Published::Echo(published) => &published.program,
        }
    }

    /// The subjects of ours that stand beside it: what works the same way, and the published
    /// program itself where that can be run.
    pub fn subjects(&self) -> impl Iterator<Item = &str> {
        let itself = match self {
            Published::Echo(published) => published.itself.as_deref(),
            Published::Datagrams(_) | Published::Requests(_) => None,
        };
        std::iter::once(self.subject()).chain(itself)
    }

    /// With which other program of the same source it is compared, and which of ours answer that.
    pub fn against(&self) -> Option<&PublishedAgainst> {
        match self {
            Published::Datagrams(_) => None,
            Published::Requests(published) => published.against.as_ref(),
            Published::Echo(published) => published.against.as_ref(),
        }
    }

    /// The measurements of requests; none of datagrams.
    pub fn printed(&self) -> Vec<Printed<'_>> {
        let of_file = |rate: &PublishedRate| Printed {
            connections: rate.connections,
            bytes: rate.file_bytes,
            requests_per_s: Some(rate.requests_per_s),
            mean_ms: Some(rate.mean_ms),
            note: "",
        };
        match self {
            Published::Datagrams(_) => Vec::new(),
            Published::Requests(published) => published.measured.iter().map(of_file).collect(),
            Published::Echo(published) => published.measured.iter().map(Printed::from).collect(),
        }
    }
}

/// One published measurement of datagrams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// The program that it was published beside, and whose ratio of ours answers that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<PublishedAgainst>,
    /// The measurements.
    pub measured: Vec<PublishedRate>,
}

/// Published measurements of one echo server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PublishedEcho {
    /// Under which name they were published.
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
    /// The measurements.
    pub measured: Vec<PublishedEchoRate>,
}

/// One published measurement of an echo.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PublishedEchoRate {
    /// Connections open at once.
    pub connections: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Requests per second; missing where no number was printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<f64>,
    /// What has to be known about it: what stands there instead of a number, or what is odd.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl<'a> From<&'a PublishedEchoRate> for Printed<'a> {
    fn from(rate: &'a PublishedEchoRate) -> Printed<'a> {
        Printed {
            connections: rate.connections,
            bytes: rate.message_bytes,
            requests_per_s: rate.requests_per_s,
            mean_ms: None,
            note: &rate.note,
        }
    }
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

/// One published measurement of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
