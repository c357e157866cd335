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
pub(crate) use page::page;
pub use text::{lines_of, wrapped};
pub(crate) use text::{render, render_markdown};

/// The first page: at most 30 lines of 80 columns, the answer last. `directory` is where the bundle is.
pub fn first_page(bundle: &Bundle, directory: &str) -> String {
    page(bundle, directory).join("\n") + "\n"
}

/// Every table, and the first page at the end, where the eye is.
pub fn full(bundle: &Bundle, directory: &str) -> String {
    let mut text = String::new();
    document(bundle).iter().for_each(|it| render(it, &mut text));
    text + "\n" + &first_page(bundle, directory)
}

/// The report as Markdown.
pub fn markdown(bundle: &Bundle) -> String {
    let (name, page) = (&bundle.experiment.name, first_page(bundle, "."));
    let mut text = format!("# {name}\n\n```text\n{page}```\n");
    document(bundle).iter().for_each(|it| render_markdown(it, &mut text));
    text
}
