//! Tables of what a run cost beside the primary metric: where the CPU time of both sides went, and
//! what it took of the memory.

use super::columns::{shown, simple};
use super::numbers::NOTHING;
use crate::summary::{CellSummary, Figures, Metric, SIDES, Unit};
use crate::workload::Table;

/// The tables of a cell that have anything in them, each with how to read it.
pub(super) fn tables(cell: &CellSummary) -> Vec<(Vec<Vec<String>>, &'static str)> {
    let memory = simple(cell, Table::Memory, "memory of the server");
    let tables = [(sides(cell), SIDES_NOTE), (memory, MEMORY_NOTE)];
    tables.into_iter().filter(|(rows, _)| !rows.is_empty()).collect()
}

/// A title row, then two rows per subject: its server and its client. The last columns are the
/// server's only.
fn sides(cell: &CellSummary) -> Vec<Vec<String>> {
    const OWN: [Metric; 2] = [Metric::ServerSyscalls, Metric::CompletionsPerEnter];
    let unit = cell.cell.protocol().unit();
    let columns: Vec<_> = Metric::columns(&[Table::Sides]).collect();
    let mut rows = Vec::new();
    for subject in &cell.subjects {
        let Some(figures) = &subject.figures else { continue };
        for (side, name) in ["server", "client"].into_iter().enumerate() {
            let metric = |of_server: Metric| {
                let pair = SIDES.iter().find(|it| it[0] == of_server);
                pair.map_or(of_server, |pair| pair[side])
            };
            let mut row = vec![format!("{}: {name}", subject.name)];
            row.extend(columns.iter().map(|(it, ..)| value(figures, metric(*it))));
            let own = OWN.map(|it| shown(figures.get(it), it.unit()));
            row.extend(if side == 0 { own } else { [NOTHING, NOTHING].map(str::to_owned) });
            rows.push(row);
        }
    }
    if !rows.is_empty() {
        let mut titles = vec![format!("CPU, ns/{unit}")];
        titles.extend(columns.iter().map(|(_, title, below)| format!("{title}{below}")));
        titles.extend(["syscalls/unit", "completions/enter"].map(str::to_owned));
        rows.insert(
            0,
            titles.iter().map(|title| title.replace("/unit", &format!("/{unit}"))).collect(),
        );
    }
    rows
}

fn value(figures: &Figures, metric: Metric) -> String {
    match (figures.get(metric), metric.unit()) {
        (Some(switches), Unit::Count) => format!("{switches:.3}"),
        (value, unit) => shown(value, unit),
    }
}

/// How to read the table of both sides.
const SIDES_NOTE: &str = "The parts from user to outside add up to busy. Exact are \
    busy, the sum of a process, and its threads; the division into user and system is sampled by \
    the kernel. Outside are interrupts and softirq while the CPU had nothing else to do, other \
    processes and the lab's look. Softirq as the kernel counts it is in other columns already. System calls and completions \
    are counted by the server itself over its whole life, warm-up included, not only the window.";

/// How to read the table of memory.
const MEMORY_NOTE: &str = "Memory grows from the moment that the server was ready: its own to its \
    peak, the kernel's until the window opened. The kernel's is that of the whole machine: both ends \
    of each connection, the load generator's page tables, and whatever else changed meanwhile.";
