//! Which figures and ratios the reports show for each protocol.

use super::words::{NOTHING, interval, percent, rare, share, short, whole};
use crate::experiment::Protocol;
use crate::statistics::Interval;
use crate::summary::{
    CellSummary, Comparison, DatagramFigures, Figures, HttpFigures, METRICS, Metric, Record,
};

/// A column of the table of figures: title, unit, value.
pub(super) type Column = (&'static str, &'static str, fn(&Figures) -> String);

/// The figures every report shows, the primary metric first.
pub(super) fn columns(protocol: Protocol) -> &'static [Column] {
    match protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
        Protocol::Http => HTTP,
    }
}

const TCP: &[Column] = &[
    ("server CPU", "ns/request", |f| whole(f.server_cpu_ns)),
    ("both CPUs", "ns/request", |f| whole(f.both_cpus_ns)),
    ("throughput", "requests/s", |f| whole(f.requests_per_s)),
    ("p50", "us", |f| short(f.latency_us_p50)),
    ("p99", "us", |f| short(f.latency_us_p99)),
    ("p99.9", "us", |f| short(f.latency_us_p99_9)),
    ("syscalls", "/request", syscalls),
    ("server CPU", "busy", |f| percent(f.server_busy_share)),
    ("client CPU", "busy", |f| percent(f.client_busy_share)),
];

const UDP: &[Column] = &[
    ("both CPUs", "ns/packet", |f| whole(f.both_cpus_ns)),
    ("server CPU", "ns/packet", |f| whole(f.server_cpu_ns)),
    ("server CPU", "busy", |f| percent(f.server_busy_share)),
    ("client CPU", "busy", |f| percent(f.client_busy_share)),
    ("delivered", "packets/s", |f| whole(f.requests_per_s)),
    ("lost", "of sent", |f| datagram(f, |d| share(d.lost_ratio))),
    ("p99.9 late", "us", |f| datagram(f, |d| short(d.lateness_us_p99_9))),
    ("p99 trip", "us", |f| short(f.latency_us_p99)),
    ("syscalls", "/packet", syscalls),
];

const HTTP: &[Column] = &[
    ("server CPU", "ns/request", |f| whole(f.server_cpu_ns)),
    ("both CPUs", "ns/request", |f| whole(f.both_cpus_ns)),
    ("throughput", "requests/s", |f| whole(f.requests_per_s)),
    ("content", "MB/s", |f| http(f, |h| short(h.content_bytes_per_s / 1e6))),
    ("p50", "us", |f| short(f.latency_us_p50)),
    ("p99", "us", |f| short(f.latency_us_p99)),
    ("p99.9", "us", |f| short(f.latency_us_p99_9)),
    ("syscalls", "/request", syscalls),
    ("server CPU", "busy", |f| percent(f.server_busy_share)),
    ("client CPU", "busy", |f| percent(f.client_busy_share)),
];

fn syscalls(figures: &Figures) -> String {
    figures.server_syscalls.map_or(NOTHING.to_owned(), short)
}

fn datagram(figures: &Figures, value: fn(&DatagramFigures) -> String) -> String {
    figures.datagrams.as_ref().map_or(NOTHING.to_owned(), value)
}

fn http(figures: &Figures, value: fn(&HttpFigures) -> String) -> String {
    figures.http.as_ref().map_or(NOTHING.to_owned(), value)
}

/// What was counted: a row of titles and one of what they are of, then one row per subject; empty
/// where nothing was counted, as in older bundles.
pub(super) fn counts(cell: &CellSummary) -> Vec<Vec<String>> {
    let counted = || cell.subjects.iter().filter_map(|it| Some((it, it.figures.as_ref()?)));
    if counted().all(|(_, figures)| figures.counts.is_empty()) {
        return Vec::new();
    }
    let head = |first: String, pick: fn(&Metric) -> &'static str| -> Vec<String> {
        [first].into_iter().chain(METRICS.iter().map(|it| pick(it).to_owned())).collect()
    };
    let unit = cell.cell.protocol().unit();
    let mut rows =
        vec![head(format!("per {unit}"), |it| it.title), head(String::new(), |it| it.of)];
    for (subject, figures) in counted() {
        let value = |metric: &Metric| metric.value(figures).map_or(NOTHING.to_owned(), rare);
        rows.push([subject.name.clone()].into_iter().chain(METRICS.iter().map(value)).collect());
    }
    rows
}

/// How to read the table of counts.
pub(super) const COUNTS_NOTE: &str = "Notifications are interrupts by which one of the two CPUs was \
    told something by another, NET_RX runs of the receive softirq there. System calls and completions \
    are counted by the server over its whole life, all else in the window.";

/// A title row, then one row per subject, of the times that only HTTP has; empty elsewhere.
pub(super) fn http_times(cell: &CellSummary) -> Vec<Vec<String>> {
    let row = |subject: &crate::summary::SubjectSummary| {
        let figures = subject.figures.as_ref()?;
        let http = figures.http.as_ref()?;
        let times = [
            figures.latency_us_mean,
            http.first_byte_us_p50,
            http.first_byte_us_p99,
            http.connect_us_p50,
            http.connect_us_p99,
        ];
        Some([subject.name.clone()].into_iter().chain(times.map(short)).collect())
    };
    let mut rows: Vec<Vec<String>> = cell.subjects.iter().filter_map(row).collect();
    if !rows.is_empty() {
        let titles =
            ["times", "mean, us", "first byte p50, us", "p99", "connecting p50, us", "p99"];
        rows.insert(0, titles.map(str::to_owned).to_vec());
    }
    rows
}

/// A column of the table of what only datagrams have.
type DatagramColumn = (&'static str, fn(&DatagramFigures) -> String);

const DATAGRAMS: &[DatagramColumn] = &[
    ("not back, of due", |d| share(d.missing_ratio)),
    ("lost, of sent", |d| share(d.lost_ratio)),
    ("duplicated", |d| share(d.duplicated_ratio)),
    ("reordered", |d| share(d.reordered_ratio)),
    ("kernel drops", |d| whole(d.kernel_drops)),
    ("late p50, us", |d| short(d.lateness_us_p50)),
    ("p99", |d| short(d.lateness_us_p99)),
    ("p99.9", |d| short(d.lateness_us_p99_9)),
    ("max", |d| short(d.lateness_us_max)),
    ("wait overrun p99.9, us", |d| short(d.wait_overrun_us_p99_9)),
    ("jitter p50, us", |d| short(d.jitter_us_p50)),
    ("p99", |d| short(d.jitter_us_p99)),
];

/// A title row, then one row per subject; empty where there are no datagrams.
pub(super) fn datagrams(cell: &CellSummary) -> Vec<Vec<String>> {
    let row = |subject: &crate::summary::SubjectSummary| {
        let datagrams = subject.figures.as_ref()?.datagrams.as_ref()?;
        let values = DATAGRAMS.iter().map(|(_, value)| value(datagrams));
        Some([subject.name.clone()].into_iter().chain(values).collect())
    };
    let mut rows: Vec<Vec<String>> = cell.subjects.iter().filter_map(row).collect();
    if !rows.is_empty() {
        let titles = DATAGRAMS.iter().map(|(title, _)| (*title).to_owned());
        rows.insert(0, ["datagrams".to_owned()].into_iter().chain(titles).collect());
    }
    rows
}

/// A title row, then a row for each system call of each subject whose load generator timed them.
pub(super) fn calls(cell: &CellSummary) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for subject in &cell.subjects {
        for call in &subject.calls {
            rows.push(call_row(
                &subject.name,
                &call.call,
                [call.per_second, call.run_share * 100.0, call.mean_us, call.max_us / 1e3],
            ));
        }
    }
    if !rows.is_empty() {
        rows.insert(0, CALL_TITLES.map(str::to_owned).to_vec());
    }
    rows
}

const CALL_TITLES: [&str; 6] =
    ["client's calls", "call", "calls/s", "% of run time", "mean us", "max ms"];

/// A row of a table of calls: calls per second, percent of the run, mean us, longest ms.
pub(super) fn call_row(who: &str, call: &str, figures: [f64; 4]) -> Vec<String> {
    let [per_second, run_percent, mean_us, max_ms] = figures;
    vec![
        who.to_owned(),
        call.to_owned(),
        whole(per_second),
        format!("{run_percent:.1}"),
        short(mean_us),
        format!("{max_ms:.3}"),
    ]
}

/// The titles for rows of published calls.
pub(super) fn published_call_titles() -> Vec<String> {
    let mut titles = CALL_TITLES.map(str::to_owned).to_vec();
    titles[0] = "published calls".to_owned();
    titles
}

/// A ratio of a comparison: its name, its interval if there is one, and whether it may be shown.
/// What the load generator limited says nothing about the servers.
pub(super) struct Ratio<'a> {
    pub(super) name: &'static str,
    pub(super) interval: Option<&'a Interval>,
    pub(super) client_bound: bool,
    /// Why there is none, if so.
    missing: Option<&'static str>,
}

/// The ratios of a comparison, the primary metric first.
pub(super) fn ratios(comparison: &Comparison, protocol: Protocol) -> Vec<Ratio<'_>> {
    let Comparison { server_cpu, client_cpu, both_cpus, throughput, latency_p99, .. } = comparison;
    let plain = |name, interval| Ratio { name, interval, client_bound: false, missing: None };
    let client_bound = comparison.throughput_is_client_bound;
    let served = |name, interval| Ratio { client_bound, ..plain(name, interval) };
    let missing = comparison.packets_lost.then_some("packets lost");
    let latency = |name| Ratio { missing, ..served(name, latency_p99.as_ref()) };
    let process = plain("its process alone", comparison.server_process.as_ref());
    match (protocol, comparison.record) {
        (Protocol::Tcp | Protocol::Http, _) => vec![
            plain("server CPU/request", server_cpu.as_ref()),
            plain("both CPUs/request", both_cpus.as_ref()),
            served("requests/s", throughput.as_ref()),
            latency("p99 latency"),
            process,
        ],
        (Protocol::Udp, record) => {
            let mut cpu = [
                plain("server CPU/packet", server_cpu.as_ref()),
                plain("client CPU/packet", client_cpu.as_ref()),
                plain("both CPUs/packet", both_cpus.as_ref()),
            ];
            if record == Record::BothCpus {
                cpu.rotate_right(1);
            }
            let rest = [latency("p99 round trip"), process];
            cpu.into_iter().chain(rest).collect()
        }
    }
}

/// A ratio in a table.
pub(super) fn ratio(ratio: &Ratio<'_>) -> String {
    match (ratio.missing, ratio.interval) {
        (Some(why), _) => why.to_owned(),
        (None, Some(_)) if ratio.client_bound => "client-bound".to_owned(),
        (None, it) => interval(it),
    }
}
