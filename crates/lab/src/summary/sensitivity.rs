//! What would change a verdict: the same tests on other choices of the pairs.

use serde::{Deserialize, Serialize};

use super::all_pairs::{EveryRatio, of_placement};
use crate::placement::Placement;
use crate::statistics::{self, MIN_PAIRS};

/// Another choice of pairs, and what the comparison by itself would say of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldChange {
    /// The other choice.
    pub with: Selection,
    /// What would be said.
    pub to: Judgement,
}

/// A choice of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// All that count but the one with the highest or the one with the lowest ratio. No other single
    /// pair matters as much.
    OnePairLess,
    /// Every pair with figures, excluded blocks included.
    AllBlocks,
    /// Every pair with the CPUs close to each other.
    Close,
    /// Every pair with the CPUs apart.
    Apart,
}

impl Selection {
    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Selection::OnePairLess => "one pair less",
            Selection::AllBlocks => "all blocks",
            Selection::Close => "only blocks with the CPUs close",
            Selection::Apart => "only blocks with the CPUs apart",
        }
    }
}

/// What the tests of one comparison say, without correction for the number of comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// The subject needs less.
    SubjectAhead,
    /// The baseline needs less.
    BaselineAhead,
    /// They are equivalent.
    Equivalent,
    /// Neither a difference nor equivalence is shown.
    NoDifference,
}

/// The tests of a comparison by itself.
#[derive(Clone, Copy)]
pub(super) struct Tests {
    pub(super) confidence: f64,
    /// What counts as equivalent, if that is tested.
    pub(super) bound_percent: Option<f64>,
    pub(super) seed: u64,
}

/// How the primary metric is judged by these ratios; nothing of fewer than two.
fn judge(tests: Tests, ratios: &[f64]) -> Option<Judgement> {
    let Tests { confidence, bound_percent, seed } = tests;
    let interval = statistics::interval_at(ratios, seed, confidence)?;
    if interval.p_value <= 1.0 - confidence {
        return Some(match interval.ratio > 1.0 {
            true => Judgement::SubjectAhead,
            false => Judgement::BaselineAhead,
        });
    }
    let equivalence = statistics::equivalence(ratios, seed, confidence, bound_percent?)?;
    Some(match equivalence.p_value <= 1.0 - confidence {
        true => Judgement::Equivalent,
        false => Judgement::NoDifference,
    })
}

/// Every choice that leads to another judgement than these ratios, which count. A choice of fewer than
/// [`MIN_PAIRS`] pairs says nothing, but for the one without a single pair.
pub(super) fn would_change(tests: Tests, ratios: &[f64], every: &[EveryRatio]) -> Vec<WouldChange> {
    let Some(own) = judge(tests, ratios) else { return Vec::new() };
    let chosen = |placement| of_placement(every, placement).into_iter().map(|it| it.1).collect();
    let placed = |placement| chosen(Some(placement));
    let mut choices = without_an_extreme(ratios).map(|it| (Selection::OnePairLess, it)).to_vec();
    let others = [
        (Selection::AllBlocks, chosen(None)),
        (Selection::Close, placed(Placement::Close)),
        (Selection::Apart, placed(Placement::Apart)),
    ];
    choices.extend(others.into_iter().filter(|(_, it): &(_, Vec<f64>)| it.len() >= MIN_PAIRS));
    let mut changes: Vec<WouldChange> = Vec::new();
    for (with, chosen) in choices {
        let to = judge(tests, &chosen).unwrap_or(own);
        if to != own && changes.iter().all(|it| it.with != with) {
            changes.push(WouldChange { with, to });
        }
    }
    changes
}

/// The ratios without the highest, and without the lowest.
fn without_an_extreme(ratios: &[f64]) -> [Vec<f64>; 2] {
    let without = |at: Option<usize>| {
        let is_left = |(index, ratio): (usize, &f64)| (Some(index) != at).then_some(*ratio);
        ratios.iter().enumerate().filter_map(is_left).collect()
    };
    let by_ratio = |a: &usize, b: &usize| ratios[*a].total_cmp(&ratios[*b]);
    let positions = || 0..ratios.len();
    [without(positions().max_by(by_ratio)), without(positions().min_by(by_ratio))]
}
