//! What stands between the verdicts and the cells: curves along an axis, and what changes cost.

use maud::{Markup, html};

use crate::report::plots;
use crate::report::shape::{Ablation, Curves, Shape};
use crate::report::{outcome, text};
use crate::summary::CellSummary;
use crate::workload::Axis;

use super::parts::parts;
use crate::report::model::Part;

/// The subjects by the colours of their lines.
pub(super) fn subjects(names: &[&str]) -> Markup {
    some_subjects(names, |_| true)
}

/// Those of the subjects that are drawn.
fn some_subjects(names: &[&str], is_drawn: impl Fn(&str) -> bool) -> Markup {
    html! {
        ul.legend {
            @for (index, name) in names.iter().enumerate().filter(|(_, name)| is_drawn(name)) {
                li class=(plots::colour(index)) { i {} (name) }
            }
        }
    }
}

/// The parts of a bar by their colours.
pub(super) fn bar_parts(cell: &CellSummary) -> Markup {
    html! {
        ul.legend {
            @for (number, name) in plots::legend(cell) {
                li { i class=(format!("box part{number}")) {} (name) }
            }
        }
    }
}

/// Curves along every axis that has points enough.
pub(super) fn curves(shape: &Shape<'_>) -> Markup {
    html! {
        @if !shape.curves.is_empty() {
            section #curves {
                h2 { "Curves" }
                @for curves in &shape.curves { (one(curves)) }
                p.soft.small {
                    "Bands are 95 % intervals on the geometric mean of the runs. They hold what "
                    "differs from run to run for all subjects; pairs have no part of that, "
                    "so a ratio can be decided although bands overlap. Hollow points: nothing was "
                    "detected."
                }
            }
        }
    }
}

fn one(curves: &Curves<'_>) -> Markup {
    let names = plots::subjects(curves);
    let unit = curves.points.first().map_or("request", |(_, cell)| cell.cell.protocol().unit());
    html! {
        h3 { (curves.common) ", by " (curves.axis.title()) }
        div.plots {
            figure {
                figcaption { "CPU per " (unit) " " span { "ns, with bands" } }
                (subjects(&names))
                (plots::cpu(curves))
            }
            @if !curves.contests.is_empty() {
                figure {
                    figcaption { "Ratio "
                        span { "above 1: better than " (baselines(curves)) "; with intervals" } }
                    (some_subjects(&names, |name| is_compared(curves, name)))
                    (plots::ratios(curves))
                }
            }
            @if curves.axis == Axis::Workers {
                figure {
                    figcaption { "Throughput " span { (unit) "s/s, medians; dashed: in step with the workers" } }
                    (subjects(&names))
                    (plots::throughput(curves))
                }
            }
            @if curves.is_load {
                figure {
                    figcaption { "Latency against load "
                        span { "medians of the runs; upright: the last point at which a subject kept the rate "
                            "with" } }
                    (subjects(&names))
                    ul.legend {
                        @for (name, class, _) in plots::PERCENTILES {
                            li.soft { i class=(class.trim_start_matches("curve").trim()) {} (name) }
                        }
                    }
                    (plots::latencies_by_load(curves))
                }
            }
        }
        @for knee in &curves.knees { p.small { (outcome::knee(knee)) } }
    }
}

fn is_compared(curves: &Curves<'_>, name: &str) -> bool {
    curves.contests.iter().flatten().any(|(_, it)| it.subject == name)
}

fn baselines(curves: &Curves<'_>) -> String {
    let mut names: Vec<&str> =
        curves.contests.iter().flatten().map(|(_, it)| it.baseline.as_str()).collect();
    names.dedup();
    names.join(" or ")
}

/// What changes cost, cell by cell.
pub(super) fn ablations(shape: &Shape<'_>) -> Markup {
    html! {
        @if !shape.ablations.is_empty() {
            section #changes {
                h2 { "What each change costs" }
                div.plots { @for ablation in &shape.ablations { (bars(ablation)) } }
            }
        }
    }
}

fn bars(ablation: &Ablation<'_>) -> Markup {
    html! {
        figure {
            figcaption { "Changes to " (ablation.origin) ", " (ablation.cell.cell) " "
                span { "times the CPU of " (ablation.origin)
                    ", with intervals; grey: no difference was detected" } }
            (plots::bars(ablation))
            details {
                summary { "As a table" }
                (parts(&[Part::table(&text::ablation_title(ablation), text::ablation(ablation))]))
            }
        }
    }
}
