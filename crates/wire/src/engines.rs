//! The line of a server that compares its engines under real traffic: `serve … --engine both`.

use serde::{Deserialize, Serialize};

/// The schema of this line.
pub const SCHEMA: &str = "twinring.engines/2";

/// Both engines under the traffic of one server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Engines {
    /// Always `engines`.
    pub event: String,
    /// `twinring.engines/2`.
    pub schema: String,
    /// The unit of work: `request`, `datagram` or `KiB received`.
    pub unit: String,
    /// Length of a slice of time.
    pub slice_s: f64,
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
