//! `--stats` for people: rows of rates and differences, under a heading.

use std::sync::{Mutex, PoisonError};
use twinring_services::udp::UdpCounters;

/// Rows between two headings: about a screen.
const ROWS_PER_HEADING: usize = 20;

/// The headings in order.
const COLUMNS: [&str; 6] =
    ["uptime_s", "received/s", "sent/s", "waiting", "kernel_drops", "dropped"];

/// Columns are as wide as their heading, and as a count of seconds, datagrams or bytes needs.
const WIDTH: usize = 12;

#[derive(Default)]
struct Last {
    uptime_s: f64,
    counters: UdpCounters,
    rows: usize,
}

/// Rows of rates and differences; `waiting` is the current number.
#[derive(Default)]
pub(super) struct Table(Mutex<Last>);

impl Table {
    /// The next row, with a heading above it where one is due.
    pub(super) fn row(&self, uptime_s: f64, now: &UdpCounters) -> String {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Last { uptime_s, counters: *now, rows: last.rows + 1 };
        let before = std::mem::replace(&mut *last, next);
        let seconds = (uptime_s - before.uptime_s).max(0.001);
        let then = &before.counters;
        let rate = |now: u64, then: u64| ((now - then) as f64 / seconds).round().to_string();
        let more = |now: u64, then: u64| (now - then).to_string();
        let cells = [
            format!("{uptime_s:.2}"),
            rate(now.sockets.received, then.sockets.received),
            rate(now.sockets.sent, then.sockets.sent),
            now.waiting.to_string(),
            more(now.sockets.kernel_drops, then.sockets.kernel_drops),
            more(now.dropped(), then.dropped()),
        ];
        let row = line(cells.iter().map(String::as_str));
        match before.rows % ROWS_PER_HEADING {
            0 => format!("{}\n{row}", line(COLUMNS.into_iter())),
            _ => row,
        }
    }
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    cells.map(|cell| format!("{cell:>WIDTH$}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_what_changed_and_stand_under_their_headings() {
        let table = Table::default();
        let mut counters = UdpCounters::default();
        counters.sockets.received = 400_000;
        let first = table.row(2.0, &counters);
        let (heading, row) = first.split_once('\n').expect("a heading");
        assert_eq!(heading.len(), row.len());
        assert!(row.starts_with("        2.00       200000"), "{row:?}");
        counters.sockets.received += 1000;
        counters.sockets.truncated += 3;
        let rows: Vec<String> = (0..40).map(|_| table.row(3.0, &counters)).collect();
        assert!(rows[0].starts_with("        3.00         1000            0"), "{rows:?}");
        assert_eq!(rows[0].split_whitespace().nth(5), Some("3"));
        assert_eq!(rows.iter().filter(|row| row.contains('\n')).count(), 2);
    }
}
