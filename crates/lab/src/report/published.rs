//! Published figures beside ours. Only changes in percent are set side by side: two machines have no requests per second
//! in common. There is no verdict; a reader sees both numbers and our interval.

use super::Element;
use super::chart::{percent, signed};
use super::document::{change_of, head};
use crate::analysis::{CellSummary, Comparison};
use crate::experiment::{Axis, Printed, Protocol, Published};
use crate::result::Bundle;

/// By which factor a printed mean latency may exceed what Little's law allows, for rounding.
const LITTLE_MARGIN: f64 = 1.1;

pub(super) fn published(bundle: &Bundle) -> Vec<Element> {
    let all = &bundle.experiment.published;
    let Some(summary) = bundle.summary.as_ref().filter(|_| !all.is_empty()) else {
        return Vec::new();
    };
    let mut table = head(["source", "work", "published", "here", "measured here", "remark"]);
    table.extend(all.iter().flat_map(|it| throughputs(it, all, &summary.cells)));
    let mut blocks = Vec::new();
    if table.len() > 1 {
        let about = "Requests per second of one program against another, in percent: more is positive, ours with its \
                     interval.";
        blocks = vec![Element::Text(about.to_owned()), Element::Table(table)];
    }
    for published in all {
        blocks.extend(datagrams(published, &summary.cells));
        blocks.extend(contradictions(published));
    }
    let sources = all
        .iter()
        .map(|it| Element::Item(format!("{}, {}: {}", it.source, it.program, it.conditions)));
    blocks.extend(sources);
    vec![Element::Folded("Published figures".to_owned(), blocks)]
}

fn throughputs(
    published: &Published,
    all: &[Published],
    cells: &[CellSummary],
) -> Vec<Vec<String>> {
    let Some(against) = &published.against else { return Vec::new() };
    let other =
        all.iter().find(|it| it.source == published.source && it.program == against.program);
    let others = other.map(|it| &*it.measured).unwrap_or_default();
    let mut rows = Vec::new();
    for printed in &published.measured {
        let same =
            |it: &&Printed| (it.connections, it.bytes) == (printed.connections, printed.bytes);
        let divisor = others.iter().find(same).and_then(|it| it.requests_per_s);
        let ratio = printed.requests_per_s.zip(divisor).map(|(number, other)| number / other);
        for [subject, baseline] in &against.here {
            let found =
                cells.iter().filter(|cell| is_same_work(printed, cell)).filter_map(|cell| {
                    let is_it =
                        |it: &&Comparison| it.subject == *subject && it.baseline == *baseline;
                    Some((cell, cell.comparisons.iter().find(is_it)?))
                });
            for (cell, comparison) in found {
                let ours = comparison.figures.get("throughput_per_s");
                rows.push(vec![
                    published.source.clone(),
                    cell.cell.to_string(),
                    ratio.map_or("no number".to_owned(), |it| {
                        let (program, other) = (&published.program, &against.program);
                        format!("{program} against {other} {} %", signed(percent(it), 1))
                    }),
                    format!("{subject} against {baseline}"),
                    change_of(ours),
                    [&*printed.note, comparison.void.as_deref().map_or("", |_| "void")].concat(),
                ]);
            }
        }
    }
    rows
}

/// CPU of a program that exchanges datagrams on a schedule, in percent of a core, beside ours.
fn datagrams(published: &Published, cells: &[CellSummary]) -> Option<Element> {
    let it = published.datagrams.as_ref()?;
    let is_it = |cell: &&CellSummary| {
        let on = |axis| cell.cell.point.on(axis);
        (on(Axis::Streams), on(Axis::PacketsPerS)) == (Some(it.streams), Some(it.packets_per_s))
    };
    let ours: Vec<String> = cells
        .iter()
        .filter(is_it)
        .filter_map(|cell| {
            let share =
                *cell.subject(&published.subject)?.figures.as_ref()?.get("client_busy_share")?;
            Some(format!("{:.1} % {}", share * 100.0, cell.cell.net))
        })
        .collect();
    let ours = if ours.is_empty() { "not measured".to_owned() } else { ours.join(", ") };
    let (streams, rate, percent) = (it.streams, it.packets_per_s, it.cpu_percent);
    Some(Element::Item(format!(
        "{}: {streams} streams x {rate}/s took {percent} % of a core there, by the process's clock; here the whole \
         CPU was busy for {ours}",
        published.source
    )))
}

/// Whether a cell is of the work that was published: the same connections and bytes, one request in flight on
/// connections that stay.
fn is_same_work(printed: &Printed, cell: &CellSummary) -> bool {
    let point = cell.cell.point;
    let is_usual = |axis: Axis, usual: u32| point.on(axis).is_none_or(|value| value == usual);
    point.protocol() != Protocol::Udp
        && (point.on(Axis::Connections), point.on(Axis::Bytes))
            == (Some(printed.connections), Some(printed.bytes))
        && is_usual(Axis::Depth, 1)
        && is_usual(Axis::RatePerS, 0)
        && is_usual(Axis::LoadPercent, 0)
        && is_usual(Axis::Churn, 0)
        && is_usual(Axis::Files, 1)
        && is_usual(Axis::Keepalive, 1)
        && is_usual(Axis::Tls, 0)
        && is_usual(Axis::Http2, 0)
}

/// The longest mean latency in milliseconds that a closed loop of `connections` can have at this rate: Little's law,
/// with every connection waiting all the time.
fn longest_mean_ms(connections: u32, requests_per_s: f64) -> f64 {
    f64::from(connections) / requests_per_s * 1e3
}

/// Printed measurements whose mean latency contradicts their own rate.
fn contradictions(published: &Published) -> Vec<Element> {
    let contradiction = |printed: &Printed| {
        let longest_ms = longest_mean_ms(printed.connections, printed.requests_per_s?);
        let mean_ms = printed.mean_ms.filter(|it| *it > longest_ms * LITTLE_MARGIN)?;
        Some(Element::Item(format!(
            "{}, {}: {} connections x {} bytes: a mean of {mean_ms} ms cannot be at that rate, {longest_ms:.2} ms is \
             the most (Little's law)",
            published.source, published.program, printed.connections, printed.bytes
        )))
    };
    published.measured.iter().filter_map(contradiction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    /// The write-up prints 42.39 ms at 500 connections and 132,630 requests/s.
    #[test]
    fn littles_law_finds_the_means_that_cannot_be() {
        assert!((longest_mean_ms(500, 132_630.0) - 3.770).abs() < 0.001);
        let experiment = Experiment::find("published-nginx").unwrap();
        for published in &experiment.published {
            // All of 500 connections, none of 100.
            assert_eq!(contradictions(published).len(), 4, "{}", published.program);
        }
    }
}
