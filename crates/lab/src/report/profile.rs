//! Tables of `--profile`: where the CPUs' time went, and how often servers called the kernel.

use super::numbers::{NOTHING, percent, short, whole};
use crate::profile::{Attribution, Class, Counts, Profile, ProfiledRun};
use crate::result::Bundle;
use crate::summary::{CellSummary, Metric};

/// The title of this part of a report.
pub(super) const TITLE: &str = "Profile: where the time goes";

/// How to read it.
pub(super) const NOTE: &str = "By perf, in runs of their own that are in no figure. A share is of \
    the samples in which the CPU was neither idle nor with other processes; the time is that share of the CPU time per request \
    or packet of the counted runs. Of each sample the innermost function that is known decides. \
    System calls are of the window, as the kernel counts them; beside them stands what the server \
    itself counted over its whole life.";

/// For each cell that was profiled its tables, each with a title row.
pub(super) fn tables(bundle: &Bundle) -> Vec<Vec<Vec<String>>> {
    let (Some(profile), Some(summary)) = (&bundle.profile, &bundle.summary) else {
        return Vec::new();
    };
    let of_cell = |cell| [classes(profile, cell), calls(profile, cell)];
    summary.cells.iter().flat_map(of_cell).filter(|rows| rows.len() > 1).collect()
}

fn runs<'a>(profile: &'a Profile, cell: &CellSummary) -> impl Iterator<Item = &'a ProfiledRun> {
    let cell = cell.cell;
    profile.runs.iter().filter(move |run| run.cell == cell)
}

/// Two rows per subject: the server's CPU and the client's.
fn classes(profile: &Profile, cell: &CellSummary) -> Vec<Vec<String>> {
    let sides = |run: &ProfiledRun| {
        [("server", run.server.clone()), ("client", run.client.clone())]
            .into_iter()
            .filter_map(|(side, seen)| Some((side, seen?)))
            .collect::<Vec<_>>()
    };
    let rows: Vec<_> = runs(profile, cell)
        .flat_map(|run| sides(run).into_iter().map(move |(side, seen)| (run, side, seen)))
        .collect();
    let somewhere = |class: &Class| rows.iter().any(|(_, _, seen)| seen.of(*class) > 0);
    let shown: Vec<Class> = Class::OF_THE_RUN.into_iter().filter(somewhere).collect();
    let mut table = vec![vec![format!("{}; ns/{}", cell.cell, cell.cell.protocol().unit())]];
    table[0].extend(shown.iter().map(|class| class.title().to_owned()));
    table[0].extend(["samples", "idle", "other processes"].map(str::to_owned));
    for (run, side, seen) in &rows {
        let busy_ns = busy_ns(cell, &run.subject, side);
        let mut row = vec![format!("{}: {side}", run.subject)];
        row.extend(shown.iter().map(|class| part(seen, *class, busy_ns)));
        let of_all = |class| percent(seen.of(class) as f64 / seen.samples.max(1) as f64);
        row.push(whole(seen.samples as f64));
        row.extend([Class::Idle, Class::OtherProcesses].map(of_all));
        table.push(row);
    }
    table
}

fn busy_ns(cell: &CellSummary, subject: &str, side: &str) -> Option<f64> {
    let figures = cell.subjects.iter().find(|it| it.name == subject)?.figures.as_ref()?;
    let is_server = side == "server";
    figures.get(if is_server { Metric::ServerSideBusyNs } else { Metric::ClientSideBusyNs })
}

fn part(seen: &Attribution, class: Class, busy_ns: Option<f64>) -> String {
    match (seen.share(class), busy_ns) {
        (Some(share), Some(busy_ns)) => format!("{}, {}", percent(share), whole(share * busy_ns)),
        (Some(share), None) => percent(share),
        (None, _) => NOTHING.to_owned(),
    }
}

/// The calls that are shown by name, those made most often.
const SHOWN_CALLS: usize = 6;

fn calls(profile: &Profile, cell: &CellSummary) -> Vec<Vec<String>> {
    let unit = cell.cell.protocol().unit();
    let titles = [
        format!("{}; calls/{unit}", cell.cell),
        "all, in the window".to_owned(),
        "by the server, whole life".to_owned(),
        "completions/enter".to_owned(),
        "by the server".to_owned(),
        "which".to_owned(),
    ];
    let row = |run: &ProfiledRun| {
        let counts = run.counts.as_ref()?;
        let count = |value: Option<f64>| value.map_or(NOTHING.to_owned(), rate);
        Some(vec![
            run.subject.clone(),
            rate(counts.syscalls_per_unit),
            count(counts.own_syscalls_per_unit),
            count(counts.completions_per_enter),
            count(counts.own_completions_per_enter),
            which(counts),
        ])
    };
    std::iter::once(titles.to_vec()).chain(runs(profile, cell).filter_map(row)).collect()
}

fn which(counts: &Counts) -> String {
    let is_call = |name: &&String| !matches!(name.as_str(), "all_calls" | "io_uring_complete");
    let named = counts.events.keys().filter(is_call);
    let mut named: Vec<(&String, f64)> = named.map(|name| (name, counts.per_unit(name))).collect();
    named.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let one = |(name, often): &(&String, f64)| format!("{name} {}", rate(*often));
    named.iter().take(SHOWN_CALLS).map(one).collect::<Vec<_>>().join(", ")
}

/// Rates of calls are often far below one.
fn rate(value: f64) -> String {
    if value < 0.1 { format!("{value:.4}") } else { short(value) }
}
