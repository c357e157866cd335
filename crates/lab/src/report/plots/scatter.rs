//! How far a model is right: what it says against what was measured.

use maud::{Markup, html};

use super::axis::{Axis, Scale};
use super::{WIDTH, line, place, svg, text};

/// A point: what was measured, what the model says, whether the model was fitted to it, what it is.
pub(in crate::report) type Point = (f64, f64, bool, String);

const SIDE: f64 = 300.0;

/// The points on two equal axes with their diagonal; nothing without two different values.
pub(in crate::report) fn scatter(points: &[Point], of_x: &str, of_y: &str) -> Markup {
    let ends = || points.iter().flat_map(|(x, y, ..)| [*x, *y]).chain([0.0]);
    let (low, high) = (ends().fold(0.0, f64::min), ends().fold(0.0, f64::max));
    let unit = 10_f64.powf((high - low).log10().floor());
    if !unit.is_normal() {
        return html! {};
    }
    let (low, high) = ((low / unit).floor() * unit, (high / unit).ceil() * unit);
    let axis = |start, end| Axis { scale: Scale::Linear, low, high, start, end };
    let (across, up) = (axis(76.0, WIDTH - 28.0), axis(SIDE, 8.0));
    let body = html! {
        @for tick in across.ticks(56.0) {
            (line((across.at(tick), up.start), (across.at(tick), up.end), "grid"))
            (line((across.start, up.at(tick)), (across.end, up.at(tick)), "grid"))
            (text(across.at(tick), SIDE + 22.0, "tick middle", &whole(tick)))
            (text(66.0, up.at(tick) + 4.0, "tick end", &whole(tick)))
        }
        (line((across.start, up.start), (across.end, up.end), "one"))
        @for (x, y, was_fitted, name) in points {
            g class="s0" {
                circle cx=(place(across.at(*x))) cy=(place(up.at(*y))) r="4.5"
                    class=(if *was_fitted { "hollow" } else { "mean" }) {
                    title { (name) ": " (format!("{x:.0}, by the model {y:.0}")) }
                }
            }
        }
        (text(across.start, SIDE + 44.0, "tick", &format!("{of_x} ▸, {of_y} ▴")))
    };
    svg(SIDE + 52.0, &format!("{of_y} against {of_x}"), &body)
}

/// Without the sign of a 0 that rounding has left.
fn whole(tick: f64) -> String {
    format!("{:.0}", tick.round() + 0.0)
}
