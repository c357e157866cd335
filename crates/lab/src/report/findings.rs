//! What a reader of the verdicts has to know, with advice: the warnings of the bundle and the
//! findings of all cells, each said once.

use super::model::{Item, Tone};
use super::warnings::{self, item};
use crate::audit::{Finding, Kind, Severity};
use crate::result::Bundle;
use crate::summary::Summary;

/// A finding, with the number of its cell.
type Found<'a> = (usize, &'a Finding);

/// Findings that the bundle has warnings about as well.
const TOLD_AS_WARNINGS: [Kind; 2] = [Kind::UnequalAdmission, Kind::UnverifiedPayload];

/// All findings, the most severe first.
pub(super) fn gathered(bundle: &Bundle, summary: &Summary) -> Vec<Item> {
    let is_void = |it: &Item| it.tone == Tone::Finding(Severity::Void);
    let (void, others): (Vec<_>, Vec<_>) = found(summary).into_iter().partition(is_void);
    void.into_iter().chain(warnings::told(bundle)).chain(others).collect()
}

fn found(summary: &Summary) -> Vec<Item> {
    let mut kinds: Vec<((Severity, Kind), Vec<Found<'_>>)> = Vec::new();
    for (cell, found) in summary.cells.iter().enumerate() {
        let is_new = |finding: &&Finding| {
            finding.severity == Severity::Void || !TOLD_AS_WARNINGS.contains(&finding.kind)
        };
        for finding in found.findings.iter().filter(is_new) {
            let key = (finding.severity, finding.kind);
            match kinds.iter_mut().find(|(known, _)| *known == key) {
                Some((_, list)) => list.push((cell, finding)),
                None => kinds.push((key, vec![(cell, finding)])),
            }
        }
    }
    kinds.sort_by_key(|((severity, kind), _)| (std::cmp::Reverse(*severity), *kind));
    let warning = |((severity, kind), list): &((Severity, Kind), Vec<Found<'_>>)| {
        item(*severity, kind.title(), &what(summary, *severity, list), kind.advice())
    };
    kinds.iter().map(warning).collect()
}

fn what(summary: &Summary, severity: Severity, list: &[Found<'_>]) -> String {
    let mut cells: Vec<usize> = list.iter().map(|(cell, _)| *cell).collect();
    cells.dedup();
    let mut subjects: Vec<&str> = list.iter().map(|(_, it)| it.subject.as_str()).collect();
    subjects.sort_unstable();
    subjects.dedup();
    // Noise is about the machine, not about the subject that was running.
    let of = match severity {
        Severity::Noise => String::new(),
        Severity::Void | Severity::Warning => format!(" of {}", subjects.join(", ")),
    };
    let Some((cell, first)) = list.first() else { return String::new() };
    let place = match cells.len() {
        1 => summary.cells.get(*cell).map_or(String::new(), |it| it.cell.to_string()),
        several => format!("{several} of {} cells", summary.cells.len()),
    };
    let mut runs: Vec<Option<usize>> = list.iter().map(|(_, it)| it.run).collect();
    runs.dedup();
    match runs.len() {
        1 => format!("one run{of}, in {place}: {}", first.what),
        runs => format!("{runs} runs{of}, in {place}; the first: {}", first.what),
    }
}
