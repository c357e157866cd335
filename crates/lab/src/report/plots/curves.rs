//! Figures along an axis of the grid: CPU with bands, ratios with whiskers, latency to the knee.

use maud::{Markup, html};

use super::axis::Axis;
use super::{WIDTH, colour, line, place, short_ratio, svg, text, time};
use crate::report::numbers;
use crate::report::outcome::{self, Outcome};
use crate::report::shape::Curves;
use crate::summary::{Comparison, Metric, SubjectSummary};

const LEFT: f64 = 56.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 196.0;

/// Where the points of the axis lie.
struct Across {
    places: Vec<(u32, f64)>,
}

impl Across {
    /// On a logarithmic axis, or evenly where there is a zero.
    fn of(curves: &Curves<'_>) -> Across {
        let values: Vec<u32> = curves.points.iter().map(|(value, _)| *value).collect();
        let (Some(first), Some(last)) = (values.first(), values.last()) else {
            return Across { places: Vec::new() };
        };
        let axis = Axis::log(f64::from(*first), f64::from(*last), LEFT + 14.0, RIGHT - 14.0);
        let step = (RIGHT - LEFT - 28.0) / (values.len().max(2) - 1) as f64;
        let place = |(position, value): (usize, &u32)| match first {
            0 => (*value, LEFT + 14.0 + step * position as f64),
            _ => (*value, axis.at(f64::from(*value))),
        };
        Across { places: values.iter().enumerate().map(place).collect() }
    }

    fn at(&self, value: u32) -> f64 {
        self.places.iter().find(|(known, _)| *known == value).map_or(LEFT, |(_, place)| *place)
    }

    /// Labels that do not touch, the last one always among them.
    fn labels(&self, curves: &Curves<'_>) -> Vec<(f64, String)> {
        let mut labels: Vec<(f64, String)> = Vec::new();
        for (value, place) in self.places.iter().rev() {
            let label = curves.axis.label(*value);
            let wide = 7.4 * label.chars().count() as f64 / 2.0;
            let free = labels.last().is_none_or(|(right, text)| {
                place + wide + 6.0 + 7.4 * text.chars().count() as f64 / 2.0 <= *right
            });
            if free {
                labels.push((*place, label));
            }
        }
        labels
    }

    fn draw(&self, curves: &Curves<'_>) -> Markup {
        html! {
            @for (place, label) in self.labels(curves) {
                (line((place, BOTTOM), (place, BOTTOM + 4.0), "grid"))
                (text(place, BOTTOM + 16.0, "tick middle", &label))
            }
            (text(RIGHT, BOTTOM + 31.0, "tick end", curves.axis.title()))
        }
    }
}

/// The values of an axis from bottom to top.
fn up(axis: &Axis, label: impl Fn(f64) -> String) -> Markup {
    html! {
        @for tick in axis.ticks(24.0) {
            (line((LEFT, axis.at(tick)), (RIGHT, axis.at(tick)), "grid"))
            (text(LEFT - 6.0, axis.at(tick) + 4.0, "tick end", &label(tick)))
        }
    }
}

/// The names of the subjects of all points, in their order.
pub(in crate::report) fn subjects<'a>(curves: &Curves<'a>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for subject in curves.points.iter().flat_map(|(_, cell)| &cell.subjects) {
        if !names.contains(&subject.name.as_str()) {
            names.push(&subject.name);
        }
    }
    names
}

/// The values of a subject along the axis.
fn along<'a, T>(
    curves: &'a Curves<'a>,
    name: &str,
    value: impl Fn(&'a SubjectSummary) -> Option<T>,
) -> Vec<(u32, T)> {
    let of = |(place, cell): &(u32, &'a crate::summary::CellSummary)| {
        let subject = cell.subjects.iter().find(|it| it.name == name)?;
        Some((*place, value(subject)?))
    };
    curves.points.iter().filter_map(of).collect()
}

fn polyline(points: impl Iterator<Item = (f64, f64)>, class: &str) -> Markup {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    html! { polyline points=(points.join(" ")) class=(class) {} }
}

/// CPU per unit of every subject, with the band of its interval.
pub(in crate::report) fn cpu(curves: &Curves<'_>) -> Markup {
    let names = subjects(curves);
    let levels: Vec<Vec<(u32, [f64; 3])>> = names
        .iter()
        .map(|name| {
            along(curves, name, |it| {
                it.level.and_then(|it| Some([it.mean_ns, it.low_ns?, it.high_ns?]))
            })
        })
        .collect();
    let all = || levels.iter().flatten().flat_map(|(_, ends)| ends.iter().copied());
    let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    if !low.is_finite() || high <= 0.0 {
        return html! {};
    }
    let (x, y) = (Across::of(curves), Axis::from_nothing(low, high, BOTTOM, TOP));
    let body = html! {
        (up(&y, numbers::whole))
        (x.draw(curves))
        @for (index, levels) in levels.iter().enumerate() {
            g class=(colour(index)) {
                @let upper = levels.iter().map(|(at, ends)| (x.at(*at), y.at(ends[2])));
                @let lower = levels.iter().rev().map(|(at, ends)| (x.at(*at), y.at(ends[1])));
                @let band: Vec<String> =
                    upper.chain(lower).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                polygon points=(band.join(" ")) class="band" {}
                (polyline(levels.iter().map(|(at, ends)| (x.at(*at), y.at(ends[0]))), "curve"))
                @for (at, [mean, low, high]) in levels {
                    circle cx=(place(x.at(*at))) cy=(place(y.at(*mean))) r="3" class="mean" {
                        title { (names[index]) ", " (curves.axis.label(*at)) ": "
                            (numbers::whole(*mean)) " ns [" (numbers::whole(*low)) ", "
                            (numbers::whole(*high)) "]" }
                    }
                }
            }
        }
    };
    svg(BOTTOM + 38.0, "CPU along the axis, by subject", &body)
}

/// Throughput of every subject, and what it would be if it grew in step with the axis.
pub(in crate::report) fn throughput(curves: &Curves<'_>) -> Markup {
    let names = subjects(curves);
    let of = |name: &&str| along(curves, name, |it| it.figures.as_ref()?.get(Metric::RequestsPerS));
    let all: Vec<Vec<(u32, f64)>> = names.iter().map(of).collect();
    let in_step = |points: &[(u32, f64)]| -> Vec<(u32, f64)> {
        let Some((first, per_s)) = points.first().copied() else { return Vec::new() };
        let scaled = |(at, _): &(u32, f64)| (*at, per_s * f64::from(*at) / f64::from(first));
        points.iter().map(scaled).collect()
    };
    let values = || all.iter().flat_map(|it| it.iter().copied().chain(in_step(it))).map(|it| it.1);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if !low.is_finite() || high <= 0.0 {
        return html! {};
    }
    let (x, y) = (Across::of(curves), Axis::from_nothing(low, high, BOTTOM, TOP));
    let at = |(at, value): &(u32, f64)| (x.at(*at), y.at(*value));
    let body = html! {
        (up(&y, |per_s| numbers::short(per_s / 1e3) + "k"))
        (x.draw(curves))
        @for (index, points) in all.iter().enumerate() {
            g class=(colour(index)) {
                (polyline(in_step(points).iter().map(at), "curve dashed"))
                (polyline(points.iter().map(at), "curve"))
                @for point in points {
                    circle cx=(place(at(point).0)) cy=(place(at(point).1)) r="3" class="mean" {
                        title { (names[index]) ", " (curves.axis.label(point.0)) ": "
                            (numbers::whole(point.1)) "/s" }
                    }
                }
            }
        }
    };
    svg(BOTTOM + 38.0, "Throughput along the axis, by subject", &body)
}

/// The ratio of every two that were compared, with its interval; hollow where nothing was detected.
pub(in crate::report) fn ratios(curves: &Curves<'_>) -> Markup {
    let contests: Vec<Vec<(u32, &Comparison)>> = curves
        .contests
        .iter()
        .map(|contest| {
            // What an audit has voided is no figure.
            let valid = contest.iter().filter(|(_, it)| Outcome::of(it) != Outcome::Void);
            let points = valid.map(|(cell, it)| (curves.axis.of(&cell.cell), *it));
            points.filter_map(|(at, it)| Some((at?, it))).collect()
        })
        .collect();
    let intervals = || contests.iter().flatten().filter_map(|(_, it)| it.of_record());
    let ends = intervals().flat_map(|it| {
        [it.ratio].into_iter().chain(it.ends.into_iter().flat_map(|it| [it.low, it.high]))
    });
    let (low, high) =
        ends.fold((0.95, 1.05), |(low, high): (f64, f64), end| (low.min(end), high.max(end)));
    if intervals().count() == 0 {
        return html! {};
    }
    let names = subjects(curves);
    let hue = |name: &str| colour(names.iter().position(|it| *it == name).unwrap_or(1));
    let (x, y) = (Across::of(curves), Axis::log(low * 0.98, high * 1.02, BOTTOM, TOP));
    let body = html! {
        (up(&y, short_ratio))
        (x.draw(curves))
        (line((LEFT, y.at(1.0)), (RIGHT, y.at(1.0)), "equal"))
        @for (index, contest) in contests.iter().enumerate() {
            // Whiskers of several subjects must not cover each other.
            @let aside = 5.0 * (index as f64 - (contests.len() - 1) as f64 / 2.0);
            @let drawn: Vec<_> = contest.iter()
                .filter_map(|(at, it)| Some((x.at(*at) + aside, *it, it.of_record()?))).collect();
            @let subject = contest.first().map_or("", |(_, it)| it.subject.as_str());
            g class=(hue(subject)) {
                (polyline(drawn.iter().map(|(x, _, it)| (*x, y.at(it.ratio))), "curve thin"))
                @for (x, comparison, it) in &drawn {
                    @if let Some(ends) = it.ends {
                        (line((*x, y.at(ends.low)), (*x, y.at(ends.high)), "whisker"))
                    }
                    @let class = match Outcome::of(comparison) {
                        Outcome::Ahead(_) | Outcome::KeepsRate(_) => "mean",
                        _ => "hollow",
                    };
                    circle cx=(place(*x)) cy=(place(y.at(it.ratio))) r="4" class=(class) {
                        title { (comparison.subject) " : " (comparison.baseline) ": "
                            (numbers::interval(Some(it))) ", " (comparison.verdict) }
                    }
                }
            }
        }
    };
    svg(BOTTOM + 38.0, "Ratio of CPU along the axis, by subject", &body)
}

/// A percentile that is drawn: its name, its line, its metric.
type Percentile = (&'static str, &'static str, Metric);

/// The percentiles of latency, with the class of their lines.
pub(in crate::report) const PERCENTILES: [Percentile; 3] = [
    ("p50", "curve", Metric::LatencyUsP50),
    ("p99", "curve dashed", Metric::LatencyUsP99),
    ("p99.9", "curve dotted", Metric::LatencyUsP99_9),
];

/// Latency against the offered load, with a line at each knee.
pub(in crate::report) fn latencies_by_load(curves: &Curves<'_>) -> Markup {
    let names = subjects(curves);
    let along_load = |name: &str, percentile: Metric| {
        along(curves, name, |it| it.figures.as_ref()?.get(percentile).filter(|us| *us > 0.0))
    };
    let all: Vec<f64> = names
        .iter()
        .flat_map(|name| PERCENTILES.map(|(_, _, it)| along_load(name, it)))
        .flatten()
        .map(|(_, us)| us)
        .collect();
    let (low, high) =
        all.iter().fold((f64::INFINITY, 0.0_f64), |(l, h), us| (l.min(*us), h.max(*us)));
    if !low.is_finite() {
        return html! {};
    }
    let (x, y) = (Across::of(curves), Axis::log(low * 0.8, high * 1.25, BOTTOM, TOP));
    let body = html! {
        (up(&y, time))
        (x.draw(curves))
        @for (index, name) in names.iter().enumerate() {
            @let knee = curves.knees.iter().find(|knee| knee.subject == *name);
            g class=(colour(index)) {
                @if let Some(kept) = knee.filter(|it| it.falls_behind_at.is_some())
                    .and_then(|it| it.keeps_up_to) {
                    // Subjects with one knee stand beside each other.
                    @let at = x.at(kept) + 3.0 * index as f64;
                    line x1=(place(at)) y1=(TOP) x2=(place(at)) y2=(BOTTOM) class="knee" {
                        title { (knee.map(|it| outcome::knee(it)).unwrap_or_default()) }
                    }
                }
                @for (percentile, class, figure) in PERCENTILES {
                    @let points = along_load(name, figure);
                    (polyline(points.iter().map(|(at, us)| (x.at(*at), y.at(*us))), class))
                    @for (at, us) in &points {
                        circle cx=(place(x.at(*at))) cy=(place(y.at(*us))) r="2.2" class="mean" {
                            title { (name) ", " (curves.axis.label(*at)) ", " (percentile) ": "
                                (numbers::short(*us)) " µs" }
                        }
                    }
                }
            }
        }
    };
    svg(BOTTOM + 38.0, "Latency against the offered load", &body)
}
