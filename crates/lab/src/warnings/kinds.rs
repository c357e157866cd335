//! The kinds of warnings by name, and what to do about each.

use serde::{Deserialize, Serialize};

use crate::experiment::Cell;

/// One thing to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    /// What it is about.
    pub kind: WarningKind,
    /// The cell, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<Cell>,
    /// The subject, if it is about one; of a comparison the one that is compared with the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What was seen, with figures.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

impl Warning {
    pub(super) fn of(kind: WarningKind, what: String) -> Warning {
        Warning { kind, cell: None, subject: None, what, advice: kind.advice().to_owned() }
    }

    pub(super) fn in_cell(self, cell: Cell) -> Warning {
        Warning { cell: Some(cell), ..self }
    }

    pub(super) fn about(self, subject: &str) -> Warning {
        Warning { subject: Some(subject.to_owned()), ..self }
    }
}

/// What a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// A subject compared with itself came out different.
    AaFalseVerdict,
    /// The load generator was the bottleneck.
    ClientBound,
    /// Not all connections or streams were served.
    UnequalAdmission,
    /// The bytes that came back were not all compared.
    UnverifiedPayload,
    /// There are too few pairs for a verdict.
    TooFewPairs,
    /// Differences that matter could not have been detected, or many blocks were excluded.
    Noisy,
    /// A figure or a ratio moved while it was measured.
    Drifting,
    /// Some runs lie far from the others.
    Outliers,
    /// CPU time is precise only to a part of the window.
    CoarseCpu,
    /// Loopback charges the receiver's work to the sender.
    LoopbackAccounting,
    /// Server and load generator share a core.
    SharedCore,
    /// The machine is a virtual one.
    VirtualMachine,
    /// The clock of the CPUs is not fixed.
    Turbo,
    /// Mitigations make system calls more expensive.
    Mitigations,
}

impl WarningKind {
    /// All of them, in their order.
    pub const ALL: [WarningKind; 14] = [
        WarningKind::AaFalseVerdict,
        WarningKind::ClientBound,
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
            WarningKind::AaFalseVerdict => "false positive",
            WarningKind::ClientBound => "client-bound",
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
                "one of twenty A/A tests fails by chance; if it fails again, something that the lab \
                 does not measure favours one place in the order of runs: do not trust small \
                 differences on this machine"
            }
            WarningKind::ClientBound => {
                "compare CPU per request only: its requests per second are a lower bound, and its \
                 latency contains the load generator's queue"
            }
            WarningKind::UnequalAdmission => {
                "raise the server's backlog, connection or descriptor limit until all are served"
            }
            WarningKind::UnverifiedPayload => {
                "have the load generator verify the payload, or do not trust a low cost"
            }
            WarningKind::TooFewPairs => {
                "measure more pairs (--pairs), and give replacements where noise is common \
                 (spare_pairs)"
            }
            WarningKind::Noisy => {
                "measure more pairs (--until), use longer windows or a quieter machine; that no \
                 difference was detected does not mean that there is none"
            }
            WarningKind::Drifting => {
                "find what changes (heat, a neighbour, memory that fills up) and measure again: an \
                 hour later the ratio may differ"
            }
            WarningKind::Outliers => {
                "they count; look at these runs in runs.jsonl, and measure more pairs if they make \
                 the interval wide"
            }
            WarningKind::CoarseCpu => {
                "use longer windows; if the lab did not run as root, run it as root: only then can it \
                 read the kernel's idle clock in nanoseconds"
            }
            WarningKind::LoopbackAccounting => {
                "compare CPU of both sides, or measure on the other networks (as root, --net all)"
            }
            WarningKind::SharedCore => {
                "use a machine with two free cores, or choose them by --server-cpu and --client-cpu"
            }
            WarningKind::VirtualMachine => {
                "repeat it on the machine that will run the service: interrupts and wake-ups cost \
                 more in a virtual machine, and the hypervisor moves its CPUs (--placement close)"
            }
            WarningKind::Turbo => {
                "fix the clock (governor performance, no boost) to measure small differences; pairs \
                 cancel slow changes"
            }
            WarningKind::Mitigations => {
                "they are part of the result: they make system calls more expensive, which favours \
                 the subject that makes fewer; compare only with machines that have the same"
            }
        }
    }
}
