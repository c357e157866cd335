//! Whether a run may count.
//!
//! Each audit looks at one run record and returns findings. A [`Severity::Void`] finding takes the
//! subject out of its cell: its numbers are not what they claim to be. A [`Severity::Noise`]
//! finding spoils the block, which is run again if the experiment has blocks to spare. A
//! [`Severity::Warning`] is printed and changes nothing.

mod http;
mod kinds;
mod requests;
mod tcp;
mod udp;

use serde::{Deserialize, Serialize};

use crate::contract::{self, LoadResult};
use crate::experiment::Point;
use crate::placement::Wanted;
use crate::result::{Failure, RunRecord};

pub use kinds::Kind;
pub use requests::{LITTLE_TOLERANCE, SCHEDULE_LAG_LIMIT_US, STALLED_LEAST_US, STALLED_SHARE};
pub use udp::DUE_TOLERANCE;

/// The share of the window that the hypervisor may take from a CPU.
pub const STEAL_LIMIT: f64 = 0.02;

/// The share of all CPUs that other processes may use: 6 % of one on a machine with two.
pub const OTHERS_LIMIT: f64 = 0.03;

/// How late the lab may sample after a mark, as a share of the window.
pub const SAMPLE_DELAY_LIMIT: f64 = 0.02;

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

/// Audits one run.
pub fn audit(run: &RunRecord) -> Vec<Finding> {
    let mut audit = Audit { run, findings: Vec::new() };
    for failure in &run.failures {
        audit.failure(failure);
    }
    if let Some(line) = &run.load
        && let Ok(load) = LoadResult::read(line)
    {
        match (&load, run.cell.point) {
            (LoadResult::Tcp(load), Point::Tcp(point)) => audit.tcp(load, point),
            (LoadResult::Udp(load), Point::Udp { streams, packets_per_s, message_bytes }) => {
                audit.udp(load, streams, packets_per_s, message_bytes);
            }
            (LoadResult::Http(load), Point::Http(point)) => audit.http(load, point),
            _ => {
                let (got, wanted) = (load.protocol(), run.cell.protocol());
                let what = format!("a result of {got} load in a cell of {wanted}");
                audit.void(Kind::BadResult, what);
            }
        }
    }
    audit.environment();
    audit.findings
}

/// What is wrong with how the CPUs lay in a run: it changed, within the run or since the `first` of
/// its block, or it is not what the experiment wants.
pub fn audit_placement(wanted: Wanted, first: &RunRecord, run: &RunRecord) -> Option<Finding> {
    let distance = run.distance.as_ref()?;
    let (before_ns, after_ns) = (distance.before_ns?, distance.after_ns?);
    let find = |kind, what| {
        let (subject, run) = (run.subject.clone(), Some(run.index));
        Some(Finding { kind, severity: Severity::Noise, subject, run, what })
    };
    let Some(placement) = distance.placement() else {
        let what = format!(
            "a cache line between the CPUs took {before_ns:.0} ns before it and {after_ns:.0} ns \
             after it"
        );
        return find(Kind::Moved, what);
    };
    let at_first = first.distance.and_then(|distance| distance.placement());
    if let Some(at_first) = at_first.filter(|at_first| *at_first != placement) {
        let what = format!("the CPUs were {at_first} for {} and {placement} for it", first.subject);
        return find(Kind::Moved, what);
    }
    if !wanted.allows(Some(placement)) {
        return find(Kind::Misplaced, format!("the CPUs were {placement} ({before_ns:.0} ns)"));
    }
    None
}

struct Audit<'a> {
    run: &'a RunRecord,
    findings: Vec<Finding>,
}

impl Audit<'_> {
    fn find(&mut self, severity: Severity, kind: Kind, what: String) {
        let (subject, run) = (self.run.subject.clone(), Some(self.run.index));
        self.findings.push(Finding { kind, severity, subject, run, what });
    }

    fn void(&mut self, kind: Kind, what: String) {
        self.find(Severity::Void, kind, what);
    }

    fn failure(&mut self, failure: &Failure) {
        let (kind, what) = match failure {
            Failure::ServerNotReady { why } => (Kind::ServerNotReady, why.clone()),
            Failure::ServerDied { why } => (Kind::ServerDied, why.clone()),
            Failure::ServerDidNotStop { why } => (Kind::ServerDidNotStop, why.clone()),
            Failure::ClientFailed { why } => (Kind::ClientFailed, why.clone()),
            Failure::ClientTimeout { limit_s } => {
                (Kind::ClientFailed, format!("not finished after {limit_s} s"))
            }
            Failure::BadLine { why } => (Kind::BadResult, why.clone()),
            Failure::NoAccounting { why } => (Kind::NoAccounting, why.clone()),
        };
        let severity = match failure {
            // A foreign server that ends badly has served well; ours has to end well.
            Failure::ServerDidNotStop { .. } if self.run.ready.is_none() => Severity::Warning,
            // The soaker gets no turn when others take the CPU.
            Failure::NoAccounting { .. } => Severity::Noise,
            _ => Severity::Void,
        };
        self.find(severity, kind, what);
    }

    fn overflows(&mut self) {
        let overflows = contract::runtime_counter(self.run.server_final.as_ref(), "cq_overflows");
        if let Some(overflows @ 1.0..) = overflows {
            let what = format!("{overflows} completions overflowed the server's queue");
            self.find(Severity::Warning, Kind::CqOverflow, what);
        }
    }

    fn environment(&mut self) {
        if let Some(cpu) = &self.run.cpu {
            for busy in [&cpu.server_cpu, &cpu.client_cpu] {
                // One tick is the least that can be told from nothing.
                let limit = (STEAL_LIMIT * cpu.window_s).max(0.011);
                if busy.steal_coarse_s > limit {
                    let taken = busy.steal_coarse_s * 1e3;
                    let what = format!("{taken:.0} ms of CPU {} went to other guests", busy.cpu);
                    self.find(Severity::Noise, Kind::Steal, what);
                }
            }
            let delay_us = cpu.sample_delay_us.into_iter().fold(0.0, f64::max);
            if delay_us > SAMPLE_DELAY_LIMIT * cpu.window_s * 1e6 {
                let what = format!("sampled {delay_us:.0} us after the mark");
                self.find(Severity::Noise, Kind::LateSample, what);
            }
        }
        if let Some(others) = &self.run.others
            && others.cpu_s > (OTHERS_LIMIT * others.cpus as f64 * others.span_s).max(0.03)
        {
            let share = others.cpu_s / others.span_s * 100.0;
            let most = others.largest.as_deref().unwrap_or("one that has ended");
            let what = format!("{share:.0} % of a CPU went to other processes, most to {most}");
            self.find(Severity::Noise, Kind::OtherProcesses, what);
        }
    }
}

/// Whether two figures that should be one are further apart than rounding. What is not a number
/// differs from everything.
fn differ(a: f64, b: f64) -> bool {
    let apart = (a - b).abs();
    apart.is_nan() || apart > RECOMPUTED_TOLERANCE * a.abs().max(b.abs()) + 1e-9
}
