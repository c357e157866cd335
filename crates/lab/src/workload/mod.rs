//! What the lab can measure. A workload is a module: its axes and its unit of work, and within it how its
//! commands are filled in (`commands.rs`) and its audits (`audits.rs`). A further one is such a module, a line
//! in `workloads!`, a table of the experiment, and the type of its result in `twinring-wire`; the compiler
//! names the places that have an arm for each.

mod axis;
mod http;
mod requests;
mod tcp;
mod udp;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::contract::LoadResult;
use crate::error::LabError;
use crate::experiment::{Check, NetKind};

pub use axis::Axis;
pub(crate) use axis::{bytes, differ_only_in, rate};
pub use http::{HttpGrid, HttpPoint};
pub use requests::{AnswersInTime, Arrivals};
pub use tcp::{TcpGrid, TcpPoint};
pub use udp::{KeepsUp, UdpGrid, UdpPoint, UnderTest};

/// Makes everything that has a case for each workload. A line: what it is, its name in types, the
/// module and the table of an experiment, its grid, a point of that.
macro_rules! workloads {
    ($($(#[$about:meta])* $id:ident $name:ident $grid:ident $point:ident;)*) => {
        /// What is spoken between server and load generator.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(rename_all = "lowercase")]
        pub enum Protocol {
            $($(#[$about])* $id,)*
        }

        impl Protocol {
            /// All of them, in the order of the reports.
            pub const ALL: &[Protocol] = &[$(Protocol::$id),*];

            /// Its name, as in files and options.
            pub fn name(self) -> &'static str {
                match self { $(Protocol::$id => stringify!($name),)* }
            }

            pub(crate) fn workload(self) -> &'static Workload {
                match self { $(Protocol::$id => &$name::WORKLOAD,)* }
            }
        }

        impl From<&LoadResult> for Protocol {
            fn from(result: &LoadResult) -> Protocol {
                match result { $(LoadResult::$id(_) => Protocol::$id,)* }
            }
        }

        /// A point of a grid. The fields tell which.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(untagged)]
        pub enum Point {
            $($(#[$about])* $id($point),)*
        }

        impl Point {
            /// What is spoken at it.
            pub fn protocol(&self) -> Protocol {
                match self { $(Point::$id(_) => Protocol::$id,)* }
            }

            pub(crate) fn load(&self) -> &dyn Load {
                match self { $(Point::$id(point) => point,)* }
            }
        }

        $(impl Common for $grid {
            fn pace(&self) -> [Option<f64>; 2] {
                [self.warmup_s, self.window_s]
            }

            fn set_pace(&mut self, [warmup_s, window_s]: [Option<f64>; 2]) {
                self.warmup_s = warmup_s.or(self.warmup_s);
                self.window_s = window_s.or(self.window_s);
            }

            fn load(&self) -> &[String] {
                &self.load
            }

            fn limits(&self) -> String {
                // Numbers can always be written.
                serde_json::to_string(&self.keeps_up).unwrap_or_default()
            }
        })*

    };
}

workloads! {
    /// Connections; the load is `twinring load tcp`.
    Tcp tcp TcpGrid TcpPoint;
    /// Streams of datagrams on a schedule; the load is `twinring load udp`.
    Udp udp UdpGrid UdpPoint;
    /// Files over HTTP/1.1; the load is `twinring load http`.
    Http http HttpGrid HttpPoint;
}

/// A table of the reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// The first table of a cell: of every workload, of requests, of HTTP, of packets.
    Each,
    Requests,
    Http,
    Packets,
    Counts,
    /// What only HTTP has.
    Times,
    /// What only datagrams have.
    Datagrams,
    /// Where the CPU time of a side went. The columns of the server are those of the client, too.
    Sides,
    Memory,
}

/// What is the same for every point of a workload.
pub(crate) struct Workload {
    /// The work of one exchange.
    pub(crate) unit: &'static str,
    /// Per what CPU is counted.
    pub(crate) per: &'static str,
    /// What a latency is called.
    pub(crate) latency: &'static str,
    /// Whether its connections are those of TCP.
    pub(crate) over_tcp: bool,
    /// Whether the load is always on a schedule, which then gives the throughput.
    pub(crate) on_schedule: bool,
    /// Whose columns the first table of a cell has.
    pub(crate) tables: &'static [Table],
    /// The groups of `figures` in a bundle that not every workload has.
    pub(crate) figures: &'static [&'static str],
    /// The options of `twinring serve`.
    pub(crate) service: &'static [&'static str],
}

/// The load at a point of a grid.
pub(crate) trait Load: fmt::Display {
    /// Every axis: which it is, its name in files and placeholders, and its value here.
    fn axes(&self) -> Vec<(Axis, &'static str, u32)>;

    /// What a server copies from and to the kernel for a unit of work, in bytes.
    fn copied_bytes(&self) -> f64;

    /// The part of one of several load generators, which `part` takes of a number.
    fn divided(&self, part: &dyn Fn(u32) -> u32) -> Point;
}

/// What each grid has, independent of its axes.
pub(crate) trait Common {
    /// Warm-up and window in seconds, where they are other than the experiment's.
    fn pace(&self) -> [Option<f64>; 2];

    fn set_pace(&mut self, pace: [Option<f64>; 2]);

    /// The command of the load generator, placeholders still in it.
    fn load(&self) -> &[String];

    /// The limits within which a subject keeps up.
    fn limits(&self) -> String;
}

/// The points of an axis in an experiment.
pub(crate) struct Points<'a> {
    /// Its name in files.
    pub(crate) key: &'static str,
    /// The option that replaces them; none has.
    pub(crate) option: &'static str,
    pub(crate) points: &'a mut Vec<u32>,
    /// The smallest and the largest that are accepted.
    pub(crate) bounds: [u32; 2],
}

/// The cells of a workload in an experiment: every combination of the axes is one.
pub(crate) trait Grid: Common {
    fn axes(&mut self) -> Vec<Points<'_>>;

    /// In the order of the reports.
    fn points(&self) -> Vec<Point>;

    /// # Errors
    /// [`LabError::BadExperiment`] for the first thing that is wrong.
    fn check(&self, check: &Check<'_>, subjects_change_load: bool) -> Result<(), LabError>;

    /// How the requests of a schedule follow each other.
    fn arrivals(&self) -> Arrivals {
        Arrivals::Periodic
    }

    /// The command of another load generator, if the cells are measured with two.
    fn second_load(&self) -> &[String] {
        &[]
    }

    /// Whose work the verdicts are about.
    fn under_test(&self) -> UnderTest {
        UnderTest::Server
    }
}

/// The axis of load generators: ours, and a second one if there is one.
fn generators(second_load: &[String]) -> &'static [u32] {
    if second_load.is_empty() { &[0] } else { &[0, 1] }
}

/// Every combination of these axes; the points of the last one are next to each other.
fn combinations<const N: usize>(axes: [&[u32]; N]) -> Vec<[u32; N]> {
    let mut all = vec![[0; N]];
    for (position, points) in axes.into_iter().enumerate() {
        let with = |one: [u32; N], point: u32| {
            let mut one = one;
            one[position] = point;
            one
        };
        all = all.into_iter().flat_map(|one| points.iter().map(move |it| with(one, *it))).collect();
    }
    all
}

fn one() -> Vec<u32> {
    vec![1]
}

fn zero() -> Vec<u32> {
    vec![0]
}

fn is_zero(axis: &[u32]) -> bool {
    axis == [0]
}

fn is_one(axis: &[u32]) -> bool {
    axis == [1]
}

fn is_nought(number: &u32) -> bool {
    *number == 0
}

fn single() -> u32 {
    1
}

fn is_single(number: &u32) -> bool {
    *number == 1
}

/// The most workers of a server.
const WORKERS_MOST: u32 = 1024;

/// How workers stand in the name of a cell.
fn phrase_workers(f: &mut fmt::Formatter<'_>, workers: u32) -> fmt::Result {
    if workers == 1 { Ok(()) } else { write!(f, ", {workers} workers") }
}

impl Protocol {
    /// What is counted: the work of one exchange.
    pub fn unit(self) -> &'static str {
        self.workload().unit
    }
}

impl std::str::FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Protocol, String> {
        let names: Vec<&str> = Protocol::ALL.iter().map(|it| it.name()).collect();
        let found = Protocol::ALL.iter().copied().find(|it| it.name() == text);
        found.ok_or_else(|| format!("`{text}` is none of {}", names.join(", ")))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Point {
    /// Its value on an axis, if it has the axis.
    pub(crate) fn on(&self, axis: Axis) -> Option<u32> {
        self.load().axes().into_iter().find(|(it, ..)| *it == axis).map(|(.., value)| value)
    }

    /// Connections or streams: the axis, and how many at once.
    pub(crate) fn clients(&self) -> (Axis, u32) {
        let on = |axis| Some((axis, self.on(axis)?));
        on(Axis::Connections).or_else(|| on(Axis::Streams)).unwrap_or((Axis::Connections, 1))
    }

    /// Workers of the server.
    pub(crate) fn workers(&self) -> usize {
        self.on(Axis::Workers).unwrap_or(1) as usize
    }

    /// The rate as a percentage of what the slowest subject can serve; 0 where it is not.
    pub(crate) fn load_percent(&self) -> u32 {
        self.on(Axis::LoadPercent).unwrap_or(0)
    }

    /// The same load in a closed loop, in which each answer brings the next request.
    pub(crate) fn saturated(self) -> Point {
        match self {
            Point::Tcp(point) => Point::Tcp(TcpPoint { load_percent: 0, ..point }),
            Point::Http(point) => Point::Http(HttpPoint { load_percent: 0, ..point }),
            Point::Udp(_) => self,
        }
    }

    /// Requests per second on a schedule that the experiment gives; 0 where there is none.
    pub(crate) fn rate_per_s(&self) -> u32 {
        self.on(Axis::RatePerS).unwrap_or(0)
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

impl Cell {
    /// What is spoken in it.
    pub fn protocol(&self) -> Protocol {
        self.point.protocol()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.point.load(), self.net.phrase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_written_for_people_and_read_back() {
        let udp = |streams, packets_per_s| Cell {
            net: NetKind::Rps,
            point: Point::Udp(UdpPoint { streams, packets_per_s, message_bytes: 172, workers: 1 }),
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
        // With one field more it is no point of TCP.
        let other = r#"{"net":"lo","connections":1,"message_bytes":1,"depth":1,"topics":1}"#;
        assert!(serde_json::from_str::<Cell>(other).is_err());
    }

    #[test]
    fn axes_of_points_and_grids_have_the_same_names() {
        let quick = crate::experiment::Experiment::find("quick").unwrap();
        for protocol in Protocol::ALL {
            let points = quick.grid(*protocol).unwrap().points();
            let of_point: Vec<&str> = points[0].load().axes().iter().map(|it| it.1).collect();
            let stored = serde_json::to_value(points[0]).unwrap();
            assert!(of_point.iter().all(|key| stored.get(key).is_some() || is_optional(key)));
            let mut quick = quick.clone();
            quick.keep_protocols(|it| it == *protocol);
            let mut grids: Vec<_> = quick.grids_mut().collect();
            let of_grid = grids[0].1.axes();
            assert!(of_grid.iter().all(|axis| of_point.contains(&axis.key)), "{protocol}");
        }
    }

    fn is_optional(key: &str) -> bool {
        matches!(key, "rate_per_s" | "load_percent" | "churn" | "generator" | "http2" | "workers")
    }
}
