//! What the lab can measure: protocols, the points of their grids, and cells.

mod axis;
mod grid;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::experiment::NetKind;
use twinring_wire::LoadResult;

pub use axis::Axis;
use axis::{AXES, Level, bytes, rate};
pub(crate) use axis::{AxisSpec, axes_of};
pub(crate) use grid::is_default;
pub use grid::{Arrivals, Grid, Slo, UnderTest};

/// The protocol between server and load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Connections; the load is `twinring load tcp`.
    Tcp,
    /// Streams of datagrams on a schedule; the load is `twinring load udp`.
    Udp,
    /// Files over HTTP; the load is `twinring load http`.
    Http,
}

impl Protocol {
    /// All of them, in the order of the reports.
    pub const ALL: &[Protocol] = &[Protocol::Tcp, Protocol::Udp, Protocol::Http];

    /// Its name, as in files and options.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Http => "http",
        }
    }

    pub(crate) fn is_over_tcp(self) -> bool {
        self != Protocol::Udp
    }

    /// The options of `twinring serve`. Only the load generator reaches the namespaces of the lab.
    pub(crate) fn service(self) -> &'static [&'static str] {
        match self {
            Protocol::Tcp => &["echo", "--listen", "{addr}", "--allow", "any"],
            Protocol::Udp => &["udp", "--listen", "{addr}", "--allow", "any"],
            Protocol::Http => &["http", "--root", "{root}", "{listen}"],
        }
    }
}

impl From<&LoadResult> for Protocol {
    fn from(result: &LoadResult) -> Protocol {
        match result {
            LoadResult::Tcp(_) => Protocol::Tcp,
            LoadResult::Udp(_) => Protocol::Udp,
            LoadResult::Http(_) => Protocol::Http,
        }
    }
}

impl std::str::FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Protocol, String> {
        let names: Vec<&str> = Protocol::ALL.iter().map(|it| it.name()).collect();
        let found = Protocol::ALL.iter().copied().find(|it| it.name() == text);
        found.ok_or_else(|| format!("`{text}`: expected one of {}", names.join(", ")))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A point of a grid: a protocol, and a value on each of its axes. In files it is a map of axes; which
/// ones there are says the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(try_from = "Levels", into = "Levels")]
pub struct Point {
    protocol: Protocol,
    /// Those of other protocols are 0.
    values: [u32; AXES],
}

impl Point {
    /// The point with these values; the other axes have their defaults.
    ///
    /// # Errors
    /// The axis that is missing, unknown or out of bounds.
    pub fn new(protocol: Protocol, values: &[(Axis, u32)]) -> Result<Point, String> {
        let mut point = Point { protocol, values: [0; AXES] };
        for spec in axes_of(protocol) {
            let given = values.iter().find(|(axis, _)| *axis == spec.axis).map(|it| it.1);
            let value = given.or(spec.default).ok_or_else(|| format!("no {}", spec.key))?;
            let [least, most] = spec.bounds;
            if !(least..=most).contains(&value) {
                return Err(format!("{} = {value}; expected {least} to {most}", spec.key));
            }
            point.values[spec.axis as usize] = value;
        }
        match values.iter().find(|(axis, _)| point.on(*axis).is_none()) {
            Some((axis, _)) => Err(format!("{protocol} has no axis {axis:?}")),
            None => Ok(point),
        }
    }

    /// What is spoken at it.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Its value on an axis, if it has the axis.
    pub fn on(&self, axis: Axis) -> Option<u32> {
        let has = axes_of(self.protocol).any(|spec| spec.axis == axis);
        has.then(|| self.values[axis as usize])
    }

    /// Its value on an axis, 0 without it.
    pub fn get(&self, axis: Axis) -> u32 {
        self.values[axis as usize]
    }

    pub(crate) fn is(&self, axis: Axis) -> bool {
        self.get(axis) != 0
    }

    /// The same point with another value on an axis that it has.
    pub(crate) fn with(mut self, axis: Axis, value: u32) -> Point {
        if self.on(axis).is_some() {
            self.values[axis as usize] = value;
        }
        self
    }

    pub(crate) fn axes(&self) -> impl Iterator<Item = (&'static AxisSpec, u32)> {
        axes_of(self.protocol).map(|spec| (spec, self.values[spec.axis as usize]))
    }

    /// Connections or streams: the axis, and how many at once.
    pub(crate) fn clients(&self) -> (Axis, u32) {
        let axis = if self.protocol == Protocol::Udp { Axis::Streams } else { Axis::Connections };
        (axis, self.get(axis))
    }

    pub(crate) fn workers(&self) -> usize {
        self.get(Axis::Workers).max(1) as usize
    }

    /// The rate as a percentage of what the slowest subject can serve; 0 where it is not.
    pub(crate) fn load_percent(&self) -> u32 {
        self.get(Axis::LoadPercent)
    }

    /// Requests per second on a schedule that the experiment gives; 0 where there is none.
    pub(crate) fn rate_per_s(&self) -> u32 {
        self.get(Axis::RatePerS)
    }

    /// What is asked for, such as `TCP 128 B x 100`.
    pub(crate) fn work(&self) -> String {
        let name = match (self.protocol, self.is(Axis::Http2), self.is(Axis::Tls)) {
            (Protocol::Tcp, ..) => "TCP",
            (Protocol::Udp, ..) => "UDP",
            (Protocol::Http, false, false) => "HTTP",
            (Protocol::Http, false, true) => "HTTPS",
            (Protocol::Http, true, false) => "HTTP/2",
            (Protocol::Http, true, true) => "HTTP/2 TLS",
        };
        let mut text = format!("{name} {} x {}", bytes(self.get(Axis::Bytes)), self.clients().1);
        for (axis, usual, title) in [
            (Axis::Depth, 1, "depth"),
            (Axis::Churn, 0, "churn"),
            (Axis::Files, 1, "files"),
            (Axis::Workers, 1, "workers"),
        ] {
            if let Some(value) = self.on(axis).filter(|value| *value != usual) {
                text += &format!(" {title} {value}");
            }
        }
        text + if self.on(Axis::Keepalive) == Some(0) { " no keep-alive" } else { "" }
    }

    /// How often: a share of what can be served, or a rate, of UDP that of each stream. Nothing in a closed loop.
    pub(crate) fn load(&self) -> Option<String> {
        match (self.protocol, self.load_percent(), self.rate_per_s()) {
            (Protocol::Udp, ..) => Some(format!("{}/s", rate(self.get(Axis::PacketsPerS)))),
            (_, 0, 0) => None,
            (_, 0, per_s) => Some(format!("{}/s", rate(per_s))),
            (_, percent, _) => Some(format!("{percent} %")),
        }
    }

    /// The part of one of several load generators that have equal parts.
    pub(crate) fn divided(self, parts: u32) -> Result<Point, String> {
        let (clients, count) = self.clients();
        let mut part = self;
        let rate = (Axis::RatePerS, self.rate_per_s(), "requests/s");
        let title = if clients == Axis::Streams { "streams" } else { "connections" };
        for (axis, value, title) in [(clients, count, title), rate] {
            if !value.is_multiple_of(parts) {
                return Err(format!(
                    "{value} {title} cannot be divided among {parts} load generators"
                ));
            }
            part = part.with(axis, value / parts);
        }
        Ok(part)
    }
}

type Levels = BTreeMap<String, Level>;

impl TryFrom<Levels> for Point {
    type Error = String;

    fn try_from(levels: Levels) -> Result<Point, String> {
        let protocol = match (levels.contains_key("streams"), levels.contains_key("file_bytes")) {
            (true, _) => Protocol::Udp,
            (_, true) => Protocol::Http,
            _ => Protocol::Tcp,
        };
        let value = |(key, level): (&String, &Level)| {
            let spec = Axis::of_key(protocol, key).filter(|spec| spec.key == key);
            let spec = spec.ok_or_else(|| format!("{protocol} has no axis `{key}`"))?;
            Ok((spec.axis, level.number()))
        };
        let values = levels.iter().map(value).collect::<Result<Vec<_>, String>>()?;
        Point::new(protocol, &values)
    }
}

impl From<Point> for Levels {
    fn from(point: Point) -> Levels {
        let given = point.axes().filter(|(spec, value)| spec.default != Some(*value));
        given.map(|(spec, value)| (spec.key.to_owned(), spec.level(value))).collect()
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.work())?;
        self.load().map_or(Ok(()), |load| write!(f, " at {load}"))
    }
}

/// One cell: a point of a grid on a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cell {
    /// The network.
    pub net: NetKind,
    /// The point.
    #[serde(flatten)]
    pub point: Point,
}

impl Cell {
    /// What is spoken in it.
    pub fn protocol(&self) -> Protocol {
        self.point.protocol()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.point, self.net)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_written_for_people_and_read_back() {
        let (streams, rate, size) = (Axis::Streams, Axis::PacketsPerS, Axis::Bytes);
        let (tls, keepalive, http2) = (Axis::Tls, Axis::Keepalive, Axis::Http2);
        for (protocol, values, expected) in [
            (
                Protocol::Udp,
                &[(streams, 4000), (rate, 50), (size, 172)][..],
                "UDP 172 B x 4000 at 50/s",
            ),
            (Protocol::Udp, &[(streams, 1), (rate, 2_500_000), (size, 1)], "UDP 1 B x 1 at 2.5M/s"),
            (
                Protocol::Tcp,
                &[(Axis::Connections, 100), (size, 16 << 10), (Axis::LoadPercent, 25)],
                "TCP 16 KB x 100 at 25 %",
            ),
            (
                Protocol::Tcp,
                &[(Axis::Connections, 1), (size, 1), (Axis::Churn, 1), (Axis::Workers, 2)],
                "TCP 1 B x 1 churn 1 workers 2",
            ),
            (
                Protocol::Http,
                &[(Axis::Connections, 1), (size, 1), (tls, 1), (http2, 1), (Axis::Depth, 8)],
                "HTTP/2 TLS 1 B x 1 depth 8",
            ),
            (
                Protocol::Http,
                &[(Axis::Connections, 2), (size, 1024), (keepalive, 0), (Axis::Files, 3)],
                "HTTP 1 KB x 2 files 3 no keep-alive",
            ),
        ] {
            let cell = Cell { net: NetKind::Rps, point: Point::new(protocol, values).unwrap() };
            assert_eq!(cell.to_string(), format!("{expected} on rps"));
            let json = serde_json::to_string(&cell).unwrap();
            assert_eq!(serde_json::from_str::<Cell>(&json).unwrap(), cell, "{json}");
        }
        for wrong in [
            r#"{"net":"lo","connections":1,"message_bytes":1,"topics":1}"#,
            r#"{"net":"lo","connections":1}"#,
            r#"{"net":"lo","connections":0,"message_bytes":1}"#,
            r#"{"net":"lo","connections":"1","message_bytes":1}"#,
        ] {
            assert!(serde_json::from_str::<Cell>(wrong).is_err(), "{wrong}");
        }
    }
}
