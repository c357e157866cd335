//! What the ratio is when nothing is left out, and what is left out: a reader can see whether the
//! choice of runs made the verdict.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Comparison, Figures, Judged};
use crate::audit::Kind;

/// The ratio of the primary metric over every pair, excluded blocks and void runs included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AllPairs {
    /// Blocks in which both ran.
    pub pairs: usize,
    /// Geometric mean over those of them that have figures and in which both did the work that was
    /// asked for.
    pub ratio: Option<f64>,
    /// Pairs that do not count, by the first reason of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

/// Pairs that do not count for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The rule that found it.
    pub why: Kind,
    /// How many pairs.
    pub pairs: usize,
}

/// Of all runs of a cell, those of the two that were compared.
pub(super) fn all_pairs(
    comparison: &Comparison,
    judged: &[Judged<'_>],
    did_its_work: &dyn Fn(&Figures) -> Option<bool>,
) -> AllPairs {
    let blocks: BTreeSet<usize> = judged.iter().map(|it| it.run.block).collect();
    let of = |block: usize, name: &str| {
        judged.iter().find(|it| it.run.block == block && it.run.subject == name)
    };
    let (mut pairs, mut logs) = (0, Vec::new());
    let mut left_out: BTreeMap<Kind, usize> = BTreeMap::new();
    for block in blocks {
        let both = [&comparison.baseline, &comparison.subject].map(|name| of(block, name));
        let [Some(baseline), Some(subject)] = both else { continue };
        pairs += 1;
        let of_block = judged.iter().filter(|it| it.run.block == block && it.disturbed);
        let void = baseline.void.into_iter().chain(subject.void).min();
        let nothing = [baseline, subject].into_iter().any(|it| !it.can_count());
        let why = void
            .or_else(|| of_block.filter_map(|it| it.noise).min())
            .or_else(|| nothing.then_some(Kind::NoAccounting));
        if let Some(why) = why {
            *left_out.entry(why).or_default() += 1;
        }
        let works = |it: &&Figures| did_its_work(it).unwrap_or(true);
        let figures = [baseline, subject].map(|it| it.figures().filter(works));
        if let [Some(baseline), Some(subject)] = figures {
            let [baseline, subject] = [baseline, subject].map(|it| it[comparison.record.metric()]);
            logs.push((baseline / subject).ln());
        }
    }
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let left_out = left_out.into_iter().map(|(why, pairs)| LeftOut { why, pairs }).collect();
    AllPairs { pairs, ratio: mean.is_finite().then(|| mean.exp()), left_out }
}
