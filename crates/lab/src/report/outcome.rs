//! Verdicts counted: what a whole experiment says, in a sentence or two.

use super::numbers::saved_percent;
use super::verdicts;
use super::warnings;
use crate::experiment::Experiment;
use crate::result::Bundle;
use crate::summary::{CellSummary, Comparison, Knee, Summary, Verdict};

/// Which of the two a verdict is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Subject,
    Baseline,
}

/// A verdict as it stands in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// This one needs less CPU.
    Ahead(Side),
    /// Only this one keeps the rate.
    KeepsRate(Side),
    /// They are equivalent within the bound.
    Equivalent,
    /// No difference was detected.
    Same,
    /// A difference that may be chance, given the number of comparisons.
    Uncertain,
    /// A difference between a subject and itself.
    Impossible,
    /// There are too few pairs for a verdict.
    Few,
    /// There are too few pairs in which both kept the rate.
    Behind,
    /// An audit failed.
    Void,
}

impl Outcome {
    pub(super) fn of(comparison: &Comparison) -> Outcome {
        let side = |winner: &String| {
            if *winner == comparison.baseline { Side::Baseline } else { Side::Subject }
        };
        match &comparison.verdict {
            Verdict::Ahead { winner, .. } => Outcome::Ahead(side(winner)),
            Verdict::OnlyOneKeepsRate { winner } => Outcome::KeepsRate(side(winner)),
            Verdict::Equivalent { .. } => Outcome::Equivalent,
            Verdict::NoDifference { .. } | Verdict::AaPassed { .. } => Outcome::Same,
            Verdict::NotAfterCorrection { .. } => Outcome::Uncertain,
            Verdict::AaFailed { .. } => Outcome::Impossible,
            Verdict::TooFewPairs { .. }
            | Verdict::TooFewOccasions { .. }
            | Verdict::TooFewForSoMany { .. } => Outcome::Few,
            Verdict::UnequalWork { .. } => Outcome::Behind,
            Verdict::Void { .. } => Outcome::Void,
        }
    }

    /// What is behind a ratio in a map of letters.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Outcome::Ahead(Side::Subject) | Outcome::KeepsRate(Side::Subject) => "▲",
            Outcome::Ahead(Side::Baseline) | Outcome::KeepsRate(Side::Baseline) => "▼",
            Outcome::Equivalent => "≈",
            Outcome::Same => "=",
            Outcome::Uncertain => "~",
            Outcome::Impossible => "!",
            Outcome::Few => "?",
            Outcome::Behind => "behind",
            Outcome::Void => "void",
        }
    }

    /// The HTML class of its text.
    pub(super) fn class(self) -> &'static str {
        match self {
            Outcome::Ahead(_) | Outcome::KeepsRate(_) => "ahead",
            Outcome::Same | Outcome::Equivalent => "same",
            Outcome::Few | Outcome::Behind | Outcome::Uncertain => "few",
            Outcome::Void | Outcome::Impossible => "void",
        }
    }
}

/// The ratio and the mark of a verdict, as short as it gets; `times` is the ratio to be shown.
pub(super) fn entry(comparison: &Comparison, times: Option<f64>) -> String {
    match (Outcome::of(comparison), times) {
        (Outcome::KeepsRate(side), _) => format!("only {}", winner(comparison, side)),
        (outcome @ (Outcome::Void | Outcome::Behind), _) => outcome.mark().to_owned(),
        (outcome, Some(times)) => format!("{times:.2} {}", outcome.mark()),
        (outcome, None) => outcome.mark().to_owned(),
    }
}

fn winner(comparison: &Comparison, side: Side) -> &str {
    match side {
        Side::Subject => &comparison.subject,
        Side::Baseline => &comparison.baseline,
    }
}

/// What the marks mean.
pub(super) const MARKS: &str = "▲ the subject needs less CPU, ▼ the baseline does, ≈ equivalent, \
                                = no difference was detected, ~ one that may be chance among so \
                                many, ? too few pairs, behind: too few in which both kept the \
                                rate, void: an audit failed";

/// Whether a comparison is of a subject with the one that it was made from.
pub(super) fn is_change(experiment: &Experiment, comparison: &Comparison) -> bool {
    let Comparison { subject, baseline, .. } = comparison;
    experiment.subjects.iter().any(|it| it.name == *subject && it.against.contains(baseline))
}

/// All verdicts in plain sentences: one for each two that were compared, and one for each subject
/// whose features were changed one by one.
pub(super) fn overall(bundle: &Bundle, summary: &Summary) -> Vec<String> {
    let all: Vec<Judged<'_>> = judged(summary).collect();
    match &all[..] {
        [] => return vec![nothing_to_compare(summary)],
        [(cell, comparison)] => {
            let method = summary.aa.iter().map(warnings::aa);
            return method.chain([verdicts::headline(cell, comparison)]).collect();
        }
        _ => {}
    }
    // What subjects and themselves say is about the method.
    let others = all.iter().copied().filter(|(_, it)| it.aa.is_none());
    let (changes, contests): (Vec<_>, Vec<_>) =
        others.partition(|(_, it)| is_change(&bundle.experiment, it));
    let contests = grouped(&contests, |it| [&*it.subject, &*it.baseline]);
    let changes = grouped(&changes, |it| [&*it.baseline, ""]);
    let method = summary.aa.iter().map(warnings::aa);
    let (judged, open): (Vec<_>, Vec<_>) =
        contests.iter().partition(|it| it.iter().any(|(_, one)| is_judged(one)));
    // One contest alone says why it has no verdict.
    let (judged, open) =
        if open.len() > 1 { (judged, open) } else { (contests.iter().collect(), Vec::new()) };
    let sentences = judged.into_iter().map(|it| contest(it));
    let open = (!open.is_empty()).then(|| without_verdict(&open));
    method.chain(sentences).chain(open).chain(changes.iter().map(|it| worth(it))).collect()
}

/// Whether a comparison came to any conclusion.
fn is_judged(comparison: &Comparison) -> bool {
    !matches!(Outcome::of(comparison), Outcome::Few | Outcome::Behind | Outcome::Void)
}

/// Those that have no verdict in any cell, in one sentence.
fn without_verdict(contests: &[&Vec<Judged<'_>>]) -> String {
    let pairs: Vec<&Comparison> = contests.iter().filter_map(|it| Some(it.first()?.1)).collect();
    let mut baselines: Vec<&str> = pairs.iter().map(|it| &*it.baseline).collect();
    baselines.dedup();
    let against = |baseline: &&str| {
        let subjects = pairs.iter().filter(|it| it.baseline == *baseline).map(|it| &*it.subject);
        format!("{} against {baseline}", subjects.collect::<Vec<_>>().join(", "))
    };
    let named: Vec<String> = baselines.iter().map(against).collect();
    let is = |wanted: Outcome| {
        contests.iter().flat_map(|it| it.iter()).any(|(_, it)| Outcome::of(it) == wanted)
    };
    let why = [
        (Outcome::Few, "too few pairs"),
        (Outcome::Behind, "too few pairs in which both kept the rate"),
        (Outcome::Void, "failed audits"),
    ];
    let why: Vec<&str> = why.into_iter().filter(|it| is(it.0)).map(|it| it.1).collect();
    format!("No verdict in any cell ({}): {}.", why.join(", "), named.join("; "))
}

/// A comparison with the cell that it is of.
pub(super) type Judged<'a> = (&'a CellSummary, &'a Comparison);

/// Every comparison of an experiment.
pub(super) fn judged(summary: &Summary) -> impl Iterator<Item = Judged<'_>> {
    let mut all = Vec::new();
    for cell in &summary.cells {
        all.extend(cell.comparisons.iter().map(|comparison| (cell, comparison)));
    }
    all.into_iter()
}

/// Those of one key together, in the order of the first of each.
pub(super) fn grouped<'a, K: PartialEq>(
    all: &[Judged<'a>],
    key: impl Fn(&'a Comparison) -> K,
) -> Vec<Vec<Judged<'a>>> {
    let mut groups: Vec<(K, Vec<Judged<'a>>)> = Vec::new();
    for it in all {
        let key = key(it.1);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(*it),
            None => groups.push((key, vec![*it])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

fn nothing_to_compare(summary: &Summary) -> String {
    match summary.cells.first().map(|cell| cell.subjects.len()) {
        None => "No cell was begun: there is nothing to judge.".to_owned(),
        Some(1) => "There is one subject only: nothing to compare it with.".to_owned(),
        Some(_) => "No two subjects were compared.".to_owned(),
    }
}

/// The same two in several cells.
fn contest(these: &[Judged<'_>]) -> String {
    let Some((cell, first)) = these.first() else { return String::new() };
    if these.len() == 1 {
        return verdicts::headline(cell, first);
    }
    let Comparison { subject, baseline, .. } = first;
    let of = |wanted: Outcome| {
        these.iter().map(|(_, it)| *it).filter(move |it| Outcome::of(it) == wanted)
    };
    let mut parts = Vec::new();
    let both = [(Side::Subject, subject, baseline), (Side::Baseline, baseline, subject)];
    for (side, name, other) in both {
        let times: Vec<f64> = of(Outcome::Ahead(side)).filter_map(|it| times(it, side)).collect();
        if !times.is_empty() {
            let cells = times.len();
            let saved: Vec<f64> = times.iter().map(|times| saved_percent(*times)).collect();
            let saved = range(&saved);
            let of = match (parts.is_empty(), these.len()) {
                (true, all) if all == cells => format!("all {all} cells"),
                (true, all) => format!("{cells} of {all} cells"),
                (false, _) => cells.to_string(),
            };
            parts.push(format!("{name} needs {saved} % less CPU than {other} in {of}"));
        }
        match of(Outcome::KeepsRate(side)).count() {
            0 => {}
            cells => parts.push(format!("only {name} keeps the rate in {cells}")),
        }
    }
    let seen: Vec<f64> = these.iter().filter_map(|(_, it)| would_have_seen(it)).collect();
    let seen = if seen.is_empty() {
        String::new()
    } else {
        format!(" (would have seen {} %)", range(&seen))
    };
    let equivalent = these.iter().find_map(|(_, it)| match it.verdict {
        Verdict::Equivalent { within_percent, .. } => Some(within_percent),
        _ => None,
    });
    let equivalent = format!("they are equivalent within {} %", equivalent.unwrap_or_default());
    for (outcome, what, in_all, more) in [
        (Outcome::Equivalent, &*equivalent, "all", ""),
        (Outcome::Same, "no difference was detected", "any", &*seen),
        (Outcome::Uncertain, "a difference may be chance among so many", "all", ""),
        (Outcome::Few, "there are too few pairs for a verdict", "all", ""),
        (Outcome::Behind, "one or both kept the rate in too few pairs", "all", ""),
        (Outcome::Void, "an audit failed", "all", ""),
    ] {
        match of(outcome).count() {
            0 => {}
            cells if cells == these.len() => parts.push(format!("{what} in {in_all}{more}")),
            cells => parts.push(format!("{what} in {cells}{more}")),
        }
    }
    let all = parts.join("; ");
    let is_led = these.iter().any(|(_, it)| matches!(Outcome::of(it), Outcome::Ahead(_)));
    if is_led {
        format!("{all}.")
    } else {
        format!("{subject} and {baseline}, {} cells: {all}.", these.len())
    }
}

/// How many times the CPU of this side the other one needs.
fn times(comparison: &Comparison, side: Side) -> Option<f64> {
    let ratio = comparison.of_record()?.ratio;
    Some(if side == Side::Subject { ratio } else { 1.0 / ratio })
}

/// The difference in percent that would have been seen where none was.
fn would_have_seen(comparison: &Comparison) -> Option<f64> {
    match comparison.verdict {
        Verdict::NoDifference { would_have_seen_percent } => Some(would_have_seen_percent),
        _ => None,
    }
}

/// `3.5 to 18.2`, or `3.5`: percents.
fn range(percents: &[f64]) -> String {
    let low = percents.iter().copied().fold(f64::INFINITY, f64::min);
    let high = percents.iter().copied().fold(0.0, f64::max);
    // As precise as the cells below it say it.
    let [low, high] = [low, high].map(|percent| format!("{percent:.1}"));
    if low == high { low } else { format!("{low} to {high}") }
}

/// How many changes a sentence names.
const NAMED_CHANGES: usize = 4;

/// What the changes of one subject are worth: of each its largest effect in any cell.
fn worth(these: &[Judged<'_>]) -> String {
    let Some((_, first)) = these.first() else { return String::new() };
    let changes = grouped(these, |it| &*it.subject);
    let told = |side: Side, verb: &str| {
        let mut found: Vec<(f64, &str)> =
            changes.iter().filter_map(|change| largest_effect(change, side)).collect();
        found.sort_by(|a, b| b.0.ln().abs().total_cmp(&a.0.ln().abs()));
        let named = found.iter().take(NAMED_CHANGES);
        let mut list: Vec<String> =
            named.map(|(times, name)| format!("{name} {times:.2} times")).collect();
        if found.len() > NAMED_CHANGES {
            list.push(format!("{} more", found.len() - NAMED_CHANGES));
        }
        (!found.is_empty()).then(|| format!("{} {verb} CPU ({})", found.len(), list.join(", ")))
    };
    let decided = |(_, it): &Judged<'_>| matches!(Outcome::of(it), Outcome::Ahead(_));
    let silent = changes.iter().filter(|change| !change.iter().any(decided)).count();
    let silent = (silent > 0).then(|| format!("for {silent} no difference was detected"));
    let parts = [told(Side::Baseline, "cost"), told(Side::Subject, "save"), silent];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let all = changes.len();
    format!("Of {all} changes to {}: {}.", first.baseline, parts.join("; "))
}

/// How many times the CPU of its origin a change needs where it is most, and its name.
fn largest_effect<'a>(change: &[Judged<'a>], ahead: Side) -> Option<(f64, &'a str)> {
    let decided = change.iter().filter(|(_, it)| Outcome::of(it) == Outcome::Ahead(ahead));
    let effects = decided.filter_map(|(_, it)| Some((times(it, Side::Baseline)?, &*it.subject)));
    effects.max_by(|a, b| a.0.ln().abs().total_cmp(&b.0.ln().abs()))
}

/// Up to which load a subject kept the rate.
pub(super) fn knee(knee: &Knee) -> String {
    let Knee { axis, subject, .. } = knee;
    let point = |value: u32| axis.phrase(value).unwrap_or_else(|| axis.label(value));
    match (knee.keeps_up_to, knee.falls_behind_at) {
        (Some(kept), Some(behind)) => {
            format!(
                "{subject} keeps the rate up to {}, and no longer at {}",
                point(kept),
                point(behind)
            )
        }
        (Some(kept), None) => {
            format!("{subject} keeps the rate up to {}, the most tried", point(kept))
        }
        (None, Some(behind)) => {
            format!("{subject} does not keep the rate at {}, the least tried", point(behind))
        }
        (None, None) => format!("{subject}: not known"),
    }
}
