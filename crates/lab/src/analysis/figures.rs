//! The figures of one run, or the mean of several.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounting::{CpuBusy, CpuUse, ProcessUse};
use crate::contract::LoadResult;
use crate::record::RunRecord;
use crate::statistics;

/// The figures of one run, or the geometric mean over several; a figure that is 0 in one of them is their
/// arithmetic mean. "Per unit" is per request that was answered, or per packet that came back. What is not known is
/// left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Figures {
    /// The primary metric: time that the server's CPUs were not idle, per unit. Interrupts, softirq and kernel
    /// threads are in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_ns: Option<f64>,
    /// Time that the load generator's CPUs were not idle, per unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cpu_ns: Option<f64>,
    /// CPU of server and load generator together: the primary metric where both sides are under test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both_cpus_ns: Option<f64>,
    /// The part of `server_cpu_ns` that the server's own threads used in user mode. The kernel samples it at ticks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_user_ns: Option<f64>,
    /// The part of `server_cpu_ns` that the server's own threads used in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_kernel_ns: Option<f64>,
    /// The part of `server_cpu_ns` of the server's io-wq and SQPOLL threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_threads_ns: Option<f64>,
    /// The rest of `server_cpu_ns`: interrupts, softirq, everything outside the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_outside_ns: Option<f64>,
    /// Share of the window in which the server's CPUs were busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_busy_share: Option<f64>,
    /// Share of the window in which the load generator's CPUs were busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_busy_share: Option<f64>,
    /// Share of the window that the busiest thread of the load generator used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_thread_share: Option<f64>,
    /// Units per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput_per_s: Option<f64>,
    /// Median latency from the intended send time, or round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 99th percentile of latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// 99.9th percentile of latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_us: Option<f64>,
    /// How late packets left against their schedule: 99.9th percentile. UDP only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_p999_us: Option<f64>,
    /// Share of what was due in the window that was not answered in it. Only on a schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_share: Option<f64>,
    /// System calls of the server per unit, over its whole life, if it counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscalls: Option<f64>,
    /// Completions per `io_uring_enter`, over the server's whole life, if it counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completions_per_enter: Option<f64>,
    /// Interrupts per unit by which another CPU notified one of the two: function calls and reschedules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notifications: Option<f64>,
    /// Context switches of the server per unit: wake-ups and preemptions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switches: Option<f64>,
    /// Segments that TCP sent again, per run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmits_per_run: Option<f64>,
    /// Packets dropped by devices and receive backlogs, per run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drops_per_run: Option<f64>,
    /// The most memory that the server had resident until the end of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
    /// Growth of the server's resident memory and of the kernel's own, by connection or stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_per_connection_bytes: Option<f64>,
}

/// The figures by name.
pub type Named = BTreeMap<String, f64>;

impl Figures {
    /// Every figure that is known, by name.
    pub fn named(&self) -> Named {
        let Ok(Value::Object(fields)) = serde_json::to_value(self) else { return Named::new() };
        fields.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect()
    }

    /// A figure by its name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.named().get(name).copied()
    }

    /// The mean over runs; nothing of none.
    pub fn mean(runs: &[&Figures]) -> Option<Figures> {
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (name, value) in runs.iter().flat_map(|run| run.named()) {
            values.entry(name).or_default().push(value);
        }
        let means: BTreeMap<&String, f64> =
            values.iter().filter_map(|(name, all)| Some((name, statistics::mean(all)?))).collect();
        let means = serde_json::to_value(means).ok()?;
        (!runs.is_empty()).then(|| serde_json::from_value(means).ok()).flatten()
    }

    /// The full name of a figure that is given without its unit: `server_cpu` for `server_cpu_ns`.
    pub fn full_name(name: &str) -> Option<String> {
        let known = all_names();
        let is_it = |full: &&String| {
            *full == name || full.strip_prefix(name).is_some_and(|unit| UNITS.contains(&unit))
        };
        known.iter().find(is_it).cloned()
    }
}

/// How the name of a figure ends that has a unit.
const UNITS: [&str; 6] = ["_ns", "_us", "_share", "_per_s", "_per_run", "_bytes"];

/// The names of all figures.
pub fn all_names() -> Vec<String> {
    let some = Some(1.0);
    let all = Figures {
        server_cpu_ns: some,
        client_cpu_ns: some,
        both_cpus_ns: some,
        server_user_ns: some,
        server_kernel_ns: some,
        server_threads_ns: some,
        server_outside_ns: some,
        server_busy_share: some,
        client_busy_share: some,
        client_thread_share: some,
        throughput_per_s: some,
        p50_us: some,
        p99_us: some,
        p999_us: some,
        lateness_p999_us: some,
        missing_share: some,
        syscalls: some,
        completions_per_enter: some,
        notifications: some,
        switches: some,
        retransmits_per_run: some,
        drops_per_run: some,
        memory_bytes: some,
        memory_per_connection_bytes: some,
    };
    all.named().into_keys().collect()
}

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
    let mut figures = Figures::default();
    figures.of_cpu(cpu, busy_s, done);
    figures.of_load(run, &load, &latencies, done)?;
    figures.of_counts(run, cpu, &load, done);
    figures.of_memory(run);
    Some(figures)
}

impl Figures {
    fn of_cpu(&mut self, cpu: &CpuUse, busy_s: f64, done: f64) {
        let ns = |seconds: f64| Some(seconds * 1e9 / done);
        self.server_cpu_ns = ns(busy_s);
        // A CPU that both share is the server's.
        let client_s =
            cpu.client_cpu.as_ref().map(|client| if cpu.is_shared() { 0.0 } else { client.busy_s });
        self.client_cpu_ns = client_s.filter(|_| !cpu.is_shared()).and_then(ns);
        self.both_cpus_ns = client_s.and_then(|client_s| ns(busy_s + client_s));
        let parts = Parts::of(cpu, &cpu.server_cpu, busy_s, &cpu.server);
        self.server_user_ns = ns(parts.user_s);
        self.server_kernel_ns = ns(parts.kernel_s);
        self.server_threads_ns = ns(parts.threads_s);
        self.server_outside_ns = ns(parts.outside_s);
        self.server_busy_share = Some(cpu.server_busy_share());
        self.client_busy_share = cpu.client_busy_share();
    }

    fn of_load(
        &mut self,
        run: &RunRecord,
        load: &LoadResult,
        latencies: &Histogram<u64>,
        done: f64,
    ) -> Option<()> {
        let quantile_us =
            |values: &Histogram<u64>, share| Some(values.value_at_quantile(share) as f64 / 1e3);
        let of_client = load.cpu();
        let thread = of_client.busiest_thread_share.max(f64::from(u8::from(of_client.saturated)));
        self.client_thread_share = Some(thread);
        self.throughput_per_s = Some(done / load.window().seconds).filter(|rate| rate.is_finite());
        self.p50_us = quantile_us(latencies, 0.5);
        self.p99_us = quantile_us(latencies, 0.99);
        self.p999_us = quantile_us(latencies, 0.999);
        if let Some(udp) = load.udp() {
            self.lateness_p999_us =
                quantile_us(&udp.histograms.send_lateness.decode().ok()?, 0.999);
            self.missing_share = Some(udp.packets.missing_ratio());
        } else if let Some(requests) = load.requests().filter(|it| it.schedule_lag_us.is_some()) {
            let due = requests.due(run.rate_per_s());
            // Requests of before the window that are answered in it may be more than those that are answered
            // after it.
            self.missing_share = (due > 0.0).then(|| (1.0 - done / due).max(0.0));
        }
        Some(())
    }

    fn of_counts(&mut self, run: &RunRecord, cpu: &CpuUse, load: &LoadResult, done: f64) {
        // System calls are counted over the server's whole life, and so are these units.
        let units = match load.requests() {
            Some(requests) => Some(requests.whole_run.answered as f64),
            None => run.service_counter("received"),
        };
        let units = units.filter(|units| *units > 0.0);
        self.syscalls = units.and_then(|units| Some(run.runtime_counter("syscalls")? / units));
        self.completions_per_enter = run.runtime_counter("completions_per_enter");
        self.notifications = cpu.notifications().map(|count| count as f64 / done);
        let switches = cpu.server.voluntary_switches + cpu.server.involuntary_switches;
        self.switches = Some(switches as f64 / done);
        self.retransmits_per_run = cpu.retransmits(run.cell.net).map(|count| count as f64);
        self.drops_per_run = cpu.drops(run.cell.net).map(|count| count as f64);
    }

    fn of_memory(&mut self, run: &RunRecord) {
        let Some(memory) = &run.memory else { return };
        let (before, after) = (&memory.server_at_ready, &memory.server_at_end);
        let kernel = memory.kernel_under_load.total_bytes() as f64
            - memory.kernel_at_ready.total_bytes() as f64;
        let grown = after.peak_rss_bytes as f64 - before.rss_bytes as f64 + kernel;
        let (_, connections) = run.cell.point.clients();
        self.memory_bytes = Some(after.peak_rss_bytes as f64);
        self.memory_per_connection_bytes = Some(grown / f64::from(connections.max(1)));
    }
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
        let names = all_names();
        let schema = serde_json::to_value(schemars::schema_for!(Figures)).unwrap();
        let documented = schema["properties"].as_object().unwrap();
        assert_eq!(names, documented.keys().cloned().collect::<Vec<_>>());
        let mut table = "| figure | |\n|---|---|\n".to_owned();
        for (name, field) in documented {
            let about = field["description"].as_str().unwrap_or_default().replace('\n', " ");
            assert!(!about.is_empty(), "{name}");
            table += &format!("| `{name}` | {about} |\n");
        }
        let document = include_str!("../../../../docs/bundle.md");
        assert!(document.contains(&table), "docs/bundle.md lacks this:\n{table}");
        assert_eq!(Figures::full_name("server_cpu").as_deref(), Some("server_cpu_ns"));
        assert_eq!(Figures::full_name("p99").as_deref(), Some("p99_us"));
        assert_eq!(Figures::full_name("memory").as_deref(), Some("memory_bytes"));
        assert_eq!(Figures::full_name("server"), None);
    }

    #[test]
    fn the_mean_is_that_of_the_ratio() {
        let run = |cpu: f64, drops: f64| Figures {
            server_cpu_ns: Some(cpu),
            drops_per_run: Some(drops),
            ..Figures::default()
        };
        let mean = Figures::mean(&[&run(1.0, 0.0), &run(4.0, 3.0)]).unwrap();
        assert_eq!((mean.server_cpu_ns, mean.drops_per_run), (Some(2.0), Some(1.5)));
        assert_eq!(mean.p50_us, None);
        assert_eq!(Figures::mean(&[]), None);
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
            softirq_coarse_s: 0.2,
            irq_coarse_s: 0.0,
            steal_coarse_s: 0.0,
            sampled_s: Some(2.0),
            look_us: None,
            softirq_thread_s: None,
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
