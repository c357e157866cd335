//! Tables. A wide one scrolls in a region of its own, which the keyboard can reach.

use maud::{Markup, html};

/// A table whose second row holds the units of the first; nothing without rows.
pub(super) fn with_units(rows: &[Vec<String>], label: &str) -> Markup {
    let [titles, units, body @ ..] = rows else { return html! {} };
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table.sortable {
                thead { tr {
                    @for (title, unit) in titles.iter().zip(units) {
                        th scope="col" {
                            @if title.is_empty() { "subject" } @else { (title) }
                            @if !unit.is_empty() { small { (unit) } }
                        }
                    }
                } }
                tbody { @for row in body { (body_row(row)) } }
            }
        }
    }
}

/// A table whose first row holds the titles.
pub(super) fn simple(rows: &[Vec<String>], label: &str) -> Markup {
    html! {
        @if let Some((head, body)) = rows.split_first() {
            div.scroll tabindex="0" role="region" aria-label=(label) {
                table.sortable {
                    thead { tr { @for title in head { th scope="col" { (title) } } } }
                    tbody { @for row in body { (body_row(row)) } }
                }
            }
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
