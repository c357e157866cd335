//! The parts of a document. A wide table scrolls in a region of its own, which the keyboard can
//! reach.

use maud::{Markup, html};

use crate::audit::Severity;
use crate::report::model::{Item, Part, Rows, Section, Tone};

/// A section with its heading; nothing without parts.
pub(super) fn section(id: &str, section: &Section) -> Markup {
    html! {
        @if !section.parts.is_empty() {
            section id=(id) {
                @match &section.heading {
                    Some((2, words)) => h2 { (words) },
                    Some((_, words)) => h3 { (words) },
                    None => {}
                }
                (parts(&section.parts))
            }
        }
    }
}

pub(super) fn parts(parts: &[Part]) -> Markup {
    html! { @for part in parts { (one(part)) } }
}

fn one(part: &Part) -> Markup {
    match part {
        Part::Text(tone, text) => match tone {
            Tone::Soft => html! { p.small.soft { (text) } },
            Tone::Note => html! { p.note { strong { (text) } } },
            Tone::Strong => html! { p { strong { (text) } } },
            Tone::Plain | Tone::Verdict(_) | Tone::Finding(_) => html! { p.small { (text) } },
        },
        Part::Items(items) => html! {
            ul.findings {
                @for Item { tone, mark, text } in items {
                    li class=[class(*tone)] {
                        @if !mark.is_empty() { b { (mark) } ": " }
                        (text)
                    }
                }
            }
        },
        Part::Rows(rows) => table(rows),
        Part::Code(text) => html! { pre tabindex="0" { (text) } },
        Part::Break => html! {},
    }
}

fn class(tone: Tone) -> Option<&'static str> {
    match tone {
        Tone::Finding(Severity::Void) => Some("void"),
        Tone::Finding(Severity::Noise) => Some("noise"),
        Tone::Finding(Severity::Warning) => Some("warning"),
        _ => None,
    }
}

fn table(Rows { label, head, rows }: &Rows) -> Markup {
    let (titles, body) = rows.split_at(rows.len().min(*head));
    html! {
        @match titles {
            [] => table.facts { tbody { @for row in body { (body_row(row)) } } },
            [titles, units @ ..] => div.scroll tabindex="0" role="region" aria-label=(label) {
                table.sortable {
                    thead { tr {
                        @for (column, title) in titles.iter().enumerate() {
                            th scope="col" {
                                @if title.is_empty() { "subject" } @else { (title) }
                                @let unit = units.first().and_then(|it| it.get(column));
                                @if let Some(unit) = unit.filter(|it| !it.is_empty()) {
                                    small { (unit) }
                                }
                            }
                        }
                    } }
                    tbody { @for row in body { (body_row(row)) } }
                }
            },
        }
    }
}

fn body_row(row: &[String]) -> Markup {
    html! {
        tr {
            @for (column, value) in row.iter().enumerate() {
                @if column == 0 { th scope="row" { (value) } } @else { td { (value) } }
            }
        }
    }
}
