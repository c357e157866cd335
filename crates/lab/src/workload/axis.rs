//! The axes of a cell: what an experiment may vary, as one table.

use serde::{Deserialize, Serialize};

use super::Protocol;

/// One number of a cell that an experiment may vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
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

pub(super) const AXES: usize = Axis::Workers as usize + 1;

#[derive(Debug)]
pub(crate) struct AxisSpec {
    pub(crate) axis: Axis,
    /// Its name in files, options and placeholders.
    pub(crate) key: &'static str,
    /// The value of a cell that does not say one; without it, every experiment says one.
    pub(crate) default: Option<u32>,
    /// The smallest and the largest value that are accepted.
    pub(crate) bounds: [u32; 2],
    /// It is written as `true` and `false`.
    pub(crate) is_flag: bool,
}

const fn axis(axis: Axis, key: &'static str, bounds: [u32; 2]) -> AxisSpec {
    AxisSpec { axis, key, default: None, bounds, is_flag: false }
}

const fn or(default: u32, spec: AxisSpec) -> AxisSpec {
    AxisSpec { default: Some(default), ..spec }
}

const fn flag(axis: Axis, key: &'static str, default: u32) -> AxisSpec {
    AxisSpec { axis, key, default: Some(default), bounds: [0, 1], is_flag: true }
}

const CONNECTIONS: AxisSpec = axis(Axis::Connections, "connections", [1, 1_000_000]);
const DEPTH: AxisSpec = or(1, axis(Axis::Depth, "depth", [1, 100_000]));
const RATE_PER_S: AxisSpec = or(0, axis(Axis::RatePerS, "rate_per_s", [0, 100_000_000]));
const LOAD_PERCENT: AxisSpec = or(0, axis(Axis::LoadPercent, "load_percent", [0, 100]));
const WORKERS: AxisSpec = or(1, axis(Axis::Workers, "workers", [1, 1024]));
const FILE_BYTES_MAX: u32 = 64 << 20;
/// The most that IPv4 carries in a datagram.
const DATAGRAM_BYTES_MAX: u32 = 65_507;

static TCP: &[AxisSpec] = &[
    axis(Axis::Bytes, "message_bytes", [1, FILE_BYTES_MAX]),
    CONNECTIONS,
    DEPTH,
    RATE_PER_S,
    LOAD_PERCENT,
    or(0, axis(Axis::Churn, "churn", [0, 1_000_000_000])),
    WORKERS,
];

static UDP: &[AxisSpec] = &[
    axis(Axis::Bytes, "message_bytes", [1, DATAGRAM_BYTES_MAX]),
    axis(Axis::Streams, "streams", [1, 1_000_000]),
    axis(Axis::PacketsPerS, "packets_per_s", [1, 100_000_000]),
    WORKERS,
];

static HTTP: &[AxisSpec] = &[
    axis(Axis::Bytes, "file_bytes", [1, FILE_BYTES_MAX]),
    CONNECTIONS,
    or(1, axis(Axis::Files, "files", [1, 1_000_000])),
    DEPTH,
    RATE_PER_S,
    LOAD_PERCENT,
    flag(Axis::Keepalive, "keepalive", 1),
    flag(Axis::Tls, "tls", 0),
    flag(Axis::Http2, "http2", 0),
    WORKERS,
];

/// The axes of each protocol, in the order of the reports: the points of the last are next to each other.
pub(crate) fn axes_of(protocol: Protocol) -> &'static [AxisSpec] {
    match protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
        Protocol::Http => HTTP,
    }
}

impl Axis {
    /// The axis of this name, for an option: `bytes` is short for the size in any protocol.
    pub(crate) fn of_key(protocol: Protocol, key: &str) -> Option<&'static AxisSpec> {
        let is_it =
            |spec: &&AxisSpec| spec.key == key || (key == "bytes" && spec.axis == Axis::Bytes);
        axes_of(protocol).iter().find(is_it)
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
