//! The axes of a grid as a reader of a cell sees them: what varies from cell to cell.

use serde::{Deserialize, Serialize};

use super::Cell;

/// One number of a cell that an experiment may vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Connections open at once.
    Connections,
    /// Streams of datagrams at once.
    Streams,
    /// Bytes of a message, a packet or a file.
    Bytes,
    /// Packets per second of each stream.
    PacketsPerS,
    /// Requests per second of all connections; 0 is a closed loop.
    RatePerS,
    /// Requests per second, as a percentage of what the slowest subject can serve; 0 is a closed
    /// loop.
    LoadPercent,
    /// Requests in flight per connection.
    Depth,
    /// Requests of a connection; 0 if it stays.
    Churn,
    /// Files of one size.
    Files,
    /// 1 if a connection has many requests.
    Keepalive,
    /// 1 if TLS is spoken.
    Tls,
    /// 1 if HTTP/2 is spoken.
    Http2,
    /// 1 if the experiment's second load generator asks.
    Generator,
    /// Workers of the server, each on a CPU of its own.
    Workers,
}

impl Axis {
    /// The name of [`Axis::Workers`] in files and placeholders.
    pub(crate) const WORKERS: &str = "workers";

    /// What stands beside the axis.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Axis::Connections => "connections",
            Axis::Streams => "streams",
            Axis::Bytes => "size",
            Axis::PacketsPerS => "packets/s per stream",
            Axis::RatePerS => "requests/s",
            Axis::LoadPercent => "load",
            Axis::Depth => "requests in flight per connection",
            Axis::Churn => "requests per connection",
            Axis::Files => "files",
            Axis::Keepalive => "connections",
            Axis::Tls => "encryption",
            Axis::Http2 => "protocol",
            Axis::Generator => "load generator",
            Axis::Workers => "workers",
        }
    }

    /// A value on the axis.
    pub(crate) fn label(self, value: u32) -> String {
        match (self, value) {
            (Axis::Bytes, value) => bytes(value),
            (Axis::RatePerS, 0) => "closed loop".to_owned(),
            (Axis::LoadPercent, 0) => "saturated".to_owned(),
            (Axis::LoadPercent, value) => format!("{value} %"),
            (Axis::Churn, 0) => "all".to_owned(),
            (Axis::Keepalive, 0) => "one per request".to_owned(),
            (Axis::Keepalive, _) => "stay".to_owned(),
            (Axis::Tls, 0) => "none".to_owned(),
            (Axis::Tls, _) => "TLS".to_owned(),
            (Axis::Http2, 0) => "HTTP/1.1".to_owned(),
            (Axis::Http2, _) => "HTTP/2".to_owned(),
            (Axis::Generator, 0) => "first".to_owned(),
            (Axis::Generator, _) => "second".to_owned(),
            (_, value) => rate(value),
        }
    }

    /// A value with its unit, as it stands in a title; nothing for what goes without saying.
    pub(crate) fn phrase(self, value: u32) -> Option<String> {
        let plural = if value == 1 { "" } else { "s" };
        match (self, value) {
            (Axis::Connections, _) => Some(format!("{} connection{plural}", rate(value))),
            (Axis::Streams, _) => Some(format!("{} stream{plural}", rate(value))),
            (Axis::Bytes, _) => Some(bytes(value)),
            (Axis::PacketsPerS, _) => Some(format!("{} packets/s per stream", rate(value))),
            (Axis::RatePerS, 1..) => Some(format!("{} requests/s", rate(value))),
            (Axis::LoadPercent, 1..) => Some(format!("{value} % load")),
            (Axis::Depth, 2..) => Some(format!("depth {value}")),
            (Axis::Churn, 1) | (Axis::Keepalive, 0) => Some("a connection per request".to_owned()),
            (Axis::Churn, 2..) => Some(format!("a connection per {value} requests")),
            (Axis::Files, 2..) => Some(format!("{value} files")),
            (Axis::Tls, 1..) => Some("TLS".to_owned()),
            (Axis::Http2, 1..) => Some("HTTP/2".to_owned()),
            (Axis::Generator, 1..) => Some("second load generator".to_owned()),
            (Axis::Workers, 2..) => Some(format!("{value} workers")),
            _ => None,
        }
    }

    /// Whether more of it is more work per second that is due, whoever can do it.
    pub(crate) fn is_offered_load(self, cell: &Cell) -> bool {
        match self {
            Axis::RatePerS | Axis::LoadPercent => self.of(cell).is_some_and(|load| load > 0),
            Axis::PacketsPerS | Axis::Streams => true,
            _ => false,
        }
    }

    /// The cell's value on this axis, if it has the axis.
    pub(crate) fn of(self, cell: &Cell) -> Option<u32> {
        cell.point.on(self)
    }
}

/// Whether two cells differ in nothing but these axes.
pub(crate) fn differ_only_in(free: &[Axis], one: &Cell, other: &Cell) -> bool {
    let fixed = |cell: &Cell| -> Vec<_> {
        let axes = cell.point.load().axes().into_iter();
        axes.filter(|(axis, ..)| !free.contains(axis)).collect()
    };
    one.net == other.net && one.protocol() == other.protocol() && fixed(one) == fixed(other)
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
