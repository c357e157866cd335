//! The line of a server that compares its engines under real traffic (`serve … --engine both` and
//! `adaptive`).

use serde::{Deserialize, Serialize};

/// The schema of this line.
pub const SCHEMA: &str = "twinring.engines/1";

/// Both engines under the traffic of one server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Engines {
    /// Always `engines`.
    pub event: String,
    /// `twinring.engines/1`.
    pub schema: String,
    /// `both` or `adaptive`.
    pub mode: String,
    /// The unit of work: `request`, `datagram` or `KiB received`.
    pub unit: String,
    /// Length of a slice of time.
    pub slice_s: f64,
    /// True if the engines take new connections in turn within each slice, because there is one
    /// worker. The comparison is then weaker.
    pub in_turns: bool,
    /// Slices in which both engines did at least `units_min` units of work.
    pub slices_compared: u64,
    /// Slices in which one of them did fewer; they are in no ratio.
    pub slices_left_out: u64,
    /// The latest compared slices, from which `ratio` and `interval` are computed.
    pub slices_kept: u64,
    /// The least units of work in a slice.
    pub units_min: u64,
    /// CPU per unit of epoll, divided by that of io_uring: the geometric mean over the slices.
    /// `null` without a compared slice.
    pub ratio: Option<f64>,
    /// Its 95 % interval, over time and not over connections; `null` with too few slices.
    pub interval: Option<[f64; 2]>,
    /// The workers on io_uring.
    pub io_uring: EngineSide,
    /// The workers on epoll.
    pub epoll: EngineSide,
    /// Only with `adaptive`; otherwise `null`.
    pub adaptive: Option<Adaptive>,
    /// What weakens this comparison, as text for people.
    pub cautions: Vec<String>,
}

/// The workers of one engine, since the service was ready.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EngineSide {
    /// Workers.
    pub workers: usize,
    /// CPU time of their threads in user mode.
    pub cpu_user_s: f64,
    /// CPU time of their threads in the kernel. Softirq work on other CPUs is not in there.
    pub cpu_system_s: f64,
    /// Time in which the CPUs of its workers were not idle, softirq and all other work included;
    /// `null` unless the engines are pinned to different CPUs and root started the server.
    pub cpu_busy_s: Option<f64>,
    /// Units of work.
    pub units: f64,
    /// Bytes received and sent.
    pub bytes: u64,
    /// Connections that were accepted; 0 for UDP.
    pub connections: u64,
    /// Open connections; 0 for UDP.
    pub open: u64,
    /// CPU time for a unit, over all compared slices; `null` without one.
    pub cpu_us_per_unit: Option<f64>,
    /// Bytes received and sent for a unit; `null` without work.
    pub bytes_per_unit: Option<f64>,
    /// Mean duration of a request, as in the access log; `null` without an access log.
    pub latency_us_mean: Option<f64>,
}

/// Where `--engine adaptive` sends new connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Adaptive {
    /// The engine that gets the new connections; `null` during a trial, when both get them.
    pub new_connections_to: Option<String>,
    /// The engine that was chosen last; `null` before the first choice.
    pub chosen: Option<String>,
    /// Trials that have begun.
    pub trials: u64,
    /// Trials that chose an engine.
    pub decided: u64,
    /// Times that the chosen engine changed.
    pub moves: u64,
    /// Evidence of the current trial, or of the last one, that io_uring needs less CPU; it chooses
    /// at `evidence_needed`.
    pub evidence_io_uring: f64,
    /// The same for epoll.
    pub evidence_epoll: f64,
    /// The evidence that chooses an engine.
    pub evidence_needed: f64,
    /// The chance that a trial chooses an engine that is not ahead, at most.
    pub error_rate: f64,
    /// Why connections cannot be steered; otherwise `null`.
    pub not_steered: Option<String>,
}
