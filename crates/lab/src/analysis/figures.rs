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

/// A figure of a run.
pub struct Figure {
    /// Its name, with its unit at the end.
    pub name: &'static str,
    /// Whether comparisons have its ratio.
    pub is_compared: bool,
    of: fn(&Basis<'_>) -> Option<f64>,
}

type Of = fn(&Basis<'_>) -> Option<f64>;

const fn figure(name: &'static str, of: Of) -> Figure {
    Figure { name, is_compared: false, of }
}

const fn compared(name: &'static str, of: Of) -> Figure {
    Figure { name, is_compared: true, of }
}

/// Every figure; `docs/bundle.md` says what each is. A unit is a request that was answered, or a packet that came back.
pub static FIGURES: [Figure; 24] = [
    compared("both_cpus_ns", |it| it.ns(it.busy_s + it.client_s()?)),
    figure("client_busy_share", |it| it.share(it.cpu.client_cpu.as_ref())),
    compared("client_cpu_ns", |it| it.ns(it.client_s().filter(|_| !it.cpu.shared)?)),
    figure("client_thread_share", |it| it.thread_share()),
    figure("completions_per_enter", |it| {
        Some(it.run.counter(RUNTIME, "completions")? / it.run.counter(RUNTIME, "enters")?.max(1.0))
    }),
    figure("drops_per_run", |it| count(it.cpu.drops(it.run.cell.net))),
    figure("lateness_p999_us", |it| it.lateness.as_ref().map(|it| quantile_us(it, 0.999))),
    compared("memory_bytes", |it| count(Some(it.run.memory?.server_at_end.peak_rss_bytes))),
    figure("memory_per_connection_bytes", |it| it.memory_per_connection_bytes()),
    figure("missing_share", |it| it.missing_share()),
    compared("notifications", |it| Some(count(it.cpu.notifications())? / it.done)),
    compared("p50_us", |it| Some(quantile_us(&it.latencies, 0.5))),
    compared("p999_us", |it| Some(quantile_us(&it.latencies, 0.999))),
    compared("p99_us", |it| Some(quantile_us(&it.latencies, 0.99))),
    figure("retransmits_per_run", |it| count(it.cpu.retransmits(it.run.cell.net))),
    figure("server_busy_share", |it| it.share(Some(&it.cpu.server_cpu))),
    compared("server_cpu_ns", |it| it.ns(it.busy_s)),
    figure("server_kernel_ns", |it| it.ns(it.parts.kernel_s)),
    figure("server_outside_ns", |it| it.ns(it.parts.outside_s)),
    figure("server_threads_ns", |it| it.ns(it.parts.threads_s)),
    figure("server_user_ns", |it| it.ns(it.parts.user_s)),
    compared("switches", |it| Some(count(Some(it.cpu.server.switches()))? / it.done)),
    compared("syscalls", |it| Some(it.run.counter(RUNTIME, "syscalls")? / it.units_of_life()?)),
    compared("throughput_per_s", |it| {
        Some(it.done / it.load.window().seconds).filter(|rate| rate.is_finite())
    }),
];

/// The counters of the runtime in a server's `final` line.
const RUNTIME: &str = "runtime_counters";

/// The mean over runs; nothing of none.
pub(super) fn mean(runs: &[&Figures]) -> Option<Figures> {
    let mean = |Figure { name, .. }: &Figure| {
        let values: Vec<f64> = runs.iter().filter_map(|run| run.get(*name).copied()).collect();
        Some(((*name).to_owned(), statistics::mean(&values)?))
    };
    (!runs.is_empty()).then(|| FIGURES.iter().filter_map(mean).collect())
}

/// The full name of a figure that is given without its unit: `server_cpu` for `server_cpu_ns`.
pub(crate) fn full_name(name: &str) -> Option<String> {
    let is_it = |full: &&str| {
        *full == name || full.strip_prefix(name).is_some_and(|unit| UNITS.contains(&unit))
    };
    FIGURES.iter().map(|figure| figure.name).find(is_it).map(str::to_owned)
}

/// How the name of a figure ends that has a unit.
const UNITS: [&str; 6] = ["_ns", "_us", "_share", "_per_s", "_per_run", "_bytes"];

/// The figures of one run, whether it counts or not, if it has everything that they need.
pub(super) fn figures_of(run: &RunRecord) -> Option<Figures> {
    let basis = Basis::of(run)?;
    let known = FIGURES.iter().filter_map(|it| Some((it.name.to_owned(), (it.of)(&basis)?)));
    Some(known.collect())
}

/// What the figures of a run follow from.
struct Basis<'a> {
    run: &'a RunRecord,
    cpu: &'a CpuUse,
    load: LoadResult,
    latencies: Histogram<u64>,
    /// Of packets.
    lateness: Option<Histogram<u64>>,
    busy_s: f64,
    parts: Parts,
    /// Units in the window.
    done: f64,
}

fn quantile_us(values: &Histogram<u64>, share: f64) -> f64 {
    values.value_at_quantile(share) as f64 / 1e3
}

fn count(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64)
}

impl Basis<'_> {
    fn of(run: &RunRecord) -> Option<Basis<'_>> {
        let load = run.load_result()?.ok()?;
        let cpu = run.cpu.as_ref()?;
        let latencies = load.latencies().ok()?;
        let lateness = load.udp().map(|udp| udp.histograms.send_lateness.decode());
        let lateness = lateness.transpose().ok()?;
        // Of a CPU that did next to nothing the idle clock may say that it did nothing at all; it did at least what
        // the server's process says of itself.
        let busy_s = match cpu.server_cpu.busy_s {
            busy_s if busy_s > 0.0 => busy_s,
            _ => cpu.server.cpu_s,
        };
        // The two samples lie a little behind the ends of the window, so what was counted between them is scaled to it.
        let sampled_s = cpu.server_cpu.sampled_s.filter(|s| *s > 0.0);
        let to_window = sampled_s.map_or(1.0, |s| cpu.window_s / s);
        let parts = Parts::of(to_window, busy_s, &cpu.server);
        let done = load.done() as f64;
        // A ratio needs something on both sides of it.
        (done > 0.0 && cpu.window_s > 0.0 && busy_s > 0.0).then_some(Basis {
            run,
            cpu,
            load,
            latencies,
            lateness,
            busy_s,
            parts,
            done,
        })
    }

    fn ns(&self, seconds: f64) -> Option<f64> {
        Some(seconds * 1e9 / self.done)
    }

    fn share(&self, side: Option<&CpuBusy>) -> Option<f64> {
        side.map(|it| it.busy_share(self.cpu.window_s))
    }

    /// A CPU that both share is the server's.
    fn client_s(&self) -> Option<f64> {
        self.cpu.client_cpu.as_ref().map(|it| if self.cpu.shared { 0.0 } else { it.busy_s })
    }

    fn thread_share(&self) -> Option<f64> {
        let of_client = self.load.cpu();
        Some(of_client.busiest_thread_share.max(f64::from(u8::from(of_client.saturated))))
    }

    /// System calls are counted over the server's whole life, and so are these units.
    fn units_of_life(&self) -> Option<f64> {
        let units = match self.load.requests() {
            Some(requests) => Some(requests.whole_run.answered as f64),
            None => self.run.counter("service_counters", "received"),
        };
        units.filter(|units| *units > 0.0)
    }

    fn missing_share(&self) -> Option<f64> {
        if let Some(udp) = self.load.udp() {
            return Some(udp.packets.missing_ratio());
        }
        let requests = self.load.requests().filter(|it| it.schedule_lag_us.is_some())?;
        let due = requests.due(self.run.rate_per_s());
        // Requests of before the window that are answered in it may be more than those that are answered
        // after it.
        (due > 0.0).then(|| (1.0 - self.done / due).max(0.0))
    }

    fn memory_per_connection_bytes(&self) -> Option<f64> {
        let it = self.run.memory?;
        let kernel =
            it.kernel_under_load.total_bytes() as f64 - it.kernel_at_ready.total_bytes() as f64;
        let grown =
            it.server_at_end.peak_rss_bytes as f64 - it.server_at_ready.rss_bytes as f64 + kernel;
        Some(grown / f64::from(self.run.cell.point.clients().1.max(1)))
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
    fn of(to_window: f64, busy_s: f64, process: &ProcessUse) -> Parts {
        let counted_s = process.cpu_s * to_window;
        // No process used more of a CPU than that CPU did.
        let process_s = counted_s.min(busy_s);
        let scale = if counted_s > 0.0 { to_window * process_s / counted_s } else { to_window };
        let of_ring = process.threads.iter().filter(|thread| thread.name.starts_with("iou-"));
        let threads_s =
            (of_ring.fold(0.0, |sum, thread| sum + thread.cpu_s) * scale).min(process_s);
        let own_s = process_s - threads_s;
        let sampled_s = process.user_s + process.system_s;
        let user_share = if sampled_s > 0.0 { process.user_s / sampled_s } else { 0.0 };
        let user_s = (process_s * user_share).min(own_s);
        Parts { user_s, kernel_s: own_s - user_s, threads_s, outside_s: busy_s - process_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::ThreadUse;

    #[test]
    fn every_figure_is_documented_and_found_without_its_unit() {
        let document = include_str!("../../../../docs/bundle.md");
        let rows: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
        for Figure { name, .. } in &FIGURES {
            let row = format!("| `{name}` | ");
            assert!(rows.iter().any(|it| it.starts_with(&row)), "docs/bundle.md lacks {name}");
        }
        for (short, full) in [("server_cpu", "server_cpu_ns"), ("memory", "memory_bytes")] {
            assert_eq!(full_name(short).as_deref(), Some(full));
        }
        assert_eq!((full_name("p99").as_deref(), full_name("server")), (Some("p99_us"), None));
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
        let parts = |busy_s: f64, process: ProcessUse| {
            let it = Parts::of(0.5, busy_s, &process);
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
