//! The figures of one run, or the mean of several.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::accounting::{CpuBusy, CpuUse, ProcessUse};
use crate::record::RunRecord;
use crate::statistics;
use twinring_wire::LoadResult;

/// The figures of one run, or the geometric mean over several; a figure that is 0 in one of them is their
/// arithmetic mean. What is not known is left out.
pub type Figures = BTreeMap<String, f64>;

/// Every figure and what it is. "Per unit" is per request that was answered, or per packet that came back.
pub const FIGURES: [(&str, &str); 24] = [
    (
        "both_cpus_ns",
        "CPU of server and load generator together: the primary metric where both sides are under test.",
    ),
    ("client_busy_share", "Share of the window in which the load generator's CPUs were busy."),
    ("client_cpu_ns", "Time that the load generator's CPUs were not idle, per unit."),
    (
        "client_thread_share",
        "Share of the window that the busiest thread of the load generator used.",
    ),
    (
        "completions_per_enter",
        "Completions per `io_uring_enter`, over the server's whole life, if it counts them.",
    ),
    ("drops_per_run", "Packets dropped by devices and receive backlogs, per run."),
    (
        "lateness_p999_us",
        "How late packets left against their schedule: 99.9th percentile. UDP only.",
    ),
    ("memory_bytes", "The most memory that the server had resident until the end of the window."),
    (
        "memory_per_connection_bytes",
        "Growth of the server's resident memory and of the kernel's own, by connection or stream.",
    ),
    (
        "missing_share",
        "Share of what was due in the window that was not answered in it. Only on a schedule.",
    ),
    (
        "notifications",
        "Interrupts per unit by which another CPU notified one of the two: function calls and reschedules.",
    ),
    ("p50_us", "Median latency from the intended send time, or round trip."),
    ("p999_us", "99.9th percentile of latency."),
    ("p99_us", "99th percentile of latency."),
    ("retransmits_per_run", "Segments that TCP sent again, per run."),
    ("server_busy_share", "Share of the window in which the server's CPUs were busy."),
    (
        "server_cpu_ns",
        "The primary metric: time that the server's CPUs were not idle, per unit. Interrupts, softirq and kernel \
         threads are in it.",
    ),
    (
        "server_kernel_ns",
        "The part of `server_cpu_ns` that the server's own threads used in the kernel.",
    ),
    (
        "server_outside_ns",
        "The rest of `server_cpu_ns`: interrupts, softirq, everything outside the process.",
    ),
    ("server_threads_ns", "The part of `server_cpu_ns` of the server's io-wq and SQPOLL threads."),
    (
        "server_user_ns",
        "The part of `server_cpu_ns` that the server's own threads used in user mode. The kernel samples it at \
         ticks.",
    ),
    ("switches", "Context switches of the server per unit: wake-ups and preemptions."),
    ("syscalls", "System calls of the server per unit, over its whole life, if it counts them."),
    ("throughput_per_s", "Units per second."),
];

/// The mean over runs; nothing of none.
pub(super) fn mean(runs: &[&Figures]) -> Option<Figures> {
    let mean = |(name, _): (&str, &str)| {
        let values: Vec<f64> = runs.iter().filter_map(|run| run.get(name).copied()).collect();
        Some((name.to_owned(), statistics::mean(&values)?))
    };
    (!runs.is_empty()).then(|| FIGURES.into_iter().filter_map(mean).collect())
}

/// The full name of a figure that is given without its unit: `server_cpu` for `server_cpu_ns`.
pub(crate) fn full_name(name: &str) -> Option<String> {
    let is_it = |full: &&str| {
        *full == name || full.strip_prefix(name).is_some_and(|unit| UNITS.contains(&unit))
    };
    FIGURES.iter().map(|figure| figure.0).find(is_it).map(str::to_owned)
}

/// How the name of a figure ends that has a unit.
const UNITS: [&str; 6] = ["_ns", "_us", "_share", "_per_s", "_per_run", "_bytes"];

/// The figures of one run, whether it counts or not, if it has everything that they need.
pub fn figures_of(run: &RunRecord) -> Option<Figures> {
    let load = run.load_result()?.ok()?;
    let cpu = run.cpu.as_ref()?;
    let latencies = load.latencies().ok()?;
    // Of a CPU that did next to nothing the idle clock may say that it did nothing at all; it did at least what
    // the server's process says of itself.
    let busy_s = match cpu.server_cpu.busy_s {
        busy_s if busy_s > 0.0 => busy_s,
        _ => cpu.server.cpu_s,
    };
    // A ratio needs something on both sides of it.
    if load.done() == 0 || cpu.window_s <= 0.0 || busy_s <= 0.0 {
        return None;
    }
    let done = load.done() as f64;
    let mut known = of_cpu(cpu, busy_s, done).to_vec();
    known.extend(of_load(run, &load, &latencies, done)?);
    known.extend(of_counts(run, cpu, &load, done));
    known.extend(of_memory(run).into_iter().flatten());
    Some(known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}

/// A figure by its name, if it is known.
type Known = (&'static str, Option<f64>);

fn of_cpu(cpu: &CpuUse, busy_s: f64, done: f64) -> [Known; 9] {
    let ns = |seconds: f64| Some(seconds * 1e9 / done);
    // A CPU that both share is the server's.
    let client_s =
        cpu.client_cpu.as_ref().map(|client| if cpu.shared { 0.0 } else { client.busy_s });
    let parts = Parts::of(cpu, &cpu.server_cpu, busy_s, &cpu.server);
    [
        ("server_cpu_ns", ns(busy_s)),
        ("client_cpu_ns", client_s.filter(|_| !cpu.shared).and_then(ns)),
        ("both_cpus_ns", client_s.and_then(|client_s| ns(busy_s + client_s))),
        ("server_user_ns", ns(parts.user_s)),
        ("server_kernel_ns", ns(parts.kernel_s)),
        ("server_threads_ns", ns(parts.threads_s)),
        ("server_outside_ns", ns(parts.outside_s)),
        ("server_busy_share", Some(cpu.server_cpu.busy_share(cpu.window_s))),
        ("client_busy_share", cpu.client_cpu.as_ref().map(|it| it.busy_share(cpu.window_s))),
    ]
}

fn of_load(
    run: &RunRecord,
    load: &LoadResult,
    latencies: &Histogram<u64>,
    done: f64,
) -> Option<[Known; 7]> {
    let quantile_us = |values: &Histogram<u64>, share| values.value_at_quantile(share) as f64 / 1e3;
    let of_client = load.cpu();
    let (mut lateness_us, mut missing) = (None, None);
    if let Some(udp) = load.udp() {
        lateness_us = Some(quantile_us(&udp.histograms.send_lateness.decode().ok()?, 0.999));
        missing = Some(udp.packets.missing_ratio());
    } else if let Some(requests) = load.requests().filter(|it| it.schedule_lag_us.is_some()) {
        let due = requests.due(run.rate_per_s());
        // Requests of before the window that are answered in it may be more than those that are answered
        // after it.
        missing = (due > 0.0).then(|| (1.0 - done / due).max(0.0));
    }
    let thread = of_client.busiest_thread_share.max(f64::from(u8::from(of_client.saturated)));
    Some([
        ("client_thread_share", Some(thread)),
        ("throughput_per_s", Some(done / load.window().seconds).filter(|rate| rate.is_finite())),
        ("p50_us", Some(quantile_us(latencies, 0.5))),
        ("p99_us", Some(quantile_us(latencies, 0.99))),
        ("p999_us", Some(quantile_us(latencies, 0.999))),
        ("lateness_p999_us", lateness_us),
        ("missing_share", missing),
    ])
}

fn of_counts(run: &RunRecord, cpu: &CpuUse, load: &LoadResult, done: f64) -> [Known; 6] {
    // System calls are counted over the server's whole life, and so are these units.
    let units = match load.requests() {
        Some(requests) => Some(requests.whole_run.answered as f64),
        None => run.service_counter("received"),
    };
    let units = units.filter(|units| *units > 0.0);
    let switches = cpu.server.voluntary_switches + cpu.server.involuntary_switches;
    let count = |count: Option<u64>| count.map(|count| count as f64);
    [
        ("syscalls", units.and_then(|units| Some(run.runtime_counter("syscalls")? / units))),
        ("completions_per_enter", run.runtime_counter("completions_per_enter")),
        ("notifications", count(cpu.notifications()).map(|count| count / done)),
        ("switches", Some(switches as f64 / done)),
        ("retransmits_per_run", count(cpu.retransmits(run.cell.net))),
        ("drops_per_run", count(cpu.drops(run.cell.net))),
    ]
}

fn of_memory(run: &RunRecord) -> Option<[Known; 2]> {
    let memory = run.memory.as_ref()?;
    let (before, after) = (&memory.server_at_ready, &memory.server_at_end);
    let kernel =
        memory.kernel_under_load.total_bytes() as f64 - memory.kernel_at_ready.total_bytes() as f64;
    let grown = after.peak_rss_bytes as f64 - before.rss_bytes as f64 + kernel;
    let (_, connections) = run.cell.point.clients();
    Some([
        ("memory_bytes", Some(after.peak_rss_bytes as f64)),
        ("memory_per_connection_bytes", Some(grown / f64::from(connections.max(1)))),
    ])
}

/// Where the busy time of a side went; the parts do not overlap, and their sum is the busy time.
#[derive(Debug, Clone, Copy)]
struct Parts {
    user_s: f64,
    kernel_s: f64,
    threads_s: f64,
    outside_s: f64,
}

impl Parts {
    fn of(cpu: &CpuUse, busy: &CpuBusy, busy_s: f64, process: &ProcessUse) -> Parts {
        // The two samples lie a little behind the ends of the window, so what was counted between them is scaled to
        // it; and no process used more of a CPU than that CPU did.
        let to_window = busy.sampled_s.filter(|s| *s > 0.0).map_or(1.0, |s| cpu.window_s / s);
        let counted_s = process.cpu_s * to_window;
        let process_s = counted_s.min(busy_s);
        let scale = if counted_s > 0.0 { to_window * process_s / counted_s } else { to_window };
        let of_ring = process.threads.iter().filter(|thread| thread.name.starts_with("iou-"));
        let threads_s =
            (of_ring.fold(0.0, |sum, thread| sum + thread.cpu_s) * scale).min(process_s);
        let own_s = process_s - threads_s;
        let user_s = (process_s * process.user_share()).min(own_s);
        Parts { user_s, kernel_s: own_s - user_s, threads_s, outside_s: busy_s - process_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::{Counts, IdleClock, ThreadUse};
    use crate::cpus::CpuList;

    #[test]
    fn every_figure_has_a_name_and_is_documented() {
        let rows = FIGURES.map(|(name, about)| format!("| `{name}` | {about} |\n")).concat();
        let table = format!("| figure | |\n|---|---|\n{rows}");
        let document = include_str!("../../../../docs/bundle.md");
        assert!(document.contains(&table), "docs/bundle.md lacks this:\n{table}");
        for (short, full) in [("server_cpu", "server_cpu_ns"), ("memory", "memory_bytes")] {
            assert_eq!(full_name(short).as_deref(), Some(full));
        }
        assert_eq!((full_name("p99").as_deref(), full_name("server")), (Some("p99_us"), None));
    }

    #[test]
    fn the_mean_is_that_of_the_ratio() {
        let run = |cpu: f64, drops: f64| -> Figures {
            [("server_cpu_ns", cpu), ("drops_per_run", drops)]
                .map(|(name, it)| (name.to_owned(), it))
                .into()
        };
        assert_eq!(mean(&[&run(1.0, 0.0), &run(4.0, 3.0)]), Some(run(2.0, 1.5)));
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn the_parts_are_the_busy_time_whatever_was_counted() {
        let thread = |name: &str, cpu_s| ThreadUse { name: name.to_owned(), threads: 1, cpu_s };
        let process = |cpu_s: f64, user_s: f64, ring_s: f64| ProcessUse {
            cpu_s,
            user_s,
            system_s: 1.0 - user_s,
            threads: vec![
                thread("server", 0.9),
                thread("iou-wrk", ring_s / 2.0),
                thread("iou-sqp", ring_s / 2.0),
            ],
            ..ProcessUse::default()
        };
        let busy = |busy_s: f64| CpuBusy {
            cpus: CpuList::one(0),
            busy_s,
            busy_each_s: Vec::new(),
            busy_unsure_s: None,
            steal_coarse_s: 0.0,
            sampled_s: Some(2.0),
            backlog_drops: None,
            counts: Counts::default(),
        };
        let parts = |busy_s: f64, process: ProcessUse| {
            let cpu = CpuUse {
                window_s: 1.0,
                server_cpu: busy(busy_s),
                client_cpu: None,
                server: process.clone(),
                client: None,
                sample_delay_us: [0.0; 2],
                shared: false,
                idle_clock: IdleClock::TimerList,
            };
            let it = Parts::of(&cpu, &cpu.server_cpu, busy_s, &process);
            [it.user_s, it.kernel_s, it.threads_s, it.outside_s]
        };
        // Counted in two seconds, of a window of one; a process that used more than its CPU is a matter of when each
        // was read.
        for (found, expected) in [
            (parts(0.9, process(1.4, 0.5, 0.5)), [0.35, 0.1, 0.25, 0.2]),
            (parts(0.5, process(1.4, 0.5, 0.0)), [0.25, 0.25, 0.0, 0.0]),
            (parts(0.9, process(0.4, 0.0, 0.4)), [0.0, 0.0, 0.2, 0.7]),
        ] {
            for (part, expected) in found.iter().zip(expected) {
                assert!((part - expected).abs() < 1e-9, "{found:?} {expected:?}");
            }
        }
    }
}
