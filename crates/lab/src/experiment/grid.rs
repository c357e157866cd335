//! The grid of an experiment: the axes that are varied, and the load that is put on every point of
//! them. Here is that of UDP, and the cell, which is a point of any grid on a network.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::choices::{NetKind, Protocol};
use super::http::HttpPoint;
use super::tcp::{Axis, TcpPoint};

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
    /// [`super::Subject::load_arguments`]).
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

/// One cell: a point of a grid on a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// The network.
    pub net: NetKind,
    /// The point.
    #[serde(flatten)]
    pub point: Point,
}

/// A point of a grid. The fields tell which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Point {
    /// TCP.
    Tcp(TcpPoint),
    /// UDP.
    Udp {
        /// Streams at once.
        streams: u32,
        /// Packets per second of each stream.
        packets_per_s: u32,
        /// Bytes of a packet's payload.
        message_bytes: u32,
    },
    /// HTTP.
    Http(HttpPoint),
}

impl Cell {
    /// What is spoken in it.
    pub fn protocol(&self) -> Protocol {
        match self.point {
            Point::Tcp(_) => Protocol::Tcp,
            Point::Udp { .. } => Protocol::Udp,
            Point::Http(_) => Protocol::Http,
        }
    }
}

impl UdpGrid {
    pub(super) fn points(&self) -> impl Iterator<Item = Point> {
        self.message_bytes.iter().flat_map(move |&message_bytes| {
            self.packets_per_s.iter().flat_map(move |&packets_per_s| {
                let point =
                    move |&streams: &u32| Point::Udp { streams, packets_per_s, message_bytes };
                self.streams.iter().map(point)
            })
        })
    }

    /// Name, points, smallest and largest value of each axis. 65,507 bytes are the most that IPv4
    /// carries in a datagram.
    pub(super) fn axes(&self) -> [Axis<'_>; 3] {
        [
            ("streams", &self.streams, 1, 1_000_000),
            ("packets_per_s", &self.packets_per_s, 1, 100_000_000),
            ("message_bytes", &self.message_bytes, 1, 65_507),
        ]
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.point {
            Point::Tcp(point) => point.fmt(f)?,
            Point::Udp { streams, packets_per_s, message_bytes } => {
                let plural = if streams == 1 { "" } else { "s" };
                let (rate, bytes) = (rate(packets_per_s), bytes(message_bytes));
                write!(f, "{streams} stream{plural} x {rate}/s x {bytes}")?;
            }
            Point::Http(point) => point.fmt(f)?,
        }
        write!(f, " {}", self.net.phrase())
    }
}

/// A number of bytes as people write it: `128 B`, `16 KB`.
pub(crate) fn bytes(count: u32) -> String {
    match count {
        0 => "0 B".to_owned(),
        _ if count.is_multiple_of(1 << 20) => format!("{} MB", count >> 20),
        _ if count.is_multiple_of(1 << 10) => format!("{} KB", count >> 10),
        _ => format!("{count} B"),
    }
}

/// A rate as people write it: `50`, `200k`, `2M`.
pub(crate) fn rate(count: u32) -> String {
    match count {
        1_000_000.. if count.is_multiple_of(100_000) => format!("{}M", f64::from(count) / 1e6),
        10_000.. if count.is_multiple_of(1000) => format!("{}k", count / 1000),
        _ => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_written_for_people_and_read_back() {
        let udp = |streams, packets_per_s| Cell {
            net: NetKind::Rps,
            point: Point::Udp { streams, packets_per_s, message_bytes: 172 },
        };
        assert_eq!(udp(4000, 50).to_string(), "4000 streams x 50/s x 172 B on rps");
        assert_eq!(udp(1, 200_000).to_string(), "1 stream x 200k/s x 172 B on rps");
        assert_eq!(udp(1, 2_500_000).to_string(), "1 stream x 2.5M/s x 172 B on rps");
        let json = serde_json::to_string(&udp(2, 50)).unwrap();
        assert_eq!(serde_json::from_str::<Cell>(&json).unwrap(), udp(2, 50));
        // As the first version wrote it.
        let old = r#"{"net":"loopback","connections":100,"message_bytes":16384,"depth":1}"#;
        let old: Cell = serde_json::from_str(old).unwrap();
        assert_eq!((old.protocol(), &*old.to_string()), (Protocol::Tcp, "100 x 16 KB on lo"));
    }
}
