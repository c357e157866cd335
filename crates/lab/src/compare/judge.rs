//! What a gate says about a comparison.

use serde::{Deserialize, Serialize};

use super::changes::{Changes, FigureChange, SubjectChange, VerdictChange, can_change, percent};
use super::gate::{Condition, Gate, Limit, LimitSide};
use super::side::Side;
use crate::error::LabError;
use crate::experiment::Cell;
use crate::statistics::CONFIDENCE;

/// A gate and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GateResult {
    /// The gate, as it was understood.
    pub gate: String,
    /// The most severe result.
    pub outcome: GateOutcome,
    /// Everything it was judged by.
    pub judged: Vec<Judged>,
}

/// What came of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateOutcome {
    /// It is not breached.
    Held,
    /// It cannot be judged, so it is not known to hold.
    Unjudged,
    /// It is breached.
    Breached,
}

/// One thing that a gate was judged by.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged {
    /// The cell.
    pub cell: String,
    /// The subject; of a relative gate, with its baseline.
    pub subject: String,
    /// What came of it.
    pub outcome: GateOutcome,
    /// With figures, or why it cannot be judged.
    pub why: String,
}

/// Judges one gate.
///
/// # Errors
/// [`LabError::BadExperiment`] when it is about nothing that either bundle has.
pub(super) fn judge(
    gate: &Gate,
    changes: &Changes,
    a: &Side,
    b: &Side,
) -> Result<GateResult, LabError> {
    let mut judged = match gate.condition {
        Condition::VerdictChanged => {
            let matching = changes.verdicts.iter().filter(|it| gate.is_about(it.cell, &it.subject));
            matching.map(by_verdict).collect()
        }
        Condition::Change(limit) => by_figures(gate, &limit, changes),
    };
    // What only A has may be gone because it became worse; what only B has is new.
    let gone = missing(gate, (a, "A"), (b, "B"));
    if judged.is_empty() && gone.is_empty() {
        judged = missing(gate, (b, "B"), (a, "A"));
    }
    judged.extend(gone);
    let outcome = judged.iter().map(|it| it.outcome).max();
    let outcome = outcome.ok_or_else(|| nothing(gate, a, b))?;
    Ok(GateResult { gate: gate.to_string(), outcome, judged })
}

impl Gate {
    fn is_about(&self, cell: Cell, subject: &str) -> bool {
        self.subject.as_deref().is_none_or(|wanted| wanted == subject)
            && self.cell.as_deref().is_none_or(|wanted| is_named(cell, wanted))
    }
}

/// Whether a cell is called so, with its network or without.
fn is_named(cell: Cell, name: &str) -> bool {
    let full = cell.to_string();
    full == name || full.strip_suffix(&format!(" on {}", cell.net)) == Some(name)
}

fn by_figures(gate: &Gate, limit: &Limit, changes: &Changes) -> Vec<Judged> {
    let family = if limit.relative { &changes.relative } else { &changes.absolute };
    let matching: Vec<(&SubjectChange, &FigureChange)> = family
        .iter()
        .filter(|it| gate.is_about(it.cell, &it.subject))
        .filter_map(|it| Some((it, it.figures.iter().find(|of| of.figure == limit.metric)?)))
        .collect();
    // As many intervals as the gate is judged by hold together with the usual confidence.
    let confidence = 1.0 - (1.0 - CONFIDENCE) / matching.len().max(1) as f64;
    let judge = |(subject, figure): &(&SubjectChange, &FigureChange)| {
        let (outcome, why) = by_figure(limit, figure, confidence);
        let name = titled(&subject.subject, subject.baseline.as_deref());
        Judged { cell: subject.cell.to_string(), subject: name, outcome, why }
    };
    matching.iter().map(judge).collect()
}

fn by_figure(limit: &Limit, figure: &FigureChange, confidence: f64) -> (GateOutcome, String) {
    let Some(estimate) = &figure.estimate else {
        let why = figure.why_not.clone().unwrap_or_default();
        return (GateOutcome::Unjudged, format!("cannot be judged: {why}"));
    };
    let [low, high] = estimate.interval(confidence).map(percent);
    let (nearest, farthest) = match limit.side {
        LimitSide::Above => (low, high),
        LimitSide::Below => (high, low),
    };
    let is_beyond = |change: f64| match limit.side {
        LimitSide::Above => change > limit.percent,
        LimitSide::Below => change < limit.percent,
    };
    let (is_proven, is_possible) = (is_beyond(nearest), is_beyond(farthest));
    let is_breached = is_proven || limit.possibly && is_possible;
    let verdict = match (is_proven, is_possible) {
        (true, _) => "proven to be beyond the limit",
        (false, true) => "more than the limit is neither proven nor excluded",
        (false, false) => "more than the limit is excluded",
    };
    let outcome = if is_breached { GateOutcome::Breached } else { GateOutcome::Held };
    let change = percent(estimate.log);
    // To a hundredth, without zeros that say nothing.
    let level = (confidence * 1e4).round() / 100.0;
    (outcome, format!("{change:+.1} % [{low:+.1}, {high:+.1}] at {level} %: {verdict}"))
}

fn by_verdict(verdict: &VerdictChange) -> Judged {
    let say = |verdict: &Option<crate::summary::Verdict>| {
        verdict.as_ref().map_or("none".to_owned(), ToString::to_string)
    };
    let (outcome, why) = match (verdict.changed, &verdict.why_not) {
        (Some(true), _) => (
            GateOutcome::Breached,
            format!("`{}` in A, `{}` in B", say(&verdict.a), say(&verdict.b)),
        ),
        (Some(false), _) => (GateOutcome::Held, format!("`{}` in both", say(&verdict.b))),
        (None, why) => (
            GateOutcome::Unjudged,
            format!("cannot be judged: {}", why.as_deref().unwrap_or_default()),
        ),
    };
    Judged {
        cell: verdict.cell.to_string(),
        subject: titled(&verdict.subject, Some(&verdict.baseline)),
        outcome,
        why,
    }
}

/// What a gate is about and one of the bundles has, and the other has not.
fn missing(
    gate: &Gate,
    (side, name): (&Side, &str),
    (other, without): (&Side, &str),
) -> Vec<Judged> {
    let mut judged = Vec::new();
    for &cell in side.cells.iter().filter(|cell| gate.applies_to(**cell)) {
        for (subject, baseline) in gate.wanted_of(side, cell) {
            let involved = || baseline.iter().chain([&subject]);
            if gate.is_about(cell, &subject) && !involved().all(|it| other.has(cell, it)) {
                judged.push(Judged {
                    cell: cell.to_string(),
                    subject: titled(&subject, baseline.as_deref()),
                    outcome: GateOutcome::Unjudged,
                    why: format!("cannot be judged: {name} has it and {without} has not"),
                });
            }
        }
    }
    judged
}

/// A subject, with its baseline if it is about a comparison.
fn titled(subject: &str, baseline: Option<&str>) -> String {
    baseline.map_or(subject.to_owned(), |baseline| format!("{subject} / {baseline}"))
}

impl Gate {
    /// What a bundle has in a cell of the kind that this is about: a subject, and if it is about
    /// comparisons its baseline.
    fn wanted_of(&self, side: &Side, cell: Cell) -> Vec<(String, Option<String>)> {
        match self.condition {
            Condition::Change(Limit { relative: false, .. }) => {
                side.subjects(cell).map(|subject| (subject.to_owned(), None)).collect()
            }
            Condition::Change(_) | Condition::VerdictChanged => {
                let contests = side.contests(cell).into_iter();
                contests.map(|(baseline, subject)| (subject, Some(baseline))).collect()
            }
        }
    }

    /// Whether there is such a figure in a cell.
    fn applies_to(&self, cell: Cell) -> bool {
        match self.condition {
            Condition::VerdictChanged => true,
            Condition::Change(limit) => can_change(limit.metric, cell.protocol()),
        }
    }
}

fn nothing(gate: &Gate, a: &Side, b: &Side) -> LabError {
    let mut cells: Vec<String> = Vec::new();
    let mut subjects: Vec<String> = Vec::new();
    for side in [a, b] {
        for &cell in &side.cells {
            cells.push(format!("\"{cell}\""));
            subjects.extend(side.subjects(cell).map(|name| format!("\"{name}\"")));
        }
    }
    for names in [&mut cells, &mut subjects] {
        let mut seen = std::collections::BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
    }
    LabError::BadExperiment {
        place: format!("--fail-if `{gate}`"),
        problem: "nothing in the two bundles is what it is about".to_owned(),
        expected: format!(
            "subjects among {}, cells among {}, `relative` and `verdict` with subjects that are \
             compared with another, no throughput of UDP",
            subjects.join(", "),
            cells.join(", ")
        ),
    }
}
