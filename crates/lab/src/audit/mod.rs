//! Whether a run may count.
//!
//! Each audit looks at one run record and returns findings. A [`Severity::Void`] finding takes the
//! subject out of its cell: its numbers are not what they claim to be. A [`Severity::Noise`]
//! finding excludes the block: see [`crate::noise`]. A [`Severity::Warning`] is printed and changes nothing.
//! What a machine that was busy with other things may do to any program is in the tolerance of each rule
//! (`Audit::taken_s`).

mod finding;
mod http;
mod kinds;
mod network;
mod requests;
mod tcp;
mod udp;

use crate::contract::LoadResult;
use crate::experiment::{Point, Protocol};
use crate::noise::{self, Noise};
use crate::placement::Wanted;
use crate::record::{Failure, RunRecord};

pub(crate) use finding::{Audit, differ, is_unanswered};
pub use finding::{DUE_TOLERANCE, Finding, STARVED_SHARE, Severity};
pub(crate) use requests::Loop;

pub use crate::noise::{OTHERS_LIMIT, SAMPLE_DELAY_LIMIT, STEAL_LIMIT};
pub use kinds::Kind;
pub use network::LOST_SHARE;
pub use requests::{LITTLE_TOLERANCE, SCHEDULE_LAG_LIMIT_US, STALLED_LEAST_US, STALLED_SHARE};

/// Audits one run by itself.
pub fn audit(run: &RunRecord) -> Vec<Finding> {
    audit_in_block(Wanted::Any, run, run)
}

/// Audits one run of a block whose first was `first`, in an experiment that wants the CPUs to lie
/// like this.
pub fn audit_in_block(wanted: Wanted, first: &RunRecord, run: &RunRecord) -> Vec<Finding> {
    let mut audit = Audit { run, findings: Vec::new() };
    let unanswered = is_unanswered(run);
    // Without any answer the load generator says that it failed; why is said below.
    let follows = |failure: &Failure| unanswered && matches!(failure, Failure::ClientFailed { .. });
    for failure in run.failures.iter().filter(|failure| !follows(failure)) {
        audit.failure(failure);
    }
    if let Some(Ok(load)) = run.load_result() {
        audit.load(&load, run.cell.point);
        audit.network(load.done());
        audit.excuse_lost_packets();
    }
    if let Some(cpu) = &run.cpu {
        for busy in cpu.cpus() {
            if let Some(drops @ 1..) = busy.backlog_drops {
                let what = format!("{drops} packets found the backlog of CPU {} full", busy.cpus);
                audit.find(Severity::Warning, Kind::BacklogDrops, what);
            }
        }
    }
    for (noise, what) in noise::noise(wanted, first, run) {
        let kind = match noise {
            Noise::Steal => Kind::Steal,
            Noise::OtherProcesses => Kind::OtherProcesses,
            Noise::Throttled => Kind::Throttled,
            Noise::Moved => Kind::Moved,
            Noise::Misplaced => Kind::Misplaced,
            Noise::LateSample => Kind::LateSample,
        };
        audit.find(Severity::Noise, kind, what);
    }
    audit.findings
}

impl Audit<'_> {
    /// The rules of the workload.
    fn load(&mut self, load: &LoadResult, point: Point) {
        match (load, point.protocol()) {
            (LoadResult::Tcp(load), Protocol::Tcp) => self.tcp(load, point),
            (LoadResult::Udp(load), Protocol::Udp) => self.udp(load, point),
            (LoadResult::Http(load), Protocol::Http) => self.http(load, point),
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
}
