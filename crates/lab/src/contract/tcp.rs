//! The result line of `twinring load tcp`.

use serde::Deserialize;

use super::{ClientCpu, EncodedHistogram, Window};

/// The schema of this line.
pub(super) const SCHEMA: &str = "twinring.load.tcp/1";

/// The result of `twinring load tcp`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TcpResult {
    pub(crate) settings: Settings,
    pub(crate) window: Window,
    pub(crate) requests: Requests,
    pub(crate) whole_run: WholeRun,
    pub(crate) latency_us: Latency,
    pub(crate) schedule_lag_us: Option<ScheduleLag>,
    pub(crate) histogram: EncodedHistogram,
    pub(crate) connections: Connections,
    pub(crate) errors: Errors,
    pub(crate) first_error: Option<String>,
    pub(crate) cpu: ClientCpu,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Settings {
    pub(crate) connections: u64,
    pub(crate) depth: u64,
    pub(crate) mode: String,
    pub(crate) verify: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Requests {
    pub(crate) answered: u64,
    pub(crate) per_second: f64,
    /// Age of the oldest request that had no answer when the run ended.
    pub(crate) oldest_in_flight_us: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WholeRun {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) abandoned: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p99: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ScheduleLag {
    pub(crate) p99: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Connections {
    pub(crate) served_at_once_max: u64,
    pub(crate) min_answered: u64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Errors {
    pub(crate) connect: u64,
    pub(crate) reset: u64,
    pub(crate) closed_early: u64,
    pub(crate) timeout: u64,
    pub(crate) mismatch: u64,
    pub(crate) other: u64,
}

impl Errors {
    /// All but mismatches, which are judged on their own.
    pub(crate) fn failures(&self) -> u64 {
        self.connect + self.reset + self.closed_early + self.timeout + self.other
    }
}
