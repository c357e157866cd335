//! The lines of `twinring serve`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Fields;

/// The schema of these lines.
pub const SCHEMA: &str = "twinring.serve/1";

/// The line that announces a ready service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Ready {
    /// Always `ready`.
    pub event: String,
    /// `twinring.serve/1`.
    pub schema: String,
    /// `echo`, `http` or `udp`.
    pub service: String,
    /// Addresses of the service.
    pub listen: Vec<SocketAddr>,
    /// The engine in use; `io_uring+epoll` with `--engine both`.
    pub engine: String,
    /// Worker threads.
    pub workers: usize,
    /// Process ID.
    pub pid: u32,
    /// The features that the engine in use really has; those of io_uring if both are in use.
    pub features: Fields,
    /// Why `--engine auto` or `both` did not choose io_uring; otherwise `null`.
    #[serde(rename = "why_not")]
    pub fallback_reason: Option<String>,
    /// For each part of the sandbox, whether it is `on`, and `details` as text for people: its
    /// effect, or why the part is off.
    pub sandbox: Fields,
    /// Fields of a single service.
    #[serde(flatten)]
    pub details: Map<String, Value>,
}

/// The line with the counters of a server, each period of `--stats` and at its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Statistics {
    /// `stats` or `final`.
    pub event: String,
    /// `twinring.serve/1`.
    pub schema: String,
    /// `echo`, `http` or `udp`.
    pub service: String,
    /// The engine in use.
    pub engine: String,
    /// Since the process started, to a hundredth.
    pub uptime_s: f64,
    /// The counters of each engine; only in the final line with `--engine both`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub engines: BTreeMap<String, EngineCounters>,
    /// The reason for the end of the service; only in the final line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Counters of the service.
    pub service_counters: Fields,
    /// Counters of the runtime.
    pub runtime_counters: Fields,
}

/// What the workers of one engine did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct EngineCounters {
    /// Workers.
    pub workers: u64,
    /// Answered requests or datagrams; for the echo, which sees no messages, received bytes.
    pub units: u64,
    /// Bytes received and sent.
    pub bytes: u64,
    /// Connections that were accepted; 0 for UDP.
    pub connections: u64,
    /// CPU time of their threads in user mode.
    pub cpu_user_s: f64,
    /// CPU time of their threads in the kernel. Softirq work on other CPUs is not in there.
    pub cpu_system_s: f64,
    /// System calls of the runtime.
    pub syscalls: u64,
}
