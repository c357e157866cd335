//! The first page.

use super::answer::{answer, limits};
use super::chart::{Row, interval, scale, sections, signed};
use super::text::{printable, wrapped};
use crate::analysis::machines;
use crate::experiment::{NetKind, UnderTest};
use crate::result::Bundle;
use crate::statistics::MIN_SESSIONS;
use std::collections::BTreeSet;
use std::iter;

pub(crate) const WIDTH: usize = 80;

const LINES: usize = 30;

/// The most rows of the chart: the page has at most 30 lines.
const ROWS_MAX: usize = 14;

/// The first page: at most 30 lines of 80 columns, the answer last. `directory` is where the bundle is.
pub fn first_page(bundle: &Bundle, directory: &str) -> String {
    // They are to be copied, whatever is in the path.
    let quoted = shlex::try_quote(directory);
    let directory = quoted.as_deref().unwrap_or(directory);
    let mut lines = wrapped(&title(bundle), "", "  ");
    lines.truncate(2);
    lines.extend(charts(bundle));
    let limits = limits(bundle);
    if !limits.is_empty() {
        lines.push(String::new());
        // Whole ones, as many as have room.
        let some = |count: usize| wrapped(&limits[..count].join("; "), "LIMITS ", "       ");
        let most = (1..=limits.len()).rev().find(|count| some(*count).len() <= 5);
        lines.extend(some(most.unwrap_or(1)));
    }
    let sessions = bundle.all_occasions().len();
    if sessions < MIN_SESSIONS && directory != "." {
        lines.push(format!("NEXT   In an hour: twinring lab run --add {directory}"));
    }
    if directory != "." {
        lines.push(format!("MORE   twinring lab report --full {directory}"));
    }
    let room = LINES.saturating_sub(lines.len());
    let mut first = "ANSWER ";
    let mut sentences = Vec::new();
    for sentence in answer(bundle) {
        let sentence = wrapped(&sentence, first, "       ");
        // A sentence without its end would say something else.
        if sentences.len() + sentence.len() + 1 > room && !sentences.is_empty() {
            sentences.push("       And more: see --full.".to_owned());
            break;
        }
        sentences.extend(sentence);
        first = "       ";
    }
    lines.extend(sentences);
    printable(&lines.join("\n")) + "\n"
}

fn title(bundle: &Bundle) -> String {
    let machine = &bundle.machine;
    let model = machine.cpu_model.split(" @").next().unwrap_or_default();
    let model = model.split(" with ").next().unwrap_or_default().trim();
    let mut on = vec![format!("{} CPUs {model}", machine.cpus_online)];
    if machine.virtualisation.is_some() {
        on.push("virtual".to_owned());
    }
    let kernel = machine.kernel.split_whitespace().next().unwrap_or_default();
    on.push(format!("Linux {kernel}"));
    let mut nets: Vec<String> = bundle.networks.iter().map(|it| it.kind.to_string()).collect();
    nets.dedup();
    if !nets.is_empty() {
        on.push(format!("network {}", nets.join(", ")));
    }
    let machines = BTreeSet::from_iter(machines(bundle)).len();
    if machines > 1 {
        on.insert(0, format!("the first of {machines} machines"));
    }
    format!("{}: {}", bundle.experiment.name, on.join(", "))
}

fn charts(bundle: &Bundle) -> Vec<String> {
    let Some(summary) = &bundle.summary else {
        return vec!["Nothing was measured yet.".to_owned()];
    };
    let sections = sections(bundle);
    let mut nets: Vec<NetKind> = summary.cells.iter().map(|cell| cell.cell.net).collect();
    nets.dedup();
    let with_net = nets.len() > 1;
    let rows = || sections.iter().flat_map(|(_, rows)| rows);
    let work = rows().map(|row| row.work(with_net).chars().count()).max().unwrap_or(4).clamp(4, 24);
    let end = scale(rows());
    let mut lines = Vec::new();
    let family = summary.family;
    let together = if family > 1 { format!(", all {family} at once") } else { String::new() };
    // Each section has a title and a head of its own.
    let each = ((ROWS_MAX + 2) / sections.len().max(1)).saturating_sub(2).max(2);
    let (mut left, mut dropped) = (ROWS_MAX, 0);
    for ([baseline, subject], rows) in &sections {
        let most = if sections.len() == 1 { ROWS_MAX } else { each.min(left) };
        let shown = most.min(rows.len());
        dropped += rows.len() - shown;
        if shown == 0 {
            continue;
        }
        let both = bundle.experiment.under_test(rows[0].cell.cell.protocol()) == UnderTest::Both;
        let side = if both { "CPU (both sides)" } else { "CPU" };
        let mut title =
            format!("{subject}'s {side} per request against {baseline}'s, 95 % interval{together}");
        if title.chars().count() > WIDTH {
            title = format!("{subject}'s {side} per request against {baseline}'s");
        }
        lines.push(clipped(&title, WIDTH));
        lines.push(head([baseline, subject], work, end));
        lines.extend(rows.iter().take(shown).map(|row| line(row, with_net, work, end)));
        left = left.saturating_sub(shown + 2);
    }
    if dropped > 0 {
        lines.push(format!("and {dropped} more rows: --full"));
    }
    // One connection leaves a CPU idle while the other one works.
    if rows().any(|row| row.cell.is_saturated()) {
        let closed = "Full: a closed loop; at 100 % busy, CPU per request is inverse throughput.";
        lines.push(closed.to_owned());
    }
    lines
}

/// Columns beside that of the work and the chart: load, busy, two figures, change and decision, with their gaps.
const OTHERS: usize = 6 + 5 + 10 + 10 + 6 + 2 + 9;

fn chart_width(work: usize) -> usize {
    let width = WIDTH.saturating_sub(OTHERS + work + 1).clamp(7, 25);
    // There is a middle.
    width - (1 - width % 2)
}

fn head([baseline, subject]: [&str; 2], work: usize, end: f64) -> String {
    let half = chart_width(work) / 2;
    let (left, right) = (format!("-{end:.0}%"), format!("+{end:.0}%"));
    let has_room = half > right.len();
    let axis = if has_room { format!("{left:<half$}0{right:>half$}") } else { String::new() };
    let [baseline, subject] = [baseline, subject].map(|it| clipped(it, 9));
    let line = format!(
        "{:<6}{:>5} {:<work$}{baseline:>10}{subject:>10}{:>6}  {axis}",
        "load", "busy", "", ""
    );
    line.trim_end().to_owned()
}

fn line(row: &Row<'_>, with_net: bool, work: usize, end: f64) -> String {
    let us = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{} us", figure(us)));
    let [baseline, subject] = row.cpu_us().map(us);
    let busy = row.busy_share().map_or("-".to_owned(), |share| format!("{:.0}%", share * 100.0));
    let change = row.percent().map_or("-".to_owned(), |percent| signed(percent, 0) + "%");
    let mut text = row.work(with_net);
    // What it is stands first.
    if text.chars().count() > work {
        text = text.chars().take(work - 1).chain(['~']).collect();
    }
    let chart = interval(row, chart_width(work), end);
    let decision = clipped(&row.decision(), 8);
    let load = row.load();
    let line = format!(
        "{load:<6}{busy:>5} {text:<work$}{baseline:>10}{subject:>10}{change:>6}  {chart} {decision}"
    );
    line.trim_end().to_owned()
}

/// Three digits.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.4}"),
    }
}

/// The end of a text that is too long: names of one family differ there.
fn clipped(text: &str, width: usize) -> String {
    let cut = (text.chars().count() + 1).saturating_sub(width);
    if cut <= 1 {
        return text.to_owned();
    }
    iter::once('~').chain(text.chars().skip(cut)).collect()
}
