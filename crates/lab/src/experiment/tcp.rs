//! The grid of TCP: messages of these sizes over this many connections.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::grid::{Point, bytes, rate};

/// TCP: every combination of the axes is a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpGrid {
    /// Connections open at once.
    pub connections: Vec<u32>,
    /// Bytes of one message.
    pub message_bytes: Vec<u32>,
    /// Requests in flight per connection.
    #[serde(default = "one")]
    pub depth: Vec<u32>,
    /// Requests per second of all connections together, on a schedule (open loop); 0 is a closed
    /// loop, in which each answer brings the next request.
    #[serde(default = "zero", skip_serializing_if = "is_zero")]
    pub rate_per_s: Vec<u32>,
    /// Requests after which a connection is closed and made anew; 0 keeps it.
    #[serde(default = "zero", skip_serializing_if = "is_zero")]
    pub churn: Vec<u32>,
    /// When a subject has done the work that a rate asks for.
    #[serde(default, skip_serializing_if = "AnswersInTime::is_default")]
    pub keeps_up: AnswersInTime,
    /// Load before the window opens, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_s: Option<f64>,
    /// The measured window, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// The command of the load generator, with placeholders in braces. It must print the JSON
    /// lines of `twinring load tcp`. It never follows the subject's engine.
    pub load: Vec<String>,
}

pub(super) fn one() -> Vec<u32> {
    vec![1]
}

pub(super) fn zero() -> Vec<u32> {
    vec![0]
}

pub(super) fn is_zero(axis: &[u32]) -> bool {
    axis == [0]
}

pub(super) fn is_nought(number: &u32) -> bool {
    *number == 0
}

/// The limits within which a subject has answered what a schedule asked for. CPU is compared
/// between runs within them only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswersInTime {
    /// Most of the requests due in the window that may be unanswered at its end, as a share.
    pub missing_ratio: f64,
    /// The longest that the 99th percentile of requests may take, from when they were due, in
    /// microseconds.
    pub latency_us_p99: f64,
}

impl Default for AnswersInTime {
    fn default() -> AnswersInTime {
        AnswersInTime { missing_ratio: 0.01, latency_us_p99: 10_000.0 }
    }
}

impl AnswersInTime {
    pub(super) fn is_default(&self) -> bool {
        *self == AnswersInTime::default()
    }
}

/// A point of the grid of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TcpPoint {
    /// Connections open at once.
    pub connections: u32,
    /// Bytes of one message.
    pub message_bytes: u32,
    /// Requests in flight per connection; with a rate, those that the load generator may have
    /// in flight are up to it.
    pub depth: u32,
    /// Requests per second of all connections; 0 is a closed loop.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub rate_per_s: u32,
    /// Requests of a connection; 0 if it stays.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub churn: u32,
}

impl TcpGrid {
    pub(super) fn points(&self) -> impl Iterator<Item = Point> {
        let mut points = Vec::new();
        for &message_bytes in &self.message_bytes {
            for &depth in &self.depth {
                for &churn in &self.churn {
                    for &connections in &self.connections {
                        points.extend(self.rate_per_s.iter().map(|&rate_per_s| {
                            let point =
                                TcpPoint { connections, message_bytes, depth, rate_per_s, churn };
                            Point::Tcp(point)
                        }));
                    }
                }
            }
        }
        points.into_iter()
    }

    /// Name, points, smallest and largest value of each axis.
    pub(super) fn axes(&self) -> [Axis<'_>; 5] {
        [
            ("connections", &self.connections, 1, 1_000_000),
            ("message_bytes", &self.message_bytes, 1, 64 << 20),
            ("depth", &self.depth, 1, 100_000),
            ("rate_per_s", &self.rate_per_s, 0, 100_000_000),
            ("churn", &self.churn, 0, 1_000_000_000),
        ]
    }
}

/// Name, points, smallest and largest value of an axis.
pub(super) type Axis<'a> = (&'static str, &'a [u32], u32, u32);

impl fmt::Display for TcpPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TcpPoint { connections, message_bytes, depth, rate_per_s, churn } = *self;
        write!(f, "{connections} x {}", bytes(message_bytes))?;
        if depth != 1 {
            write!(f, " x depth {depth}")?;
        }
        if rate_per_s != 0 {
            write!(f, " at {}/s", rate(rate_per_s))?;
        }
        match churn {
            0 => Ok(()),
            1 => f.write_str(", a connection per request"),
            _ => write!(f, ", a connection per {churn} requests"),
        }
    }
}
