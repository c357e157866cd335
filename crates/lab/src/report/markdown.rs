//! The report as Markdown.

use std::fmt::Write;

use super::outcome::{self, MARKS, overall};
use super::shape::Shape;
use super::{
    accounting, columns, conditions, findings, networks, prices, profile, published, table, text,
    words,
};
use crate::prices::Explanation;
use crate::result::Bundle;
use crate::summary::{CellSummary, Table};

/// The whole bundle as Markdown.
pub fn markdown(bundle: &Bundle) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = render(&mut text, bundle);
    text
}

fn render(out: &mut String, bundle: &Bundle) -> std::fmt::Result {
    let experiment = &bundle.experiment;
    let about = escape(&experiment.about);
    writeln!(out, "# {}\n\n{about}\n\n{}", experiment.name, words::setting(bundle))?;
    for host in conditions::hosts(bundle) {
        writeln!(out, "\n- {}", escape(&host))?;
    }
    for note in words::notes(bundle) {
        writeln!(out, "\n**{}**", escape(&note))?;
    }
    let Some(summary) = &bundle.summary else { return Ok(()) };
    for sentence in overall(bundle, summary) {
        writeln!(out, "\n**{}**", escape(&sentence))?;
    }
    for rows in networks::tables(summary) {
        writeln!(out)?;
        write_table(out, &rows)?;
    }
    pictures(out, &Shape::of(bundle, summary))?;
    let told = findings::gathered(bundle, summary);
    if !told.is_empty() {
        writeln!(out, "\n## Warnings\n")?;
    }
    for warning in &told {
        writeln!(out, "- {}", escape(&warning.sentence()))?;
    }
    for cell in &summary.cells {
        render_cell(out, cell)?;
    }
    render_prices(out, bundle)?;
    let published = published::tables(bundle, summary);
    if published.iter().any(|rows| !rows.is_empty()) {
        writeln!(out, "\n## {}", published::TITLE)?;
    }
    for rows in published.iter().filter(|rows| !rows.is_empty()) {
        writeln!(out)?;
        write_table(out, rows)?;
    }
    for sentence in published::remarks(bundle, summary).iter().chain(&published::conditions(bundle))
    {
        writeln!(out, "\n{}", escape(sentence))?;
    }
    let missing = published::not_reproduced(bundle);
    if !missing.is_empty() {
        writeln!(out, "\n### {}\n", published::NOT_REPRODUCED_TITLE)?;
    }
    for sentence in missing {
        writeln!(out, "- {}", escape(sentence))?;
    }
    render_profile(out, bundle)?;
    writeln!(out, "\n{}", words::legend(bundle))?;
    writeln!(out, "\n## Conditions\n\n| | |\n|---|---|")?;
    for (name, value) in conditions::conditions(bundle) {
        writeln!(out, "| {} | {} |", escape(&name), escape(&value))?;
    }
    writeln!(out, "\n## To repeat it\n\n```\n{}\n```", words::repeat(bundle))?;
    for program in &bundle.programs {
        let hash = program.sha256.as_deref().unwrap_or("could not be read");
        let host = program.host.as_ref().map_or(String::new(), |host| format!(" on {host}"));
        writeln!(out, "\n- `{}`{host}: SHA-256 `{hash}`", program.path)?;
    }
    Ok(())
}

fn render_prices(out: &mut String, bundle: &Bundle) -> std::fmt::Result {
    let Some(explanation) = Explanation::of(bundle) else { return Ok(()) };
    writeln!(out, "\n## {}", prices::TITLE)?;
    for sentence in prices::sentences(bundle, &explanation) {
        writeln!(out, "\n{}", escape(&sentence))?;
    }
    for rows in [prices::prices(&explanation)].iter().chain(&prices::tables(&explanation)) {
        writeln!(out)?;
        write_table(out, rows)?;
    }
    writeln!(out, "\n{}", prices::NOTE)
}

/// Maps, changes and knees.
fn pictures(out: &mut String, shape: &Shape<'_>) -> std::fmt::Result {
    for map in &shape.maps {
        writeln!(out, "\n### {}\n", escape(&text::map_title(map)))?;
        write_table(out, &text::map(map))?;
    }
    for ablation in &shape.ablations {
        writeln!(out, "\n### {}\n", escape(&text::ablation_title(ablation)))?;
        write_table(out, &text::ablation(ablation))?;
    }
    if !shape.maps.is_empty() || !shape.ablations.is_empty() {
        writeln!(out, "\n{MARKS}.")?;
    }
    for curves in shape.curves.iter().filter(|it| !it.knees.is_empty()) {
        writeln!(out)?;
        for knee in &curves.knees {
            writeln!(out, "- {}: {}", escape(&curves.common), escape(&outcome::knee(knee)))?;
        }
    }
    Ok(())
}

fn render_cell(out: &mut String, cell: &CellSummary) -> std::fmt::Result {
    writeln!(out, "\n## {}\n", cell.cell)?;
    for comparison in &cell.comparisons {
        writeln!(out, "**{}**\n", escape(&words::headline(cell, comparison)))?;
    }
    write_table(out, &one_head(columns::figures(cell)))?;
    for rows in [
        table::ratios(cell),
        one_head(columns::counts(cell)),
        columns::simple(cell, Table::Times, "times"),
        columns::simple(cell, Table::Datagrams, "datagrams"),
        columns::calls(cell),
    ] {
        if !rows.is_empty() {
            writeln!(out)?;
            write_table(out, &rows)?;
        }
    }
    for (rows, note) in accounting::tables(cell) {
        writeln!(out)?;
        write_table(out, &rows)?;
        writeln!(out, "\n{note}")?;
    }
    for line in words::placements(cell) {
        writeln!(out, "\n- {}", escape(&line))?;
    }
    for note in cell.comparisons.iter().filter_map(words::throughput_note) {
        writeln!(out, "\n- **note**: {}", escape(&note))?;
    }
    for told in words::told(cell) {
        let severity = words::severity(told.first.severity);
        writeln!(out, "\n- **{severity}**: {}", escape(&told.sentence()))?;
    }
    Ok(())
}

/// Markdown has one head row: title and unit share it.
fn one_head(mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    if let [titles, units, ..] = &mut rows[..] {
        for (title, unit) in titles.iter_mut().zip(units).filter(|(_, unit)| !unit.is_empty()) {
            *title = format!("{title}, {unit}");
        }
        rows.remove(1);
    }
    rows
}

fn render_profile(out: &mut String, bundle: &Bundle) -> std::fmt::Result {
    let (problems, tables) = (profile::problems(bundle), profile::tables(bundle));
    if bundle.profile.is_some() {
        writeln!(out, "\n## {}\n\n{}", profile::TITLE, profile::NOTE)?;
    }
    for problem in problems {
        writeln!(out, "\n**{}**", escape(problem))?;
    }
    for rows in tables {
        writeln!(out)?;
        write_table(out, &rows)?;
    }
    Ok(())
}

pub(crate) fn write_table(out: &mut String, rows: &[Vec<String>]) -> std::fmt::Result {
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| escape(cell)).collect();
        writeln!(out, "| {} |", cells.join(" | "))?;
        if number == 0 {
            writeln!(out, "|---|{}", "---:|".repeat(row.len() - 1))?;
        }
    }
    Ok(())
}

/// Keeps text from being taken for Markdown or HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => escaped.push(' '),
            '|' | '<' | '>' | '`' | '*' | '_' | '\\' => escaped.extend(['\\', c]),
            _ => escaped.push(c),
        }
    }
    escaped
}
