//! What the results of `twinring load tcp` and `twinring load http` have in common: requests over
//! connections.

use serde::Deserialize;

use super::{ClientCpu, EncodedHistogram, Window};

/// The common fields of both results.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RequestResult {
    pub(crate) window: Window,
    pub(crate) requests: Requests,
    pub(crate) whole_run: WholeRun,
    pub(crate) latency_us: Latency,
    pub(crate) schedule_lag_us: Option<ScheduleLag>,
    pub(crate) histogram: EncodedHistogram,
    pub(crate) connections: Connections,
    pub(crate) first_error: Option<String>,
    pub(crate) cpu: ClientCpu,
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
    /// How many got at least one answer; told by `load http`.
    #[serde(default)]
    pub(crate) served: u64,
}
