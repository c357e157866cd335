//! The plots of the HTML report, as inline SVG that follows the page's colours.
//!
//! They are drawn 400 units wide, so that their letters are still readable on a phone.

mod axis;
mod bars;
mod curves;
mod intervals;
mod percentiles;
mod stacks;

use maud::{Markup, html};

pub(super) use bars::bars;
pub(super) use curves::{PERCENTILES, cpu, latencies_by_load, ratios, subjects, throughput};
pub(super) use intervals::{IntervalRow, intervals, rows_of};
pub(super) use percentiles::{latencies, latenesses};
pub(super) use stacks::{legend, stacks};

const WIDTH: f64 = 400.0;
const ROW: f64 = 26.0;

/// The class that gives a subject its colour; from the ninth on, lines are dashed as well.
pub(super) fn colour(subject: usize) -> String {
    let again = if subject >= 8 { " again" } else { "" };
    format!("s{}{again}", subject % 8)
}

/// Room for the longest of these labels in bold letters, which are larger on a phone.
fn label_width<'a>(labels: impl Iterator<Item = &'a str>) -> f64 {
    let longest = labels.map(|label| label.chars().count()).max().unwrap_or(0);
    longest as f64 * 8.0 + 12.0
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

fn short_ratio(ratio: f64) -> String {
    let text = format!("{ratio:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A time in microseconds as it stands at an axis.
fn time(micros: f64) -> String {
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
    fn ticks_are_written_short() {
        assert_eq!([short_ratio(1.0), short_ratio(1.25), short_ratio(1.3)], ["1", "1.25", "1.3"]);
        let texts = [0.5, 200.0, 2_000.0, 5e6].map(time);
        assert_eq!(texts, ["0.5 µs", "200 µs", "2 ms", "5 s"]);
    }

    #[test]
    fn colours_come_again_with_dashes() {
        assert_eq!([colour(0), colour(7), colour(8)], ["s0", "s7", "s0 again"]);
    }
}
