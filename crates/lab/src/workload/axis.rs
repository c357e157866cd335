//! The axes of a cell: what an experiment may vary, as one table.

use serde::{Deserialize, Serialize};

use super::Protocol;

/// One number of a cell that an experiment may vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Bytes of a message, a packet or a file.
    Bytes,
    /// Connections open at once.
    Connections,
    /// Streams of datagrams at once.
    Streams,
    /// Packets per second of each stream.
    PacketsPerS,
    /// Files of one size; with several, each request asks for one of them at random.
    Files,
    /// Requests in flight per connection.
    Depth,
    /// Requests per second of all connections; 0 is a closed loop.
    RatePerS,
    /// Requests per second, as a percentage of what the slowest subject can serve; 0 is a closed loop.
    LoadPercent,
    /// Requests after which a connection is replaced; 0 keeps it.
    Churn,
    /// 1 if a connection serves many requests.
    Keepalive,
    /// 1 if TLS is spoken.
    Tls,
    /// 1 if HTTP/2 is spoken.
    Http2,
    /// Workers of the server, each on a CPU of its own.
    Workers,
}

#[derive(Debug)]
pub(crate) struct AxisSpec {
    pub(crate) axis: Axis,
    /// Its name in files, options and placeholders.
    pub(crate) key: &'static str,
    /// The protocols whose cells have it.
    protocols: &'static [Protocol],
    /// The value of a cell that does not say one; without it, every experiment says one.
    pub(crate) default: Option<u32>,
    /// The smallest and the largest value that are accepted.
    pub(crate) bounds: [u32; 2],
}

/// The value of an axis in a file.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "neither a whole number from 0 nor true or false")]
pub(super) enum Level {
    Flag(bool),
    Number(u32),
}

impl Level {
    pub(super) fn number(self) -> u32 {
        match self {
            Level::Flag(flag) => u32::from(flag),
            Level::Number(number) => number,
        }
    }
}

impl AxisSpec {
    /// A value as it is written in files: what can be 0 or 1 only is a flag.
    pub(super) fn level(&self, value: u32) -> Level {
        if self.bounds == [0, 1] { Level::Flag(value != 0) } else { Level::Number(value) }
    }
}

pub(super) const AXES: usize = Axis::Workers as usize + 1;

const fn axis(
    axis: Axis,
    key: &'static str,
    protocols: &'static [Protocol],
    default: Option<u32>,
    bounds: [u32; 2],
) -> AxisSpec {
    AxisSpec { axis, key, protocols, default, bounds }
}

const FILE_BYTES_MAX: u32 = 64 << 20;
/// The most that IPv4 carries in a datagram.
const DATAGRAM_BYTES_MAX: u32 = 65_507;

const TCP: &[Protocol] = &[Protocol::Tcp];
const UDP: &[Protocol] = &[Protocol::Udp];
const HTTP: &[Protocol] = &[Protocol::Http];
const BOTH: &[Protocol] = &[Protocol::Tcp, Protocol::Http];

/// In the order of the reports: the points of the last are next to each other.
static SPECS: [AxisSpec; 15] = [
    axis(Axis::Bytes, "message_bytes", TCP, None, [1, FILE_BYTES_MAX]),
    axis(Axis::Bytes, "message_bytes", UDP, None, [1, DATAGRAM_BYTES_MAX]),
    axis(Axis::Bytes, "file_bytes", HTTP, None, [1, FILE_BYTES_MAX]),
    axis(Axis::Connections, "connections", BOTH, None, [1, 1_000_000]),
    axis(Axis::Streams, "streams", UDP, None, [1, 1_000_000]),
    axis(Axis::PacketsPerS, "packets_per_s", UDP, None, [1, 100_000_000]),
    axis(Axis::Files, "files", HTTP, Some(1), [1, 1_000_000]),
    axis(Axis::Depth, "depth", BOTH, Some(1), [1, 100_000]),
    axis(Axis::RatePerS, "rate_per_s", BOTH, Some(0), [0, 100_000_000]),
    axis(Axis::LoadPercent, "load_percent", BOTH, Some(0), [0, 100]),
    axis(Axis::Churn, "churn", TCP, Some(0), [0, 1_000_000_000]),
    axis(Axis::Keepalive, "keepalive", HTTP, Some(1), [0, 1]),
    axis(Axis::Tls, "tls", HTTP, Some(0), [0, 1]),
    axis(Axis::Http2, "http2", HTTP, Some(0), [0, 1]),
    axis(Axis::Workers, "workers", Protocol::ALL, Some(1), [1, 1024]),
];

/// The axes of a protocol.
pub(crate) fn axes_of(protocol: Protocol) -> impl Iterator<Item = &'static AxisSpec> {
    SPECS.iter().filter(move |spec| spec.protocols.contains(&protocol))
}

impl Axis {
    /// The axis of this name, for an option: `bytes` is short for the size in any protocol.
    pub(crate) fn of_key(protocol: Protocol, key: &str) -> Option<&'static AxisSpec> {
        axes_of(protocol).find(|it| it.key == key || (key == "bytes" && it.axis == Axis::Bytes))
    }
}

/// A number of bytes as people write it: `128 B`, `16 KB`.
pub(super) fn bytes(count: u32) -> String {
    match count {
        0 => "0 B".to_owned(),
        _ if count.is_multiple_of(1 << 20) => format!("{} MB", count >> 20),
        _ if count.is_multiple_of(1 << 10) => format!("{} KB", count >> 10),
        _ => format!("{count} B"),
    }
}

/// A rate as people write it: `50`, `200k`, `2M`.
pub(super) fn rate(count: u32) -> String {
    match count {
        1_000_000.. if count.is_multiple_of(100_000) => format!("{}M", f64::from(count) / 1e6),
        10_000.. if count.is_multiple_of(1000) => format!("{}k", count / 1000),
        _ => count.to_string(),
    }
}
