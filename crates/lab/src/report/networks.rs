//! The networks of an experiment side by side.

use std::collections::BTreeSet;

use super::numbers::{NOTHING, rare};
use super::outcome::{Judged, Outcome, grouped, judged};
use crate::experiment::{Cell, NetKind};
use crate::statistics::{Ends, Interval};
use crate::summary::{CellSummary, Comparison, Metric, SubjectSummary, Summary};

/// The tables of an experiment on several networks, each with its title row: the verdicts on each two
/// that were compared, then the notifications of each subject if they were counted. None if there is one
/// network only.
pub(super) fn tables(summary: &Summary) -> Vec<Vec<Vec<String>>> {
    let nets = nets(summary);
    if !are_several(summary) {
        return Vec::new();
    }
    let all: Vec<Judged<'_>> = judged(summary).collect();
    let mut tables: Vec<_> = grouped(&all, |it| [&*it.subject, &*it.baseline])
        .into_iter()
        .filter_map(|contest| {
            let (_, Comparison { subject, baseline, .. }) = contest.first()?;
            let entry = |it: &Judged<'_>| (point(&it.0.cell), it.0.cell.net, verdict(it.1));
            let entries = contest.iter().map(entry).collect();
            Some(table(&format!("{subject} : {baseline}"), &nets, entries))
        })
        .collect();
    let of_cell = |cell| move |subject| notifications(cell, subject);
    let counts =
        summary.cells.iter().flat_map(|cell| cell.subjects.iter().filter_map(of_cell(cell)));
    tables.push(table("notifications per request or packet", &nets, counts.collect()));
    tables.retain(|rows| rows.len() > 1);
    tables
}

fn nets(summary: &Summary) -> BTreeSet<NetKind> {
    summary.cells.iter().map(|it| it.cell.net).collect()
}

pub(super) fn are_several(summary: &Summary) -> bool {
    nets(summary).len() > 1
}

/// An entry: its row, its column, what stands there.
type Entry = (String, NetKind, String);

fn table(title: &str, nets: &BTreeSet<NetKind>, entries: Vec<Entry>) -> Vec<Vec<String>> {
    let head = nets.iter().map(|net| net.phrase());
    let mut rows = vec![[title.to_owned()].into_iter().chain(head).collect::<Vec<String>>()];
    for (name, net, value) in entries {
        let column = 1 + nets.iter().position(|it| *it == net).unwrap_or(0);
        let known = rows.iter().skip(1).position(|row| row[0] == name);
        let row = known.map_or(rows.len(), |position| position + 1);
        if row == rows.len() {
            rows.push([name].into_iter().chain(nets.iter().map(|_| NOTHING.to_owned())).collect());
        }
        rows[row][column] = value;
    }
    rows
}

fn verdict(comparison: &Comparison) -> String {
    let outcome = Outcome::of(comparison);
    match (outcome, comparison.of_record()) {
        (Outcome::Void | Outcome::Behind, _) | (_, None) => outcome.mark().to_owned(),
        (_, Some(Interval { ratio, ends: Some(Ends { low, high }), .. })) => {
            format!("{ratio:.2} [{low:.2}, {high:.2}] {}", outcome.mark())
        }
        (_, Some(Interval { ratio, ends: None, .. })) => format!("{ratio:.2} {}", outcome.mark()),
    }
}

fn notifications(cell: &CellSummary, subject: &SubjectSummary) -> Option<Entry> {
    let count = subject.figures.as_ref()?.get(Metric::Notifications)?;
    Some((format!("{}, {}", point(&cell.cell), subject.name), cell.cell.net, rare(count)))
}

/// A cell without its network.
fn point(cell: &Cell) -> String {
    let full = cell.to_string();
    full.strip_suffix(&format!(" {}", cell.net.phrase())).unwrap_or(&full).to_owned()
}
