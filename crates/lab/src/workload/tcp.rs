//! TCP: messages of these sizes over this many connections.

mod audits;
mod commands;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::requests::{AnswersInTime, Arrivals, check_load, check_pace, phrase_pace};
use super::{
    Axis, Grid, Load, Point, Points, Table, WORKERS_MOST, Workload, bytes, combinations,
    generators, is_nought, is_one, is_single, is_zero, one, phrase_workers, single, zero,
};
use crate::error::LabError;
use crate::experiment::Check;

pub(super) const WORKLOAD: Workload = Workload {
    unit: "request",
    per: "per request",
    latency: "Latency",
    over_tcp: true,
    on_schedule: false,
    tables: &[Table::Each, Table::Requests],
    figures: &["open_loop"],
    // Only the load generator reaches the namespaces of the lab.
    service: &["echo", "--listen", "{addr}", "--allow", "any"],
};

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
    /// The rate instead as a percentage of what the slowest subject can serve, which the lab finds
    /// out for each cell before it compares: equal work that all can do. 0 is a closed loop.
    #[serde(default = "zero", skip_serializing_if = "is_zero")]
    pub load_percent: Vec<u32>,
    /// How the requests of a schedule follow each other, if not at equal distances.
    #[serde(default, skip_serializing_if = "Arrivals::is_default")]
    pub arrivals: Arrivals,
    /// Requests after which a connection is closed and another one opened; 0 keeps it.
    #[serde(default = "zero", skip_serializing_if = "is_zero")]
    pub churn: Vec<u32>,
    /// Workers of the server, each on a CPU of its own; the load generator has as many CPUs as the most of
    /// them, in every cell.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub workers: Vec<u32>,
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
    /// The command of another load generator. Every cell is then measured with either, and verdicts
    /// that depend on it are warned of. `{plain-load}` is one on bare epoll.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub second_load: Vec<String>,
}

/// A point of the grid of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// The rate as a percentage of what the slowest subject can serve; 0 is a closed loop, or
    /// `rate_per_s`.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub load_percent: u32,
    /// Requests of a connection; 0 if it stays.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub churn: u32,
    /// 1 if the experiment's second load generator asks.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub generator: u32,
    /// Workers of the server, each on a CPU of its own.
    #[serde(default = "single", skip_serializing_if = "is_single")]
    pub workers: u32,
}

impl Grid for TcpGrid {
    fn axes(&mut self) -> Vec<Points<'_>> {
        let axis = |key, option, points, bounds| Points { key, option, points, bounds };
        vec![
            axis("connections", "--connections", &mut self.connections, [1, 1_000_000]),
            axis("message_bytes", "--sizes", &mut self.message_bytes, [1, 64 << 20]),
            axis("depth", "--depth", &mut self.depth, [1, 100_000]),
            axis("rate_per_s", "--rates", &mut self.rate_per_s, [0, 100_000_000]),
            axis("load_percent", "--load-percent", &mut self.load_percent, [0, 100]),
            axis("churn", "--churn", &mut self.churn, [0, 1_000_000_000]),
            axis(Axis::WORKERS, "--workers", &mut self.workers, [1, WORKERS_MOST]),
        ]
    }

    fn points(&self) -> Vec<Point> {
        let point = |axes: [u32; 8]| {
            let [message_bytes, depth, churn, connections, workers, ..] = axes;
            let [.., rate_per_s, load_percent, generator] = axes;
            Point::Tcp(TcpPoint {
                connections,
                message_bytes,
                depth,
                rate_per_s,
                load_percent,
                churn,
                generator,
                workers,
            })
        };
        let TcpGrid { connections, message_bytes, depth, rate_per_s, load_percent, churn, .. } =
            self;
        let generators = generators(&self.second_load);
        let all = combinations([
            message_bytes,
            depth,
            churn,
            connections,
            &self.workers,
            rate_per_s,
            load_percent,
            generators,
        ]);
        all.into_iter().map(point).collect()
    }

    fn check(&self, check: &Check<'_>, _: bool) -> Result<(), LabError> {
        self.keeps_up.check("tcp", check)?;
        let paced = check_pace("tcp", check, &self.rate_per_s, &self.load_percent)?;
        let told = paced || !is_zero(&self.churn);
        check_load("tcp.load", check, &self.load, "{addr}", told)?;
        if self.second_load.is_empty() {
            return Ok(());
        }
        check_load("tcp.second_load", check, &self.second_load, "{addr}", told)
    }

    fn arrivals(&self) -> Arrivals {
        self.arrivals
    }

    fn second_load(&self) -> &[String] {
        &self.second_load
    }
}

impl Load for TcpPoint {
    fn axes(&self) -> Vec<(Axis, &'static str, u32)> {
        vec![
            (Axis::Bytes, "message_bytes", self.message_bytes),
            (Axis::Connections, "connections", self.connections),
            (Axis::Depth, "depth", self.depth),
            (Axis::RatePerS, "rate_per_s", self.rate_per_s),
            (Axis::LoadPercent, "load_percent", self.load_percent),
            (Axis::Churn, "churn", self.churn),
            (Axis::Generator, "generator", self.generator),
            (Axis::Workers, Axis::WORKERS, self.workers),
        ]
    }

    fn copied_bytes(&self) -> f64 {
        2.0 * f64::from(self.message_bytes)
    }

    fn divided(&self, part: &dyn Fn(u32) -> u32) -> Point {
        let (connections, rate_per_s) = (part(self.connections), part(self.rate_per_s));
        Point::Tcp(TcpPoint { connections, rate_per_s, ..*self })
    }
}

impl fmt::Display for TcpPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TcpPoint { connections, message_bytes, depth, churn, generator, .. } = *self;
        write!(f, "{connections} x {}", bytes(message_bytes))?;
        if depth != 1 {
            write!(f, " x depth {depth}")?;
        }
        phrase_pace(f, self.rate_per_s, self.load_percent)?;
        match churn {
            0 => {}
            1 => f.write_str(", a connection per request")?,
            _ => write!(f, ", a connection per {churn} requests")?,
        }
        phrase_workers(f, self.workers)?;
        if generator == 0 { Ok(()) } else { f.write_str(", second generator") }
    }
}
