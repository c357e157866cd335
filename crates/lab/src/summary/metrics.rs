//! What is counted of a run beside its times, in one table: reports, CSV and documentation follow
//! from it.

use std::collections::BTreeMap;

use super::figures::Figures;
use crate::accounting::CpuUse;
use crate::experiment::NetKind;
use crate::statistics::median;

/// One thing that is counted.
pub struct Metric {
    /// Its name in `counts` of the figures, unless it is a field of the figures by itself.
    pub name: &'static str,
    /// What a column with it is called.
    pub title: &'static str,
    /// What it is a count of, below the title: whose it is, or per what.
    pub of: &'static str,
    /// What it says.
    pub about: &'static str,
    source: Source,
}

/// Where a metric comes from.
#[derive(Clone, Copy)]
enum Source {
    /// Counted in the window, per unit of work; of several runs the median.
    PerUnit(fn(&CpuUse, NetKind) -> Option<u64>),
    /// Counted in the window, per run. It is rare, so of several runs it is the mean: a median would
    /// often say that there is none.
    PerRun(fn(&CpuUse, NetKind) -> Option<u64>),
    /// A field of the figures, older than this table.
    Field(fn(&Figures) -> Option<f64>),
}

/// Everything that is counted, in the order of the reports. Of all of them less is better, but for
/// completions per enter.
pub const METRICS: [Metric; 8] = [
    Metric {
        name: "notifications",
        title: "notifications",
        of: "both CPUs",
        about: "Interrupts by which one of the two CPUs was told something by another, per unit: \
                function calls and reschedules.",
        source: Source::PerUnit(|cpu, _| cpu.notifications()),
    },
    Metric {
        name: "net_rx_runs",
        title: "NET_RX",
        of: "both CPUs",
        about: "Runs of the receive softirq on both CPUs, per unit.",
        source: Source::PerUnit(|cpu, _| cpu.net_rx_runs()),
    },
    Metric {
        name: "server_switches",
        title: "switches",
        of: "server",
        about: "Context switches of the server, per unit.",
        source: Source::Field(|figures| Some(figures.server_switches)),
    },
    Metric {
        name: "server_page_faults",
        title: "faults",
        of: "server",
        about: "Page faults of the server that took no disk, per unit.",
        source: Source::PerUnit(|cpu, _| cpu.server.minor_faults),
    },
    Metric {
        name: "server_syscalls",
        title: "syscalls",
        of: "whole life",
        about: "System calls of the server, per unit, both over its whole life.",
        source: Source::Field(|figures| figures.server_syscalls),
    },
    Metric {
        name: "completions_per_enter",
        title: "completions",
        of: "/enter",
        about: "Completions per io_uring_enter of the server, over its whole life.",
        // A server without io_uring counts none.
        source: Source::Field(|figures| figures.completions_per_enter.filter(|it| *it > 0.0)),
    },
    Metric {
        name: "retransmits",
        title: "resent",
        of: "/run",
        about: "TCP segments sent again by either side, per run.",
        source: Source::PerRun(CpuUse::retransmits),
    },
    Metric {
        name: "drops",
        title: "drops",
        of: "/run",
        about: "Packets dropped at the devices and the receive backlogs of either side, per run.",
        source: Source::PerRun(CpuUse::drops),
    },
];

impl Metric {
    /// Its value in figures, if it was counted.
    pub fn value(&self, figures: &Figures) -> Option<f64> {
        match self.source {
            Source::PerUnit(_) | Source::PerRun(_) => figures.counts.get(self.name).copied(),
            Source::Field(read) => read(figures),
        }
    }

    fn of_run(&self, cpu: &CpuUse, net: NetKind, done: f64) -> Option<f64> {
        match self.source {
            Source::PerUnit(read) => Some(read(cpu, net)? as f64 / done),
            Source::PerRun(read) => Some(read(cpu, net)? as f64),
            Source::Field(_) => None,
        }
    }

    fn of_several(&self, runs: &[&Figures]) -> Option<f64> {
        let all: Vec<f64> = runs.iter().filter_map(|figures| self.value(figures)).collect();
        match self.source {
            Source::PerUnit(_) => median(all),
            Source::PerRun(_) if all.is_empty() => None,
            Source::PerRun(_) => Some(all.iter().sum::<f64>() / all.len() as f64),
            Source::Field(_) => None,
        }
    }
}

/// What was counted of a run with `done` units, by name.
pub(super) fn counts(cpu: &CpuUse, net: NetKind, done: f64) -> BTreeMap<String, f64> {
    collected(|metric| metric.of_run(cpu, net, done))
}

/// What was counted of several runs.
pub(super) fn medians(runs: &[&Figures]) -> BTreeMap<String, f64> {
    collected(|metric| metric.of_several(runs))
}

fn collected(value: impl Fn(&Metric) -> Option<f64>) -> BTreeMap<String, f64> {
    METRICS.iter().filter_map(|metric| Some((metric.name.to_owned(), value(metric)?))).collect()
}
