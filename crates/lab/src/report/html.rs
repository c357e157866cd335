//! The report as one HTML file that needs nothing else: no script, no font, no network. The interval chart of all
//! cells comes first, the first page as the terminal prints it after it, the tables behind, folded where they are long.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{Row, percent, scale, sections, signed};
use super::{Element, document, first_page};
use crate::result::Bundle;

const STYLE: &str = "\
    :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; --io: #1769c4; --ep: #b85c00; --no: #777 }\
    body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem }\
    h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin: 1.5rem 0 0 }\
    .scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }\
    th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #8886 }\
    th:first-child, td:first-child, th:last-child, td:last-child { text-align: left }\
    .soft { opacity: .75 }\
    @media print { body { margin: 0; max-width: none } }\
    @media (prefers-color-scheme: dark) { :root { --io: #6cb2ff; --ep: #ffad57; --no: #aaa } }\
    pre { overflow-x: auto; font-size: .8rem; line-height: 1.35 }\
    .chart { width: 100%; min-width: 40rem; height: auto; font: 12px system-ui, sans-serif } .chart text { fill: currentColor }\
    .chart .soft { opacity: .7 } details { margin: .8rem 0 } summary { cursor: pointer; font-weight: 600 }\
    .io { color: var(--io) } .ep { color: var(--ep) } .no { color: var(--no) }";

const WIDTH: f64 = 900.0;
const LABELS: f64 = 360.0;
const DECISIONS: f64 = 130.0;
const LINE: f64 = 20.0;

pub(crate) fn html(bundle: &Bundle) -> String {
    let name = &bundle.experiment.name;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (name) ": report" }
                // Or a browser asks the server of the page for one.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (name) }
                p { (bundle.experiment.about) }
                @for ([baseline, subject], rows) in sections(bundle) {
                    h2 { (subject) "'s CPU per request against " (baseline) "'s" }
                    div.scroll { (chart(&rows)) }
                }
                pre { (first_page(bundle, ".")) }
                @for block in document(bundle).into_iter().skip(1) { (rendered(&block)) }
            }
        }
    };
    page.into_string()
}

/// The colour of an engine, or of no decision.
fn class(row: &Row<'_>) -> &'static str {
    match row.comparison.less.as_deref() {
        _ if row.comparison.is_fragile => "no",
        Some(less) if less.contains("uring") => "io",
        Some(less) if less.contains("epoll") => "ep",
        Some(less) if less == row.comparison.subject => "io",
        Some(_) => "ep",
        None => "no",
    }
}

fn chart(rows: &[Row<'_>]) -> Markup {
    let end = scale(rows.iter());
    let plot = WIDTH - LABELS - DECISIONS;
    let x = |percent: f64| LABELS + (percent.clamp(-end, end) + end) / (2.0 * end) * plot;
    let height = (rows.len() + 2) as f64 * LINE;
    let with_net = rows.iter().any(|row| row.cell.cell.net != rows[0].cell.cell.net);
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label="95 % intervals of the change in CPU per request" {
            @for mark in [-1.0, -0.5, 0.0, 0.5, 1.0] {
                @let at = x(mark * end);
                line.soft x1=(at) x2=(at) y1=(LINE) y2=(height) stroke="currentColor" stroke-width=(if mark == 0.0 { "1.5" } else { "0.4" }) {}
                text x=(at) y="13" text-anchor="middle" { (signed(mark * end, 0)) " %" }
            }
            @for (number, row) in rows.iter().enumerate() {
                @let y = (number as f64 + 1.7) * LINE;
                text x="0" y=(y + 4.0) { (row.load()) }
                text.soft x="55" y=(y + 4.0) { (row.busy_share().map_or(String::new(), |share| format!("{:.0} % busy", share * 100.0))) }
                text x="130" y=(y + 4.0) { (row.work(with_net)) }
                g class=(class(row)) {
                    @if let Some(ends) = row.ends() {
                        @let (low, high) = (x(percent(ends.low)), x(percent(ends.high)));
                        line x1=(low) x2=(high) y1=(y) y2=(y) stroke="currentColor" stroke-width="3" {}
                    }
                    @if let Some(middle) = row.percent() {
                        circle cx=(x(middle)) cy=(y) r="4.5" fill="currentColor" {}
                    }
                    @let change = row.percent().map_or(String::new(), |it| signed(it, 0) + " %  ");
                    text x=(WIDTH - DECISIONS + 12.0) y=(y + 4.0) style="fill: currentColor" { (change) (row.decision()) }
                }
            }
        }
    }
}

fn rendered(block: &Element) -> Markup {
    match block {
        Element::Heading(text) => html! { h2 { (text) } },
        Element::Text(text) => html! { p { (text) } },
        Element::Item(text) => html! { p.soft { "• " (text) } },
        Element::Table(rows) => html! {
            div.scroll {
                table {
                    @for (number, row) in rows.iter().enumerate() {
                        tr {
                            @for cell in row {
                                @if number == 0 { th { (cell) } } @else { td { (cell.replace(" %", "\u{a0}%")) } }
                            }
                        }
                    }
                }
            }
        },
        Element::Folded(title, blocks) => html! {
            details { summary { (title) } @for block in blocks { (rendered(block)) } }
        },
    }
}
