//! Whether a run may count.
//!
//! Each audit looks at one run record and returns findings. Whether something disturbed the run has
//! no part in what is void: else a faulty subject would lose its worst runs. What a machine that was
//! busy with other things may do to any program is in the tolerance of each rule (`Audit::taken_s`). A [`Severity::Void`] finding takes the
//! subject out of its cell: its numbers are not what they claim to be. A [`Severity::Noise`]
//! finding spoils the block, which is run again if the experiment has blocks to spare. A
//! [`Severity::Warning`] is printed and changes nothing.

mod finding;
mod hosts;
mod kinds;
mod network;
mod requests;

use crate::accounting::OtherProcesses;
use crate::contract::LoadResult;
use crate::experiment::{Point, Protocol};
use crate::placement::Wanted;
use crate::record::{Failure, RunRecord};

pub(crate) use finding::{Audit, differ, is_unanswered};
pub use finding::{DUE_TOLERANCE, Finding, STARVED_SHARE, Severity};
pub(crate) use requests::Loop;

pub use hosts::WINDOWS_APART_LIMIT;
pub use kinds::Kind;
pub use network::LOST_SHARE;
pub use requests::{LITTLE_TOLERANCE, SCHEDULE_LAG_LIMIT_US, STALLED_LEAST_US, STALLED_SHARE};

/// The share of the window that the hypervisor may take from a CPU.
pub const STEAL_LIMIT: f64 = 0.02;

/// The share of all CPUs that other processes may use: 6 % of one on a machine with two.
pub const OTHERS_LIMIT: f64 = 0.03;

/// How late the lab may sample after a mark, as a share of the window.
pub const SAMPLE_DELAY_LIMIT: f64 = 0.02;

/// Audits one run by itself.
pub fn audit(run: &RunRecord) -> Vec<Finding> {
    excused(run, examined(run))
}

/// Audits one run of a block whose first was `first`, in an experiment that wants the CPUs to lie
/// like this.
pub fn audit_in_block(wanted: Wanted, first: &RunRecord, run: &RunRecord) -> Vec<Finding> {
    let mut findings = examined(run);
    findings.extend(audit_placement(wanted, first, run));
    excused(run, findings)
}

/// In version 3 a void of a disturbed run was noise. Such bundles stay as they were judged.
fn excused(run: &RunRecord, mut findings: Vec<Finding>) -> Vec<Finding> {
    let disturbed = findings.iter().any(|finding| finding.kind.is_disturbance());
    if disturbed && run.version() == 3 {
        for finding in &mut findings {
            if finding.severity == Severity::Void && finding.kind.may_be_starvation() {
                finding.severity = Severity::Noise;
            }
        }
    }
    findings
}

fn examined(run: &RunRecord) -> Vec<Finding> {
    let mut audit = Audit { run, findings: Vec::new() };
    let unanswered = is_unanswered(run);
    // Without any answer the load generator says that it failed; why is said below.
    let follows = |failure: &Failure| unanswered && matches!(failure, Failure::ClientFailed { .. });
    for failure in run.failures.iter().filter(|failure| !follows(failure)) {
        audit.failure(failure);
    }
    let told = audit.clients();
    if let Some(Ok(load)) = run.load_result() {
        let mut of_all = Audit { run, findings: Vec::new() };
        of_all.load(&load, run.cell.point);
        audit.findings.extend(of_all.findings.into_iter().filter(|it| !told.contains(&it.kind)));
        audit.network(load.done());
        audit.excuse_lost_packets();
    }
    audit.environment();
    audit.between_hosts();
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

impl Audit<'_> {
    /// The rules of the workload.
    fn load(&mut self, load: &LoadResult, point: Point) {
        match (load, point) {
            (LoadResult::Tcp(load), Point::Tcp(point)) => self.tcp(load, point),
            (LoadResult::Udp(load), Point::Udp(point)) => self.udp(load, point),
            (LoadResult::Http(load), Point::Http(point)) => self.http(load, point),
            _ => {
                let (got, wanted) = (Protocol::from(load), point.protocol());
                let what = format!("a result of {got} load in a cell of {wanted}");
                self.void(Kind::BadResult, what);
            }
        }
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
            // The windows of several load generators were apart.
            Failure::NoAccounting { .. } => Severity::Noise,
            _ => Severity::Void,
        };
        self.find(severity, kind, what);
    }

    fn environment(&mut self) {
        if let Some(cpu) = &self.run.cpu {
            for busy in cpu.cpus() {
                // One tick is the smallest time that can be distinguished from none.
                let limit = (STEAL_LIMIT * cpu.window_s * busy.count()).max(0.011);
                if busy.steal_coarse_s > limit {
                    let taken = busy.steal_coarse_s * 1e3;
                    let what = format!("{taken:.0} ms of CPU {} went to other guests", busy.cpus);
                    self.find(Severity::Noise, Kind::Steal, what);
                }
                if let Some(drops @ 1..) = busy.backlog_drops {
                    let what =
                        format!("{drops} packets found the backlog of CPU {} full", busy.cpus);
                    self.find(Severity::Warning, Kind::BacklogDrops, what);
                }
            }
            let delay_us = cpu.sample_delay_us.into_iter().fold(0.0, f64::max);
            // Between hosts the delay itself is known to the uncertainty of their clocks only.
            let uncertain_us = cpu.between_hosts.as_ref().map_or(0.0, |it| it.clock_uncertainty_us);
            if delay_us + uncertain_us > SAMPLE_DELAY_LIMIT * cpu.window_s * 1e6 {
                let mut what = format!("sampled {delay_us:.0} us after the mark");
                if uncertain_us > 0.0 {
                    what += &format!(", and the clocks are known to {uncertain_us:.0} us");
                }
                self.find(Severity::Noise, Kind::LateSample, what);
            }
        }
        if let Some(others) = &self.run.others {
            self.other_processes(others, "");
        }
    }

    /// `place` is nothing, or a host with its preposition.
    fn other_processes(&mut self, others: &OtherProcesses, place: &str) {
        if others.cpu_s > (OTHERS_LIMIT * others.cpus as f64 * others.span_s).max(0.03) {
            let share = others.cpu_s / others.span_s * 100.0;
            let most = others.largest.as_deref().unwrap_or("one that has ended");
            let what =
                format!("{share:.0} % of a CPU{place} went to other processes, most to {most}");
            self.find(Severity::Noise, Kind::OtherProcesses, what);
        }
    }
}
