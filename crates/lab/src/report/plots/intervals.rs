//! Ratios with their intervals and pairs, a row for each.

use maud::{Markup, html};

use super::axis::Axis;
use super::{ROW, WIDTH, colour, label_width, line, place, short_ratio, svg, text};
use crate::experiment::Protocol;
use crate::report::{columns, numbers};
use crate::statistics::{Ends, Interval};
use crate::summary::Comparison;

/// A row of an interval plot.
pub(in crate::report) struct IntervalRow<'a> {
    pub(in crate::report) name: String,
    pub(in crate::report) interval: &'a Interval,
    /// The pairs behind it, if they are to be shown.
    pub(in crate::report) pairs: &'a [f64],
    pub(in crate::report) colour: String,
    /// It is the primary metric.
    pub(in crate::report) of_record: bool,
}

/// The ratios that are drawn; the last one of the table is the first one measured otherwise.
const PLOTTED: usize = 4;

/// The rows of one comparison: the primary metric with its pairs, then the others.
pub(in crate::report) fn rows_of(
    comparison: &Comparison,
    protocol: Protocol,
    subject: usize,
) -> Vec<IntervalRow<'_>> {
    let mut rows = Vec::new();
    for (index, ratio) in
        columns::ratios(comparison, protocol).into_iter().take(PLOTTED).enumerate()
    {
        let Some(interval) = ratio.interval.filter(|_| !ratio.client_bound) else { continue };
        let of_record = index == 0;
        let pairs: &[f64] = if of_record { &comparison.pair_ratios } else { &[] };
        let (name, colour) = (ratio.name, colour(subject));
        rows.push(IntervalRow { name, interval, pairs, colour, of_record });
    }
    rows
}

/// Intervals on a logarithmic axis of ratios, with a line where both are equal.
pub(in crate::report) fn intervals(
    rows: &[IntervalRow<'_>],
    baseline: &str,
    subject: &str,
) -> Markup {
    let labels = label_width(rows.iter().map(|row| row.name.as_str()));
    // Long labels stand above their rows, short ones beside them.
    let above = labels > WIDTH / 2.0;
    let (left, row_height) = if above { (12.0, 1.6 * ROW) } else { (labels, ROW) };
    let bottom = 14.0 + row_height * rows.len() as f64;
    let ends = rows.iter().flat_map(|row| {
        let ends = row.interval.ends.into_iter().flat_map(|it| [it.low, it.high]);
        ends.chain([row.interval.ratio]).chain(row.pairs.iter().copied())
    });
    let (low, high) =
        ends.fold((0.95, 1.05), |(low, high): (f64, f64), end| (low.min(end), high.max(end)));
    let axis = Axis::log(low * 0.98, high * 1.02, left, WIDTH - 12.0);
    let ticks = axis.ticks(32.0);
    let y_of = |index: usize| 14.0 + row_height * (index as f64 + if above { 0.72 } else { 0.5 });
    // Where labels stand in the plot, its lines leave them room.
    let reach = if above { 0.26 * row_height } else { 0.5 * row_height };
    let body = html! {
        @for index in 0..rows.len() {
            @let (top, end) = (y_of(index) - reach, y_of(index) + reach);
            @for tick in &ticks {
                (line((axis.at(*tick), top), (axis.at(*tick), end), "grid"))
            }
            (line((axis.at(1.0), top), (axis.at(1.0), end), "equal"))
        }
        @for tick in &ticks {
            (text(axis.at(*tick), bottom + 14.0, "tick middle", &short_ratio(*tick)))
        }
        @for (index, row) in rows.iter().enumerate() {
            @let y = y_of(index);
            @let weight = if row.of_record { "label record" } else { "label" };
            @if above {
                (text(left, y - 0.36 * row_height, weight, &row.name))
            } @else {
                (text(left - 8.0, y + 4.0, &format!("{weight} end"), &row.name))
            }
            (mark(row, &axis, y))
        }
        (ends_of_axis((left, axis.end), bottom, baseline, subject))
    };
    let height = bottom + 36.0 + if have_room(baseline, subject, left) { 0.0 } else { 15.0 };
    svg(height, &format!("Intervals of the ratios against {baseline}"), &body)
}

fn mark(row: &IntervalRow<'_>, axis: &Axis, y: f64) -> Markup {
    html! {
        g class=(row.colour) {
            @for pair in row.pairs {
                circle cx=(place(axis.at(*pair))) cy=(place(y)) r="2.5" class="pair" {}
            }
            @if let Some(Ends { low, high }) = row.interval.ends {
                (line((axis.at(low), y), (axis.at(high), y), "whisker"))
                @for end in [low, high] {
                    (line((axis.at(end), y - 5.0), (axis.at(end), y + 5.0), "whisker"))
                }
            }
            circle cx=(place(axis.at(row.interval.ratio))) cy=(place(y)) r="4.5" class="mean" {
                title { (row.name) ": " (numbers::interval(Some(row.interval))) }
            }
        }
    }
}

/// Whether the names of both ends fit beside each other.
fn have_room(baseline: &str, subject: &str, left: f64) -> bool {
    let letters = baseline.chars().count() + subject.chars().count() + 18;
    letters as f64 * 7.2 < WIDTH - left
}

/// What the two ends of the axis mean, in one line or in two.
fn ends_of_axis(ends: (f64, f64), bottom: f64, baseline: &str, subject: &str) -> Markup {
    let second = if have_room(baseline, subject, ends.0) { 31.0 } else { 46.0 };
    html! {
        (text(ends.0, bottom + 31.0, "tick", &format!("◂ {baseline} better")))
        (text(ends.1, bottom + second, "tick end", &format!("{subject} better ▸")))
    }
}
