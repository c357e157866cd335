//! The report for the terminal.

use std::fmt::Write;
use std::io::IsTerminal;

use super::{columns, profile, published, warnings, words};
use crate::audit::Severity;
use crate::result::Bundle;
use crate::summary::{CellSummary, Verdict};

/// How the terminal's table looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Use colours.
    pub colour: bool,
}

impl Style {
    /// Colour if standard output is a terminal and `NO_COLOR` is not set.
    pub fn for_stdout() -> Style {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Style { colour: std::io::stdout().is_terminal() && !unwanted && !dumb }
    }

    pub(crate) fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

const BOLD: &str = "1";
const GREEN: &str = "1;32";
const YELLOW: &str = "33";
const RED: &str = "1;31";

/// The whole bundle as text: a verdict and a table of figures for each cell.
pub fn table(bundle: &Bundle, style: Style) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = render(&mut text, bundle, style);
    text
}

fn render(out: &mut String, bundle: &Bundle, style: Style) -> std::fmt::Result {
    let experiment = &bundle.experiment;
    writeln!(out, "{}  {}", style.paint(BOLD, &experiment.name), experiment.about)?;
    writeln!(out, "{}", words::setting(bundle))?;
    for note in words::notes(bundle) {
        writeln!(out, "{}", style.paint(YELLOW, &note))?;
    }
    let Some(summary) = &bundle.summary else { return Ok(()) };
    if let Some(counts) = &summary.aa {
        writeln!(out, "{}", style.paint(BOLD, &warnings::aa(counts)))?;
    }
    for cell in &summary.cells {
        writeln!(out)?;
        render_cell(out, cell, style)?;
    }
    for rows in published::tables(bundle, summary).iter().filter(|rows| !rows.is_empty()) {
        writeln!(out)?;
        for line in align(rows) {
            writeln!(out, "{line}")?;
        }
    }
    for sentence in published::remarks(bundle, summary).iter().chain(&published::conditions(bundle))
    {
        writeln!(out, "{sentence}")?;
    }
    let missing = published::not_reproduced(bundle);
    if !missing.is_empty() {
        writeln!(out, "{}:", published::NOT_REPRODUCED_TITLE)?;
    }
    for sentence in missing {
        writeln!(out, "- {sentence}")?;
    }
    for problem in profile::problems(bundle) {
        writeln!(out, "\n{}", style.paint(YELLOW, &format!("profile: {problem}")))?;
    }
    for rows in profile::tables(bundle) {
        writeln!(out)?;
        for line in align(&rows) {
            writeln!(out, "{line}")?;
        }
    }
    let told = warnings::lines(bundle);
    if !told.is_empty() {
        writeln!(out, "\n{}", style.paint(BOLD, "Warnings"))?;
    }
    for warning in told {
        writeln!(out, "  {}", style.paint(YELLOW, &warning))?;
    }
    if !summary.cells.is_empty() {
        writeln!(out, "\n{}", words::legend(bundle))?;
    }
    Ok(())
}

fn render_cell(out: &mut String, cell: &CellSummary, style: Style) -> std::fmt::Result {
    writeln!(out, "{}", style.paint(BOLD, &cell.cell.to_string()))?;
    for comparison in &cell.comparisons {
        let code = match comparison.verdict {
            Verdict::Ahead { .. } | Verdict::OnlyOneKeepsUp { .. } => GREEN,
            Verdict::NoDifference { .. } | Verdict::Alike { .. } => BOLD,
            Verdict::TooFewPairs { .. }
            | Verdict::TooFewForSoMany { .. }
            | Verdict::NotAfterCorrection { .. }
            | Verdict::UnequalWork { .. } => YELLOW,
            Verdict::Void { .. } | Verdict::FalseDifference { .. } => RED,
        };
        writeln!(out, "  {}", style.paint(code, &words::headline(cell, comparison)))?;
    }
    for line in align(&figures(cell)) {
        writeln!(out, "  {line}")?;
    }
    let ratios = ratios(cell);
    if ratios.len() > 1 {
        for line in align(&ratios) {
            writeln!(out, "  {line}")?;
        }
    }
    for line in align(&columns::calls(cell)) {
        writeln!(out, "  {line}")?;
    }
    for line in words::placements(cell) {
        writeln!(out, "  {line}")?;
    }
    for note in cell.comparisons.iter().filter_map(words::throughput_note) {
        writeln!(out, "  {}", style.paint(YELLOW, &note))?;
    }
    for told in words::told(cell) {
        let code = if told.first.severity == Severity::Void { RED } else { YELLOW };
        let line = format!("{}: {}", words::severity(told.first.severity), told.sentence());
        writeln!(out, "  {}", style.paint(code, &line))?;
    }
    Ok(())
}

/// Title and unit rows, then one row per subject.
pub(super) fn figures(cell: &CellSummary) -> Vec<Vec<String>> {
    let columns = columns::columns(cell.cell.protocol());
    let column = |pick: fn(&columns::Column) -> &'static str| {
        columns.iter().map(pick).map(str::to_owned).collect::<Vec<_>>()
    };
    let head = |first: &str, mut middle: Vec<String>, last: [&str; 2]| {
        middle.insert(0, first.to_owned());
        middle.extend(last.map(str::to_owned));
        middle
    };
    let mut rows = vec![
        head("", column(|(title, _, _)| title), ["runs", "bottleneck"]),
        head("", column(|(_, unit, _)| unit), ["counted", ""]),
    ];
    for subject in &cell.subjects {
        let value = |(_, _, value): &columns::Column| {
            subject.figures.as_ref().map_or(words::NOTHING.to_owned(), value)
        };
        let last = [&words::counted(subject), words::bottleneck(subject.bottleneck)];
        rows.push(head(&subject.name, columns.iter().map(value).collect(), last));
    }
    rows
}

/// A title row, then one row of ratios per comparison.
pub(super) fn ratios(cell: &CellSummary) -> Vec<Vec<String>> {
    let Some(first) = cell.comparisons.first() else { return Vec::new() };
    let mut rows = vec![vec!["times better".to_owned()]];
    let protocol = cell.cell.protocol();
    let names = columns::ratios(first, protocol).into_iter().map(|ratio| ratio.name.to_owned());
    rows[0].extend(names);
    for comparison in &cell.comparisons {
        let mut row = vec![format!("{} : {}", comparison.subject, comparison.baseline)];
        row.extend(columns::ratios(comparison, protocol).iter().map(columns::ratio));
        rows.push(row);
    }
    rows
}

/// Pads the columns: the first to the left, the others to the right.
pub(crate) fn align(rows: &[Vec<String>]) -> Vec<String> {
    let length = |text: &String| text.chars().count();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let pad = |(column, text): (usize, &String)| {
        let blanks = " ".repeat(widths[column] - length(text));
        if column == 0 { format!("{text}{blanks}") } else { format!("  {blanks}{text}") }
    };
    let line = |row: &Vec<String>| row.iter().enumerate().map(pad).collect::<String>();
    rows.iter().map(|row| line(row).trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [["", "µs"], ["a", "1,000"], ["bcd", "–"]];
        let rows: Vec<Vec<String>> = rows.map(|row| row.map(str::to_owned).to_vec()).to_vec();
        assert_eq!(align(&rows), ["        µs", "a    1,000", "bcd      –"]);
    }
}
