//! The plots of the HTML report, as inline SVG that follows the page's colours.
//!
//! They are drawn 400 units wide, so that their letters are still readable on a phone.

use maud::{Markup, html};

use super::{columns, words};
use crate::experiment::Protocol;
use crate::statistics::Interval;
use crate::summary::{CellSummary, Comparison, Figures, SubjectSummary};

const WIDTH: f64 = 400.0;
const ROW: f64 = 26.0;

/// A logarithmic axis from value to position.
struct LogAxis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl LogAxis {
    fn at(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Round numbers on the axis, none closer to the next than `apart`: as many as there is room
    /// for.
    fn ticks(&self, apart: f64) -> Vec<f64> {
        let on_axis = |ladder: &&[f64]| -> Vec<f64> {
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let steps = decades
                .flat_map(|decade| ladder.iter().map(move |step| step * 10_f64.powi(decade)));
            steps.filter(|value| (self.low..=self.high).contains(value)).collect()
        };
        let has_room = |ticks: &Vec<f64>| {
            ticks.windows(2).all(|two| (self.at(two[1]) - self.at(two[0])).abs() >= apart)
        };
        LADDERS.iter().map(on_axis).find(has_room).unwrap_or_default()
    }
}

/// Steps within a factor of ten, from fine to coarse. All hold 1.
const LADDERS: &[&[f64]] = &[
    &[
        1.0, 1.02, 1.04, 1.06, 1.08, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 2.0, 3.0, 5.0, 8.0, 9.0,
        9.2, 9.4, 9.6, 9.8,
    ],
    &[1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 2.0, 3.0, 5.0, 8.0, 8.5, 9.0, 9.5],
    &[1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0, 7.0, 8.0, 9.0],
    &[1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0],
    &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
    &[1.0, 2.0, 5.0],
    &[1.0, 3.0],
    &[1.0],
];

/// The class that gives a subject its colour.
pub(super) fn colour(subject: usize) -> String {
    format!("s{}", subject % 6)
}

/// Room for the longest of these labels in bold letters.
fn label_width<'a>(labels: impl Iterator<Item = &'a str>) -> f64 {
    let longest = labels.map(|label| label.chars().count()).max().unwrap_or(0);
    longest as f64 * 7.4 + 12.0
}

fn text(x: f64, y: f64, class: &str, text: &str) -> Markup {
    html! { text x=(place(x)) y=(place(y)) class=(class) { (text) } }
}

fn place(value: f64) -> String {
    format!("{value:.1}")
}

fn line(from: (f64, f64), to: (f64, f64), class: &str) -> Markup {
    html! { line x1=(place(from.0)) y1=(place(from.1)) x2=(place(to.0)) y2=(place(to.1)) class=(class) {} }
}

fn svg(height: f64, label: &str, body: &Markup) -> Markup {
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height:.0}")) role="img" aria-label=(label) { (body) }
    }
}

/// A row of an interval plot.
pub(super) struct IntervalRow<'a> {
    pub(super) name: String,
    pub(super) interval: &'a Interval,
    /// The pairs behind it, if they are to be shown.
    pub(super) pairs: &'a [f64],
    pub(super) colour: String,
    /// It is the figure of record.
    pub(super) of_record: bool,
}

/// The ratios that are drawn; the last one of the table is the first one measured otherwise.
const PLOTTED: usize = 4;

/// The rows of one comparison: the figure of record with its pairs, then the others.
pub(super) fn rows_of(
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
        let (name, colour) = (ratio.name.to_owned(), colour(subject));
        rows.push(IntervalRow { name, interval, pairs, colour, of_record });
    }
    rows
}

/// Intervals on a logarithmic axis of ratios, with a line where both are equal.
pub(super) fn intervals(rows: &[IntervalRow<'_>], baseline: &str, subject: &str) -> Markup {
    let labels = label_width(rows.iter().map(|row| row.name.as_str()));
    // Long labels stand above their rows, short ones beside them.
    let above = labels > WIDTH / 2.0;
    let (left, row_height) = if above { (12.0, 1.5 * ROW) } else { (labels, ROW) };
    let bottom = 14.0 + row_height * rows.len() as f64;
    let ends = rows.iter().flat_map(|row| {
        [row.interval.low, row.interval.high].into_iter().chain(row.pairs.iter().copied())
    });
    let (low, high) =
        ends.fold((0.95, 1.05), |(low, high): (f64, f64), end| (low.min(end), high.max(end)));
    let axis = LogAxis { low: low * 0.98, high: high * 1.02, start: left, end: WIDTH - 12.0 };
    let body = html! {
        @for tick in axis.ticks(30.0) {
            (line((axis.at(tick), 8.0), (axis.at(tick), bottom), "grid"))
            (text(axis.at(tick), bottom + 14.0, "tick middle", &short_ratio(tick)))
        }
        (line((axis.at(1.0), 4.0), (axis.at(1.0), bottom), "equal"))
        @for (index, row) in rows.iter().enumerate() {
            @let y = 14.0 + row_height * (index as f64 + if above { 0.75 } else { 0.5 });
            @let weight = if row.of_record { "label record" } else { "label" };
            @if above {
                (text(left, y - 12.0, weight, &row.name))
            } @else {
                (text(left - 8.0, y + 4.0, &format!("{weight} end"), &row.name))
            }
            g class=(row.colour) {
                @for pair in row.pairs {
                    circle cx=(place(axis.at(*pair))) cy=(place(y)) r="2.5" class="pair" {}
                }
                (line((axis.at(row.interval.low), y), (axis.at(row.interval.high), y), "whisker"))
                @for end in [row.interval.low, row.interval.high] {
                    (line((axis.at(end), y - 5.0), (axis.at(end), y + 5.0), "whisker"))
                }
                circle cx=(place(axis.at(row.interval.ratio))) cy=(place(y)) r="4.5" class="mean" {
                    title { (row.name) ": " (words::interval(Some(row.interval))) }
                }
            }
        }
        (text(left, bottom + 31.0, "tick", &format!("◂ {baseline} better")))
        (text(axis.end, bottom + 31.0, "tick end", &format!("{subject} better ▸")))
    };
    svg(bottom + 36.0, &format!("Intervals of the ratios against {baseline}"), &body)
}

fn short_ratio(ratio: f64) -> String {
    let text = format!("{ratio:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A part of a bar.
type Part = (&'static str, fn(&Figures) -> f64);

/// What the bars of a protocol are made of, and their whole.
fn parts(protocol: Protocol) -> (&'static [Part], fn(&Figures) -> f64) {
    match protocol {
        Protocol::Tcp | Protocol::Http => (SERVER_PARTS, |figures| figures.server_cpu_ns),
        Protocol::Udp => (SIDES, |figures| figures.both_cpus_ns),
    }
}

const SERVER_PARTS: &[Part] = &[
    ("user", |figures| figures.server_user_ns),
    ("system", |figures| figures.server_system_ns),
    ("outside the process", |figures| figures.server_outside_ns),
];

const SIDES: &[Part] =
    &[("server", |figures| figures.server_cpu_ns), ("client", |figures| figures.client_cpu_ns)];

/// CPU per request or packet and its parts, as bars.
pub(super) fn stacks(cell: &CellSummary) -> Markup {
    let protocol = cell.cell.protocol();
    let (parts, whole) = parts(protocol);
    let rows: Vec<(&str, &Figures)> = cell
        .subjects
        .iter()
        .filter_map(|subject| Some((subject.name.as_str(), subject.figures.as_ref()?)))
        .collect();
    let left = label_width(rows.iter().map(|(name, _)| *name)).min(WIDTH / 2.0);
    let bottom = 30.0 + ROW * rows.len() as f64;
    let most = rows.iter().map(|(_, figures)| whole(figures)).fold(1.0, f64::max);
    let scale = (WIDTH - left - 76.0) / most;
    let body = html! {
        @for (index, (name, _)) in parts.iter().enumerate() {
            @let x = left + [0.0, 56.0, 118.0][index];
            rect x=(place(x)) y="6" width="10" height="10" class=(format!("part{index}")) {}
            (text(x + 14.0, 15.0, "tick", name))
        }
        @for (index, (name, figures)) in rows.iter().enumerate() {
            @let y = 26.0 + ROW * index as f64;
            (text(left - 8.0, y + 15.0, "label end", name))
            @let widths: Vec<f64> = parts.iter().map(|(_, part)| part(figures) * scale).collect();
            @for (part, width) in widths.iter().enumerate() {
                @let x = left + widths[..part].iter().sum::<f64>();
                rect x=(place(x)) y=(place(y + 3.0)) width=(place(*width)) height="16"
                    class=(format!("part{part}")) {
                    title { (name) ", " (parts[part].0) ": "
                        (words::whole(parts[part].1(figures))) " ns per " (protocol.unit()) }
                }
            }
            @let end = left + widths.iter().sum::<f64>() + 6.0;
            (text(end, y + 15.0, "label", &format!("{} ns", words::whole(whole(figures)))))
        }
    };
    svg(bottom, &format!("CPU time per {}", protocol.unit()), &body)
}

/// A time in microseconds by quantile.
type Curve = [(f64, f64)];

/// Latency by percentile, the tail spread out.
pub(super) fn latencies(cell: &CellSummary) -> Markup {
    curves(cell, "Latency by percentile", |subject| &subject.latency_curve)
}

/// How late packets left, by percentile.
pub(super) fn latenesses(cell: &CellSummary) -> Markup {
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
    let y = LogAxis { low: low * 0.9, high: high * 1.1, start: bottom, end: top };
    // One in so many requests is slower: an even step for each factor of ten.
    let x = LogAxis { low: 1.0, high: 10_000.0, start: left, end: right };
    let slower = |quantile: f64| 1.0 / (1.0 - quantile);
    let path = |curve: &[(f64, f64)]| {
        let point = |(quantile, latency): &(f64, f64)| {
            format!("{:.1},{:.1}", x.at(slower(*quantile)), y.at(*latency))
        };
        curve.iter().filter(drawn).map(point).collect::<Vec<_>>().join(" ")
    };
    // Curves rise to the right, so there is room under their ends.
    let legend_y =
        |index: usize| bottom - 12.0 - 16.0 * ((cell.subjects.len() - 1 - index) % 8) as f64;
    let body = html! {
        @for tick in y.ticks(22.0) {
            (line((left, y.at(tick)), (right, y.at(tick)), "grid"))
            (text(left - 6.0, y.at(tick) + 4.0, "tick end", &latency_text(tick)))
        }
        @for (quantile, name) in
            [(0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99")] {
            @let at = x.at(slower(quantile));
            (line((at, top), (at, bottom), "grid"))
            @let anchor = if quantile > 0.999 { "tick end" } else { "tick middle" };
            (text(at, bottom + 15.0, anchor, name))
        }
        @for (index, subject) in &curves {
            g class=(colour(*index)) {
                polyline points=(path(pick(subject))) class="curve" {
                    title { (subject.name) }
                }
                @let y = legend_y(*index);
                (line((right - 26.0, y), (right - 6.0, y), "curve"))
            }
            (text(right - 32.0, legend_y(*index) + 4.0, "label end", &subject.name))
        }
        (text(right, bottom + 31.0, "tick end", &of))
    };
    svg(bottom + 38.0, label, &body)
}

fn latency_text(micros: f64) -> String {
    match micros {
        1_000_000.0.. => format!("{} s", micros / 1e6),
        1_000.0.. => format!("{} ms", micros / 1e3),
        _ => format!("{} µs", (micros * 100.0).round() / 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_its_ends_where_they_belong_and_few_ticks() {
        let axis = LogAxis { low: 0.9, high: 1.4, start: 0.0, end: 100.0 };
        assert_eq!(axis.at(0.9), 0.0);
        assert!((axis.at(1.4) - 100.0).abs() < 1e-9);
        let ticks = axis.ticks(30.0);
        assert!((2..=4).contains(&ticks.len()) && ticks.contains(&1.0), "{ticks:?}");
        let wide = LogAxis { low: 1.0, high: 1e6, start: 0.0, end: 100.0 };
        assert_eq!(wide.ticks(10.0).len(), 7);
    }

    #[test]
    fn ticks_are_written_short() {
        assert_eq!([short_ratio(1.0), short_ratio(1.25), short_ratio(1.3)], ["1", "1.25", "1.3"]);
        let texts = [0.5, 200.0, 2_000.0, 5e6].map(latency_text);
        assert_eq!(texts, ["0.5 µs", "200 µs", "2 ms", "5 s"]);
    }
}
