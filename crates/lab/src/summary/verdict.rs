//! What may be said about two subjects, and what is left of it when many cells are judged at once.

use serde::{Deserialize, Serialize};

use super::CellSummary;
use super::compare::Comparison;
use crate::experiment::{Correction, Experiment, MIN_PAIRS};
use crate::result::RunRecord;
use crate::statistics::{
    self, CONFIDENCE, Interval, STOP_RULE_PENALTY, benjamini_hochberg, detectable_percent,
    least_pairs, level_for, required_pairs,
};

/// The differences for which the pairs are told that would show them, in percent.
const ASKED_PERCENT: [f64; 3] = [1.0, 2.0, 5.0];

/// What may be said about a pair of subjects in a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Verdict {
    /// One of them needs less CPU.
    Ahead {
        /// Which.
        winner: String,
    },
    /// One of them does the work that was asked for in pairs in which the other does not, and the
    /// sign test says that this is no accident.
    OnlyOneKeepsUp {
        /// Which.
        winner: String,
    },
    /// It would be one of the above if this were the only comparison; among so many it may be an
    /// accident.
    NotAfterCorrection {
        /// Which of the above.
        claim: Claim,
        /// Who seems to win.
        winner: String,
        /// How many comparisons were judged together.
        comparisons: usize,
    },
    /// Nothing can be said but how large a difference would have been seen.
    NoDifference {
        /// In percent, with the power of [`statistics::POWER`].
        would_have_seen_percent: f64,
    },
    /// There are fewer than [`MIN_PAIRS`] pairs.
    TooFewPairs {
        /// How many there are.
        pairs: usize,
    },
    /// However large a difference, so few pairs could not show it among so many comparisons.
    TooFewForSoMany {
        /// How many pairs there are.
        pairs: usize,
        /// How many comparisons were judged together.
        comparisons: usize,
        /// How many pairs could; none if no number could.
        needed: Option<usize>,
    },
    /// There are fewer than [`MIN_PAIRS`] pairs in which both did the work that was asked for.
    UnequalWork {
        /// How many there are.
        pairs: usize,
    },
    /// The two are the same but for their names, and no difference was detected.
    Alike {
        /// In percent, with the power of [`statistics::POWER`].
        would_have_seen_percent: f64,
    },
    /// The two are the same but for their names, and a difference was detected.
    FalseDifference {
        /// Who seems to win.
        winner: String,
    },
    /// An audit failed.
    Void {
        /// Which, and for whom.
        why: String,
    },
}

/// What a verdict claims of its winner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// It needs less CPU.
    Ahead,
    /// It alone does the work that was asked for.
    OnlyOneKeepsUp,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Ahead { winner } => write!(f, "{winner} ahead"),
            Verdict::OnlyOneKeepsUp { winner } => write!(f, "only {winner} keeps up"),
            Verdict::NotAfterCorrection { claim, winner, comparisons } => {
                match claim {
                    Claim::Ahead => write!(f, "{winner} seems ahead")?,
                    Claim::OnlyOneKeepsUp => write!(f, "only {winner} seems to keep up")?,
                }
                write!(f, ", but not after correction for {comparisons} comparisons")
            }
            Verdict::NoDifference { would_have_seen_percent: percent } => {
                write!(f, "no difference detected (would have seen {percent:.1} %)")
            }
            Verdict::TooFewPairs { pairs } => {
                write!(f, "no verdict: {pairs} of the {MIN_PAIRS} pairs that one needs")
            }
            Verdict::TooFewForSoMany { pairs, comparisons, needed } => {
                write!(
                    f,
                    "no verdict: {pairs} pairs cannot show any difference among {comparisons} \
                     comparisons"
                )?;
                match needed {
                    Some(needed) => write!(f, ", {needed} can"),
                    None => f.write_str(", and no number can"),
                }
            }
            Verdict::UnequalWork { pairs } => {
                write!(
                    f,
                    "no verdict: both kept up with the schedule in {pairs} of the {MIN_PAIRS} \
                     pairs that one needs"
                )
            }
            Verdict::Alike { would_have_seen_percent: percent } => {
                write!(f, "alike, as it should be (would have seen {percent:.1} %)")
            }
            Verdict::FalseDifference { winner } => {
                write!(f, "a difference that cannot be: {winner} ahead")
            }
            Verdict::Void { why } => write!(f, "void: {why}"),
        }
    }
}

/// How many pairs would show a difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequiredPairs {
    /// The difference in percent.
    pub percent: f64,
    /// The pairs that find it with the power of [`statistics::POWER`]; none if it takes more than
    /// [`statistics::MAX_REQUIRED_PAIRS`].
    pub pairs: Option<usize>,
}

/// What p values of an experiment's ratios are multiplied by, for how it decided to stop. Who keeps
/// up has no part in that.
pub(super) fn penalty(experiment: &Experiment) -> f64 {
    if experiment.until.is_some() { STOP_RULE_PENALTY } else { 1.0 }
}

/// The confidence of the intervals of these runs, which is as much higher as p values are
/// multiplied, so that an interval that holds 1 and a verdict that claims a difference do not stand
/// side by side.
pub(super) fn confidence(experiment: &Experiment, runs: &[&RunRecord]) -> f64 {
    let is_widened = runs.iter().all(|run| run.version() >= 4);
    let penalty = if is_widened { penalty(experiment) } else { 1.0 };
    1.0 - (1.0 - CONFIDENCE) / penalty
}

/// The verdict of a comparison by itself. Who does the work comes before what it costs.
pub(super) fn verdict(comparison: &Comparison, penalty: f64) -> Verdict {
    let Comparison { subject, baseline, pairs, kept_up, .. } = comparison;
    if *pairs < MIN_PAIRS {
        return Verdict::TooFewPairs { pairs: *pairs };
    }
    if let Some(kept) = kept_up {
        if kept.sign_test() <= 1.0 - CONFIDENCE {
            let winner = if kept.subject > kept.baseline { subject } else { baseline };
            return Verdict::OnlyOneKeepsUp { winner: winner.clone() };
        }
        if kept.both < MIN_PAIRS {
            return Verdict::UnequalWork { pairs: kept.both };
        }
    }
    match comparison.of_record() {
        None => Verdict::TooFewPairs { pairs: *pairs },
        Some(interval) if interval.claim_p_value() * penalty > 1.0 - CONFIDENCE => {
            let level = (1.0 - CONFIDENCE) / penalty;
            let would_have_seen_percent = would_have_seen(comparison, level)
                .filter(|_| penalty > 1.0)
                .unwrap_or(interval.detectable_percent);
            Verdict::NoDifference { would_have_seen_percent }
        }
        Some(interval) => {
            let winner = if interval.ratio > 1.0 { subject } else { baseline };
            Verdict::Ahead { winner: winner.clone() }
        }
    }
}

/// The difference in percent that its pairs would have shown at this level.
fn would_have_seen(comparison: &Comparison, level: f64) -> Option<f64> {
    let ratios = &comparison.pair_ratios;
    Some(detectable_percent(statistics::scatter(ratios)?, ratios.len(), level))
}

/// What a comparison has to show when it is judged with others.
#[derive(Debug, Clone, Copy)]
struct Evidence {
    /// Never smaller than it may be: the chance of a p value of 5 % or less is at most 5 %.
    p_value: f64,
    /// What p values were multiplied by, for that.
    multiplied_by: f64,
}

/// Nothing, if the comparison could not have claimed anything whatever its figures were.
fn evidence(comparison: &Comparison, penalty: f64) -> Option<Evidence> {
    let sign_test = match &comparison.verdict {
        Verdict::Void { .. } | Verdict::TooFewPairs { .. } => return None,
        _ => comparison.kept_up.filter(|kept| kept.can_decide()).map(|kept| kept.sign_test()),
    };
    let enough = |interval: &&Interval| interval.pairs >= MIN_PAIRS;
    let of_record = comparison.of_record().filter(enough).map(Interval::claim_p_value);
    let (p_value, penalty) = match (&comparison.verdict, of_record) {
        (Verdict::OnlyOneKeepsUp { .. }, _) | (_, None) => (sign_test?, 1.0),
        (_, Some(of_record)) => (of_record, penalty),
    };
    // Two tests have two chances to be wrong.
    let both = sign_test.is_some() && of_record.is_some();
    let multiplied_by = if both { 2.0 * penalty } else { penalty };
    Some(Evidence { p_value: (p_value * multiplied_by).min(1.0), multiplied_by })
}

/// Judges the comparisons of an experiment together: takes verdicts back that may be accidents
/// among so many, and tells for each how small a p value it takes, and how many pairs that.
pub(super) fn judge_together(experiment: &Experiment, cells: &mut [CellSummary]) {
    let (correction, penalty) = (experiment.correction, penalty(experiment));
    let comparisons = cells.iter_mut().flat_map(|cell| &mut cell.comparisons);
    // Subjects compared with themselves check the method; they are no part of what it is used for.
    let (family, others): (Vec<_>, Vec<_>) = comparisons
        .map(|comparison| (evidence(comparison, penalty), comparison))
        .partition(|(evidence, comparison)| evidence.is_some() && comparison.aa.is_none());
    let alone = 1.0 - CONFIDENCE;
    for (_, comparison) in others {
        comparison.required_pairs = required(comparison, alone / penalty);
    }
    let p_values: Vec<f64> =
        family.iter().filter_map(|(evidence, _)| evidence.map(|it| it.p_value)).collect();
    let q_values = benjamini_hochberg(&p_values);
    let count = q_values.len();
    let is_claimed = |q_value: f64| q_value <= alone;
    let claimed = q_values.iter().filter(|q_value| is_claimed(**q_value)).count();
    for ((evidence, comparison), q_value) in family.into_iter().zip(q_values) {
        let level = match correction {
            Correction::None => alone / penalty,
            Correction::BenjaminiHochberg => {
                let this_one = usize::from(!is_claimed(q_value));
                comparison.q_value = Some(q_value);
                level_for(claimed + this_one, count) / evidence.map_or(1.0, |it| it.multiplied_by)
            }
        };
        comparison.p_value_needed = Some(level);
        comparison.required_pairs = required(comparison, level);
        if correction == Correction::BenjaminiHochberg {
            corrected(comparison, is_claimed(q_value), level, count);
        }
    }
}

/// Corrects the verdict of one among `count` comparisons.
fn corrected(comparison: &mut Comparison, claimed: bool, level: f64, count: usize) {
    let not_after_correction = |claim, winner: &String| Verdict::NotAfterCorrection {
        claim,
        winner: winner.clone(),
        comparisons: count,
    };
    let corrected = match &comparison.verdict {
        Verdict::Ahead { winner } if !claimed => not_after_correction(Claim::Ahead, winner),
        Verdict::OnlyOneKeepsUp { winner } if !claimed => {
            not_after_correction(Claim::OnlyOneKeepsUp, winner)
        }
        Verdict::NoDifference { .. } => {
            let (pairs, needed) = (comparison.pair_ratios.len(), least_pairs(level));
            match (needed, would_have_seen(comparison, level)) {
                (Some(needed), Some(would_have_seen_percent)) if needed <= pairs => {
                    Verdict::NoDifference { would_have_seen_percent }
                }
                _ => Verdict::TooFewForSoMany { pairs, comparisons: count, needed },
            }
        }
        verdict => verdict.clone(),
    };
    comparison.verdict = corrected;
}

/// How many pairs would show the differences that people ask for.
fn required(comparison: &Comparison, level: f64) -> Vec<RequiredPairs> {
    let enough = comparison.pair_ratios.len() >= statistics::MIN_PAIRS_FOR_INTERVAL;
    let scatter = statistics::scatter(&comparison.pair_ratios).filter(|_| enough);
    let Some(scatter) = scatter else { return Vec::new() };
    let required =
        |percent| RequiredPairs { percent, pairs: required_pairs(scatter, percent, level) };
    ASKED_PERCENT.map(required).to_vec()
}
