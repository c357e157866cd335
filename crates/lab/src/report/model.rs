//! What a report consists of, however it is laid out.

use super::outcome::Outcome;
use crate::audit::Severity;

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// What a terminal shows.
    Short,
    Full,
}

pub(super) struct Document {
    pub(super) title: String,
    pub(super) about: String,
    pub(super) sections: Vec<Section>,
}

/// Parts that belong together.
pub(super) struct Section {
    /// How deep it is, from 2, and its words.
    pub(super) heading: Option<(usize, String)>,
    pub(super) parts: Vec<Part>,
}

pub(super) enum Part {
    Text(Tone, String),
    Items(Vec<Item>),
    Rows(Rows),
    /// As a shell takes it.
    Code(String),
    /// Space between two tables.
    Break,
}

pub(super) struct Item {
    pub(super) tone: Tone,
    /// What it is about, in a word or two.
    pub(super) mark: String,
    pub(super) text: String,
}

/// A table.
pub(super) struct Rows {
    /// What it is, for those who do not see it.
    pub(super) label: String,
    /// Rows of titles; of two, the second has the units. A table of facts has none.
    pub(super) head: usize,
    pub(super) rows: Vec<Vec<String>>,
}

/// What a text is, which is shown by a colour or a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    /// How to read something.
    Soft,
    Strong,
    /// What a reader must not miss.
    Note,
    Verdict(Outcome),
    Finding(Severity),
}

impl Part {
    pub(super) fn plain(text: impl Into<String>) -> Part {
        Part::Text(Tone::Plain, text.into())
    }

    /// A table with one row of titles.
    pub(super) fn table(label: &str, rows: Vec<Vec<String>>) -> Part {
        Part::Rows(Rows { label: label.to_owned(), head: 1, rows })
    }

    pub(super) fn items(items: impl Iterator<Item = Item>) -> Part {
        Part::Items(items.collect())
    }

    fn is_empty(&self) -> bool {
        match self {
            Part::Text(_, text) | Part::Code(text) => text.is_empty(),
            Part::Items(items) => items.is_empty(),
            Part::Rows(Rows { rows, head, .. }) => rows.len() <= *head,
            Part::Break => false,
        }
    }
}

impl Section {
    pub(super) fn new(heading: Option<(usize, &str)>, parts: Vec<Part>) -> Section {
        let heading = heading.map(|(level, words)| (level, words.to_owned()));
        Section { heading, parts: parts.into_iter().filter(|part| !part.is_empty()).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Break))
    }
}

pub(super) fn item(tone: Tone, text: String) -> Item {
    Item { tone, mark: String::new(), text }
}

/// Tables with space between them.
pub(super) fn apart(label: &str, tables: impl IntoIterator<Item = Vec<Vec<String>>>) -> Vec<Part> {
    let mut parts = Vec::new();
    for rows in tables.into_iter().filter(|rows| rows.len() > 1) {
        if !parts.is_empty() {
            parts.push(Part::Break);
        }
        parts.push(Part::table(label, rows));
    }
    parts
}
