//! The report for the terminal.

use std::fmt::{Result, Write};
use std::io::IsTerminal;

use super::document::document;
use super::model::{Detail, Item, Part, Rows, Section, Tone};
use super::outcome::Outcome;
use super::text;
use crate::audit::Severity;
use crate::result::Bundle;

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
    let document = document(bundle, Detail::Short);
    let title = style.paint(BOLD, &document.title);
    let text = format!("{title}  {}\n", document.about);
    let mut page = Page { text, style };
    // Writing to a String cannot fail.
    let _ = page.sections(&document.sections);
    page.text
}

/// These sections alone.
pub(super) fn sections(sections: &[Section], style: Style) -> String {
    let mut page = Page { text: String::new(), style };
    let _ = page.sections(sections);
    page.text
}

/// The text so far.
struct Page {
    text: String,
    style: Style,
}

impl Page {
    fn sections(&mut self, sections: &[Section]) -> Result {
        for (number, section) in sections.iter().enumerate() {
            if number > 0 {
                writeln!(self.text)?;
            }
            if let Some((level, words)) = &section.heading {
                self.wrapped(if *level == 2 { BOLD } else { "" }, words, 0)?;
            }
            let indent = if section.heading.is_some() { 2 } else { 0 };
            section.parts.iter().try_for_each(|part| self.part(part, indent))?;
        }
        Ok(())
    }

    fn part(&mut self, part: &Part, indent: usize) -> Result {
        match part {
            Part::Text(tone, text) => self.wrapped(code(*tone), text, indent),
            Part::Items(items) => items.iter().try_for_each(|Item { tone, mark, text }| {
                let mark = if mark.is_empty() { String::new() } else { format!("{mark}: ") };
                self.wrapped(code(*tone), &format!("{mark}{text}"), indent)
            }),
            Part::Rows(Rows { rows, .. }) => self.rows(rows, indent),
            Part::Code(text) => writeln!(self.text, "{text}"),
            Part::Break => writeln!(self.text),
        }
    }

    /// Text in lines that fit.
    fn wrapped(&mut self, code: &str, text: &str, indent: usize) -> Result {
        for line in text::wrapped(text, indent) {
            let line = if code.is_empty() { line } else { self.style.paint(code, &line) };
            writeln!(self.text, "{line}")?;
        }
        Ok(())
    }

    /// A table. Marks in it have colours.
    fn rows(&mut self, rows: &[Vec<String>], indent: usize) -> Result {
        for line in text::lines(rows, text::WIDTH - indent) {
            let line = [("▲", GREEN), ("▼", YELLOW), ("void", RED)]
                .iter()
                .fold(line, |line, (mark, code)| line.replace(mark, &self.style.paint(code, mark)));
            writeln!(self.text, "{}{line}", " ".repeat(indent))?;
        }
        Ok(())
    }
}

fn code(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain | Tone::Soft => "",
        Tone::Strong => BOLD,
        Tone::Note => YELLOW,
        Tone::Finding(Severity::Void) => RED,
        Tone::Finding(_) => YELLOW,
        Tone::Verdict(outcome) => match outcome {
            Outcome::Ahead(_) | Outcome::KeepsRate(_) => GREEN,
            Outcome::Same | Outcome::Equivalent => BOLD,
            Outcome::Few | Outcome::Behind | Outcome::Uncertain => YELLOW,
            Outcome::Void | Outcome::Impossible => RED,
        },
    }
}
