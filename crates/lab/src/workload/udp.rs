//! UDP: streams of packets on a schedule.
//!
//! Loss and lateness are outcomes here, not faults: the summary compares CPU between runs that
//! kept up only. A fault is what contradicts itself, or what no network may do to a packet.

mod audits;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::requests::follows_subject;
use super::{
    Axis, Grid, Load, Point, Points, Table, WORKERS_MOST, Workload, bytes, combinations, is_one,
    is_single, one, phrase_workers, rate, single,
};
use crate::error::LabError;
use crate::experiment::Check;

pub(super) const WORKLOAD: Workload = Workload {
    unit: "packet",
    per: "per packet that came back",
    latency: "Round trip",
    over_tcp: false,
    on_schedule: true,
    tables: &[Table::Each, Table::Packets],
    figures: &["datagrams"],
    service: &["udp", "--listen", "{addr}", "--allow", "any"],
};

/// The most that IPv4 carries in a datagram, in bytes.
const DATAGRAM_BYTES_MAX: u32 = 65_507;

/// UDP: every combination of the axes is a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpGrid {
    /// Streams at once.
    pub streams: Vec<u32>,
    /// Packets per second of each stream.
    pub packets_per_s: Vec<u32>,
    /// Bytes of a packet's payload.
    pub message_bytes: Vec<u32>,
    /// Workers of the server, each on a CPU of its own; the load generator has as many CPUs as the most of
    /// them, in every cell.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub workers: Vec<u32>,
    /// Load before the window opens, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_s: Option<f64>,
    /// The measured window, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// Whose work the verdict is about.
    #[serde(default)]
    pub under_test: UnderTest,
    /// When a subject has done the work that was asked for.
    #[serde(default)]
    pub keeps_up: KeepsUp,
    /// The command of the load generator, with placeholders in braces. It must print the JSON
    /// lines of `twinring load udp`.
    pub load: Vec<String>,
}

/// Whose CPU a verdict on UDP is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnderTest {
    /// The server. The load generator is the same for every subject.
    #[default]
    Server,
    /// Server and load generator, which both run as the subject says (`{engine}` and
    /// [`Subject::load_arguments`](crate::experiment::Subject::load_arguments)).
    Both,
}

/// The limits within which a run has done the work that was asked for. CPU is compared between
/// runs within them only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepsUp {
    /// Most of the packets due in the window that may be lost, refused or never sent, as a share.
    pub missing_ratio: f64,
    /// How late the 99.9th percentile of packets may leave, in microseconds.
    pub lateness_us_p99_9: f64,
}

impl Default for KeepsUp {
    fn default() -> KeepsUp {
        KeepsUp { missing_ratio: 0.001, lateness_us_p99_9: 10_000.0 }
    }
}

/// A point of the grid of UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpPoint {
    /// Streams at once.
    pub streams: u32,
    /// Packets per second of each stream.
    pub packets_per_s: u32,
    /// Bytes of a packet's payload.
    pub message_bytes: u32,
    /// Workers of the server, each on a CPU of its own.
    #[serde(default = "single", skip_serializing_if = "is_single")]
    pub workers: u32,
}

impl Grid for UdpGrid {
    fn axes(&mut self) -> Vec<Points<'_>> {
        let axis = |key, option, points, bounds| Points { key, option, points, bounds };
        vec![
            axis("streams", "--streams", &mut self.streams, [1, 1_000_000]),
            axis("packets_per_s", "--pps", &mut self.packets_per_s, [1, 100_000_000]),
            axis("message_bytes", "--sizes", &mut self.message_bytes, [1, DATAGRAM_BYTES_MAX]),
            axis(Axis::WORKERS, "--workers", &mut self.workers, [1, WORKERS_MOST]),
        ]
    }

    fn points(&self) -> Vec<Point> {
        let point = |[message_bytes, packets_per_s, streams, workers]: [u32; 4]| {
            Point::Udp(UdpPoint { streams, packets_per_s, message_bytes, workers })
        };
        let UdpGrid { message_bytes, packets_per_s, streams, workers, .. } = self;
        let all = combinations([message_bytes, packets_per_s, streams, workers]);
        all.into_iter().map(point).collect()
    }

    fn check(&self, check: &Check<'_>, subjects_change_load: bool) -> Result<(), LabError> {
        check.load("udp.load", &self.load, "{addr}")?;
        check.unless(
            (0.0..=1.0).contains(&self.keeps_up.missing_ratio)
                && self.keeps_up.lateness_us_p99_9 > 0.0,
            "udp.keeps_up",
            format!("{:?}", self.keeps_up),
            "missing_ratio from 0 to 1 and lateness_us_p99_9 above 0",
        )?;
        let differs = follows_subject(&self.load) || subjects_change_load;
        check.unless(
            self.under_test == UnderTest::Both || !differs,
            "udp.load",
            "the load of [udp] depends on the subject",
            "under_test = \"both\", or neither {engine} nor load_arguments",
        )
    }

    fn under_test(&self) -> UnderTest {
        self.under_test
    }
}

impl Load for UdpPoint {
    fn axes(&self) -> Vec<(Axis, &'static str, u32)> {
        vec![
            (Axis::Bytes, "message_bytes", self.message_bytes),
            (Axis::Streams, "streams", self.streams),
            (Axis::PacketsPerS, "packets_per_s", self.packets_per_s),
            (Axis::Workers, Axis::WORKERS, self.workers),
        ]
    }

    fn copied_bytes(&self) -> f64 {
        2.0 * f64::from(self.message_bytes)
    }

    fn divided(&self, part: &dyn Fn(u32) -> u32) -> Point {
        Point::Udp(UdpPoint { streams: part(self.streams), ..*self })
    }
}

impl fmt::Display for UdpPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UdpPoint { streams, packets_per_s, message_bytes, workers } = *self;
        let plural = if streams == 1 { "" } else { "s" };
        let (rate, bytes) = (rate(packets_per_s), bytes(message_bytes));
        write!(f, "{streams} stream{plural} x {rate}/s x {bytes}")?;
        phrase_workers(f, workers)
    }
}
