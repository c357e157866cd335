//! Warnings, and what many verdicts together mean, in sentences that all reports share.

use super::model::{Item, Tone};
use super::words;
use crate::audit::Severity;
use crate::result::Bundle;
use crate::statistics::CONFIDENCE;
use crate::statistics::MIN_PAIRS;
use crate::summary::AaCounts;
use crate::warnings::Warning;

/// One thing to know, wherever it was found; `what` is how often, and an example.
pub(super) fn item(severity: Severity, title: &str, what: &str, advice: &str) -> Item {
    let mark = match severity {
        Severity::Warning => title.to_owned(),
        grave => format!("{title} ({})", words::severity(grave)),
    };
    Item { tone: Tone::Finding(severity), mark, text: format!("{what}. Advice: {advice}.") }
}

/// The warnings of a bundle, those of one kind told once.
pub(super) fn told(bundle: &Bundle) -> Vec<Item> {
    let mut told: Vec<(&Warning, usize)> = Vec::new();
    for warning in &bundle.warnings {
        match told.iter_mut().find(|(first, _)| first.kind == warning.kind) {
            Some((_, times)) => *times += 1,
            None => told.push((warning, 1)),
        }
    }
    told.into_iter().map(|(first, times)| warning(first, times)).collect()
}

fn warning(first: &Warning, times: usize) -> Item {
    let Warning { kind, cell, what, .. } = first;
    let cell = cell.map_or(String::new(), |cell| format!("{cell}: "));
    let often = match times {
        1 => String::new(),
        times => format!(" (and {} more of this kind in bundle.json)", times - 1),
    };
    item(Severity::Warning, kind.title(), &format!("{cell}{what}{often}"), kind.advice())
}

/// What was done about false positives among many verdicts.
pub(super) fn many_verdicts() -> &'static str {
    "All verdicts are judged together: of the differences that an experiment claims, at most \
     5 % are false on average, and so of the equivalences (Benjamini and Hochberg)."
}

/// How the check of subjects with themselves came out.
pub(super) fn aa(counts: &AaCounts) -> String {
    let AaCounts { groups, false_verdicts, chance } = counts;
    if *groups == 0 {
        return format!(
            "A/A: fewer than {MIN_PAIRS} pairs of subjects compared with themselves, no check"
        );
    }
    let found = match false_verdicts {
        0 => "none shows a difference".to_owned(),
        count => format!(
            "{count} show a difference, which is a false positive (as many or more would by chance \
             with a probability of {:.0} %)",
            chance * 100.0
        ),
    };
    let outcome = if *chance > 1.0 - CONFIDENCE { "passed" } else { "failed" };
    format!(
        "A/A {outcome}: of {groups} groups of {MIN_PAIRS} pairs of subjects compared with themselves \
         {found}"
    )
}
