//! Tables of what a run cost beside the primary metric: where the CPU time of both sides went, and
//! what it took of the memory.

use super::words::{NOTHING, share, short, whole};
use crate::summary::{CellSummary, Figures, MemoryFigures, SideFigures};

/// The tables of a cell that have anything in them, each with how to read it.
pub(super) fn tables(cell: &CellSummary) -> Vec<(Vec<Vec<String>>, &'static str)> {
    let tables = [(sides(cell), SIDES_NOTE), (memory(cell), MEMORY_NOTE)];
    tables.into_iter().filter(|(rows, _)| !rows.is_empty()).collect()
}

/// A title row, then two rows per subject: its server and its client.
fn sides(cell: &CellSummary) -> Vec<Vec<String>> {
    let unit = cell.cell.protocol().unit();
    let mut rows = Vec::new();
    for (name, figures) in measured(cell) {
        // A server without io_uring counts none.
        let completions = figures.completions_per_enter.filter(|often| *often > 0.0);
        let own = [figures.server_syscalls, completions];
        rows.push(side(&format!("{name}: server"), &figures.server, own));
        rows.push(side(&format!("{name}: client"), &figures.client, [None; 2]));
    }
    if !rows.is_empty() {
        let mut titles = vec![format!("CPU, ns/{unit}"), "busy".to_owned()];
        titles.extend(SideFigures::PARTS.iter().map(|(name, _)| (*name).to_owned()));
        titles.push("softirq, counted".to_owned());
        titles.push(format!("waits/{unit}"));
        titles.push(format!("preempted/{unit}"));
        titles.push("stolen".to_owned());
        titles.push(format!("syscalls/{unit}"));
        titles.push("completions/enter".to_owned());
        rows.insert(0, titles);
    }
    rows
}

/// How to read the table of both sides.
const SIDES_NOTE: &str = "The parts from user to outside add up to busy. Exact are \
    busy, the sum of a process, and its threads; the division into user and system is sampled by \
    the kernel. Outside are interrupts and softirq while the CPU had nothing else to do, other \
    processes and the lab's look. Softirq as the kernel counts it is in other columns already. System calls and completions \
    are counted by the server itself over its whole life, warm-up included, not only the window.";

fn side(name: &str, side: &SideFigures, own: [Option<f64>; 2]) -> Vec<String> {
    let mut row = vec![name.to_owned(), whole(side.busy_ns)];
    row.extend(SideFigures::PARTS.iter().map(|(_, part)| whole(part(side))));
    row.extend([
        whole(side.softirq_counted_ns),
        format!("{:.3}", side.voluntary_switches),
        format!("{:.3}", side.involuntary_switches),
        share(side.steal_share),
    ]);
    row.extend(own.map(|count| count.map_or(NOTHING.to_owned(), short)));
    row
}

/// A column of the table of memory.
type MemoryColumn = (&'static str, fn(&MemoryFigures) -> String);

const MEMORY: &[MemoryColumn] = &[
    ("when ready, MiB", |m| mebi(m.server_rss_bytes_at_ready)),
    ("peak, MiB", |m| mebi(m.server_rss_bytes)),
    ("at the end, of no file, MiB", |m| mebi(m.server_anonymous_bytes)),
    ("locked, MiB", |m| mebi(m.server_locked_bytes)),
    ("grown, B/connection", |m| whole(m.rss_bytes_per_connection)),
    ("kernel, B/connection", |m| whole(m.kernel_bytes_per_connection)),
    ("socket buffers, B/connection", |m| whole(m.socket_bytes_per_connection)),
];

fn mebi(bytes: f64) -> String {
    short(bytes / f64::from(1 << 20))
}

/// A title row, then one row per subject; empty where nobody looked.
fn memory(cell: &CellSummary) -> Vec<Vec<String>> {
    if measured(cell).all(|(_, figures)| figures.memory.is_none()) {
        return Vec::new();
    }
    let titles = MEMORY.iter().map(|(title, _)| (*title).to_owned());
    let mut rows = vec![["memory of the server".to_owned()].into_iter().chain(titles).collect()];
    for (name, figures) in measured(cell) {
        let value =
            |(_, value): &MemoryColumn| figures.memory.as_ref().map_or(NOTHING.to_owned(), value);
        let values = MEMORY.iter().map(value);
        rows.push([name.to_owned()].into_iter().chain(values).collect());
    }
    rows
}

/// How to read the table of memory.
const MEMORY_NOTE: &str = "Memory grows from the moment that the server was ready: its own to its \
    peak, the kernel's until the window opened. The kernel's is that of the whole machine: both ends \
    of each connection, the load generator's page tables, and whatever else changed meanwhile.";

fn measured(cell: &CellSummary) -> impl Iterator<Item = (&str, &Figures)> {
    cell.subjects.iter().filter_map(|it| Some((it.name.as_str(), it.figures.as_ref()?)))
}
