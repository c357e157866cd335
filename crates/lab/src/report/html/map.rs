//! Heat maps: the ratio over two axes. Each is a table, so that whoever does not see its colours
//! reads the same.

use maud::{Markup, html};

use crate::report::outcome::{Judged, Outcome, Side, entry};
use crate::report::shape::{Map, Shape};
use crate::report::{numbers, text, verdicts, words};
use crate::result::Bundle;
use crate::summary::{Comparison, Summary};

/// Where one colour ends and the next begins: each step is about twice as far from equal as the one
/// before, and means the same in every report.
const STEPS: [f64; 5] = [1.05, 1.1, 1.2, 1.4, 2.0];

/// Maps with more columns than this stand by themselves.
const NARROW: usize = 6;

/// All maps, with one legend.
pub(super) fn section(bundle: &Bundle, summary: &Summary, shape: &Shape<'_>) -> Markup {
    html! {
        @if !shape.maps.is_empty() {
            section #map {
                h2 { "Map" }
                p.soft.small { (words::legend_of_maps(bundle)) }
                div.maps { @for map in &shape.maps { (heat_map(map, summary)) } }
                (legend())
            }
        }
    }
}

fn heat_map(map: &Map<'_>, summary: &Summary) -> Markup {
    let (rows, row_values) = &map.rows;
    let (columns, column_values) = &map.columns;
    html! {
        figure class=(if column_values.len() > NARROW { "map wide" } else { "map" }) {
            figcaption { (map.subject) " against " (map.baseline) " " span { (map.common) } }
            div.scroll tabindex="0" role="region" aria-label=(text::map_title(map)) {
                table.heat {
                    thead {
                        tr { td {} th.axis scope="colgroup" colspan=(column_values.len()) {
                            (columns.title()) } }
                        tr {
                            th.axis scope="col" { (rows.title()) }
                            @for value in column_values { th scope="col" { (columns.label(*value)) } }
                        }
                    }
                    tbody {
                        @for (value, entries) in row_values.iter().zip(&map.entries) {
                            tr {
                                th scope="row" { (rows.label(*value)) }
                                @for found in entries {
                                    @match found {
                                        Some(it) => (tile(*it, summary)),
                                        None => td.none { (numbers::NOTHING) },
                                    }
                                }
                            }
                        }
                    }
                }
            }
            p.hint.soft.small { "Point at a cell or tab to it for its verdict; follow it to its figures." }
        }
    }
}

/// One cell of a map. The link leads to the figures; its text stands below the map while it has
/// the focus.
fn tile((cell, comparison): Judged<'_>, summary: &Summary) -> Markup {
    let ratio = comparison.of_record().map(|it| it.ratio);
    let told = verdicts::headline(cell, comparison);
    let number = summary.cells.iter().position(|it| std::ptr::eq(it, cell)).unwrap_or(0);
    html! {
        td class=(class(comparison)) {
            a href=(format!("#cell-{number}"))
                aria-label=(format!("{}: {told}", cell.cell)) {
                (entry(comparison, ratio))
                @let ends = comparison.of_record().and_then(|it| it.ends);
                @if let Some(it) = ends.filter(|_| has_ratio(comparison)) {
                    small { (format!("{:.2}–{:.2}", it.low, it.high)) }
                }
                span.tip aria-hidden="true" { b { (cell.cell) } ": " (told) }
            }
        }
    }
}

/// Whether the ratio says something: not of what an audit has voided, nor of unequal work.
fn has_ratio(comparison: &Comparison) -> bool {
    !matches!(Outcome::of(comparison), Outcome::Void | Outcome::Behind | Outcome::KeepsRate(_))
}

/// The class that gives a tile its colour.
fn class(comparison: &Comparison) -> String {
    let step = |side: Side| {
        let ratio = comparison.of_record().map_or(1.0, |it| it.ratio);
        let times = if side == Side::Subject { ratio } else { 1.0 / ratio };
        let direction = if side == Side::Subject { "up" } else { "down" };
        format!("{direction}{}", 1 + STEPS.iter().filter(|step| times >= **step).count())
    };
    match Outcome::of(comparison) {
        Outcome::Ahead(side) => step(side),
        // The only one that keeps the rate is as far ahead as possible.
        Outcome::KeepsRate(Side::Subject) => format!("up{}", STEPS.len() + 1),
        Outcome::KeepsRate(Side::Baseline) => format!("down{}", STEPS.len() + 1),
        Outcome::Equivalent | Outcome::Same | Outcome::Uncertain => "same".to_owned(),
        Outcome::Few | Outcome::Behind | Outcome::Void | Outcome::Impossible => {
            "hatched".to_owned()
        }
    }
}

fn legend() -> Markup {
    let last = STEPS.len() + 1;
    let label = |step: usize| match step {
        1 => format!("< {}", STEPS[0]),
        step if step == last => format!("≥ {}", STEPS[step - 2]),
        step => format!("{}–{}", STEPS[step - 2], STEPS[step - 1]),
    };
    let side = |name: &str, direction: &str, what: &str| {
        html! {
            dt { (what) }
            dd {
                @for step in 1..=last {
                    span class=(format!("{direction}{step}")) aria-label=(format!("{name} {}", label(step))) {
                        (label(step)) }
                }
            }
        }
    };
    html! {
        dl.scale {
            (side("subject", "up", "▲ the subject needs less CPU: the baseline needs so many times as much"))
            (side("baseline", "down", "▼ the baseline needs less CPU: the subject needs so many times as much"))
            dt { "no verdict for either" }
            dd {
                span.same { "≈ equivalent, = no difference detected, ~ not after correction" }
                span.hatched { "? too few pairs, behind, void" }
            }
        }
    }
}
