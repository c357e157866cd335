//! Subjects compared with themselves: what the method says where there is nothing to say.

use serde::{Deserialize, Serialize};

use super::verdict::Verdict;
use crate::statistics::{self, CONFIDENCE, MIN_PAIRS, at_least, detectable_percent};

/// The numbers of pairs whose resolution is stated.
const ASKED_PAIRS: [usize; 3] = [MIN_PAIRS, 2 * MIN_PAIRS, 4 * MIN_PAIRS];

/// A subject compared with itself under another name (A/A).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aa {
    /// Verdicts on groups of its pairs.
    pub counts: AaCounts,
    /// What numbers of pairs would detect here.
    pub resolution: Vec<Resolution>,
}

/// How often a difference was found where there is none. Pairs are cut, in the order of time, into
/// groups of [`MIN_PAIRS`] that have none in common, and each group gets a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AaCounts {
    /// How many groups.
    pub groups: usize,
    /// In how many of them a difference was found.
    pub false_verdicts: usize,
    /// How probable it is to find one in as many groups, or in more, if each has a chance of 5 %.
    pub chance: f64,
}

/// What a number of pairs detects.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Resolution {
    /// How many pairs.
    pub pairs: usize,
    /// The difference in percent that they find with the power of [`statistics::POWER`].
    pub percent: f64,
}

impl AaCounts {
    fn of(groups: usize, false_verdicts: usize) -> AaCounts {
        let chance = at_least(false_verdicts as u64, groups as u64, 1.0 - CONFIDENCE);
        AaCounts { groups, false_verdicts, chance }
    }
}

/// What the per-pair ratios of a subject and itself show.
pub(super) fn check(ratios: &[f64], seed: u64) -> Aa {
    let groups = ratios.chunks_exact(MIN_PAIRS);
    let is_false = |group: &&[f64]| {
        statistics::interval(group, seed).is_some_and(|it| it.shows_a_difference())
    };
    let counts = AaCounts::of(groups.len(), groups.filter(is_false).count());
    let scatter = statistics::scatter(ratios).filter(|_| ratios.len() >= MIN_PAIRS);
    let resolution = scatter.map(|scatter| {
        let percent = |pairs| detectable_percent(scatter, pairs, 1.0 - CONFIDENCE);
        ASKED_PAIRS.map(|pairs| Resolution { pairs, percent: percent(pairs) }).to_vec()
    });
    Aa { counts, resolution: resolution.unwrap_or_default() }
}

/// What a verdict means for a subject and itself.
pub(super) fn suited(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Ahead { winner, .. } | Verdict::OnlyOneKeepsRate { winner } => {
            Verdict::AaFailed { winner }
        }
        Verdict::NoDifference { would_have_seen_percent }
        | Verdict::Equivalent { would_have_seen_percent, .. } => {
            Verdict::AaPassed { would_have_seen_percent }
        }
        other => other,
    }
}

/// All groups of an experiment together; nothing if no subject was compared with itself.
pub(super) fn totals<'a>(all: impl Iterator<Item = &'a Aa>) -> Option<AaCounts> {
    let counts: Vec<AaCounts> = all.map(|aa| aa.counts).collect();
    let sum = |field: fn(&AaCounts) -> usize| counts.iter().map(field).sum();
    (!counts.is_empty()).then(|| AaCounts::of(sum(|it| it.groups), sum(|it| it.false_verdicts)))
}
