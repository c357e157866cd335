//! Whether the network did what it says, and what it lost.

use super::{Found, Seen, note, void};
use crate::accounting::CpuUse;
use crate::experiment::NetKind;

/// Of this many packets lost, or sent again, per answer, latency is no longer that of the servers: one in a hundred
/// of what decides a 99th percentile.
const LOST_SHARE: f64 = 1e-4;

/// The least that a thread which polls a device works for a request, in nanoseconds. A packet takes 300 or more.
const POLLED_LEAST_NS: u64 = 20;

/// Fewer notifications per request count as none: a burst shares one, but bursts are not that large.
const NOTIFIED_LEAST: f64 = 0.001;

/// More than this, of packets that were steered to another CPU, are not the receive work of the sender's CPU: other
/// traffic of the machine may be steered.
const STEERED_MOST: f64 = 0.01;

const FEW: u64 = 1000;

pub(super) fn network(seen: &Seen<'_>) -> Found {
    let (cpu, done) = (seen.run.cpu.as_ref()?, seen.load?.done());
    // On one CPU no notification is needed.
    if done < FEW || cpu.shared {
        return None;
    }
    match seen.run.cell.net {
        NetKind::Napi => napi(cpu, done),
        NetKind::Rps => rps(cpu, done),
        NetKind::Lo => {
            let steered = cpu.steered().filter(|it| *it as f64 > STEERED_MOST * done as f64)?;
            let at = "/sys/class/net/lo/queues/rx-0/rps_cpus";
            void(format!(
                "packets were steered to another CPU {steered} times for {done} answers: see {at}"
            ))
        }
        NetKind::Hosts => None,
    }
}

fn napi(cpu: &CpuUse, done: u64) -> Found {
    let ends = [("server", Some(&cpu.server_cpu)), ("client", cpu.client_cpu.as_ref())];
    let (end, worked_ns) = ends.into_iter().find_map(|(end, busy)| {
        let counts = &busy?.counts;
        let worked_ns = counts.napi_threads_ns.unwrap_or(0);
        let idle = !counts.is_empty() && worked_ns < done.saturating_mul(POLLED_LEAST_NS);
        idle.then_some((end, worked_ns))
    })?;
    void(format!(
        "the thread that should poll the {end}'s device worked {worked_ns} ns for {done} answers: packets pass \
         it by"
    ))
}

fn rps(cpu: &CpuUse, done: u64) -> Found {
    let (told, steered) = (cpu.notifications()?, cpu.steered()?);
    let none = |count: u64| (count as f64) < NOTIFIED_LEAST * done as f64;
    let why = match (none(steered), none(told)) {
        (true, _) => "receive steering does not work",
        (false, true) => {
            "a CPU that is idle polls (idle=poll, haltpoll) and is notified without an interrupt"
        }
        (false, false) => return None,
    };
    void(format!(
        "{told} notifications, and packets steered {steered} times, for {done} answers: {why}"
    ))
}

pub(super) fn packets(seen: &Seen<'_>) -> Found {
    let (run, load) = (seen.run, seen.load?);
    if let Some(udp) = load.udp() {
        let at_client = udp.kernel_drops.unwrap_or(0);
        let at_server = run.counter("service_counters", "kernel_drops").unwrap_or(0.0);
        return match at_client > 0 || at_server > 0.0 {
            true => note(format!(
                "full receive buffers dropped {at_client} packets of the load generator and {at_server} of the \
                 server"
            )),
            false => None,
        };
    }
    let (cpu, done) = (run.cpu.as_ref()?, load.done());
    let net = run.cell.net;
    let (resent, dropped) = (cpu.retransmits(net).unwrap_or(0), cpu.drops(net).unwrap_or(0));
    if done < FEW || resent.max(dropped) as f64 <= LOST_SHARE * done as f64 {
        return None;
    }
    note(format!(
        "{resent} TCP segments were sent again and {dropped} packets were dropped, of {done} answered: latency \
         is not compared"
    ))
}
