//! Warnings, and what many verdicts together mean, in sentences that all reports share.

use super::document::Item;
use super::findings::item;
use crate::audit::Severity;
use crate::experiment::{Correction, Experiment, MIN_PAIRS};
use crate::result::Bundle;
use crate::statistics::CONFIDENCE;
use crate::summary::{AaCounts, Warning};

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
    let Warning { kind, cell, what, advice, .. } = first;
    let cell = cell.map_or(String::new(), |cell| format!("{cell}: "));
    let often = match times {
        1 => String::new(),
        times => format!(" (and {} more of this kind in bundle.json)", times - 1),
    };
    item(Severity::Warning, kind.title(), &format!("{cell}{what}{often}"), advice)
}

/// What was done about the accidents of many verdicts.
pub(super) fn many_verdicts(experiment: &Experiment) -> &'static str {
    match experiment.correction {
        Correction::BenjaminiHochberg => {
            "All verdicts are judged together: of the differences that an experiment claims, at most \
             5 % are accidents on average (Benjamini and Hochberg)."
        }
        Correction::None => {
            "Where there is no difference, each verdict still has a chance of 5 % to claim one; the \
             more verdicts, the likelier that one of them does."
        }
    }
}

/// How the check of subjects with themselves came out.
pub(super) fn aa(counts: &AaCounts) -> String {
    let AaCounts { groups, false_verdicts, chance } = counts;
    if *groups == 0 {
        return format!(
            "subjects compared with themselves: fewer than {MIN_PAIRS} pairs, no check"
        );
    }
    let found = match false_verdicts {
        0 => "none shows a difference".to_owned(),
        count => format!(
            "{count} show a difference that cannot be (as many or more would by chance with a \
             probability of {:.0} %)",
            chance * 100.0
        ),
    };
    let outcome = if *chance > 1.0 - CONFIDENCE { "as it should be" } else { "too many" };
    format!(
        "subjects compared with themselves: of {groups} groups of {MIN_PAIRS} pairs {found}: {outcome}"
    )
}
