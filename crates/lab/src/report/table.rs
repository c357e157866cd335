//! The report for the terminal.

use std::fmt::{Result, Write};
use std::io::IsTerminal;

use super::outcome::{self, MARKS, Outcome, judged, overall};
use super::shape::Shape;
use super::{columns, conditions, findings, networks, prices, profile, published, text, words};
use crate::audit::Severity;
use crate::prices::Explanation;
use crate::result::Bundle;
use crate::summary::{CellSummary, Summary};

/// From this many cells, or comparisons, on the terminal shows verdicts only; figures of each cell
/// are in the other reports.
const COMPACT_FROM: usize = 48;

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

/// The whole bundle as text: the verdicts, their maps, and a table of figures for each cell.
pub fn table(bundle: &Bundle, style: Style) -> String {
    let mut page = Page { text: String::new(), style };
    // Writing to a String cannot fail.
    let _ = page.bundle(bundle);
    page.text
}

/// The text so far.
struct Page {
    text: String,
    style: Style,
}

impl Page {
    fn bundle(&mut self, bundle: &Bundle) -> Result {
        let experiment = &bundle.experiment;
        let title = self.style.paint(BOLD, &experiment.name);
        writeln!(self.text, "{title}  {}", experiment.about)?;
        self.wrapped("", &words::setting(bundle), 0)?;
        for host in conditions::hosts(bundle) {
            self.wrapped("", &host, 0)?;
        }
        for note in words::notes(bundle) {
            self.wrapped(YELLOW, &note, 0)?;
        }
        let Some(summary) = &bundle.summary else { return Ok(()) };
        let compact = summary.cells.len().max(judged(summary).count()) >= COMPACT_FROM;
        writeln!(self.text)?;
        for sentence in overall(bundle, summary) {
            self.wrapped(BOLD, &sentence, 0)?;
        }
        let shape = Shape::of(bundle, summary);
        let networks = networks::tables(summary);
        for rows in &networks {
            writeln!(self.text)?;
            self.map(rows)?;
        }
        if !networks.is_empty() && shape.maps.is_empty() && shape.ablations.is_empty() {
            self.wrapped("", MARKS, 2)?;
        }
        self.pictures(&shape)?;
        self.knees(&shape)?;
        if compact {
            self.compact(summary, &shape)?;
        } else {
            for cell in &summary.cells {
                writeln!(self.text)?;
                self.cell(cell)?;
            }
        }
        self.prices(bundle)?;
        self.published(bundle, summary)?;
        self.warnings(bundle, summary)?;
        if !summary.cells.is_empty() {
            writeln!(self.text)?;
            self.wrapped("", &words::legend(bundle), 0)?;
        }
        Ok(())
    }

    /// Text in lines that fit.
    fn wrapped(&mut self, code: &str, text: &str, indent: usize) -> Result {
        for line in text::wrapped(text, indent) {
            let line = if code.is_empty() { line } else { self.style.paint(code, &line) };
            writeln!(self.text, "{line}")?;
        }
        Ok(())
    }

    fn rows(&mut self, rows: &[Vec<String>], indent: usize) -> Result {
        for line in text::lines(rows, text::WIDTH - indent) {
            writeln!(self.text, "{}{line}", " ".repeat(indent))?;
        }
        Ok(())
    }

    fn pictures(&mut self, shape: &Shape<'_>) -> Result {
        for map in &shape.maps {
            writeln!(self.text)?;
            self.wrapped("", &text::map_title(map), 0)?;
            self.map(&text::map(map))?;
        }
        for ablation in &shape.ablations {
            writeln!(self.text)?;
            self.wrapped("", &text::ablation_title(ablation), 0)?;
            self.map(&text::ablation(ablation))?;
        }
        if !shape.maps.is_empty() || !shape.ablations.is_empty() {
            self.wrapped("", MARKS, 2)?;
        }
        Ok(())
    }

    /// A table with marks, which have colours.
    fn map(&mut self, rows: &[Vec<String>]) -> Result {
        for line in text::lines(rows, text::WIDTH - 2) {
            let line = [("▲", GREEN), ("▼", YELLOW), ("void", RED)]
                .iter()
                .fold(line, |line, (mark, code)| line.replace(mark, &self.style.paint(code, mark)));
            writeln!(self.text, "  {line}")?;
        }
        Ok(())
    }

    fn knees(&mut self, shape: &Shape<'_>) -> Result {
        for curves in shape.curves.iter().filter(|it| !it.knees.is_empty()) {
            writeln!(self.text)?;
            for knee in &curves.knees {
                self.wrapped("", &format!("{}: {}", curves.common, outcome::knee(knee)), 0)?;
            }
        }
        Ok(())
    }

    /// The verdicts that no map shows.
    fn compact(&mut self, summary: &Summary, shape: &Shape<'_>) -> Result {
        let unseen: Vec<_> = judged(summary).filter(|(_, it)| !shape.shows(it)).collect();
        if !unseen.is_empty() {
            writeln!(self.text)?;
        }
        for (cell, comparison) in unseen {
            let verdict = format!("{}: {}", cell.cell, words::headline(cell, comparison));
            self.wrapped(code(Outcome::of(comparison)), &verdict, 0)?;
        }
        writeln!(self.text)?;
        let cells = summary.cells.len();
        writeln!(self.text, "The figures of the {cells} cells are in report.md and report.html.")
    }

    fn warnings(&mut self, bundle: &Bundle, summary: &Summary) -> Result {
        let told = findings::gathered(bundle, summary);
        if !told.is_empty() {
            writeln!(self.text, "\n{}", self.style.paint(BOLD, "Warnings"))?;
        }
        for warning in told {
            self.wrapped(severity(warning.severity), &warning.sentence(), 2)?;
        }
        Ok(())
    }

    fn cell(&mut self, cell: &CellSummary) -> Result {
        writeln!(self.text, "{}", self.style.paint(BOLD, &cell.cell.to_string()))?;
        for comparison in &cell.comparisons {
            let headline = words::headline(cell, comparison);
            self.wrapped(code(Outcome::of(comparison)), &headline, 2)?;
        }
        self.rows(&columns::figures(cell), 2)?;
        let ratios = ratios(cell);
        if ratios.len() > 1 {
            self.rows(&ratios, 2)?;
        }
        self.rows(&columns::counts(cell), 2)?;
        self.rows(&columns::calls(cell), 2)?;
        for line in words::placements(cell) {
            self.wrapped("", &line, 2)?;
        }
        for note in cell.comparisons.iter().filter_map(words::throughput_note) {
            self.wrapped(YELLOW, &note, 2)?;
        }
        Ok(())
    }

    /// What the prices explain; of many differences how well alone.
    fn prices(&mut self, bundle: &Bundle) -> Result {
        let Some(explanation) = Explanation::of(bundle) else { return Ok(()) };
        writeln!(self.text, "\n{}", self.style.paint(BOLD, prices::TITLE))?;
        if explanation.differences.len() < COMPACT_FROM {
            for rows in prices::tables(&explanation) {
                self.rows(&rows, 2)?;
            }
        }
        let sentences = prices::sentences(bundle, &explanation);
        sentences.iter().try_for_each(|sentence| self.wrapped("", sentence, 2))
    }

    fn published(&mut self, bundle: &Bundle, summary: &Summary) -> Result {
        for rows in published::tables(bundle, summary).iter().filter(|rows| !rows.is_empty()) {
            writeln!(self.text)?;
            self.rows(rows, 0)?;
        }
        let sentences = published::remarks(bundle, summary);
        for sentence in sentences.iter().chain(&published::conditions(bundle)) {
            self.wrapped("", sentence, 0)?;
        }
        let missing = published::not_reproduced(bundle);
        if !missing.is_empty() {
            writeln!(self.text, "{}:", published::NOT_REPRODUCED_TITLE)?;
        }
        for sentence in missing {
            self.wrapped("", &format!("- {sentence}"), 0)?;
        }
        for problem in profile::problems(bundle) {
            writeln!(self.text)?;
            self.wrapped(YELLOW, &format!("profile: {problem}"), 0)?;
        }
        for rows in profile::tables(bundle) {
            writeln!(self.text)?;
            self.rows(&rows, 0)?;
        }
        Ok(())
    }
}

fn code(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ahead(_) | Outcome::KeepsUp(_) => GREEN,
        Outcome::Same => BOLD,
        Outcome::Few | Outcome::Behind | Outcome::Uncertain => YELLOW,
        Outcome::Void | Outcome::Impossible => RED,
    }
}

fn severity(severity: Severity) -> &'static str {
    if severity == Severity::Void { RED } else { YELLOW }
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
