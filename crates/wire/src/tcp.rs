//! The result line of `twinring load tcp`.

use serde::{Deserialize, Serialize};

use crate::load::Head;
use crate::requests::RequestResult;

/// The schema of this line.
pub const SCHEMA: &str = "twinring.load.tcp/1";

/// The result of `twinring load tcp`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct TcpResult {
    /// How every result begins.
    #[serde(flatten)]
    pub head: Head,
    /// The requested settings.
    pub settings: TcpSettings,
    /// The common part of requests over connections.
    #[serde(flatten)]
    pub all: RequestResult,
    /// Bytes of the requests and answers counted in `requests`.
    pub bytes: Bytes,
    /// Connections lost and attempts failed, by kind.
    pub errors: TcpErrors,
}

/// The settings of `load tcp`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct TcpSettings {
    /// Connections that send.
    pub connections: u64,
    /// Size of a request and of its answer.
    pub message_bytes: u64,
    /// Requests in flight per connection, at most.
    pub depth: u64,
    /// Worker threads.
    pub threads: u64,
    /// `closed` or `open`.
    pub mode: String,
    /// Requests a second in an open loop.
    pub rate_per_s: Option<u64>,
    /// How the requests of an open loop follow each other: `periodic` or `poisson`.
    pub arrivals: Option<String>,
    /// Requests per connection before it reconnects.
    pub churn: Option<u64>,
    /// Connections that only stay open.
    pub idle: u64,
    /// Answers are compared byte by byte; without, `errors.mismatch` is always 0.
    pub verify: bool,
    /// Number of requests after which the window ends.
    pub messages: Option<u64>,
    /// Load before the window, in seconds.
    pub warmup_s: f64,
    /// Length of the window, in seconds; with `messages`, its longest.
    pub duration_s: f64,
}

/// Payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Bytes {
    /// Bytes of requests sent inside the window.
    pub sent: u64,
    /// Bytes of their answers, or of the answers inside the window.
    pub received: u64,
}

/// Connections of `load tcp` that were lost and attempts that failed, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct TcpErrors {
    /// Attempts to connect that failed or took too long.
    pub connect: u64,
    /// Connections that the server reset.
    pub reset: u64,
    /// Connections that the server closed before all answers were received.
    pub closed_early: u64,
    /// Connections abandoned because an answer took too long.
    pub timeout: u64,
    /// Connections abandoned because an answer differed from its request.
    pub mismatch: u64,
    /// Connections lost otherwise.
    pub other: u64,
}

impl TcpErrors {
    /// All but mismatches, which are judged on their own.
    pub fn failures(&self) -> u64 {
        crate::sum([self.connect, self.reset, self.closed_early, self.timeout, self.other])
    }
}

impl TcpResult {
    /// Why the run counts as failed, if it does.
    pub fn failure(&self) -> Option<String> {
        if self.errors.mismatch > 0 {
            let count = self.errors.mismatch;
            return Some(format!("{count} connections got back other bytes than were sent"));
        }
        let (idle, opened) = (self.settings.idle, self.all.connections.idle_established);
        let missing = opened.filter(|opened| *opened < idle && !self.head.interrupted);
        let missing =
            missing.map(|opened| format!("{opened} of {idle} idle connections could be opened"));
        self.all.failure(self.head.interrupted).or(missing)
    }

    pub(crate) fn add(&mut self, other: TcpResult) -> Result<(), String> {
        add_counts!(self.settings, other.settings; connections);
        self.settings.verify &= other.settings.verify;
        add_counts!(
            self.errors, other.errors;
            connect, reset, closed_early, timeout, mismatch, other
        );
        self.all.add(other.all)
    }
}
