//! What a bundle stores of a summary.

use serde::{Deserialize, Serialize};

use super::aa::AaCounts;
use super::calls::CallFigures;
use super::comparison::Comparison;
use super::figures::Figures;
use super::level::Level;
use crate::audit::Finding;
use crate::placement::Placement;
use crate::statistics::{Drift, Outliers};
use crate::workload::{Axis, Cell};

/// What an experiment found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// One entry for each cell that was begun, in the order of the experiment.
    pub cells: Vec<CellSummary>,
    /// How many runs there were.
    pub runs: usize,
    /// How often a difference was found where there can be none, if subjects were compared with
    /// themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aa: Option<AaCounts>,
    /// Up to which load subjects kept the rate, where it was offered on a schedule at several rates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub knees: Vec<Knee>,
}

/// What was found in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellSummary {
    /// The cell.
    pub cell: Cell,
    /// `closed` or `open`: whether the load waited for answers. It decides what latency means.
    pub load_mode: Option<String>,
    /// The subjects, the baseline first.
    pub subjects: Vec<SubjectSummary>,
    /// Every subject but the baseline, against the baseline; then those against others that the
    /// experiment asks for.
    pub comparisons: Vec<Comparison>,
    /// Blocks that were run.
    #[serde(default)]
    pub blocks: usize,
    /// How many of them do not count, because the machine was disturbed.
    #[serde(default, alias = "spoilt_blocks")]
    pub excluded_blocks: usize,
    /// How much more or less of a window the busy time of a CPU may be than a run says, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_unsure_share: Option<f64>,
    /// How the CPUs lay to each other in the runs that count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<PlacementSummary>,
    /// What the audits found, in the order of time.
    pub findings: Vec<Finding>,
}

/// One way in which the CPUs lay to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementSummary {
    /// Which.
    pub placement: Placement,
    /// Blocks that count and were run in it.
    pub blocks: usize,
    /// Median round trip of a cache line, in nanoseconds.
    pub round_trip_ns: f64,
}

/// Medians over the runs of a subject that count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubjectSummary {
    /// Its name.
    pub name: String,
    /// How many runs it had.
    pub runs: usize,
    /// How many of them count.
    pub counted: usize,
    /// How many of these did the work that was asked for, where there is a schedule to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_up: Option<usize>,
    /// Of how many of them nothing came back although packets were sent; they have no figures, and
    /// did not keep the rate.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unanswered: usize,
    /// Outliers among them, by the primary metric. They count all the same.
    #[serde(default)]
    pub outliers: Outliers,
    /// Whether the primary metric moved while it was measured.
    #[serde(default)]
    pub drift: Option<Drift>,
    /// The medians, if any run counts.
    pub figures: Option<Figures>,
    /// The primary metric by itself, with an interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// What limited it.
    pub bottleneck: Option<Bottleneck>,
    /// Latency in microseconds by quantile, of all counted runs together.
    pub latency_curve: Vec<(f64, f64)>,
    /// How late packets left, in microseconds by quantile, of all counted runs together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lateness_curve: Vec<(f64, f64)>,
    /// System calls of the load generator, if it timed them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallFigures>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// What kept a subject from answering more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The server's CPU: what one wants to measure.
    ServerCpu,
    /// The load generator's CPU: the throughput is a lower bound.
    ClientCpu,
    /// Both at once.
    BothCpus,
    /// One CPU that both share.
    SharedCpu,
    /// Neither CPU: requests waited for wake-ups, timers or the other end.
    Neither,
}

impl Bottleneck {
    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Bottleneck::ServerCpu => "server CPU",
            Bottleneck::ClientCpu => "client CPU",
            Bottleneck::BothCpus => "both CPUs",
            Bottleneck::SharedCpu => "the one CPU",
            Bottleneck::Neither => "neither CPU",
        }
    }

    /// Whether the load generator could not give more.
    pub fn is_client_bound(self) -> bool {
        matches!(self, Bottleneck::ClientCpu)
    }
}

/// How far a subject kept up along an axis of offered load. It keeps up at a point if it did in at
/// least half of the runs that count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// The axis.
    pub axis: Axis,
    /// The cell with the least load; the others differ from it in the axis only.
    pub lowest: Cell,
    /// The subject.
    pub subject: String,
    /// The highest value of the axis up to which it kept up; none if it did not at the lowest.
    pub keeps_up_to: Option<u32>,
    /// The lowest value at which it did not keep up; none if there is none.
    pub falls_behind_at: Option<u32>,
}
