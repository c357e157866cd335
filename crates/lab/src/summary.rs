//! From raw runs to figures and verdicts. Everything printed anywhere is computed here, and only
//! from the run records and the experiment, so that `twinring lab verify` can do it again.

use std::collections::BTreeSet;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::audit::{self, Finding, Kind, Severity};
use crate::contract::{self, LoadResult};
use crate::experiment::{Cell, Experiment, MIN_PAIRS};
use crate::result::RunRecord;
use crate::statistics::{self, Interval, median};

/// A CPU busier than this is the bottleneck.
pub const SATURATED_SHARE: f64 = 0.95;

/// The points of the latency curve.
const CURVE_QUANTILES: &[f64] = &[
    0.0, 0.1, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.993,
    0.995, 0.997, 0.998, 0.999, 0.9995, 0.9999, 0.99995, 0.99999, 1.0,
];

/// What an experiment found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// One entry for each cell that was begun, in the order of the experiment.
    pub cells: Vec<CellSummary>,
    /// How many runs there were.
    pub runs: usize,
}

/// What was found in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellSummary {
    /// The cell.
    pub cell: Cell,
    /// `closed` or `open`: whether the load waited for answers. It decides what latency means.
    pub load_mode: Option<String>,
    /// The subjects, the baseline first.
    pub subjects: Vec<SubjectSummary>,
    /// Every subject but the baseline, against the baseline.
    pub comparisons: Vec<Comparison>,
    /// What the audits found, in the order of time.
    pub findings: Vec<Finding>,
}

/// Medians over the runs of a subject that count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubjectSummary {
    /// Its name.
    pub name: String,
    /// How many runs it had.
    pub runs: usize,
    /// How many of them count.
    pub counted: usize,
    /// The medians, if any run counts.
    pub figures: Option<Figures>,
    /// What limited it.
    pub bottleneck: Option<Bottleneck>,
    /// Latency in microseconds by quantile, of all counted runs together.
    pub latency_curve: Vec<(f64, f64)>,
}

/// The figures of one run, or their medians.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The figure of record: busy time of the server's CPU per request, in nanoseconds.
    pub server_cpu_ns: f64,
    /// Busy time of both CPUs per request, in nanoseconds.
    pub both_cpus_ns: f64,
    /// The server process's part of `server_cpu_ns` in user mode, in nanoseconds.
    pub server_user_ns: f64,
    /// Its part in the kernel, in nanoseconds.
    pub server_system_ns: f64,
    /// The rest of `server_cpu_ns`: softirq, interrupts, everything outside the process.
    pub server_outside_ns: f64,
    /// CPU time of the server process by its own clock, per request, in nanoseconds.
    pub server_process_ns: f64,
    /// CPU time of its io-wq and SQPOLL threads, per request, in nanoseconds.
    pub server_kernel_threads_ns: f64,
    /// Answers per second.
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
    /// The same of the client's CPU.
    pub client_busy_share: f64,
    /// Share of the window used by the load generator's busiest thread, as it says.
    pub client_thread_share: f64,
    /// Context switches of the server per request.
    pub server_switches: f64,
    /// System calls of the server per request, over its whole life; if it counts them.
    pub server_syscalls: Option<f64>,
    /// Completions per `io_uring_enter`, if it counts them.
    pub completions_per_enter: Option<f64>,
}

/// What kept a subject from answering more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The server's CPU: what one wants to measure.
    ServerCpu,
    /// The load generator's CPU: the throughput is a lower bound.
    ClientCpu,
    /// Both at once.
    BothCpus,
    /// One CPU that both share.
    SharedCpu,
    /// Neither CPU: requests waited for wake-ups, timers or the other end.
    Neither,
}

impl Bottleneck {
    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Bottleneck::ServerCpu => "server CPU",
            Bottleneck::ClientCpu => "client CPU",
            Bottleneck::BothCpus => "both CPUs",
            Bottleneck::SharedCpu => "the one CPU",
            Bottleneck::Neither => "neither CPU",
        }
    }

    /// Whether the load generator could not give more.
    pub fn is_client_bound(self) -> bool {
        matches!(self, Bottleneck::ClientCpu)
    }
}

/// A subject against the baseline. Every ratio is above 1 where the subject is better: less CPU,
/// more throughput, lower latency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The subject.
    pub subject: String,
    /// The baseline.
    pub baseline: String,
    /// Pairs that count.
    pub pairs: usize,
    /// Per-pair ratios of the figure of record, in the order of time.
    pub pair_ratios: Vec<f64>,
    /// CPU of the server's CPU per request: decides the verdict.
    pub server_cpu: Option<Interval>,
    /// CPU time of the server's process alone, by its own clock, per request: what most
    /// benchmarks show. It misses the softirq and interrupts that others pay for.
    pub server_process: Option<Interval>,
    /// CPU of both per request.
    pub both_cpus: Option<Interval>,
    /// Answers per second.
    pub throughput: Option<Interval>,
    /// 99th percentile of latency.
    pub latency_p99: Option<Interval>,
    /// The load generator was the bottleneck of one of them, so the ratio of throughput says
    /// nothing about the servers.
    pub throughput_is_client_bound: bool,
    /// What may be said.
    pub verdict: Verdict,
}

/// What may be said about a pair of subjects in a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Verdict {
    /// One of them needs less server CPU per request.
    Ahead {
        /// Which.
        winner: String,
    },
    /// Nothing can be said but how large a difference would have been seen.
    NoDifference {
        /// In percent, with the power of [`statistics::POWER`].
        would_have_seen_percent: f64,
    },
    /// There are fewer than [`MIN_PAIRS`] pairs.
    TooFewPairs {
        /// How many there are.
        pairs: usize,
    },
    /// An audit failed.
    Void {
        /// Which, and for whom.
        why: String,
    },
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Ahead { winner } => write!(f, "{winner} ahead"),
            Verdict::NoDifference { would_have_seen_percent: percent } => {
                write!(f, "no difference detected (would have seen {percent:.1} %)")
            }
            Verdict::TooFewPairs { pairs } => {
                write!(f, "no verdict: {pairs} of the {MIN_PAIRS} pairs that one needs")
            }
            Verdict::Void { why } => write!(f, "void: {why}"),
        }
    }
}

/// Computes the summary of an experiment's runs.
pub fn summarise(experiment: &Experiment, seed: u64, runs: &[RunRecord]) -> Summary {
    let mut nets: Vec<_> = runs.iter().map(|run| run.cell.net).collect();
    nets.sort_unstable();
    nets.dedup();
    let begun = |cell: &Cell| runs.iter().any(|run| run.cell == *cell);
    let cells = experiment.cells(&nets).into_iter().filter(begun);
    let of_cell = |cell| runs.iter().filter(|run| run.cell == cell).collect::<Vec<_>>();
    let cells = cells.map(|cell| cell_summary(experiment, seed, cell, &of_cell(cell))).collect();
    Summary { cells, runs: runs.len() }
}

/// A run with what was made of it.
struct Judged<'a> {
    run: &'a RunRecord,
    figures: Option<(Figures, Histogram<u64>)>,
    worst: Option<Severity>,
}

fn cell_summary(
    experiment: &Experiment,
    seed: u64,
    cell: Cell,
    runs: &[&RunRecord],
) -> CellSummary {
    let mut findings = Vec::new();
    let judged: Vec<Judged<'_>> = runs
        .iter()
        .map(|run| {
            let found = audit::audit(run);
            let worst = found.iter().map(|finding| finding.severity).max();
            findings.extend(found);
            Judged { run, figures: figures(run), worst }
        })
        .collect();
    let spoilt = |block: usize| {
        judged.iter().any(|j| j.run.block == block && j.worst == Some(Severity::Noise))
    };
    let counted: Vec<&Judged<'_>> = judged
        .iter()
        .filter(|j| j.worst != Some(Severity::Void) && j.figures.is_some() && !spoilt(j.run.block))
        .collect();
    let of_subject =
        |name: &str| counted.iter().copied().filter(|j| j.run.subject == name).collect::<Vec<_>>();
    let subjects: Vec<SubjectSummary> = experiment
        .subjects
        .iter()
        .map(|subject| {
            let runs = runs.iter().filter(|run| run.subject == subject.name).count();
            subject_summary(&subject.name, runs, &of_subject(&subject.name))
        })
        .collect();
    let void = |name: &str| {
        let of_name =
            |finding: &&Finding| finding.severity == Severity::Void && finding.subject == name;
        let kinds: BTreeSet<Kind> =
            findings.iter().filter(of_name).map(|finding| finding.kind).collect();
        let titles: Vec<&str> = kinds.into_iter().map(Kind::title).collect();
        (!titles.is_empty()).then(|| format!("{name}: {}", titles.join(", ")))
    };
    let baseline = experiment.baseline();
    let comparisons = subjects[1..]
        .iter()
        .map(|subject| {
            let why = void(baseline).or_else(|| void(&subject.name));
            let pairs = pairs(&of_subject(baseline), &of_subject(&subject.name));
            let client_bound = [&subjects[0], subject]
                .iter()
                .any(|side| side.bottleneck.is_some_and(Bottleneck::is_client_bound));
            compare(baseline, &subject.name, &pairs, seed, client_bound, why)
        })
        .collect();
    let load_mode =
        runs.iter().find_map(|run| Some(LoadResult::read(run.load.as_ref()?).ok()?.settings.mode));
    CellSummary { cell, load_mode, subjects, comparisons, findings }
}

/// The figures of two runs of the same block: baseline, subject.
type Pair<'a> = (&'a Figures, &'a Figures);

fn pairs<'a>(baseline: &[&'a Judged<'_>], subject: &[&'a Judged<'_>]) -> Vec<Pair<'a>> {
    let partner = |block| subject.iter().find(|j| j.run.block == block)?.figures.as_ref();
    let pair = |j: &&'a Judged<'_>| Some((&j.figures.as_ref()?.0, &partner(j.run.block)?.0));
    baseline.iter().filter_map(pair).collect()
}

fn compare(
    baseline: &str,
    subject: &str,
    pairs: &[Pair<'_>],
    seed: u64,
    client_bound: bool,
    void: Option<String>,
) -> Comparison {
    let less_is_better = |field: fn(&Figures) -> f64| -> Vec<f64> {
        pairs.iter().map(|(baseline, subject)| field(baseline) / field(subject)).collect()
    };
    let more_is_better = |field: fn(&Figures) -> f64| -> Vec<f64> {
        pairs.iter().map(|(baseline, subject)| field(subject) / field(baseline)).collect()
    };
    let interval = |ratios: &[f64]| statistics::interval(ratios, seed);
    let pair_ratios = less_is_better(|figures| figures.server_cpu_ns);
    let server_cpu = interval(&pair_ratios);
    let verdict = match (void, server_cpu) {
        (Some(why), _) => Verdict::Void { why },
        (None, Some(interval)) if pairs.len() >= MIN_PAIRS => {
            if !interval.shows_a_difference() {
                let would_have_seen_percent = interval.detectable_percent;
                Verdict::NoDifference { would_have_seen_percent }
            } else if interval.ratio > 1.0 {
                Verdict::Ahead { winner: subject.to_owned() }
            } else {
                Verdict::Ahead { winner: baseline.to_owned() }
            }
        }
        (None, _) => Verdict::TooFewPairs { pairs: pairs.len() },
    };
    Comparison {
        subject: subject.to_owned(),
        baseline: baseline.to_owned(),
        pairs: pairs.len(),
        server_cpu,
        server_process: interval(&less_is_better(|figures| figures.server_process_ns)),
        both_cpus: interval(&less_is_better(|figures| figures.both_cpus_ns)),
        throughput: interval(&more_is_better(|figures| figures.requests_per_s)),
        latency_p99: interval(&less_is_better(|figures| figures.latency_us_p99)),
        throughput_is_client_bound: client_bound,
        pair_ratios,
        verdict,
    }
}

fn subject_summary(name: &str, runs: usize, counted: &[&Judged<'_>]) -> SubjectSummary {
    let figures: Vec<&Figures> =
        counted.iter().filter_map(|j| j.figures.as_ref()).map(|(figures, _)| figures).collect();
    let mut latencies: Option<Histogram<u64>> = None;
    for (_, histogram) in counted.iter().filter_map(|j| j.figures.as_ref()) {
        match &mut latencies {
            None => latencies = Some(histogram.clone()),
            // Histograms of one load generator have one shape; one of another shape is left out
            // of the curve, which is the only thing this sum is for.
            Some(sum) => drop(sum.add(histogram)),
        }
    }
    let curve = |latencies: Histogram<u64>| {
        let point = |share: &f64| (*share, latencies.value_at_quantile(*share) as f64 / 1e3);
        CURVE_QUANTILES.iter().map(point).collect()
    };
    SubjectSummary {
        name: name.to_owned(),
        runs,
        counted: figures.len(),
        bottleneck: bottleneck(counted),
        figures: medians(&figures),
        latency_curve: latencies.map(curve).unwrap_or_default(),
    }
}

/// What limited most of the runs.
fn bottleneck(counted: &[&Judged<'_>]) -> Option<Bottleneck> {
    let shared = counted.first()?.run.cpu.as_ref()?;
    if shared.server_cpu.cpu == shared.client_cpu.cpu {
        return Some(Bottleneck::SharedCpu);
    }
    let share = |field: fn(&Figures) -> f64| {
        median(counted.iter().filter_map(|j| j.figures.as_ref()).map(|(figures, _)| field(figures)))
    };
    let saturated = |share: Option<f64>| share.is_some_and(|share| share >= SATURATED_SHARE);
    let server = saturated(share(|figures| figures.server_busy_share));
    let client = saturated(share(|figures| figures.client_busy_share))
        || saturated(share(|figures| figures.client_thread_share));
    Some(match (server, client) {
        (true, true) => Bottleneck::BothCpus,
        (true, false) => Bottleneck::ServerCpu,
        (false, true) => Bottleneck::ClientCpu,
        (false, false) => Bottleneck::Neither,
    })
}

/// The figures of one run, whether it counts or not.
pub(crate) fn figures_of(run: &RunRecord) -> Option<Figures> {
    figures(run).map(|(figures, _)| figures)
}

/// The figures of one run and its latencies, if it has everything they need.
fn figures(run: &RunRecord) -> Option<(Figures, Histogram<u64>)> {
    let load = LoadResult::read(run.load.as_ref()?).ok()?;
    let cpu = run.cpu.as_ref()?;
    let latencies = load.latencies().ok()?;
    // A ratio needs something on both sides of it.
    if load.requests.answered == 0 || cpu.window_s <= 0.0 || cpu.server_cpu.busy_s <= 0.0 {
        return None;
    }
    let answered = load.requests.answered as f64;
    let per_request_ns = |seconds: f64| seconds * 1e9 / answered;
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let quantile_us = |share| micros(latencies.value_at_quantile(share));
    let client_busy_s =
        if cpu.client_cpu.cpu == cpu.server_cpu.cpu { 0.0 } else { cpu.client_cpu.busy_s };
    let server = &cpu.server;
    // The division of a process's time into user and system is sampled; its sum is exact.
    let sampled = server.user_s + server.system_s;
    let user_share = if sampled > 0.0 { server.user_s / sampled } else { 0.0 };
    let server_process_ns = per_request_ns(server.cpu_s);
    let server_cpu_ns = per_request_ns(cpu.server_cpu.busy_s);
    let kernel_threads = server.threads.iter().filter(|thread| thread.name.starts_with("iou-"));
    let counter = |name| contract::runtime_counter(run.server_final.as_ref(), name);
    let figures = Figures {
        server_cpu_ns,
        both_cpus_ns: per_request_ns(cpu.server_cpu.busy_s + client_busy_s),
        server_user_ns: server_process_ns * user_share,
        server_system_ns: server_process_ns * (1.0 - user_share),
        server_outside_ns: (server_cpu_ns - server_process_ns).max(0.0),
        server_process_ns,
        server_kernel_threads_ns: per_request_ns(
            kernel_threads.fold(0.0, |sum, thread| sum + thread.cpu_s),
        ),
        requests_per_s: answered / load.window.seconds,
        latency_us_mean: latencies.mean() / 1e3,
        latency_us_p50: quantile_us(0.5),
        latency_us_p99: quantile_us(0.99),
        latency_us_p99_9: quantile_us(0.999),
        latency_us_max: micros(latencies.max()),
        server_busy_share: cpu.server_cpu.busy_s / cpu.window_s,
        client_busy_share: cpu.client_cpu.busy_s / cpu.window_s,
        client_thread_share: load
            .cpu
            .busiest_thread_share
            .max(f64::from(u8::from(load.cpu.saturated))),
        server_switches: (server.voluntary_switches + server.involuntary_switches) as f64
            / answered,
        server_syscalls: counter("syscalls").map(|count| count / load.whole_run.answered as f64),
        completions_per_enter: counter("completions_per_enter"),
    };
    Some((figures, latencies))
}

/// The median of every figure by itself.
fn medians(figures: &[&Figures]) -> Option<Figures> {
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
    })
}
