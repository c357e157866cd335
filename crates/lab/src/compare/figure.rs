//! The figures of a run that two bundles are compared in.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::experiment::Protocol;
use crate::summary::Figures;

/// One of the figures of a run. A unit is a request that was answered, or a packet that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Figure {
    /// Busy time of the server's CPU per unit, in nanoseconds.
    #[serde(rename = "server_cpu")]
    ServerCpu,
    /// Busy time of both CPUs per unit, in nanoseconds.
    #[serde(rename = "both_cpus")]
    BothCpus,
    /// CPU time of the server's process alone per unit, in nanoseconds.
    #[serde(rename = "server_process")]
    ServerProcess,
    /// Units per second.
    #[serde(rename = "throughput")]
    Throughput,
    /// Median latency in microseconds.
    #[serde(rename = "p50")]
    P50,
    /// 99th percentile of latency in microseconds.
    #[serde(rename = "p99")]
    P99,
    /// 99.9th percentile of latency in microseconds.
    #[serde(rename = "p99.9")]
    P99_9,
    /// System calls of the server per unit, over its whole life.
    #[serde(rename = "syscalls")]
    Syscalls,
    /// Resident memory of the server at the end of the window, in bytes.
    #[serde(rename = "memory")]
    Memory,
}

/// Every figure with its name and its unit, of which `unit` stands for a request or a packet.
const ALL: &[(Figure, &str, &str)] = &[
    (Figure::ServerCpu, "server_cpu", "ns/unit"),
    (Figure::BothCpus, "both_cpus", "ns/unit"),
    (Figure::ServerProcess, "server_process", "ns/unit"),
    (Figure::Throughput, "throughput", "units/s"),
    (Figure::P50, "p50", "us"),
    (Figure::P99, "p99", "us"),
    (Figure::P99_9, "p99.9", "us"),
    (Figure::Syscalls, "syscalls", "/unit"),
    (Figure::Memory, "memory", "bytes"),
];

impl Figure {
    /// The figures of a protocol, in the order of the report. The throughput of UDP is given by the
    /// schedule and says nothing.
    pub fn of(protocol: Protocol) -> impl Iterator<Item = Figure> {
        let applies =
            move |figure: &Figure| !(*figure == Figure::Throughput && protocol == Protocol::Udp);
        ALL.iter().map(|(figure, _, _)| *figure).filter(applies)
    }

    /// The figure of this name.
    pub(super) fn named(name: &str) -> Option<Figure> {
        ALL.iter().find(|(_, known, _)| *known == name).map(|(figure, _, _)| *figure)
    }

    /// The names of all figures, separated by commas.
    pub(super) fn names() -> String {
        ALL.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// Its name, as `--fail-if` and JSON have it.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    pub(super) fn unit(self, protocol: Protocol) -> String {
        self.entry().2.replace("unit", protocol.unit())
    }

    fn entry(self) -> &'static (Figure, &'static str, &'static str) {
        // A test looks at every figure.
        ALL.iter().find(|(figure, _, _)| *figure == self).unwrap_or(&ALL[0])
    }

    pub(super) fn less_is_better(self) -> bool {
        self != Figure::Throughput
    }

    /// Whether it says nothing about the server once the load generator is the bottleneck.
    pub(super) fn is_of_the_load_too(self) -> bool {
        self == Figure::Throughput || self.is_latency()
    }

    pub(super) fn is_latency(self) -> bool {
        matches!(self, Figure::P50 | Figure::P99 | Figure::P99_9)
    }

    /// Its value in a run, if the run has it.
    pub(super) fn value(self, figures: &Figures) -> Option<f64> {
        match self {
            Figure::ServerCpu => Some(figures.server_cpu_ns),
            Figure::BothCpus => Some(figures.both_cpus_ns),
            Figure::ServerProcess => Some(figures.server_process_ns),
            Figure::Throughput => Some(figures.requests_per_s),
            Figure::P50 => Some(figures.latency_us_p50),
            Figure::P99 => Some(figures.latency_us_p99),
            Figure::P99_9 => Some(figures.latency_us_p99_9),
            Figure::Syscalls => figures.server_syscalls,
            Figure::Memory => figures.memory.map(|memory| memory.server_rss_bytes),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json_and_lead_back() {
        for (figure, name, _) in ALL {
            assert_eq!(serde_json::to_value(figure).unwrap(), *name);
            assert_eq!((figure.name(), Figure::named(name)), (*name, Some(*figure)));
        }
        assert_eq!(Figure::named("speed"), None);
        assert_eq!(Figure::ServerCpu.unit(Protocol::Udp), "ns/packet");
        assert!(!Figure::of(Protocol::Udp).any(|figure| figure == Figure::Throughput));
    }
}
