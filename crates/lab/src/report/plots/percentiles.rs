//! Times by percentile, the tail spread out.

use maud::{Markup, html};

use super::axis::Axis;
use super::{WIDTH, colour, line, svg, text, time};
use crate::summary::{CellSummary, SubjectSummary};

/// A time in microseconds by quantile.
type Curve = [(f64, f64)];

/// Latency by percentile, the tail spread out.
pub(in crate::report) fn latencies(cell: &CellSummary) -> Markup {
    curves(cell, "Latency by percentile", |subject| &subject.latency_curve)
}

/// How late packets left, by percentile.
pub(in crate::report) fn latenesses(cell: &CellSummary) -> Markup {
    curves(cell, "Send lateness by percentile", |subject| &subject.lateness_curve)
}

fn curves(cell: &CellSummary, label: &str, pick: fn(&SubjectSummary) -> &Curve) -> Markup {
    let (left, right, top, bottom) = (52.0, WIDTH - 12.0, 10.0, 196.0);
    let of = format!("percentile of {}s", cell.cell.protocol().unit());
    let curves: Vec<(usize, &SubjectSummary)> =
        cell.subjects.iter().enumerate().filter(|(_, subject)| !pick(subject).is_empty()).collect();
    // Beyond 99.99 % most runs have too few requests for a steady figure.
    let drawn = |(quantile, latency): &&(f64, f64)| *quantile <= 0.9999 && *latency > 0.0;
    let points = || curves.iter().flat_map(|(_, subject)| pick(subject).iter().filter(drawn));
    let low = points().map(|(_, latency)| *latency).fold(f64::INFINITY, f64::min);
    let high = points().map(|(_, latency)| *latency).fold(0.0, f64::max);
    if !low.is_finite() || high <= 0.0 {
        return html! {};
    }
    let y = Axis::log(low * 0.9, high * 1.1, bottom, top);
    // Each factor of ten in the number of slower requests is an even step.
    let x = Axis::log(1.0, 10_000.0, left, right);
    let slower = |quantile: f64| 1.0 / (1.0 - quantile);
    let path = |curve: &[(f64, f64)]| {
        let point = |(quantile, latency): &(f64, f64)| {
            format!("{:.1},{:.1}", x.at(slower(*quantile)), y.at(*latency))
        };
        curve.iter().filter(drawn).map(point).collect::<Vec<_>>().join(" ")
    };
    let body = html! {
        @for tick in y.ticks(22.0) {
            (line((left, y.at(tick)), (right, y.at(tick)), "grid"))
            (text(left - 6.0, y.at(tick) + 4.0, "tick end", &time(tick)))
        }
        @for (quantile, name) in PERCENTILES {
            @let at = x.at(slower(*quantile));
            (line((at, top), (at, bottom), "grid"))
            @let anchor = if *quantile > 0.999 { "tick end" } else { "tick middle" };
            (text(at, bottom + 15.0, anchor, name))
        }
        @for (index, subject) in &curves {
            g class=(colour(*index)) {
                polyline points=(path(pick(subject))) class="curve" {
                    title { (subject.name) }
                }
            }
        }
        (text(right, bottom + 31.0, "tick end", &of))
    };
    svg(bottom + 38.0, label, &body)
}

/// The percentiles that have a line of their own.
const PERCENTILES: &[(f64, &str)] =
    &[(0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99")];
