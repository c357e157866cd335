//! CPU per unit and what it is made of, as bars: one for each side of each subject.

use maud::{Markup, html};

use super::{WIDTH, place, svg, text};
use crate::experiment::Protocol;
use crate::report::words;
use crate::summary::{CellSummary, Part, SideFigures, SubjectSummary};

/// The height of a bar with the room around it, and of a name above its bars.
const BAR: f64 = 21.0;
const NAME: f64 = 20.0;

/// Where bars begin: behind the names of the sides.
const LEFT: f64 = 52.0;

/// The sides of a subject that were measured.
type Sides<'a> = (&'a str, [(&'static str, &'a SideFigures); 2]);

fn rows(cell: &CellSummary) -> Vec<Sides<'_>> {
    cell.subjects.iter().filter_map(sides).collect()
}

fn sides(subject: &SubjectSummary) -> Option<Sides<'_>> {
    let figures = subject.figures.as_ref()?;
    Some((&subject.name, [("server", &figures.server), ("client", &figures.client)]))
}

/// The parts that any bar has, with their numbers.
fn parts(rows: &[Sides<'_>]) -> Vec<(usize, Part)> {
    let sides = || rows.iter().flat_map(|(_, sides)| sides.iter().map(|(_, side)| *side));
    // A part of less than half a nanosecond is nowhere seen.
    let is_there = |(_, (_, part)): &(usize, Part)| sides().any(|side| part(side) >= 0.5);
    SideFigures::PARTS.into_iter().enumerate().filter(is_there).collect()
}

/// The numbers and names of the parts, for a legend.
pub(in crate::report) fn legend(cell: &CellSummary) -> Vec<(usize, &'static str)> {
    parts(&rows(cell)).into_iter().map(|(number, (name, _))| (number, name)).collect()
}

/// CPU per request or packet and its parts, as bars.
pub(in crate::report) fn stacks(cell: &CellSummary) -> Markup {
    let unit = cell.cell.protocol().unit();
    let rows = rows(cell);
    let parts = parts(&rows);
    let height = NAME + 2.0 * BAR;
    let most = rows
        .iter()
        .flat_map(|(_, sides)| sides.iter().map(|(_, side)| side.busy_ns))
        .fold(1.0, f64::max);
    let scale = (WIDTH - LEFT - 80.0) / most;
    let body = html! {
        @for (index, (name, sides)) in rows.iter().enumerate() {
            @let top = height * index as f64;
            (text(4.0, top + 14.0, "label record", name))
            @for (position, (title, side)) in sides.iter().enumerate() {
                @let y = top + NAME + BAR * position as f64;
                (text(LEFT - 6.0, y + 12.0, "tick end", title))
                @let widths: Vec<f64> =
                    parts.iter().map(|(_, (_, part))| part(side) * scale).collect();
                @for (at, (number, (part, value))) in parts.iter().enumerate() {
                    rect x=(place(LEFT + widths[..at].iter().sum::<f64>())) y=(place(y))
                        width=(place(widths[at])) height="16" class=(format!("part{number}")) {
                        title { (name) ", " (title) ", " (part) ": " (words::whole(value(side)))
                            " ns per " (unit) }
                    }
                }
                @let end = LEFT + widths.iter().sum::<f64>() + 6.0;
                (text(end, y + 12.0, "label", &format!("{} ns", words::whole(side.busy_ns))))
            }
        }
    };
    svg(height * rows.len() as f64 + 2.0, &format!("CPU time per {unit}"), &body)
}

/// What the bars of a protocol are of.
pub(in crate::report) fn caption(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp | Protocol::Http => "CPU per request",
        Protocol::Udp => "CPU per packet",
    }
}
