//! The summary for people: a table for the terminal, Markdown, and one HTML file.
//!
//! What they say is one `document`; its sentences are in `words` and `verdicts`, its numbers in `numbers`.

mod accounting;
mod columns;
mod conditions;
mod document;
mod findings;
mod html;
mod markdown;
mod model;
mod networks;
mod numbers;
mod outcome;
mod plots;
mod prices;
mod published;
mod scaling;
mod shape;
mod table;
mod text;
mod verdicts;
mod warnings;
mod words;

pub(crate) use html::html;
pub use markdown::markdown;
pub(crate) use markdown::{escape, write_table};
pub(crate) use numbers::short;
pub use prices::explain;
pub use table::{Style, table};
pub(crate) use text::align;
