//! What a row of the table of metrics consists of.

use super::super::reading::Reading;
use crate::workload::Table;

/// What a metric is measured in. `unit` in a text stands for a request or a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nanoseconds for each unit of work.
    Ns,
    UnitsPerS,
    Us,
    /// A share of the window.
    OfWindow,
    /// A share that is nothing or very little most of the time.
    Ratio,
    /// A count for each unit of work.
    Count,
    PerEnter,
    PerRun,
    Bytes,
    BytesPerS,
    BytesPerConnection,
}

impl Unit {
    pub(super) fn text(self) -> &'static str {
        match self {
            Unit::Ns => "ns/unit",
            Unit::UnitsPerS => "units/s",
            Unit::Us => "us",
            Unit::OfWindow => "of the window",
            Unit::Ratio => "",
            Unit::Count => "/unit",
            Unit::PerEnter => "/enter",
            Unit::PerRun => "/run",
            Unit::Bytes => "bytes",
            Unit::BytesPerS => "bytes/s",
            Unit::BytesPerConnection => "bytes/connection",
        }
    }
}

/// Which way a metric has to change to be better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Less of it is better.
    Less,
    /// More of it is better.
    More,
    /// Neither: it says under which conditions a run was made, or how a sum divides.
    Neither,
}

/// How the runs of a subject are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Several {
    Median,
    /// The median of a rare count is often zero.
    Mean,
    /// The mean share of the busy time of its side, of the median of that: so parts still add up.
    Part,
}

pub(super) const REQUESTS: &[Table] = &[Table::Requests];
pub(super) const HTTP: &[Table] = &[Table::Http];
pub(super) const UDP: &[Table] = &[Table::Packets];
pub(super) const EACH: &[Table] = &[Table::Each];
pub(super) const COUNTS: &[Table] = &[Table::Counts];
pub(super) const TIMES: &[Table] = &[Table::Times];
pub(super) const DATAGRAMS: &[Table] = &[Table::Datagrams];
pub(super) const SIDES_TABLE: &[Table] = &[Table::Sides];
pub(super) const MEMORY: &[Table] = &[Table::Memory];

/// A column of one or more tables of the reports.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) tables: &'static [Table],
    pub(super) title: &'static str,
    /// The line below the title: unit, whose it is, or per what. `unit` is a request or a packet.
    pub(super) below: &'static str,
}

/// When the reports show a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Always,
    /// A load generator that waits for answers keeps its CPU busy with any server.
    OnSchedule,
    /// What is sent on a schedule is received at its rate.
    OffSchedule,
}

/// The ratio of a metric in a comparison.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ratio {
    /// Its place in the reports, from left to right, and its field in a comparison.
    pub(super) place: u8,
    pub(super) field: &'static str,
    /// `unit` is a request or a packet, `latency` what that is called for it.
    pub(super) title: &'static str,
    pub(super) shown: Shown,
}

/// A row of the table of metrics.
pub(super) struct Row {
    /// Where it stands in `figures` of a bundle.
    pub(super) path: &'static str,
    /// A shorter name for it in `lab compare`; what has one is always compared.
    pub(super) alias: &'static str,
    pub(super) unit: Unit,
    pub(super) better: Better,
    pub(super) several: Several,
    pub(super) columns: &'static [Column],
    /// What is compared in pairs.
    pub(super) ratio: Option<Ratio>,
    pub(super) about: &'static str,
    pub(super) read: fn(&Reading<'_>) -> Option<f64>,
}

/// The last of these.
pub(super) const fn last(ratios: &[Option<Ratio>]) -> Option<Ratio> {
    ratios[ratios.len() - 1]
}
