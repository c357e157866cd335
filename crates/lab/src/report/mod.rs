//! The summary for people: one document in three renderings, whose first page is what the terminal prints.

mod answer;
mod chart;
mod document;
mod html;
mod page;
mod published;
mod text;

use crate::result::Bundle;

pub(crate) use document::{Element, change_of, document};
pub(crate) use html::html;
pub use page::first_page;
pub use text::{lines_of, wrapped};
pub(crate) use text::{plain, render_markdown};

/// Every table, and the first page at the end, where the eye is.
pub fn full(bundle: &Bundle, directory: &str) -> String {
    plain(&document(bundle)) + "\n" + &first_page(bundle, directory)
}

/// The report as Markdown.
pub fn markdown(bundle: &Bundle) -> String {
    let (name, page) = (&bundle.experiment.name, first_page(bundle, "."));
    format!("# {name}\n\n```text\n{page}```\n") + &render_markdown(&document(bundle))
}
