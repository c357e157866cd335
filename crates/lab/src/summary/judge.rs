//! Which verdict a comparison gets by itself, and what is left of it when many are judged at once.

use super::comparison::Comparison;
use super::verdict::{Claim, RequiredPairs, Verdict};
use crate::statistics::{
    self, CONFIDENCE, MIN_OCCASIONS, MIN_PAIRS, Spread, benjamini_hochberg,
    detectable_percent, least_pairs, level_for, required_pairs,
};

/// The differences whose number of pairs is stated, in percent.
const ASKED_PERCENT: [f64; 3] = [1.0, 2.0, 5.0];

/// The verdict of a comparison by itself. Who keeps the rate comes before what it costs.
pub(super) fn verdict(comparison: &Comparison) -> Verdict {
    let Comparison { subject, baseline, pairs, kept_up, .. } = comparison;
    if *pairs < MIN_PAIRS {
        return Verdict::TooFewPairs { pairs: *pairs };
    }
    if let Some(kept) = kept_up {
        if kept.sign_test() <= 1.0 - CONFIDENCE {
            let winner = if kept.subject > kept.baseline { subject } else { baseline };
            return Verdict::OnlyOneKeepsRate { winner: winner.clone() };
        }
        if kept.both < MIN_PAIRS {
            return Verdict::UnequalWork { pairs: kept.both };
        }
    }
    let few = comparison.spread.filter(|it| it.occasions < MIN_OCCASIONS);
    if let Some(Spread { occasions, .. }) = few {
        return Verdict::TooFewOccasions { occasions };
    }
    let level = 1.0 - comparison.confidence;
    let bound = comparison.equivalence.filter(|it| it.p_value <= level).map(|it| it.bound_percent);
    match comparison.of_record() {
        None => Verdict::TooFewPairs { pairs: *pairs },
        Some(interval) if interval.p_value <= level => {
            let winner = if interval.ratio > 1.0 { subject } else { baseline };
            Verdict::Ahead { winner: winner.clone(), by_less_than_percent: bound }
        }
        Some(interval) => {
            let would_have_seen_percent =
                would_have_seen(comparison, level).unwrap_or(interval.detectable_percent);
            match bound {
                Some(within_percent) => {
                    Verdict::Equivalent { within_percent, would_have_seen_percent }
                }
                None => Verdict::NoDifference { would_have_seen_percent },
            }
        }
    }
}

/// The difference in percent that its pairs would have shown at this level.
fn would_have_seen(comparison: &Comparison, level: f64) -> Option<f64> {
    if comparison.spread.is_some() {
        // By the spread of the occasions, at the usual level.
        return comparison.of_record().map(|it| it.detectable_percent);
    }
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
        Verdict::Void { .. } | Verdict::TooFewPairs { .. } | Verdict::TooFewOccasions { .. } => {
            return None;
        }
        _ => comparison.kept_up.filter(|kept| kept.can_decide()).map(|kept| kept.sign_test()),
    };
    let of_record = comparison.of_record().filter(|it| it.pairs >= MIN_PAIRS).map(|it| it.p_value);
    let (p_value, penalty) = match (&comparison.verdict, of_record) {
        (Verdict::OnlyOneKeepsRate { .. }, _) | (_, None) => (sign_test?, 1.0),
        (_, Some(of_record)) => (of_record, penalty),
    };
    // Two tests have two chances to be wrong.
    let both = sign_test.is_some() && of_record.is_some();
    let multiplied_by = if both { 2.0 * penalty } else { penalty };
    Some(Evidence { p_value: (p_value * multiplied_by).min(1.0), multiplied_by })
}

/// Judges the comparisons of an experiment together: takes claims back that may be chance among so
/// many, and states for each how small a p value it takes, and how many pairs that.
pub(super) fn judge_together<'a>(
    comparisons: impl Iterator<Item = &'a mut Comparison>,
) {
    let penalty = 1.0;
    // Subjects compared with themselves check the method; they are no part of what it is used for.
    let (mut family, others): (Vec<_>, Vec<_>) = comparisons
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
    let comparisons: Vec<&mut Comparison> =
        family.iter_mut().map(|(_, comparison)| &mut **comparison).collect();
    correct_equivalence(comparisons, penalty);
    for ((evidence, comparison), q_value) in family.into_iter().zip(q_values) {
        let this_one = usize::from(!is_claimed(q_value));
        comparison.q_value = Some(q_value);
        let level =
            level_for(claimed + this_one, count) / evidence.map_or(1.0, |it| it.multiplied_by);
        comparison.p_value_needed = Some(level);
        comparison.required_pairs = required(comparison, level);
        comparison.verdict = corrected(comparison, is_claimed(q_value), level, count);
    }
}

/// Gives each comparison the q value of its equivalence: claims of equivalence are judged together
/// like those of differences.
fn correct_equivalence(mut family: Vec<&mut Comparison>, penalty: f64) {
    family.retain(|it| it.pair_ratios.len() >= MIN_PAIRS);
    let mut all: Vec<_> = family.iter_mut().filter_map(|it| it.equivalence.as_mut()).collect();
    let p_values: Vec<f64> = all.iter().map(|it| (it.p_value * penalty).min(1.0)).collect();
    for (equivalence, q_value) in all.iter_mut().zip(benjamini_hochberg(&p_values)) {
        equivalence.q_value = Some(q_value);
    }
}

/// The verdict of one among `count` comparisons; `claimed` says whether its difference stands.
fn corrected(comparison: &Comparison, claimed: bool, level: f64, count: usize) -> Verdict {
    let not_after_correction = |claim, winner: &String| Verdict::NotAfterCorrection {
        claim,
        winner: winner.clone(),
        comparisons: count,
    };
    let stands = |q_value: f64| q_value <= 1.0 - CONFIDENCE;
    let equivalence = comparison.equivalence.filter(|it| it.q_value.is_some_and(stands));
    let bound = equivalence.map(|it| it.bound_percent);
    let seen = would_have_seen(comparison, level);
    match (&comparison.verdict, bound, seen) {
        (Verdict::Ahead { winner, .. }, _, _) if claimed => {
            Verdict::Ahead { winner: winner.clone(), by_less_than_percent: bound }
        }
        (
            Verdict::Ahead { .. } | Verdict::Equivalent { .. } | Verdict::NoDifference { .. },
            Some(within_percent),
            Some(would_have_seen_percent),
        ) => Verdict::Equivalent { within_percent, would_have_seen_percent },
        (Verdict::Ahead { winner, .. }, _, _) => not_after_correction(Claim::Ahead, winner),
        (Verdict::OnlyOneKeepsRate { winner }, _, _) if !claimed => {
            not_after_correction(Claim::OnlyOneKeepsRate, winner)
        }
        (Verdict::Equivalent { .. } | Verdict::NoDifference { .. }, _, seen) => {
            let (pairs, needed) = (comparison.pair_ratios.len(), least_pairs(level));
            match (needed, seen) {
                (Some(needed), Some(would_have_seen_percent))
                    if needed <= pairs || comparison.spread.is_some() =>
                {
                    Verdict::NoDifference { would_have_seen_percent }
                }
                _ => Verdict::TooFewForSoMany { pairs, comparisons: count, needed },
            }
        }
        (verdict, _, _) => verdict.clone(),
    }
}

/// How many pairs would show [`ASKED_PERCENT`].
fn required(comparison: &Comparison, level: f64) -> Vec<RequiredPairs> {
    // More pairs do not bring occasions closer to each other.
    let enough =
        comparison.pair_ratios.len() >= statistics::MIN_VALUES && comparison.occasions.is_empty();
    let scatter = statistics::scatter(&comparison.pair_ratios).filter(|_| enough);
    let Some(scatter) = scatter else { return Vec::new() };
    let required =
        |percent| RequiredPairs { percent, pairs: required_pairs(scatter, percent, level) };
    ASKED_PERCENT.map(required).to_vec()
}
