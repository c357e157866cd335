//! Published figures beside ours. Only changes in percent are set side by side: two machines have no requests per second
//! in common. There is no verdict; a reader sees both numbers and our interval.

use super::Element;
use super::chart::{percent, signed};
use super::document::{change_of, head};
use crate::analysis::{CellSummary, Comparison};
use crate::experiment::{Axis, Point, Printed, Published};
use crate::result::Bundle;

pub(super) fn published(bundle: &Bundle) -> Vec<Element> {
    let all = &bundle.experiment.published;
    let Some(summary) = bundle.summary.as_ref().filter(|_| !all.is_empty()) else {
        return Vec::new();
    };
    let mut tables: Vec<(String, Vec<Vec<String>>)> = Vec::new();
    for (programs, row) in all.iter().flat_map(|it| throughputs(it, all, &summary.cells)) {
        match tables.iter_mut().find(|(title, _)| *title == programs) {
            Some((_, table)) => table.push(row),
            None => {
                let mut table = head(["work", "published", "measured here", "remark"]);
                table.push(row);
                tables.push((programs, table));
            }
        }
    }
    let mut blocks = Vec::new();
    if !tables.is_empty() {
        let about = "Requests per second of one program against another, in percent: more is positive, ours with its \
                     interval.";
        blocks.push(Element::Text(about.to_owned()));
    }
    for (programs, table) in tables {
        blocks.extend([Element::Text(programs), Element::Table(table)]);
    }
    blocks.extend(all.iter().filter_map(|it| datagrams(it, &summary.cells)));
    let sources = all
        .iter()
        .map(|it| Element::Item(format!("{}, {}: {}", it.source, it.program, it.conditions)));
    blocks.extend(sources);
    vec![Element::Folded("Published figures".to_owned(), blocks)]
}

/// Which programs are compared, there and here, and the row of one work.
fn throughputs(
    published: &Published,
    all: &[Published],
    cells: &[CellSummary],
) -> Vec<(String, Vec<String>)> {
    let Some(against) = &published.against else { return Vec::new() };
    let other =
        all.iter().find(|it| it.source == published.source && it.program == against.program);
    let others = other.map(|it| &*it.measured).unwrap_or_default();
    let mut rows = Vec::new();
    for printed in &published.measured {
        let same =
            |it: &&Printed| (it.connections, it.bytes) == (printed.connections, printed.bytes);
        let divisor = others.iter().find(same).and_then(|it| it.requests_per_s);
        let ratio = printed.requests_per_s.zip(divisor).map(|(number, other)| number / other);
        for [subject, baseline] in &against.here {
            let found =
                cells.iter().filter(|cell| is_same_work(printed, cell)).filter_map(|cell| {
                    let is_it =
                        |it: &&Comparison| it.subject == *subject && it.baseline == *baseline;
                    Some((cell, cell.comparisons.iter().find(is_it)?))
                });
            for (cell, comparison) in found {
                let ours = comparison.figures.get("throughput_per_s");
                let (source, program, other) =
                    (&published.source, &published.program, &against.program);
                let programs = format!(
                    "{source}: {program} against {other}; here {subject} against {baseline}"
                );
                let row = vec![
                    cell.cell.to_string(),
                    ratio.map_or("no number".to_owned(), |it| {
                        format!("{} %", signed(percent(it), 1))
                    }),
                    change_of(ours),
                    [&*printed.note, comparison.void.as_deref().map_or("", |_| "void")].concat(),
                ];
                rows.push((programs, row));
            }
        }
    }
    rows
}

/// CPU of a program that exchanges datagrams on a schedule, in percent of a core, beside ours.
fn datagrams(published: &Published, cells: &[CellSummary]) -> Option<Element> {
    let it = published.datagrams.as_ref()?;
    let is_it = |cell: &&CellSummary| {
        let on = |axis| cell.cell.point.on(axis);
        (on(Axis::Streams), on(Axis::PacketsPerS)) == (Some(it.streams), Some(it.packets_per_s))
    };
    let ours: Vec<String> = cells
        .iter()
        .filter(is_it)
        .filter_map(|cell| {
            let share =
                *cell.subject(&published.subject)?.figures.as_ref()?.get("client_busy_share")?;
            Some(format!("{:.1} % {}", share * 100.0, cell.cell.net))
        })
        .collect();
    let ours = if ours.is_empty() { "not measured".to_owned() } else { ours.join(", ") };
    let (streams, rate, percent) = (it.streams, it.packets_per_s, it.cpu_percent);
    Some(Element::Item(format!(
        "{}: {streams} streams x {rate}/s took {percent} % of a core there, by the process's clock; here the whole \
         CPU was busy for {ours}",
        published.source
    )))
}

/// Whether a cell is of the work that was published: one request in flight on connections that stay.
fn is_same_work(printed: &Printed, cell: &CellSummary) -> bool {
    let point = cell.cell.point;
    let axes = [
        (Axis::Connections, printed.connections),
        (Axis::Bytes, printed.bytes),
        (Axis::Workers, point.get(Axis::Workers)),
    ];
    Point::new(point.protocol(), &axes).is_ok_and(|usual| usual == point)
}
