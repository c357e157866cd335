//! To repeat and to check: commands, hashes, and the data themselves, which travel with the page.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{Markup, html};

use super::parts::parts;
use crate::audit::{Finding, Severity};
use crate::record::RunRecord;
use crate::report::columns::shown;
use crate::report::document;
use crate::report::model::Part;
use crate::report::words;
use crate::result::Bundle;
use crate::summary::{Figures, METRICS, Metric, Summary, figures_of};

/// Runs that the page has the figures of; `runs.jsonl` has all of them.
const LISTED_RUNS: usize = 2000;

/// The largest `bundle.json` that travels with the page, in bytes before its encoding for a link.
const EMBEDDED_BYTES: usize = 2 << 20;

pub(super) fn section(bundle: &Bundle, runs: &[RunRecord]) -> Markup {
    let listed = &runs[..runs.len().min(LISTED_RUNS)];
    html! {
        section #data {
            h2 { "To repeat and to check" }
            pre tabindex="0" { (words::repeat(bundle)) }
            (downloads(bundle, listed, runs.len()))
            p { "Raw data beside this file: " a href="runs.jsonl" { "runs.jsonl" } " (one line per run, "
                "with every histogram), " a href="bundle.json" { "bundle.json" } ", "
                a href="manifest.sha256" { "manifest.sha256" } ". "
                code { "twinring lab verify" } " recomputes every figure of this page from them." }
            @if let Some(programs) = document::programs(bundle) { (parts(&[programs])) }
            details {
                summary { "Exact commands" }
                p.small.soft { "Of the first run of each subject in each cell. The others are in the "
                    "figures of the runs; they differ in ports." }
                pre tabindex="0" { (commands(listed)) }
            }
            details {
                summary { "Every run" }
                @if runs.len() > LISTED_RUNS {
                    p.small { "The first " (LISTED_RUNS) " of " (runs.len()) " runs." }
                }
                (parts(&[Part::table("Runs", run_rows(listed))]))
            }
        }
    }
}

/// Links that hold what they lead to, so that the page is complete by itself.
fn downloads(bundle: &Bundle, listed: &[RunRecord], all: usize) -> Markup {
    let name = &bundle.experiment.name;
    let link = |kind: &str, content: &str| {
        format!("data:{kind};charset=utf-8;base64,{}", STANDARD.encode(content))
    };
    let table = csv(bundle.summary.as_ref(), listed);
    // What serde_json cannot write could not have been stored either.
    let whole = serde_json::to_string(bundle).ok().filter(|it| it.len() <= EMBEDDED_BYTES);
    html! {
        p.downloads {
            "In this file: "
            a download=(format!("{name}-runs.csv")) href=(link("text/csv", &table)) {
                "the figures of "
                @if listed.len() < all { "the first " (listed.len()) " of " (all) " runs" }
                @else { "all " (all) " runs" }
                " (CSV)"
            }
            @if let Some(whole) = whole {
                " and " a download=(format!("{name}-bundle.json"))
                    href=(link("application/json", &whole)) { "experiment, conditions and summary (JSON)" }
                "."
            } @else {
                ". The summary is larger than 2 MiB and is only in " code { "bundle.json" } "."
            }
        }
    }
}

/// The figures of each run as comma-separated values (RFC 4180), with its findings and commands. Every
/// metric has a column, unless no run has it.
fn csv(summary: Option<&Summary>, runs: &[RunRecord]) -> String {
    let figures: Vec<Option<Figures>> = runs.iter().map(figures_of).collect();
    let is_there = |it: &Metric| figures.iter().flatten().any(|run| run.get(*it).is_some());
    let metrics: Vec<Metric> = METRICS.iter().copied().filter(is_there).collect();
    let mut text = String::from("run,at_s,cell,block,subject");
    metrics.iter().for_each(|metric| text.extend([",", metric.field()]));
    text.push_str(",left_out,findings,server_command,client_command\r\n");
    for (run, figures) in runs.iter().zip(&figures) {
        let figure = |it: &Metric| Some(figures.as_ref()?.get(*it)?.to_string());
        let mut fields = vec![
            run.index.to_string(),
            run.at_s.to_string(),
            run.cell.to_string(),
            run.block.to_string(),
            run.subject.clone(),
        ];
        fields.extend(metrics.iter().map(|metric| figure(metric).unwrap_or_default()));
        fields.push(left_out(summary, runs, run));
        fields.push(found(summary, run));
        fields.extend([&run.server_command, &run.client_command].map(|it| words::quoted(it)));
        let line: Vec<String> = fields.iter().map(|field| quoted(field)).collect();
        text.extend([&*line.join(","), "\r\n"]);
    }
    text
}

fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

/// Why a run does not count, if so: it is void, or a run of its block was disturbed.
fn left_out(summary: Option<&Summary>, runs: &[RunRecord], run: &RunRecord) -> String {
    let cell = summary.and_then(|it| it.cells.iter().find(|cell| cell.cell == run.cell));
    let of_block = |index: usize| {
        runs.get(index).is_some_and(|it| it.cell == run.cell && it.block == run.block)
    };
    let why = |finding: &&Finding| match finding.severity {
        Severity::Void => finding.run == Some(run.index),
        Severity::Noise => finding.run.is_some_and(of_block),
        Severity::Warning => false,
    };
    let findings = cell.iter().flat_map(|it| &it.findings).filter(why);
    let gravest = findings.max_by_key(|it| (it.severity, std::cmp::Reverse(it.kind)));
    gravest.map_or(String::new(), |it| it.kind.title().to_owned())
}

/// What the audits found in a run.
fn found(summary: Option<&Summary>, run: &RunRecord) -> String {
    let cell = summary.and_then(|it| it.cells.iter().find(|cell| cell.cell == run.cell));
    let of_run = |finding: &&Finding| finding.run == Some(run.index);
    let title = |finding: &Finding| {
        let severity = match finding.severity {
            Severity::Void => "void",
            Severity::Noise => "noise",
            Severity::Warning => "warning",
        };
        format!("{severity}: {}", finding.kind.title())
    };
    let titles: Vec<String> =
        cell.iter().flat_map(|it| &it.findings).filter(of_run).map(title).collect();
    titles.join("; ")
}

/// The commands of the first run of each subject in each cell.
fn commands(runs: &[RunRecord]) -> Markup {
    let mut first: Vec<&RunRecord> = Vec::new();
    for run in runs {
        let same = |it: &&RunRecord| it.cell == run.cell && it.subject == run.subject;
        if !first.iter().any(same) {
            first.push(run);
        }
    }
    html! {
        @for run in first {
            "# run " (run.index) ", " (run.cell) ", " (run.subject) "\n"
            (words::quoted(&run.server_command)) "\n"
            @if let Some(config) = &run.server_config { "# with\n" (config) }
            (words::quoted(&run.client_command)) "\n"
        }
    }
}

fn run_rows(runs: &[RunRecord]) -> Vec<Vec<String>> {
    const SHOWN: [(&str, Metric); 4] = [
        ("server CPU ns", Metric::ServerCpuNs),
        ("both CPUs ns", Metric::BothCpusNs),
        ("per second", Metric::RequestsPerS),
        ("p99 us", Metric::LatencyUsP99),
    ];
    let titles = ["run", "cell", "block", "subject"].into_iter().chain(SHOWN.map(|it| it.0));
    let mut rows = vec![titles.map(str::to_owned).collect::<Vec<_>>()];
    for run in runs {
        let figures = figures_of(run);
        let index = run.index.to_string();
        let head = [index, run.cell.to_string(), run.block.to_string(), run.subject.clone()];
        let value = |(_, metric): (_, Metric)| {
            shown(figures.as_ref().and_then(|it| it.get(metric)), metric.unit())
        };
        rows.push(head.into_iter().chain(SHOWN.map(value)).collect());
    }
    rows
}
