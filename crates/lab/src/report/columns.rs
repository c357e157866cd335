//! Which figures and ratios the reports show for each protocol.

use super::numbers::{NOTHING, interval, percent, rare, share, short, whole};
use crate::experiment::Protocol;
use crate::statistics::Interval;
use crate::summary::{Bottleneck, CellSummary, Comparison, Figures, Metric, SubjectSummary, Unit};
use crate::workload::Table;

/// The first table of a cell: two title rows, then one row per subject with what it was limited by.
pub(super) fn figures(cell: &CellSummary) -> Vec<Vec<String>> {
    let protocol = cell.cell.protocol();
    let primary = cell.comparisons.first().map_or(Metric::ServerCpuNs, |it| it.record.metric());
    let mut columns: Vec<_> = Metric::columns(protocol.workload().tables).collect();
    columns.sort_by_key(|(metric, ..)| *metric != primary);
    let below = |(_, _, below): &(_, _, &str)| below.replace("unit", protocol.unit());
    let mut rows = vec![
        row("", columns.iter().map(|(_, title, _)| (*title).to_owned()), ["runs", "bottleneck"]),
        row("", columns.iter().map(below), ["counted", ""]),
    ];
    for subject in &cell.subjects {
        let value = |(metric, ..): &(Metric, _, _)| {
            let value = subject.figures.as_ref().and_then(|it| it.get(*metric));
            shown(value, metric.unit())
        };
        let last = [&counted(subject), bottleneck(subject.bottleneck)];
        rows.push(row(&subject.name, columns.iter().map(value), last));
    }
    rows
}

fn row(first: &str, middle: impl Iterator<Item = String>, last: [&str; 2]) -> Vec<String> {
    [first.to_owned()].into_iter().chain(middle).chain(last.map(str::to_owned)).collect()
}

/// A value in a table.
pub(super) fn shown(value: Option<f64>, unit: Unit) -> String {
    let Some(value) = value else { return NOTHING.to_owned() };
    match unit {
        Unit::Ns | Unit::UnitsPerS | Unit::PerRun | Unit::BytesPerConnection => whole(value),
        Unit::Us | Unit::Count => short(value),
        // A server without io_uring counts none.
        Unit::PerEnter if value == 0.0 => NOTHING.to_owned(),
        Unit::PerEnter => short(value),
        Unit::OfWindow => percent(value),
        Unit::Ratio => share(value),
        Unit::Bytes => short(value / f64::from(1 << 20)),
        Unit::BytesPerS => short(value / 1e6),
    }
}

/// What was counted: a row of titles and one of what they are of, then one row per subject; empty
/// where nothing was counted, as in older bundles.
pub(super) fn counts(cell: &CellSummary) -> Vec<Vec<String>> {
    let columns: Vec<_> = Metric::columns(&[Table::Counts]).collect();
    let subjects = measured(cell, Table::Counts);
    if subjects.is_empty() {
        return Vec::new();
    }
    let head = |first: String, titles: Vec<&str>| -> Vec<String> {
        [first].into_iter().chain(titles.into_iter().map(str::to_owned)).collect()
    };
    let unit = cell.cell.protocol().unit();
    let mut rows = vec![
        head(format!("per {unit}"), columns.iter().map(|(_, title, _)| *title).collect()),
        head(String::new(), columns.iter().map(|(_, _, below)| *below).collect()),
    ];
    for (name, figures) in subjects {
        let value = |(metric, ..): &(Metric, _, _)| match (figures.get(*metric), metric.unit()) {
            (Some(value), unit) if value > 0.0 || unit != Unit::PerEnter => rare(value),
            _ => NOTHING.to_owned(),
        };
        rows.push([name.to_owned()].into_iter().chain(columns.iter().map(value)).collect());
    }
    rows
}

/// The subjects that have anything which is in this table for its own sake.
fn measured(cell: &CellSummary, table: Table) -> Vec<(&str, &Figures)> {
    let has_any = |figures: &Figures| {
        Metric::columns(&[table]).any(|(it, ..)| it.is_grouped() && figures.get(it).is_some())
    };
    let subjects = cell.subjects.iter().filter_map(|it| Some((&*it.name, it.figures.as_ref()?)));
    subjects.filter(|(_, figures)| has_any(figures)).collect()
}

/// A table with a title row, then one row per subject; empty where there is nothing for it.
pub(super) fn simple(cell: &CellSummary, table: Table, title: &str) -> Vec<Vec<String>> {
    let subjects = measured(cell, table);
    if subjects.is_empty() {
        return Vec::new();
    }
    let tables = [table];
    let titles = Metric::columns(&tables).map(|(_, title, _)| title.to_owned());
    let mut rows = vec![[title.to_owned()].into_iter().chain(titles).collect::<Vec<String>>()];
    for (name, figures) in subjects {
        let values = Metric::columns(&tables).map(|(it, ..)| shown(figures.get(it), it.unit()));
        rows.push([name.to_owned()].into_iter().chain(values).collect());
    }
    rows
}

/// How to read the table of counts.
pub(super) const COUNTS_NOTE: &str = "Notifications are interrupts by which one of the two CPUs was \
    told something by another, NET_RX runs of the receive softirq there. System calls and completions \
    are counted by the server over its whole life, all else in the window.";

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
    pub(super) name: String,
    pub(super) interval: Option<&'a Interval>,
    pub(super) client_bound: bool,
    /// Why there is none, if so.
    missing: Option<&'static str>,
}

/// The ratios of a comparison, the primary metric first.
pub(super) fn ratios(comparison: &Comparison, protocol: Protocol) -> Vec<Ratio<'_>> {
    let mut metrics = Metric::ratios();
    metrics.sort_by_key(|metric| *metric != comparison.record.metric());
    let ratio = |metric: Metric| {
        Some(Ratio {
            name: metric.ratio_title(protocol)?,
            interval: comparison.ratio(metric),
            client_bound: comparison.throughput_is_client_bound && metric.is_of_the_load_too(),
            missing: (comparison.packets_lost && metric.is_latency()).then_some("packets lost"),
        })
    };
    metrics.into_iter().filter_map(ratio).collect()
}

/// A ratio in a table.
pub(super) fn ratio(ratio: &Ratio<'_>) -> String {
    match (ratio.missing, ratio.interval) {
        (Some(why), _) => why.to_owned(),
        (None, Some(_)) if ratio.client_bound => "client-bound".to_owned(),
        (None, it) => interval(it),
    }
}

/// A title row, then one row of ratios per comparison.
pub(super) fn ratio_rows(cell: &CellSummary) -> Vec<Vec<String>> {
    let Some(first) = cell.comparisons.first() else { return Vec::new() };
    let mut rows = vec![vec!["times better".to_owned()]];
    let protocol = cell.cell.protocol();
    rows[0].extend(ratios(first, protocol).into_iter().map(|ratio| ratio.name));
    for comparison in &cell.comparisons {
        let mut row = vec![format!("{} : {}", comparison.subject, comparison.baseline)];
        row.extend(ratios(comparison, protocol).iter().map(ratio));
        rows.push(row);
    }
    rows
}

fn bottleneck(bottleneck: Option<Bottleneck>) -> &'static str {
    bottleneck.map_or(NOTHING, Bottleneck::title)
}

/// Runs that count, out of those made; and in how many of these it kept the rate.
fn counted(subject: &SubjectSummary) -> String {
    let SubjectSummary { counted, runs, .. } = subject;
    match subject.kept_up {
        Some(kept_up) if kept_up < *counted => {
            format!("{counted} of {runs}, {kept_up} in time")
        }
        _ => format!("{counted} of {runs}"),
    }
}
