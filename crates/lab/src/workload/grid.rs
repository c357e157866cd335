//! The grid of a protocol in an experiment: every combination of its axes is a cell.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::axis::Level;
use super::{Axis, AxisSpec, Point, Protocol, axes_of};
use crate::error::LabError;
use crate::experiment::Source;

const POINTS_MAX: usize = 64;

/// The most cells of a protocol on a network.
const CELLS_MAX: usize = 4096;

/// The largest set of files of one size, in bytes.
const SET_BYTES_MAX: u64 = 4 << 30;

/// The cells of a protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Grid {
    /// How the requests of a schedule follow each other.
    #[serde(default, skip_serializing_if = "is_default")]
    pub arrivals: Arrivals,
    /// Whose work the result is about.
    #[serde(default, skip_serializing_if = "is_default")]
    pub under_test: UnderTest,
    /// When a subject has done the work that was due. CPU is compared between such runs only.
    #[serde(default, alias = "keeps_up", skip_serializing_if = "is_default")]
    pub slo: Slo,
    /// Load before the window opens, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_s: Option<f64>,
    /// The measured window, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// The command of the load generator, placeholders in braces, if it is another than
    /// `twinring load`. It must print the same JSON lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<String>,
    /// The axes, by key.
    #[serde(flatten)]
    axes: BTreeMap<String, Vec<Level>>,
}

pub(crate) fn is_default<T: Default + PartialEq>(it: &T) -> bool {
    *it == T::default()
}

/// How the requests of a schedule follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Periodic,
    /// Independently of each other.
    Poisson,
}

/// Whose CPU a result is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum UnderTest {
    /// The server. The load generator is the same for every subject.
    #[default]
    Server,
    /// Server and load generator, which both run on the subject's engine.
    Both,
}

/// The service level objective: the limits within which a run has done the work that was due.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Slo {
    /// Most of what was due in the window that may be missing at its end, as a share: by default 1 % of
    /// requests, 0.1 % of packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_ratio: Option<f64>,
    /// Requests: the longest 99th percentile of latency, in microseconds. The default is 10 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us_p99: Option<f64>,
    /// Packets: how late the 99.9th percentile may leave, in microseconds. The default is 10 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness_us_p99_9: Option<f64>,
}

const LATEST_US: f64 = 10_000.0;

impl Slo {
    /// Of requests: the share that may be missing, and the longest p99 in microseconds.
    pub fn of_requests(&self) -> (f64, f64) {
        (self.missing_ratio.unwrap_or(0.01), self.latency_us_p99.unwrap_or(LATEST_US))
    }

    /// Of packets: the share that may be missing, and the latest p99.9 in microseconds.
    pub fn of_packets(&self) -> (f64, f64) {
        (self.missing_ratio.unwrap_or(0.001), self.lateness_us_p99_9.unwrap_or(LATEST_US))
    }
}

impl Grid {
    /// The points of an axis: those given, or its default.
    pub(crate) fn values(&self, spec: &AxisSpec) -> Vec<u32> {
        match self.axes.get(spec.key) {
            Some(levels) => levels.iter().map(|it| it.number()).collect(),
            None => spec.default.into_iter().collect(),
        }
    }

    pub(crate) fn set(&mut self, spec: &AxisSpec, values: &[u32]) {
        let levels = values.iter().map(|value| spec.level(*value)).collect();
        self.axes.insert(spec.key.to_owned(), levels);
    }

    /// Every combination of the axes, in the order of the reports. Those that are out of bounds were
    /// refused by [`Grid::check`].
    pub(crate) fn points(&self, protocol: Protocol) -> Vec<Point> {
        let mut all: Vec<Vec<(Axis, u32)>> = vec![Vec::new()];
        for spec in axes_of(protocol) {
            let values = self.values(spec);
            let with = |one: &Vec<(Axis, u32)>, value| [&one[..], &[(spec.axis, value)]].concat();
            let each = |one| values.iter().map(move |it| with(one, *it));
            all = all.iter().flat_map(each).collect();
        }
        all.iter().filter_map(|values| Point::new(protocol, values).ok()).collect()
    }

    pub(crate) fn check(&self, protocol: Protocol, source: &Source<'_>) -> Result<(), LabError> {
        let at = |key: &str| format!("{protocol}.{key}");
        let known: Vec<&str> = axes_of(protocol).map(|spec| spec.key).collect();
        for key in self.axes.keys() {
            let found = format!("`{key}` in [{protocol}]");
            source.unless(known.contains(&&**key), &at(key), found, &known.join(", "))?;
        }
        for spec in axes_of(protocol) {
            let (values, [least, most]) = (self.values(spec), spec.bounds);
            source.unless(
                (1..=POINTS_MAX).contains(&values.len())
                    && values.iter().all(|value| (least..=most).contains(value))
                    && values.iter().collect::<BTreeSet<_>>().len() == values.len(),
                &at(spec.key),
                format!("{} = {values:?}", spec.key),
                &format!("1 to {POINTS_MAX} different numbers from {least} to {most}"),
            )?;
        }
        let counts = axes_of(protocol).map(|spec| self.values(spec).len());
        let cells = counts.fold(1, usize::saturating_mul);
        let found = format!("{cells} combinations of the axes of [{protocol}]");
        source.unless(cells <= CELLS_MAX, &protocol.to_string(), found, "at most 4096")?;
        for point in self.points(protocol) {
            let both = point.rate_per_s() > 0 && point.load_percent() > 0;
            let found = "both rate_per_s and load_percent";
            source.unless(!both, &at("load_percent"), found, "one of them: both give a rate")?;
            let per_request = point.on(Axis::Keepalive) == Some(0);
            let deep = point.get(Axis::Depth) > 1 || point.is(Axis::Http2);
            let found = "a connection for each request with depth > 1 or HTTP/2";
            source.unless(!(per_request && deep), &at("keepalive"), found, "keepalive = [true]")?;
            let set = u64::from(point.get(Axis::Files)) * u64::from(point.get(Axis::Bytes));
            let found = format!("{set} bytes in files of one size");
            source.unless(set <= SET_BYTES_MAX, &at("files"), found, "at most 4 GiB")?;
        }
        let Slo { missing_ratio, latency_us_p99, lateness_us_p99_9 } = self.slo;
        source.unless(
            missing_ratio.is_none_or(|it| (0.0..=1.0).contains(&it))
                && [latency_us_p99, lateness_us_p99_9].into_iter().flatten().all(|it| it > 0.0),
            &at("slo"),
            format!("{:?}", self.slo),
            "missing_ratio from 0 to 1 and times above 0",
        )?;
        let target = if protocol == Protocol::Http { "{urls}" } else { "{addr}" };
        source.unless(
            self.load.is_empty() || self.load.iter().any(|word| word.contains(target)),
            &at("load"),
            format!("the load's command has no {target}"),
            &format!("a program and arguments, with {target} where the server's address goes"),
        )?;
        source.unless(
            self.under_test == UnderTest::Both
                || !self.load.iter().any(|word| word.contains("{engine}")),
            &at("load"),
            format!("the load of [{protocol}] depends on the subject"),
            "under_test = \"both\", or no {engine}",
        )
    }
}
