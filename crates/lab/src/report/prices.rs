//! What the counts explain of the differences, at the measured prices: one table.

use super::model::{Part, Section, Tone, apart};
use super::numbers::{NOTHING, whole};
use super::table::{self, Style};
use crate::error::LabError;
use crate::prices::{Explained, TERMS, explain as explained};
use crate::result::Bundle;

const TITLE: &str = "What explains the differences";

/// How to read the table.
const NOTE: &str = "In ns of the server's CPU per request or packet: subject less baseline, so that less \
    than 0 is a saving. User time is what the kernel sampled; every other part is a count times its price, as \
    measured before the first run (`prices` in bundle.json).";

/// The section, if anything is explained.
pub(super) fn section(bundle: &Bundle) -> Option<Section> {
    let all = explained(bundle);
    if all.is_empty() {
        return None;
    }
    let mut titles = ["subject : baseline, cell", "difference", "user time"].map(str::to_owned).to_vec();
    titles.extend(TERMS.iter().map(|term| term.title.to_owned()));
    titles.push("unexplained".to_owned());
    let rows = std::iter::once(titles).chain(all.iter().map(row)).collect();
    let mut parts = apart(TITLE, std::iter::once(rows));
    parts.push(Part::Text(Tone::Soft, NOTE.to_owned()));
    Some(Section::new(Some((2, TITLE)), parts))
}

fn row(it: &Explained<'_>) -> Vec<String> {
    let (subject, baseline) = (&it.comparison.subject, &it.comparison.baseline);
    let mut row = vec![format!("{subject} : {baseline}, {}", it.cell.cell)];
    row.extend([signed(it.difference_ns), signed(it.user_ns)]);
    row.extend(it.parts_ns.iter().map(|part| part.map_or(NOTHING.to_owned(), signed)));
    row.push(signed(it.unexplained_ns));
    row
}

/// Nanoseconds with their sign.
fn signed(ns: f64) -> String {
    match ns.round() {
        0.0 => "0".to_owned(),
        rounded if rounded > 0.0 => format!("+{}", whole(rounded)),
        rounded => format!("-{}", whole(rounded.abs())),
    }
}

/// The explanation of a bundle for the terminal.
///
/// # Errors
/// When the bundle has no prices.
pub fn explain(bundle: &Bundle, style: Style) -> Result<String, LabError> {
    let section = section(bundle).ok_or_else(|| LabError::BadExperiment {
        place: bundle.experiment.name.clone(),
        problem: "this bundle has no prices, or nothing to compare".to_owned(),
        expected: "a bundle that was measured without --no-prices".to_owned(),
    })?;
    Ok(table::sections(&[section], style))
}
