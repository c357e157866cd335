//! The figures of a run, and their medians over runs.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::metrics;
use super::sides::{MemoryFigures, SideFigures, side_medians, sides};
use crate::accounting::OtherProcesses;
use crate::contract::{self, HttpResult, LoadResult, UdpResult};
use crate::experiment::{AnswersInTime, KeepsUp, Point};
use crate::result::RunRecord;
use crate::statistics::median;

/// The figures of one run, or their medians. A unit is a request that was answered, or a packet
/// that came back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The primary metric: busy time of the server's CPU per unit, in nanoseconds.
    pub server_cpu_ns: f64,
    /// Busy time of both CPUs per unit, in nanoseconds.
    pub both_cpus_ns: f64,
    /// The server process's part of `server_cpu_ns` in user mode, in nanoseconds.
    pub server_user_ns: f64,
    /// Its part in the kernel, in nanoseconds.
    pub server_system_ns: f64,
    /// The rest of `server_cpu_ns`: softirq, interrupts, everything outside the process.
    pub server_outside_ns: f64,
    /// CPU time of the server process by its own clock, per unit, in nanoseconds.
    pub server_process_ns: f64,
    /// CPU time of its io-wq and SQPOLL threads, per unit, in nanoseconds.
    pub server_kernel_threads_ns: f64,
    /// Units per second.
    pub requests_per_s: f64,
    /// Mean latency in microseconds.
    pub latency_us_mean: f64,
    /// Median latency in microseconds.
    pub latency_us_p50: f64,
    /// 99th percentile in microseconds.
    pub latency_us_p99: f64,
    /// 99.9th percentile in microseconds.
    pub latency_us_p99_9: f64,
    /// Largest latency in microseconds.
    pub latency_us_max: f64,
    /// Share of the window in which the server's CPU was busy.
    pub server_busy_share: f64,
    /// The same of the client's CPU; of the busiest if there are several.
    pub client_busy_share: f64,
    /// Share of the window used by the load generator's busiest thread, as it says.
    pub client_thread_share: f64,
    /// Context switches of the server per unit.
    pub server_switches: f64,
    /// System calls of the server per unit, over its whole life; if it counts them.
    pub server_syscalls: Option<f64>,
    /// Completions per `io_uring_enter`, over its whole life; if it counts them.
    pub completions_per_enter: Option<f64>,
    /// Busy time of the client's CPU per unit, in nanoseconds.
    #[serde(default)]
    pub client_cpu_ns: f64,
    /// Share of the window that the load generator's process used, by its own clock.
    #[serde(default)]
    pub client_process_share: f64,
    /// Where the time of the server's side went.
    #[serde(default)]
    pub server: SideFigures,
    /// Where the time of the client's side went.
    #[serde(default)]
    pub client: SideFigures,
    /// What was counted, by the names of [`METRICS`](super::METRICS).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, f64>,
    /// What was taken of the memory, if that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryFigures>,
    /// Share of all CPUs that other processes used around the run; of the host where it was most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_processes_share: Option<f64>,
    /// What only datagrams have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<DatagramFigures>,
    /// What only HTTP has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpFigures>,
    /// What only requests on a schedule have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_loop: Option<OpenLoopFigures>,
}

/// What is told of requests on a schedule beside the figures of every run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OpenLoopFigures {
    /// Share of the requests due in the window that were not answered by its end.
    pub missing_ratio: f64,
    /// How late requests left against their schedule: 99th percentile, in microseconds.
    pub lateness_us_p99: f64,
}

impl Figures {
    /// Whether requests on a schedule were answered in time; nothing without a schedule.
    pub fn answers_in_time(&self, limits: &AnswersInTime) -> Option<bool> {
        let open_loop = self.open_loop.as_ref()?;
        let in_time = self.latency_us_p99 <= limits.latency_us_p99;
        Some(in_time && open_loop.missing_ratio <= limits.missing_ratio)
    }
}

/// What is told of HTTP beside the figures of every run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HttpFigures {
    /// Content per second, in bytes: without heads and, with TLS, before encryption.
    pub content_bytes_per_s: f64,
    /// Time to the first byte of an answer: median, in microseconds.
    pub first_byte_us_p50: f64,
    /// 99th percentile.
    pub first_byte_us_p99: f64,
    /// Time to make a connection, with its TLS handshake: median, in microseconds.
    pub connect_us_p50: f64,
    /// 99th percentile.
    pub connect_us_p99: f64,
}

/// What is told of datagrams on a schedule beside the figures of every run. Of several runs,
/// shares and counts are means, times are medians.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatagramFigures {
    /// Share of the packets due that did not come back: lost, refused or never sent.
    pub missing_ratio: f64,
    /// Share of the packets sent that did not come back.
    pub lost_ratio: f64,
    /// Packets that came back more than once, of those that came back.
    pub duplicated_ratio: f64,
    /// Packets that came back behind a later one, of those that came back.
    pub reordered_ratio: f64,
    /// Answers that the kernel dropped at full receive buffers of the load generator.
    pub kernel_drops: f64,
    /// How late packets left against their schedule: median, in microseconds.
    pub lateness_us_p50: f64,
    /// 99th percentile.
    pub lateness_us_p99: f64,
    /// 99.9th percentile.
    pub lateness_us_p99_9: f64,
    /// The latest.
    pub lateness_us_max: f64,
    /// How much longer than asked the load generator's waits took: 99.9th percentile, in
    /// microseconds.
    pub wait_overrun_us_p99_9: f64,
    /// Median over the streams of their jitter by RFC 3550, in microseconds.
    pub jitter_us_p50: f64,
    /// 99th percentile over the streams.
    pub jitter_us_p99: f64,
}

impl DatagramFigures {
    /// Whether the run did the work that was asked for.
    pub fn keeps_up(&self, limits: &KeepsUp) -> bool {
        self.missing_ratio <= limits.missing_ratio
            && self.lateness_us_p99_9 <= limits.lateness_us_p99_9
    }
}

/// A run's figures and the histograms behind them.
pub(super) struct Read {
    pub(super) figures: Figures,
    /// Latencies or round trips, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// How late packets left, in nanoseconds, if there was a schedule.
    pub(super) lateness: Option<Histogram<u64>>,
}

/// The figures of one run, whether it counts or not.
pub(crate) fn figures_of(run: &RunRecord) -> Option<Figures> {
    read(run).map(|read| read.figures)
}

/// The figures of one run and its histograms, if it has everything they need.
pub(super) fn read(run: &RunRecord) -> Option<Read> {
    let load = run.load_result()?.ok()?;
    let cpu = run.cpu.as_ref()?;
    let latencies = load.latencies().ok()?;
    // Of a CPU that did next to nothing the idle clock may say that it did nothing at all; it did
    // at least what the server's process says of itself.
    let server_busy_s = match cpu.server_cpu.busy_s {
        busy_s if busy_s > 0.0 => busy_s,
        _ => cpu.server.cpu_s,
    };
    // A ratio needs something on both sides of it.
    if load.done() == 0 || cpu.window_s <= 0.0 || server_busy_s <= 0.0 {
        return None;
    }
    let (datagrams, lateness) = match &load {
        LoadResult::Tcp(_) | LoadResult::Http(_) => (None, None),
        LoadResult::Udp(udp) => {
            let lateness = udp.histograms.send_lateness.decode().ok()?;
            (Some(datagrams(udp, &lateness)?), Some(lateness))
        }
    };
    let done = load.done() as f64;
    let per_unit_ns = |seconds: f64| seconds * 1e9 / done;
    let quantile_us = |share| micros(latencies.value_at_quantile(share));
    let client_busy_s = if cpu.is_shared() { 0.0 } else { cpu.client_cpu.busy_s };
    let server = &cpu.server;
    // The division of a process's time into user and system is sampled; its sum is exact.
    let user_share = server.user_share();
    let [server_side, client_side] = sides(cpu, server_busy_s, done);
    let server_process_ns = per_unit_ns(server.cpu_s);
    let server_cpu_ns = per_unit_ns(server_busy_s);
    let kernel_threads = server.threads.iter().filter(|thread| thread.name.starts_with("iou-"));
    let client_cpu = load.cpu();
    let figures = Figures {
        server_cpu_ns,
        both_cpus_ns: per_unit_ns(server_busy_s + client_busy_s),
        server_user_ns: server_process_ns * user_share,
        server_system_ns: server_process_ns * (1.0 - user_share),
        server_outside_ns: (server_cpu_ns - server_process_ns).max(0.0),
        server_process_ns,
        server_kernel_threads_ns: per_unit_ns(
            kernel_threads.fold(0.0, |sum, thread| sum + thread.cpu_s),
        ),
        requests_per_s: done / load.window().seconds,
        latency_us_mean: latencies.mean() / 1e3,
        latency_us_p50: quantile_us(0.5),
        latency_us_p99: quantile_us(0.99),
        latency_us_p99_9: quantile_us(0.999),
        latency_us_max: micros(latencies.max()),
        server_busy_share: cpu.server_cpu.busy_s / cpu.window_s,
        client_busy_share: cpu.client_busy_share(),
        client_thread_share: client_cpu
            .busiest_thread_share
            .max(f64::from(u8::from(client_cpu.saturated))),
        server_switches: (server.voluntary_switches + server.involuntary_switches) as f64 / done,
        server_syscalls: syscalls_per_unit(run, &load),
        completions_per_enter: runtime_counter(run, "completions_per_enter"),
        client_cpu_ns: per_unit_ns(client_busy_s),
        client_process_share: cpu.client.cpu_s / cpu.window_s,
        server: server_side,
        client: client_side,
        counts: metrics::counts(cpu, run.cell.net, done),
        memory: MemoryFigures::of(run),
        other_processes_share: others(run).filter_map(others_share).reduce(f64::max),
        datagrams,
        http: match &load {
            LoadResult::Http(result) => Some(http(result)),
            LoadResult::Tcp(_) | LoadResult::Udp(_) => None,
        },
        open_loop: open_loop(run, &load),
    };
    Some(Read { figures, latencies, lateness })
}

/// Everybody else on each host of the run.
fn others(run: &RunRecord) -> impl Iterator<Item = &OtherProcesses> {
    run.others.iter().chain(run.hosts.iter().filter_map(|host| host.others.as_ref()))
}

fn others_share(others: &OtherProcesses) -> Option<f64> {
    let available_s = others.span_s * others.cpus as f64;
    (available_s > 0.0).then(|| others.cpu_s / available_s)
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

fn runtime_counter(run: &RunRecord, name: &str) -> Option<f64> {
    contract::runtime_counter(run.server_final.as_ref(), name)
}

/// System calls of the server over its whole life, per unit over its whole life.
fn syscalls_per_unit(run: &RunRecord, load: &LoadResult) -> Option<f64> {
    let units = match load {
        LoadResult::Tcp(tcp) => tcp.all.whole_run.answered as f64,
        LoadResult::Http(http) => http.all.whole_run.answered as f64,
        // The load generator's counts are of the window, the server's are of its life.
        LoadResult::Udp(_) => contract::service_counter(run.server_final.as_ref(), "received")?,
    };
    (units > 0.0).then_some(runtime_counter(run, "syscalls")? / units)
}

fn datagrams(udp: &UdpResult, lateness: &Histogram<u64>) -> Option<DatagramFigures> {
    let packets = &udp.packets;
    let of = |count: u64, whole: u64| count as f64 / whole.max(1) as f64;
    let late_us = |share| micros(lateness.value_at_quantile(share));
    let overrun = udp.histograms.wait_overrun.decode().ok()?;
    Some(DatagramFigures {
        missing_ratio: packets.missing_ratio(),
        lost_ratio: of(packets.lost, packets.sent),
        duplicated_ratio: of(packets.duplicated, packets.received),
        reordered_ratio: of(packets.reordered, packets.received),
        kernel_drops: udp.kernel_drops? as f64,
        lateness_us_p50: late_us(0.5),
        lateness_us_p99: late_us(0.99),
        lateness_us_p99_9: late_us(0.999),
        lateness_us_max: micros(lateness.max()),
        wait_overrun_us_p99_9: micros(overrun.value_at_quantile(0.999)),
        jitter_us_p50: udp.jitter_us.p50,
        jitter_us_p99: udp.jitter_us.p99,
    })
}

fn open_loop(run: &RunRecord, load: &LoadResult) -> Option<OpenLoopFigures> {
    let rate_per_s = match run.cell.point {
        Point::Tcp(point) => point.rate_per_s,
        Point::Http(point) => point.rate_per_s,
        Point::Udp { .. } => 0,
    };
    let lateness = load.requests()?.schedule_lag_us.as_ref()?;
    let due = f64::from(rate_per_s) * load.window().seconds;
    (due > 0.0).then(|| OpenLoopFigures {
        // Requests of before the window that are answered in it may be more than those that are
        // answered after it.
        missing_ratio: (1.0 - load.done() as f64 / due).max(0.0),
        lateness_us_p99: lateness.p99,
    })
}

fn http(result: &HttpResult) -> HttpFigures {
    HttpFigures {
        content_bytes_per_s: result.bytes.bodies as f64 / result.all.window.seconds,
        first_byte_us_p50: result.ttfb_us.p50,
        first_byte_us_p99: result.ttfb_us.p99,
        connect_us_p50: result.connect_us.p50,
        connect_us_p99: result.connect_us.p99,
    }
}

/// The median of every figure by itself.
pub(super) fn medians(figures: &[&Figures]) -> Option<Figures> {
    let of = |field: fn(&Figures) -> f64| median(figures.iter().map(|figures| field(figures)));
    let of_some = |field: fn(&Figures) -> Option<f64>| {
        median(figures.iter().filter_map(|figures| field(figures)))
    };
    Some(Figures {
        server_cpu_ns: of(|f| f.server_cpu_ns)?,
        both_cpus_ns: of(|f| f.both_cpus_ns)?,
        server_user_ns: of(|f| f.server_user_ns)?,
        server_system_ns: of(|f| f.server_system_ns)?,
        server_outside_ns: of(|f| f.server_outside_ns)?,
        server_process_ns: of(|f| f.server_process_ns)?,
        server_kernel_threads_ns: of(|f| f.server_kernel_threads_ns)?,
        requests_per_s: of(|f| f.requests_per_s)?,
        latency_us_mean: of(|f| f.latency_us_mean)?,
        latency_us_p50: of(|f| f.latency_us_p50)?,
        latency_us_p99: of(|f| f.latency_us_p99)?,
        latency_us_p99_9: of(|f| f.latency_us_p99_9)?,
        latency_us_max: of(|f| f.latency_us_max)?,
        server_busy_share: of(|f| f.server_busy_share)?,
        client_busy_share: of(|f| f.client_busy_share)?,
        client_thread_share: of(|f| f.client_thread_share)?,
        server_switches: of(|f| f.server_switches)?,
        server_syscalls: of_some(|f| f.server_syscalls),
        completions_per_enter: of_some(|f| f.completions_per_enter),
        client_cpu_ns: of(|f| f.client_cpu_ns)?,
        client_process_share: of(|f| f.client_process_share)?,
        server: side_medians(&figures.iter().map(|f| f.server).collect::<Vec<_>>())?,
        client: side_medians(&figures.iter().map(|f| f.client).collect::<Vec<_>>())?,
        counts: metrics::medians(figures),
        memory: MemoryFigures::medians(
            &figures.iter().filter_map(|f| f.memory).collect::<Vec<_>>(),
        ),
        other_processes_share: of_some(|f| f.other_processes_share),
        datagrams: datagram_medians(figures),
        http: http_medians(figures),
        open_loop: open_loop_medians(figures),
    })
}

fn open_loop_medians(figures: &[&Figures]) -> Option<OpenLoopFigures> {
    let all = || figures.iter().filter_map(|figures| figures.open_loop.as_ref());
    Some(OpenLoopFigures {
        missing_ratio: median(all().map(|it| it.missing_ratio))?,
        lateness_us_p99: median(all().map(|it| it.lateness_us_p99))?,
    })
}

fn http_medians(figures: &[&Figures]) -> Option<HttpFigures> {
    let of = |field: fn(&HttpFigures) -> f64| {
        median(figures.iter().filter_map(|figures| figures.http.as_ref().map(field)))
    };
    Some(HttpFigures {
        content_bytes_per_s: of(|http| http.content_bytes_per_s)?,
        first_byte_us_p50: of(|http| http.first_byte_us_p50)?,
        first_byte_us_p99: of(|http| http.first_byte_us_p99)?,
        connect_us_p50: of(|http| http.connect_us_p50)?,
        connect_us_p99: of(|http| http.connect_us_p99)?,
    })
}

fn datagram_medians(figures: &[&Figures]) -> Option<DatagramFigures> {
    let all: Vec<&DatagramFigures> = figures.iter().filter_map(|f| f.datagrams.as_ref()).collect();
    let of = |field: fn(&DatagramFigures) -> f64| median(all.iter().map(|figures| field(figures)));
    // Of rare losses a median would often say that there are none.
    let mean = |field: fn(&DatagramFigures) -> f64| {
        all.iter().map(|figures| field(figures)).sum::<f64>() / all.len().max(1) as f64
    };
    Some(DatagramFigures {
        missing_ratio: mean(|f| f.missing_ratio),
        lost_ratio: mean(|f| f.lost_ratio),
        duplicated_ratio: mean(|f| f.duplicated_ratio),
        reordered_ratio: mean(|f| f.reordered_ratio),
        kernel_drops: mean(|f| f.kernel_drops),
        lateness_us_p50: of(|f| f.lateness_us_p50)?,
        lateness_us_p99: of(|f| f.lateness_us_p99)?,
        lateness_us_p99_9: of(|f| f.lateness_us_p99_9)?,
        lateness_us_max: of(|f| f.lateness_us_max)?,
        wait_overrun_us_p99_9: of(|f| f.wait_overrun_us_p99_9)?,
        jitter_us_p50: of(|f| f.jitter_us_p50)?,
        jitter_us_p99: of(|f| f.jitter_us_p99)?,
    })
}
