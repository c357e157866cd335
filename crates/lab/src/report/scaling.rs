//! What more workers bring: a table for each group of cells that differ in them only.

use super::numbers::{NOTHING, short, whole};
use super::shape::{common, families};
use crate::summary::{CellSummary, Metric, SubjectSummary, Summary};
use crate::workload::Axis;

/// What the figures are, under the tables.
pub(super) const EXPLANATION: &str = "Medians of the runs of a cell. Cells are not paired, so the times of throughput have no interval. \
     The shares are of the window: of all CPUs of the server, of its busiest and least busy one, and of \
     all CPUs of the load generator. A server that is no faster although its busiest CPU has time to \
     spare waits for the load generator; a wide gap between its CPUs says that connections are unevenly \
     spread over its workers.";

/// The tables, each with its title row; none without cells of several workers.
pub(super) fn tables(summary: &Summary) -> Vec<Vec<Vec<String>>> {
    let cells: Vec<&CellSummary> = summary.cells.iter().collect();
    let families = families(&[Axis::Workers], &cells).into_iter();
    families.filter(|family| family.len() > 1).map(|family| table(&family, summary)).collect()
}

fn table(family: &[&CellSummary], summary: &Summary) -> Vec<Vec<String>> {
    let mut cells = family.to_vec();
    cells.sort_by_key(|it| it.cell.point.workers());
    let unit = cells[0].cell.protocol().unit();
    let title = common(&cells[0].cell, &[Axis::Workers], summary);
    let head = [
        title,
        "workers".to_owned(),
        format!("{unit}s/s"),
        format!("times that of {}", cells[0].cell.point.workers()),
        format!("CPU us/{unit}"),
        "busy".to_owned(),
        "busiest".to_owned(),
        "least busy".to_owned(),
        "load generator".to_owned(),
    ];
    let mut rows = vec![head.to_vec()];
    for subject in &cells[0].subjects {
        let of_subject = |cell: &&CellSummary| {
            let subject = cell.subjects.iter().find(|it| it.name == subject.name)?;
            Some((
                cell.cell.point.workers(),
                subject.figures.as_ref()?[Metric::RequestsPerS],
                row(subject)?,
            ))
        };
        let of_cells: Vec<_> = cells.iter().filter_map(of_subject).collect();
        // Times the first only if the first cell has a figure.
        let first = of_cells.first().filter(|it| it.0 == cells[0].cell.point.workers());
        for (workers, per_s, figures) in &of_cells {
            let times = first.map_or(NOTHING.to_owned(), |(_, one, _)| short(per_s / one));
            let begin = [subject.name.clone(), workers.to_string(), whole(*per_s), times];
            rows.push(begin.into_iter().chain(figures.iter().cloned()).collect());
        }
    }
    rows
}

/// CPU time and the shares.
fn row(subject: &SubjectSummary) -> Option<[String; 5]> {
    let figures = subject.figures.as_ref()?;
    let share = |metric| {
        figures.get(metric).map_or(NOTHING.to_owned(), |it: f64| format!("{:.0} %", it * 100.0))
    };
    let each = [
        Metric::ServerBusyShare,
        Metric::ServerBusiestShare,
        Metric::ServerLeastBusyShare,
        Metric::ClientBusyShare,
    ];
    let [busy, busiest, least, client] = each.map(share);
    Some([short(figures[Metric::ServerCpuNs] / 1e3), busy, busiest, least, client])
}
