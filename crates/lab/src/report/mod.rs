//! The summary for people: one document in three renderings, whose first page is what the terminal prints.

mod answer;
mod chart;
mod document;
mod html;
mod page;
mod published;
mod text;

use std::io::IsTerminal;

use crate::result::Bundle;

pub(crate) use document::{Block, change, document};
pub(crate) use html::html;
pub(crate) use page::{WIDTH, page};
pub(crate) use text::{align, render_markdown, wrapped};

/// How text is painted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// For a file or a pipe.
    Plain,
    /// With the colours of a terminal.
    Colour,
}

impl Style {
    /// What suits standard output; `NO_COLOR` is respected.
    pub fn for_stdout() -> Style {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if wanted && std::io::stdout().is_terminal() { Style::Colour } else { Style::Plain }
    }

    /// The text in a colour or weight of ECMA-48.
    pub fn paint(self, code: &str, text: &str) -> String {
        match self {
            Style::Plain => text.to_owned(),
            Style::Colour => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

/// The first page: at most 30 lines of 80 columns, the answer last. `directory` is where the bundle is.
pub fn first_page(bundle: &Bundle, directory: &str, style: Style) -> String {
    let mut text = String::new();
    for line in page(bundle, directory) {
        let is_answer = line.starts_with("ANSWER") || line.starts_with("       ");
        text.push_str(&if is_answer { style.paint("1", &line) } else { line });
        text.push('\n');
    }
    text
}

/// Every table, and the first page at the end, where the eye is.
pub fn full(bundle: &Bundle, directory: &str, style: Style) -> String {
    let mut text = String::new();
    for block in document(bundle) {
        text::render(&block, style, &mut text);
    }
    text.push('\n');
    text + &first_page(bundle, directory, style)
}

/// The report as Markdown.
pub fn markdown(bundle: &Bundle) -> String {
    let mut text = format!("# {}\n\n```text\n", bundle.experiment.name);
    for line in page(bundle, ".") {
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str("```\n");
    for block in document(bundle) {
        render_markdown(&block, &mut text);
    }
    text
}
