//! CPU per unit and what it is made of, as bars: one for each side of each subject.

use maud::{Markup, html};

use super::{WIDTH, place, svg, text};
use crate::report::numbers;
use crate::summary::{CellSummary, Figures, Metric, PARTS};
use crate::workload::Table;

/// The height of a bar with the room around it, and of a name above its bars.
const BAR: f64 = 21.0;
const NAME: f64 = 20.0;

/// Where bars begin: behind the names of the sides.
const LEFT: f64 = 52.0;

/// A part of the bars: its number, its title, its metric on each side.
type Part = (usize, &'static str, [Metric; 2]);

const SIDES: [(&str, Metric); 2] =
    [("server", Metric::ServerSideBusyNs), ("client", Metric::ClientSideBusyNs)];

fn rows(cell: &CellSummary) -> Vec<(&str, &Figures)> {
    cell.subjects.iter().filter_map(|it| Some((&*it.name, it.figures.as_ref()?))).collect()
}

/// The parts that any bar has.
fn parts(rows: &[(&str, &Figures)]) -> Vec<Part> {
    // A part of less than half a nanosecond is nowhere seen.
    let is_there = |part: &[Metric; 2]| {
        rows.iter().any(|(_, figures)| part.iter().any(|it| figures[*it] >= 0.5))
    };
    let title = |part: &[Metric; 2]| {
        let mut columns = Metric::columns(&[Table::Sides]);
        columns.find(|(metric, ..)| *metric == part[0]).map_or("", |(_, title, _)| title)
    };
    let parts = PARTS.iter().enumerate().filter(|(_, part)| is_there(part));
    parts.map(|(number, part)| (number, title(part), *part)).collect()
}

/// The numbers and names of the parts, for a legend.
pub(in crate::report) fn legend(cell: &CellSummary) -> Vec<(usize, &'static str)> {
    parts(&rows(cell)).into_iter().map(|(number, name, _)| (number, name)).collect()
}

/// CPU per request or packet and its parts, as bars.
pub(in crate::report) fn stacks(cell: &CellSummary) -> Markup {
    let unit = cell.cell.protocol().unit();
    let rows = rows(cell);
    let parts = parts(&rows);
    let height = NAME + 2.0 * BAR;
    let most = rows
        .iter()
        .flat_map(|(_, figures)| SIDES.map(|(_, busy)| figures[busy]))
        .fold(1.0, f64::max);
    let scale = (WIDTH - LEFT - 80.0) / most;
    let body = html! {
        @for (index, (name, figures)) in rows.iter().enumerate() {
            @let top = height * index as f64;
            (text(4.0, top + 14.0, "label record", name))
            @for (side, (title, busy)) in SIDES.into_iter().enumerate() {
                @let y = top + NAME + BAR * side as f64;
                (text(LEFT - 6.0, y + 12.0, "tick end", title))
                @let widths: Vec<f64> =
                    parts.iter().map(|(_, _, part)| figures[part[side]] * scale).collect();
                @for (at, (number, name_of_part, part)) in parts.iter().enumerate() {
                    rect x=(place(LEFT + widths[..at].iter().sum::<f64>())) y=(place(y))
                        width=(place(widths[at])) height="16" class=(format!("part{number}")) {
                        title { (name) ", " (title) ", " (name_of_part) ": " (numbers::whole(figures[part[side]]))
                            " ns per " (unit) }
                    }
                }
                @let end = LEFT + widths.iter().sum::<f64>() + 6.0;
                (text(end, y + 12.0, "label", &format!("{} ns", numbers::whole(figures[busy]))))
            }
        }
    };
    svg(height * rows.len() as f64 + 2.0, &format!("CPU time per {unit}"), &body)
}
