//! The summary for people: a table for the terminal, Markdown, and one HTML file.
//!
//! What they say is one `document`; its words are in `words`.

mod accounting;
mod columns;
mod conditions;
mod document;
mod findings;
mod html;
mod markdown;
mod networks;
mod outcome;
mod plots;
mod prices;
mod profile;
mod published;
mod shape;
mod table;
mod text;
mod warnings;
mod words;

pub(crate) use html::{html, verdict as headline};
pub use markdown::markdown;
pub(crate) use markdown::{escape, write_table};
pub use prices::explain;
pub use table::{Style, table};
pub(crate) use text::align;
pub(crate) use words::short;
