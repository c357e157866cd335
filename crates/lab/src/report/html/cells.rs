//! Every cell with its plots, figures and findings.

use maud::{Markup, html};

use super::parts::parts;
use super::pictures::{bar_parts, subjects};
use crate::report::document;
use crate::report::model::Detail;
use crate::report::outcome::Outcome;
use crate::report::{plots, verdicts, words};
use crate::summary::{CellSummary, Summary};

/// Up to this many cells are open from the start.
const OPEN: usize = 4;

/// All cells, each of which can be folded.
pub(super) fn sections(summary: &Summary) -> Markup {
    html! {
        @if !summary.cells.is_empty() {
            section #cells {
                h2 { "Cells" }
                @for (number, cell) in summary.cells.iter().enumerate() {
                    details.cell #(format!("cell-{number}")) open[summary.cells.len() <= OPEN] {
                        summary {
                            b { (cell.cell) }
                            @for comparison in &cell.comparisons {
                                " " span class=(Outcome::of(comparison).class()) {
                                    (verdicts::claim_and_figures(cell, comparison).0)
                                }
                            }
                        }
                        (content(cell))
                    }
                }
            }
        }
    }
}

fn content(cell: &CellSummary) -> Markup {
    let protocol = cell.cell.protocol();
    let colour = |name: &str| cell.subjects.iter().position(|it| it.name == name).unwrap_or(1);
    let measured = cell.subjects.iter().any(|subject| subject.figures.is_some());
    html! {
        div.plots {
            @if measured { (curves_and_bars(cell)) }
            @for comparison in &cell.comparisons {
                @let baseline = &comparison.baseline;
                @let rows = plots::rows_of(comparison, protocol, colour(&comparison.subject));
                @if !rows.is_empty() {
                    figure {
                        figcaption { (comparison.subject) " against " (baseline) " "
                            span { "times better, with intervals; small dots are pairs" } }
                        (plots::intervals(&rows, baseline, &comparison.subject))
                    }
                }
            }
        }
        (parts(&document::figures(cell, Detail::Full)))
        @if cell.findings.is_empty() { p.small.soft { "Every audit of every run passed." } }
    }
}

fn curves_and_bars(cell: &CellSummary) -> Markup {
    let names: Vec<&str> = cell.subjects.iter().map(|it| it.name.as_str()).collect();
    let latencies = |title: &str| {
        html! {
            figcaption { (title) " "
                span { (words::load_mode(cell)) "all counted runs together" } }
            (subjects(&names))
            (plots::latencies(cell))
        }
    };
    let (unit, latency) = (cell.cell.protocol().unit(), cell.cell.protocol().workload().latency);
    let late = cell.subjects.iter().any(|it| !it.lateness_curve.is_empty());
    html! {
        figure {
            figcaption { "CPU per " (unit) " "
                span { "everything that the CPU of each side did" } }
            (bar_parts(cell))
            (plots::stacks(cell))
        }
        @if late {
            figure { (latencies(latency)) }
            figure {
                figcaption { "Send lateness "
                    span { "against the schedule; all counted runs together" } }
                (subjects(&names))
                (plots::latenesses(cell))
            }
        } @else {
            figure.tall { (latencies(latency)) }
        }
    }
}
