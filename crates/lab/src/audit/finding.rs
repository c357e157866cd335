//! What an audit finds, and how a rule says it.

use serde::{Deserialize, Serialize};

use super::kinds::Kind;
use crate::record::RunRecord;

/// Programs that had less than the rest of the window cannot be expected to serve anybody.
pub const STARVED_SHARE: f64 = 0.75;

/// How far what was due in a window may be from rate x window, as a share. Each stream or connection may
/// also have one more or less by its phase.
pub const DUE_TOLERANCE: f64 = 0.01;

/// How far a printed figure may be from the one recomputed from the histogram: hdr histograms of
/// three digits are good to 0.1 %.
const RECOMPUTED_TOLERANCE: f64 = 0.005;

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which rule.
    pub kind: Kind,
    /// What follows from it.
    pub severity: Severity,
    /// The subject it is about.
    pub subject: String,
    /// The run, if it is about one.
    pub run: Option<usize>,
    /// What was seen, with figures.
    pub what: String,
}

/// What follows from a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It is said.
    Warning,
    /// The block does not count.
    Noise,
    /// The subject does not count in this cell.
    Void,
}

/// An audit of one run. The rules of each workload are with it.
pub(crate) struct Audit<'a> {
    pub(crate) run: &'a RunRecord,
    pub(super) findings: Vec<Finding>,
}

impl Audit<'_> {
    pub(crate) fn find(&mut self, severity: Severity, kind: Kind, what: String) {
        let (subject, run) = (self.run.subject.clone(), Some(self.run.index));
        self.findings.push(Finding { kind, severity, subject, run, what });
    }

    /// Seconds of the window in which the programs may not have had their CPUs, at most: the
    /// hypervisor or other processes had them, or the machine stood still, as the lab noticed by its
    /// own samples. No fault of a subject makes this larger.
    pub(super) fn taken_s(&self) -> f64 {
        let Some(cpu) = self.run.cpu.as_ref() else {
            return 0.0;
        };
        let steal_s: f64 = cpu.cpus().iter().map(|busy| busy.steal_coarse_s).sum();
        let others_s = self.run.others.as_ref().map_or(0.0, |others| others.cpu_s);
        let late_s = cpu.sample_delay_us.into_iter().fold(0.0, f64::max) / 1e6;
        (steal_s + others_s + late_s).min(cpu.window_s)
    }

    /// Void, unless so much of the window was taken that no program could have done better.
    pub(crate) fn void_unless_starved(&mut self, kind: Kind, what: String) {
        let window_s = self.run.cpu.as_ref().map_or(0.0, |cpu| cpu.window_s);
        let taken_s = self.taken_s();
        if taken_s > STARVED_SHARE * window_s {
            let what = format!("{what}, with {taken_s:.2} s of the window taken by others");
            return self.find(Severity::Noise, kind, what);
        }
        self.void(kind, what);
    }

    pub(crate) fn void(&mut self, kind: Kind, what: String) {
        self.find(Severity::Void, kind, what);
    }

    pub(crate) fn overflows(&mut self) {
        let overflows = self.run.runtime_counter("cq_overflows");
        if let Some(overflows @ 1.0..) = overflows {
            let what = format!("{overflows} completions overflowed the server's queue");
            self.find(Severity::Warning, Kind::CqOverflow, what);
        }
    }
}

/// Whether packets were sent in the window and none came back, with a load generator that ran to
/// its end. It is the worst of losses and no fault of the measurement: such a run did not keep up.
pub(crate) fn is_unanswered(run: &RunRecord) -> bool {
    let Some(Ok(load)) = run.load_result() else { return false };
    let Some(load) = load.udp() else { return false };
    // `twinring load udp` ends with 1 if no packet came back at all.
    let ended = run.client_exit.as_ref().is_some_and(|exit| matches!(exit.code, Some(0 | 1)));
    ended && load.packets.sent > 0 && load.packets.received == 0
}

/// Whether two figures that should be one are further apart than rounding. What is not a number
/// differs from everything.
pub(crate) fn differ(a: f64, b: f64) -> bool {
    let apart = (a - b).abs();
    apart.is_nan() || apart > RECOMPUTED_TOLERANCE * a.abs().max(b.abs()) + 1e-9
}
