//! Whether the network did what it says, and what it lost.

use super::finding::{Audit, Severity};
use super::kinds::Kind;
use crate::accounting::CpuUse;
use crate::experiment::NetKind;

/// Of this many packets lost, or sent again, per request or packet answered, latency is no longer that
/// of the servers: one in a hundred of what decides a 99th percentile.
pub const LOST_SHARE: f64 = 1e-4;

/// The least that a thread which polls a device works for a request, in nanoseconds. A packet takes
/// 300 or more.
const POLLED_LEAST_NS: u64 = 20;

/// Fewer notifications per request count as none: a burst shares one, but bursts are not that large.
const NOTIFIED_LEAST: f64 = 0.001;

/// More than this, of packets that were steered to another CPU, are not the receive work of the
/// sender's CPU: other traffic of the machine may be steered.
const STEERED_MOST: f64 = 0.01;

/// Of fewer requests or packets nothing is said.
const FEW: u64 = 1000;

impl Audit<'_> {
    /// Looks at the counts of a run with so many requests or packets answered.
    pub(super) fn network(&mut self, done: u64) {
        let Some(cpu) = &self.run.cpu else { return };
        if done < FEW {
            return;
        }
        if let Some(what) = mismatch(cpu, self.run.cell.net, done) {
            self.void(Kind::NetworkMismatch, what);
        }
        self.lost(cpu, done);
    }

    /// A request whose packets the network lost waits for TCP to send them again, at first 200 ms and
    /// then twice as long each time. No server is to blame for that.
    pub(super) fn excuse_lost_packets(&mut self) {
        if !self.findings.iter().any(|it| it.kind == Kind::PacketsLost) {
            return;
        }
        for finding in &mut self.findings {
            if matches!(finding.kind, Kind::StalledRequest | Kind::StarvedConnection) {
                finding.severity = Severity::Warning;
                finding.what.push_str(", and packets were lost");
            }
        }
    }

    fn lost(&mut self, cpu: &CpuUse, done: u64) {
        let net = self.run.cell.net;
        let (resent, dropped) = (cpu.retransmits(net).unwrap_or(0), cpu.drops(net).unwrap_or(0));
        if resent.max(dropped) as f64 > LOST_SHARE * done as f64 {
            let what = format!(
                "{resent} TCP segments were sent again and {dropped} packets were dropped, of {done} \
                 answered: no verdict on latency"
            );
            self.find(Severity::Warning, Kind::PacketsLost, what);
        }
    }
}

/// What a network did that it should not, if its counts say so. On one CPU no notification is needed.
fn mismatch(cpu: &CpuUse, net: NetKind, done: u64) -> Option<String> {
    if cpu.is_shared() {
        return None;
    }
    let client = cpu.client_cpu.as_ref().map(|busy| ("client", busy));
    let ends: Vec<_> = std::iter::once(("server", &cpu.server_cpu)).chain(client).collect();
    match net {
        NetKind::Napi => ends.iter().find_map(|(end, busy)| {
            let worked_ns = busy.counts.napi_threads_ns.unwrap_or(0);
            let idle = !busy.counts.is_empty() && worked_ns < done.saturating_mul(POLLED_LEAST_NS);
            idle.then(|| {
                format!(
                    "the thread that should poll the {end}'s device worked {worked_ns} ns for {done} \
                     answers: packets pass it by"
                )
            })
        }),
        NetKind::Rps => {
            let (told, steered) = (cpu.notifications()?, cpu.steered()?);
            let none = |count: u64| (count as f64) < NOTIFIED_LEAST * done as f64;
            let why = match (none(steered), none(told)) {
                (true, _) => "receive steering does not work",
                (false, true) => {
                    "a CPU that is idle polls (idle=poll, haltpoll) and is told without an interrupt"
                }
                (false, false) => return None,
            };
            Some(format!(
                "{told} notifications, and packets steered {steered} times, for {done} answers: {why}"
            ))
        }
        NetKind::Lo => {
            let steered = cpu.steered().filter(|it| *it as f64 > STEERED_MOST * done as f64)?;
            Some(format!(
                "packets were steered to another CPU {steered} times for {done} answers: see \
                 /sys/class/net/lo/queues/rx-0/rps_cpus"
            ))
        }
        NetKind::Hosts => None,
    }
}
