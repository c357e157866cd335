//! The report as one HTML file that needs nothing else: no script, no font, no network.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::plots::{self, IntervalRow};
use super::{accounting, columns, profile, published, table, warnings, words};
use crate::audit::Severity;
use crate::experiment::Protocol;
use crate::result::{Bundle, RunRecord};
use crate::summary::{CellSummary, Comparison, Summary, Verdict, figures_of};

/// Runs that are listed one by one; the raw data have all of them.
const LISTED_RUNS: usize = 2000;

/// Up to this many verdicts get a card each; more are a table.
const CARDS: usize = 6;

/// The whole bundle as HTML.
pub(crate) fn html(bundle: &Bundle, runs: &[RunRecord]) -> String {
    let experiment = &bundle.experiment;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Twinring lab: " (experiment.name) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                h1 { (experiment.about) }
                p.soft { (words::setting(bundle)) }
                @for note in words::notes(bundle) {
                    div.verdict.few { strong { (note) } }
                }
                @if let Some(summary) = &bundle.summary { (results(bundle, summary)) }
                (conditions(bundle))
                (raw_data(bundle, runs))
            }
        }
    };
    page.into_string()
}

fn results(bundle: &Bundle, summary: &Summary) -> Markup {
    let all: Vec<(&CellSummary, &Comparison)> = summary
        .cells
        .iter()
        .flat_map(|cell| cell.comparisons.iter().map(move |comparison| (cell, comparison)))
        .collect();
    html! {
        @if let Some(counts) = &summary.aa { p { (warnings::aa(counts)) } }
        @if all.len() <= CARDS {
            @for (cell, comparison) in &all { (verdict_card(cell, comparison)) }
        } @else {
            (verdict_table(&all))
        }
        p.soft.small { (words::legend(bundle)) }
        @if all.len() > 1 {
            p.soft.small { (warnings::many_verdicts(&bundle.experiment)) }
            (overview(&all))
        }
        @for cell in &summary.cells { (cell_section(cell)) }
        (profile_section(bundle))
        (published_section(bundle, summary))
        @let told = warnings::lines(bundle);
        @if !told.is_empty() {
            h2 { "Warnings" }
            ul.findings { @for warning in &told { li.warning { (warning) } } }
        }
    }
}

fn verdict_class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Ahead { .. } | Verdict::OnlyOneKeepsUp { .. } => "ahead",
        Verdict::NoDifference { .. } | Verdict::Alike { .. } => "same",
        Verdict::TooFewPairs { .. }
        | Verdict::TooFewForSoMany { .. }
        | Verdict::NotAfterCorrection { .. }
        | Verdict::UnequalWork { .. } => "few",
        Verdict::Void { .. } | Verdict::FalseDifference { .. } => "void",
    }
}

fn verdict_card(cell: &CellSummary, comparison: &Comparison) -> Markup {
    let class = verdict_class(&comparison.verdict);
    let (claim, figures) = words::claim_and_figures(cell, comparison);
    html! {
        div class=(format!("verdict {class}")) {
            div.cell { (cell.cell) }
            strong { (claim) }
            @if let Some(figures) = figures { p { (figures) } }
            @if let Some(note) = words::throughput_note(comparison) { p.small.soft { (note) } }
        }
    }
}

/// Many verdicts, a row for each.
fn verdict_table(all: &[(&CellSummary, &Comparison)]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Verdicts" {
            table.verdicts {
                thead { tr {
                    th scope="col" { "cell" } th scope="col" { "verdict" } th scope="col" { "figures" }
                } }
                tbody {
                    @for (cell, comparison) in all {
                        @let (claim, figures) = words::claim_and_figures(cell, comparison);
                        tr class=(verdict_class(&comparison.verdict)) {
                            th scope="row" { (cell.cell) }
                            td { strong { (claim) } }
                            td { (figures.unwrap_or_default()) }
                        }
                    }
                }
            }
        }
    }
}

/// The figure of record of every comparison in one plot.
fn overview(all: &[(&CellSummary, &Comparison)]) -> Markup {
    let mut rows = Vec::new();
    for (cell, comparison) in all {
        let Some(interval) = comparison.of_record() else { continue };
        let alone = cell.comparisons.len() == 1;
        let index = cell.subjects.iter().position(|subject| subject.name == comparison.subject);
        let cell = cell.cell.to_string();
        let Comparison { subject, baseline, .. } = comparison;
        let name = if alone { cell } else { format!("{subject} : {baseline}, {cell}") };
        let pairs = &*comparison.pair_ratios;
        let colour = plots::colour(index.unwrap_or(1));
        rows.push(IntervalRow { name, interval, pairs, colour, of_record: true });
    }
    html! {
        @if !rows.is_empty() {
            figure {
                figcaption { "CPU per request or packet, all cells "
                    span { "how many times better; small dots are pairs" } }
                (plots::intervals(&rows, "baseline", "subject"))
            }
        }
    }
}

fn cell_section(cell: &CellSummary) -> Markup {
    let protocol = cell.cell.protocol();
    let colour = |name: &str| cell.subjects.iter().position(|it| it.name == name).unwrap_or(1);
    let measured = cell.subjects.iter().any(|subject| subject.figures.is_some());
    html! {
        h2 { (cell.cell) }
        div.plots {
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
            @if measured { (curves_and_bars(cell)) }
        }
        (figures_table(cell))
        (simple_table(&table::ratios(cell), "Ratios"))
        @for line in words::placements(cell) { p.small { (line) } }
        (simple_table(&columns::http_times(cell), "Times"))
        (simple_table(&columns::datagrams(cell), "Datagrams"))
        (simple_table(&columns::calls(cell), "System calls of the load generator"))
        @for (rows, note) in accounting::tables(cell) {
            (simple_table(&rows, &rows[0][0]))
            p.small.soft { (note) }
        }
        (findings(cell))
    }
}

fn curves_and_bars(cell: &CellSummary) -> Markup {
    let latencies = |title: &str| {
        html! {
            figcaption { (title) " "
                span { (words::load_mode(cell)) "all counted runs together" } }
            (plots::latencies(cell))
        }
    };
    let bars = |title: &str, of_what: &str| {
        html! { figure { figcaption { (title) " " span { (of_what) } } (plots::stacks(cell)) } }
    };
    match cell.cell.protocol() {
        Protocol::Tcp | Protocol::Http => html! {
            figure.tall { (latencies("Latency")) }
            (bars("CPU of the server's CPU per request",
                "outside the process: softirq and interrupts"))
        },
        Protocol::Udp => html! {
            (bars("CPU per packet", "of both sides, softirq and interrupts included"))
            figure { (latencies("Round trip")) }
            figure {
                figcaption { "Send lateness "
                    span { "against the schedule; all counted runs together" } }
                (plots::latenesses(cell))
            }
        },
    }
}

fn profile_section(bundle: &Bundle) -> Markup {
    html! {
        @if bundle.profile.is_some() {
            h2 { (profile::TITLE) }
            @for problem in profile::problems(bundle) { div.verdict.few { strong { (problem) } } }
            @for rows in profile::tables(bundle) { (simple_table(&rows, profile::TITLE)) }
            p.small.soft { (profile::NOTE) }
        }
    }
}

fn published_section(bundle: &Bundle, summary: &Summary) -> Markup {
    let tables = published::tables(bundle, summary);
    html! {
        @if tables.iter().any(|rows| !rows.is_empty()) {
            h2 { (published::TITLE) }
            @for rows in &tables { (simple_table(rows, published::TITLE)) }
            @for remark in published::remarks(bundle, summary) { p.small { (remark) } }
            @for conditions in published::conditions(bundle) { p.small.soft { (conditions) } }
            @if !published::not_reproduced(bundle).is_empty() {
                h3 { (published::NOT_REPRODUCED_TITLE) }
                ul { @for sentence in published::not_reproduced(bundle) { li.small { (sentence) } } }
            }
        }
    }
}

/// The table of figures; its second row holds the units of the first.
fn figures_table(cell: &CellSummary) -> Markup {
    let rows = table::figures(cell);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Figures" {
            table {
                thead { tr {
                    @for (title, unit) in rows[0].iter().zip(&rows[1]) {
                        th scope="col" { (title) @if !unit.is_empty() { small { (unit) } } }
                    }
                } }
                tbody { @for row in &rows[2..] { (body_row(row)) } }
            }
        }
    }
}

fn simple_table(rows: &[Vec<String>], label: &str) -> Markup {
    html! {
        @if let Some((head, body)) = rows.split_first() {
            div.scroll tabindex="0" role="region" aria-label=(label) {
                table {
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

fn findings(cell: &CellSummary) -> Markup {
    let told = words::told(cell);
    html! {
        @if told.is_empty() {
            p.small.soft { "Every audit of every run passed." }
        } @else {
            ul.findings {
                @for told in &told {
                    @let class = match told.first.severity {
                        Severity::Void => "void",
                        Severity::Noise => "noise",
                        Severity::Warning => "warning",
                    };
                    li class=(class) { b { (words::severity(told.first.severity)) } ": " (told.sentence()) }
                }
            }
        }
    }
}

fn conditions(bundle: &Bundle) -> Markup {
    html! {
        h2 { "Conditions" }
        table.facts {
            tbody {
                @for (name, value) in words::conditions(bundle) {
                    tr { td { (name) } td { (value) } }
                }
            }
        }
    }
}

fn raw_data(bundle: &Bundle, runs: &[RunRecord]) -> Markup {
    let quiet = |run: &&RunRecord| run.index < LISTED_RUNS;
    html! {
        h2 { "To repeat and to check" }
        pre { (words::repeat(bundle)) }
        p { "Raw data beside this file: " a href="runs.jsonl" { "runs.jsonl" } " (one line per run, "
            "with every histogram), " a href="bundle.json" { "bundle.json" } ", "
            a href="manifest.sha256" { "manifest.sha256" } ". "
            code { "twinring lab verify" } " recomputes every figure of this page from them." }
        @for program in &bundle.programs {
            p.small.soft { code { (program.path) } ", SHA-256 "
                code { (program.sha256.as_deref().unwrap_or("could not be read")) } }
        }
        details {
            summary { "Every run" }
            (simple_table(&run_rows(runs.iter().filter(quiet)), "Runs"))
        }
        details {
            summary { "Exact commands" }
            pre {
                @for run in runs.iter().filter(quiet) {
                    "# run " (run.index) "\n" (words::quoted(&run.server_command)) "\n"
                    @if let Some(config) = &run.server_config { "# with\n" (config) }
                    (words::quoted(&run.client_command)) "\n"
                }
            }
        }
    }
}

fn run_rows<'a>(runs: impl Iterator<Item = &'a RunRecord>) -> Vec<Vec<String>> {
    let titles = [
        "run",
        "cell",
        "block",
        "subject",
        "server CPU ns",
        "both CPUs ns",
        "per second",
        "p99 us",
    ];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for run in runs {
        let figures = figures_of(run);
        let figure = |value: fn(&crate::summary::Figures) -> String| {
            figures.as_ref().map_or(words::NOTHING.to_owned(), value)
        };
        rows.push(vec![
            run.index.to_string(),
            run.cell.to_string(),
            run.block.to_string(),
            run.subject.clone(),
            figure(|figures| words::whole(figures.server_cpu_ns)),
            figure(|figures| words::whole(figures.both_cpus_ns)),
            figure(|figures| words::whole(figures.requests_per_s)),
            figure(|figures| words::short(figures.latency_us_p99)),
        ]);
    }
    rows
}
