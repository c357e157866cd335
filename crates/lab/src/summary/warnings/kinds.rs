//! The kinds of warnings by name, and what to do about each.

use serde::{Deserialize, Serialize};

/// What a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// A subject compared with itself came out different.
    AaFalseVerdict,
    /// The load generator was the bottleneck.
    ClientBound,
    /// The ratio depends on which load generator asks.
    DependsOnGenerator,
    /// Not all connections or streams were served.
    UnequalAdmission,
    /// Nobody looked at all of the bytes that came back.
    UnverifiedPayload,
    /// There are too few pairs for a verdict.
    TooFewPairs,
    /// Differences that matter could not have been seen, or much was disturbed.
    Noisy,
    /// A figure or a ratio moved while it was measured.
    Drifting,
    /// Some runs lie far from the others.
    Outliers,
    /// CPU time is known to a part of the window only.
    CoarseCpu,
    /// Loopback charges the receiver's work to the sender.
    LoopbackAccounting,
    /// Server and load generator share a core.
    SharedCore,
    /// The machine is a virtual one.
    VirtualMachine,
    /// The clock of the CPUs is not fixed.
    Turbo,
    /// Mitigations make system calls dearer.
    Mitigations,
}

impl WarningKind {
    /// All of them, in their order.
    pub const ALL: [WarningKind; 15] = [
        WarningKind::AaFalseVerdict,
        WarningKind::ClientBound,
        WarningKind::DependsOnGenerator,
        WarningKind::UnequalAdmission,
        WarningKind::UnverifiedPayload,
        WarningKind::TooFewPairs,
        WarningKind::Noisy,
        WarningKind::Drifting,
        WarningKind::Outliers,
        WarningKind::CoarseCpu,
        WarningKind::LoopbackAccounting,
        WarningKind::SharedCore,
        WarningKind::VirtualMachine,
        WarningKind::Turbo,
        WarningKind::Mitigations,
    ];

    /// The kind in words.
    pub fn title(self) -> &'static str {
        match self {
            WarningKind::AaFalseVerdict => "false difference",
            WarningKind::ClientBound => "client-bound",
            WarningKind::DependsOnGenerator => "depends on the load generator",
            WarningKind::UnequalAdmission => "unequal admission",
            WarningKind::UnverifiedPayload => "payload not verified",
            WarningKind::TooFewPairs => "too few pairs",
            WarningKind::Noisy => "noisy",
            WarningKind::Drifting => "drifting",
            WarningKind::Outliers => "outliers",
            WarningKind::CoarseCpu => "coarse CPU time",
            WarningKind::LoopbackAccounting => "loopback accounting",
            WarningKind::SharedCore => "shared core",
            WarningKind::VirtualMachine => "virtual machine",
            WarningKind::Turbo => "varying clock",
            WarningKind::Mitigations => "mitigations",
        }
    }

    /// What the reader can do about it.
    pub fn advice(self) -> &'static str {
        match self {
            WarningKind::AaFalseVerdict => {
                "one of twenty such verdicts is an accident; if it comes again, something that the \
                 lab does not see favours one place in the order of runs: doubt small differences \
                 on this machine"
            }
            WarningKind::ClientBound => {
                "compare CPU per request only: its requests per second are a lower bound, and its \
                 latency contains the load generator's queue"
            }
            WarningKind::DependsOnGenerator => {
                "quote both ratios: the servers met different patterns of arrivals (compare the \
                 completions per wait and the notifications per request)"
            }
            WarningKind::UnequalAdmission => {
                "raise the server's backlog, connection or descriptor limit until all are served"
            }
            WarningKind::UnverifiedPayload => {
                "have the load generator compare what comes, or do not trust what is cheap"
            }
            WarningKind::TooFewPairs => {
                "measure more: --pairs, and spare_pairs where noise is common"
            }
            WarningKind::Noisy => {
                "more pairs (--until), longer windows, or a quieter machine; no difference detected \
                 does not mean that there is none"
            }
            WarningKind::Drifting => {
                "find what changes (heat, a neighbour, memory that fills up) and measure again: the \
                 ratio of an hour later may be another one"
            }
            WarningKind::Outliers => {
                "they count: look at these runs in runs.jsonl, and measure more pairs if the \
                 interval is wide because of them"
            }
            WarningKind::CoarseCpu => {
                "run it as root, for the kernel's idle clock in nanoseconds, or with longer windows"
            }
            WarningKind::LoopbackAccounting => {
                "compare CPU of both sides, or measure on the other networks (as root, --net all)"
            }
            WarningKind::SharedCore => {
                "use a machine with two cores to spare, or --server-cpu and --client-cpu"
            }
            WarningKind::VirtualMachine => {
                "repeat it where it is to run: interrupts and wake-ups cost more in a virtual \
                 machine, and the hypervisor moves its CPUs (--placement close)"
            }
            WarningKind::Turbo => {
                "fix the clock (governor performance, no boost) for small differences; pairs take \
                 out what changes slowly"
            }
            WarningKind::Mitigations => {
                "they are part of the result: system calls cost more with them, which favours who \
                 makes fewer; compare only with machines that have the same"
            }
        }
    }
}
