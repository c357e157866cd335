//! The report as one HTML file that needs nothing else: no font, no network, no framework. A few
//! lines of script sort tables and open what a link leads to; all can be read without them.

mod cells;
mod data;
mod map;
mod parts;
mod pictures;
mod ranking;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use super::document;
use super::model::apart;
use super::outcome::{Judged, Outcome, judged, overall};
use super::plots::{self, IntervalRow};
use super::shape::Shape;
use super::{conditions, networks, numbers, prices, verdicts, warnings, words};
use crate::record::RunRecord;
use crate::result::Bundle;
use crate::summary::{Comparison, Summary};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Up to this many verdicts get a card each; more are a table.
const CARDS: usize = 6;

/// Up to this many ratios are drawn in one plot.
const OVERVIEW: usize = 40;

/// The whole bundle as HTML.
pub(crate) fn html(bundle: &Bundle, runs: &[RunRecord]) -> String {
    let experiment = &bundle.experiment;
    let title = if experiment.about.is_empty() { &experiment.name } else { &experiment.about };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (experiment.name) ": Twinring lab" }
                // Or a browser asks the server of the page for one.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    p.soft.small { "Twinring lab, " (experiment.name) }
                    h1 { (title) }
                    p.soft { (words::setting(bundle)) }
                    @for machine in conditions::machines(bundle) { p.soft { (machine) } }
                }
                section #verdict aria-label="Verdict" {
                    @for sentence in verdict(bundle) { p.claim { (sentence) } }
                    @for note in words::notes(bundle) { p.note { strong { (note) } } }
                }
                @if let Some(summary) = &bundle.summary { (results(bundle, summary)) }
                (parts::section("conditions", &document::of_conditions(bundle)))
                (data::section(bundle, runs))
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// Nothing is loaded from anywhere, and no script or style runs but those of this file.
fn policy() -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; img-src data:; style-src 'sha256-{}'; script-src 'sha256-{}'; \
         base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

/// What the whole bundle says, in a sentence or two.
pub(crate) fn verdict(bundle: &Bundle) -> Vec<String> {
    bundle.summary.as_ref().map_or(Vec::new(), |summary| overall(bundle, summary))
}

fn results(bundle: &Bundle, summary: &Summary) -> Markup {
    let shape = Shape::of(bundle, summary);
    let all: Vec<Judged<'_>> = judged(summary).collect();
    let told = document::warnings(bundle, summary);
    let [published, not_reproduced] = document::of_published(bundle, summary);
    let explanation = prices::section(bundle);
    let ranking = ranking::section(bundle, &all);
    let there = [!ranking.0.is_empty(), !told.parts.is_empty(), explanation.is_some()];
    html! {
        (contents(summary, &shape, there))
        (ranking)
        (map::section(bundle, summary, &shape))
        (pictures::ablations(&shape))
        (pictures::curves(&shape))
        (parts::section("workers", &document::of_workers(summary)))
        @let networks = networks::tables(summary);
        @if !networks.is_empty() {
            section #networks {
                h2 { "Networks" }
                (parts::parts(&apart("Networks", networks)))
            }
        }
        (verdicts(&all, &shape, summary))
        p.soft.small { (words::legend(bundle)) }
        (parts::section("warnings", &told))
        (cells::sections(summary))
        @if let Some(explanation) = &explanation { (parts::section("prices", explanation)) }
        (parts::section("published", &published))
        (parts::section("not-reproduced", &not_reproduced))
    }
}

/// Links to what this page has.
fn contents(summary: &Summary, shape: &Shape<'_>, there: [bool; 3]) -> Markup {
    let [ranked, warned, explained] = there;
    let parts = [
        ("ranking", "Ranking", ranked),
        ("map", "Map", !shape.maps.is_empty()),
        ("changes", "Changes", !shape.ablations.is_empty()),
        ("curves", "Curves", !shape.curves.is_empty()),
        ("workers", "Workers", !document::of_workers(summary).is_empty()),
        ("networks", "Networks", networks::are_several(summary)),
        ("warnings", "Warnings", warned),
        ("cells", "Cells", !summary.cells.is_empty()),
        ("prices", "Prices", explained),
        ("conditions", "Conditions", true),
        ("data", "Data and commands", true),
    ];
    html! {
        nav aria-label="Contents" {
            @for (id, title, _) in parts.iter().filter(|(.., there)| *there) {
                a href=(format!("#{id}")) { (title) } " "
            }
        }
    }
}

/// Every verdict by itself: cards, or a table that can be sorted.
fn verdicts(
    all: &[Judged<'_>],
    shape: &Shape<'_>,
    summary: &Summary,
) -> Markup {
    let in_curves = |(cell, _): &Judged<'_>| shape.curves.iter().any(|it| it.has(cell));
    let unseen = all.iter().filter(|it| !shape.shows(it.1) && !in_curves(it));
    let unseen: Vec<Judged<'_>> = unseen.copied().collect();
    let number = |comparison: &Comparison| {
        let has = |cell: &crate::summary::CellSummary| {
            cell.comparisons.iter().any(|it| std::ptr::eq(it, comparison))
        };
        summary.cells.iter().position(has).unwrap_or(0)
    };
    html! {
        @if (2..=CARDS).contains(&all.len()) {
            @for it in all { (verdict_card(*it)) }
        }
        @if (2..=OVERVIEW).contains(&unseen.len()) { (overview(&unseen)) }
        @if all.len() > CARDS {
            details open[shape.maps.is_empty() && shape.ablations.is_empty()] {
                summary { "All " (all.len()) " verdicts as a table" }
                (verdict_table(all, number))
            }
        }
        @if all.len() > 1 {
            p.soft.small { (warnings::many_verdicts()) }
        }
    }
}

fn verdict_card((cell, comparison): Judged<'_>) -> Markup {
    let class = Outcome::of(comparison).class();
    let (claim, figures) = verdicts::claim_and_figures(cell, comparison);
    html! {
        div class=(format!("verdict {class}")) {
            div.cell {
                (cell.cell) " (" (verdicts::of_record(comparison.record, cell.cell.protocol())) ")"
            }
            strong { (claim) }
            @if let Some(figures) = figures { p { (figures) } }
            @if let Some(note) = verdicts::throughput_note(comparison) { p.small.soft { (note) } }
        }
    }
}

/// Many verdicts, a row for each.
fn verdict_table(all: &[Judged<'_>], number: impl Fn(&Comparison) -> usize) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Verdicts" {
            table.verdicts.sortable {
                thead { tr {
                    th scope="col" { "cell" } th scope="col" { "verdict" }
                    th scope="col" { "ratio" } th scope="col" { "figures" }
                } }
                tbody {
                    @for (cell, comparison) in all {
                        @let (claim, figures) = verdicts::claim_and_figures(cell, comparison);
                        tr class=(Outcome::of(comparison).class()) {
                            th scope="row" {
                                a href=(format!("#cell-{}", number(comparison))) { (cell.cell) }
                            }
                            td { strong { (claim) } }
                            td { (comparison.of_record().map_or(numbers::NOTHING.to_owned(),
                                |it| format!("{:.3}", it.ratio))) }
                            td { (figures.unwrap_or_default()) }
                        }
                    }
                }
            }
        }
    }
}

/// The primary metric of several comparisons in one plot.
fn overview(all: &[Judged<'_>]) -> Markup {
    let is = |pick: fn(&Comparison) -> &String| {
        let first = all.first().map(|(_, it)| pick(it));
        let same = all.iter().all(|(_, it)| Some(pick(it)) == first);
        first.filter(|_| same).map(String::as_str)
    };
    let (subject, baseline) = (is(|it| &it.subject), is(|it| &it.baseline));
    let mut rows = Vec::new();
    for (cell, comparison) in all.iter().filter(|it| Outcome::of(it.1) != Outcome::Void) {
        let Some(interval) = comparison.of_record() else { continue };
        let index = cell.subjects.iter().position(|it| it.name == comparison.subject);
        let name = match (subject, baseline) {
            (Some(_), Some(_)) => cell.cell.to_string(),
            _ => format!("{} : {}, {}", comparison.subject, comparison.baseline, cell.cell),
        };
        let pairs = &*comparison.pair_ratios;
        let colour = plots::colour(index.unwrap_or(1));
        rows.push(IntervalRow { name, interval, pairs, colour, of_record: true });
    }
    html! {
        @if rows.len() > 1 {
            figure.overview {
                figcaption { "CPU per request or packet, by cell "
                    span { "how many times better; small dots are pairs" } }
                (plots::intervals(&rows, baseline.unwrap_or("baseline"),
                    subject.unwrap_or("subject")))
            }
        }
    }
}

