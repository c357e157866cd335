//! What each change of a subject costs: bars from 1, with the whiskers of their intervals.

use maud::{Markup, html};

use super::axis::Axis;
use super::{ROW, WIDTH, line, place, short_ratio, svg, text};
use crate::report::numbers;
use crate::report::outcome::{Outcome, Side};
use crate::report::shape::{Ablation, Change};
use crate::statistics::Ends;

/// The class of a bar: costs, saves, or nothing that was detected.
fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ahead(Side::Baseline) | Outcome::KeepsRate(Side::Baseline) => "costs",
        Outcome::Ahead(Side::Subject) | Outcome::KeepsRate(Side::Subject) => "saves",
        _ => "undetected",
    }
}

/// The changes of one cell on a logarithmic axis, the costliest first.
pub(in crate::report) fn bars(ablation: &Ablation<'_>) -> Markup {
    let (left, right) = (8.0, WIDTH - 64.0);
    let row_height = 1.6 * ROW;
    let bottom = 4.0 + row_height * ablation.changes.len() as f64;
    let ends = ablation.changes.iter().flat_map(|it| {
        it.times.into_iter().chain(it.ends.into_iter().flat_map(|it| [it.low, it.high]))
    });
    let (low, high) =
        ends.fold((0.95, 1.05), |(low, high): (f64, f64), end| (low.min(end), high.max(end)));
    let axis = Axis::log(low * 0.98, high * 1.02, left, right);
    let ticks = axis.ticks(32.0);
    let body = html! {
        @for (index, change) in ablation.changes.iter().enumerate() {
            @let top = row_height * index as f64;
            @let y = top + 18.0;
            @for tick in &ticks {
                (line((axis.at(*tick), y), (axis.at(*tick), y + 20.0), "grid"))
            }
            (text(left, top + 13.0, "label", &title(change)))
            (bar(change, &axis, y))
            (line((axis.at(1.0), y), (axis.at(1.0), y + 20.0), "one"))
        }
        @for tick in &ticks {
            (text(axis.at(*tick), bottom + 14.0, "tick middle", &short_ratio(*tick)))
        }
        (text(left, bottom + 31.0, "tick", "◂ saves CPU"))
        (text(right, bottom + 31.0, "tick end", "costs CPU ▸"))
    };
    svg(bottom + 36.0, &format!("Times the CPU of {}", ablation.origin), &body)
}

fn title(change: &Change<'_>) -> String {
    let name = &change.comparison.subject;
    // Long lists of features are in the table.
    let what = change.what.filter(|what| name.chars().count() + what.chars().count() < 50);
    what.map_or(name.clone(), |what| format!("{name} ({what})"))
}

fn bar(change: &Change<'_>, axis: &Axis, y: f64) -> Markup {
    let outcome = Outcome::of(change.comparison);
    let Some(times) = change.times.filter(|_| outcome != Outcome::Void) else {
        return text(axis.at(1.0) + 8.0, y + 14.0, "tick", &change.comparison.verdict.to_string());
    };
    let (from, to) = (axis.at(1.0), axis.at(times));
    html! {
        rect x=(place(from.min(to))) y=(place(y + 3.0)) width=(place((to - from).abs().max(1.0)))
            height="14" class=(class(outcome)) {
            title { (change.comparison.subject) ": " (numbers::ends(times, change.ends))
                " times the CPU. " (change.comparison.verdict) }
        }
        @if let Some(Ends { low, high }) = change.ends {
            (line((axis.at(low), y + 10.0), (axis.at(high), y + 10.0), "error"))
            @for end in [low, high] {
                (line((axis.at(end), y + 6.0), (axis.at(end), y + 14.0), "error"))
            }
        }
        (text(WIDTH - 6.0, y + 14.0, "label end", &format!("{times:.2}{}",
            match outcome {
                Outcome::Same => " =",
                Outcome::Equivalent => " ≈",
                _ => "",
            })))
    }
}
