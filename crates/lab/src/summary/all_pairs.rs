//! What the ratio is when nothing is left out, and what is left out: a reader can see whether the
//! choice of runs made the verdict.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::judged::Judged;
use super::metrics::Metric;
use crate::audit::Kind;
use crate::placement::Placement;
use crate::statistics::{self, Ends, Interval};

/// The ratio of the primary metric over every pair, excluded blocks and void runs included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AllPairs {
    /// Blocks in which both ran.
    pub pairs: usize,
    /// Geometric mean over those of them that have figures and in which both did the work that was
    /// asked for.
    pub ratio: Option<f64>,
    /// Its interval, if there is one.
    #[serde(flatten)]
    pub ends: Option<Ends>,
    /// The same over each placement of the CPUs, if there was more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placed: Vec<Placed>,
    /// Pairs that do not count, by the first reason of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

/// A ratio of the primary metric over all pairs of one placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// Which.
    pub placement: Placement,
    /// The ratio.
    pub ratio: Interval,
}

/// Pairs that do not count for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The rule that found it.
    pub why: Kind,
    /// How many pairs.
    pub pairs: usize,
}

/// The ratio of one pair, whether it counts or not.
pub(super) struct EveryRatio {
    placement: Option<Placement>,
    occasion: usize,
    ratio: f64,
}

/// The ratios of these, or of those of one placement.
pub(super) fn of_placement(every: &[EveryRatio], only: Option<Placement>) -> Vec<(usize, f64)> {
    let these = every.iter().filter(|it| only.is_none() || it.placement == only);
    these.map(|it| (it.occasion, it.ratio)).collect()
}

/// The runs of both, the baseline first, in each block that has them.
fn blocks<'a, 'b>(
    [baseline, subject]: [&str; 2],
    judged: &'a [Judged<'b>],
) -> Vec<[&'a Judged<'b>; 2]> {
    let blocks: BTreeSet<usize> = judged.iter().map(|it| it.run.block).collect();
    let of = |block: usize, name: &str| {
        judged.iter().find(|it| it.run.block == block && it.run.subject == name)
    };
    let both = |block| Some([of(block, baseline)?, of(block, subject)?]);
    blocks.into_iter().filter_map(both).collect()
}

/// The ratio of every pair that has figures and in which both did the work that was asked for.
pub(super) fn ratios(
    both: [&str; 2],
    metric: Metric,
    judged: &[Judged<'_>],
    did_its_work: &dyn Fn(&Figures) -> Option<bool>,
) -> Vec<EveryRatio> {
    let works = |it: &&Figures| did_its_work(it).unwrap_or(true);
    let ratio = |[baseline, subject]: [&Judged<'_>; 2]| {
        let baseline_run = baseline.run;
        let placement = baseline_run.distance.and_then(|distance| distance.placement());
        let [baseline, subject] =
            [baseline, subject].map(|it| Some(it.figures().filter(works)?[metric]));
        let ratio = baseline? / subject?;
        (ratio.is_finite() && ratio > 0.0).then_some(EveryRatio {
            placement,
            occasion: baseline_run.occasion,
            ratio,
        })
    };
    blocks(both, judged).into_iter().filter_map(ratio).collect()
}

/// What all runs of a cell say about the two that were compared.
pub(super) fn all_pairs(
    both: [&str; 2],
    judged: &[Judged<'_>],
    every: &[EveryRatio],
    seed: u64,
    confidence: f64,
) -> AllPairs {
    let blocks = blocks(both, judged);
    let mut left_out: BTreeMap<Kind, usize> = BTreeMap::new();
    for [baseline, subject] in &blocks {
        let block = baseline.run.block;
        let of_block = judged.iter().filter(|it| it.run.block == block && it.disturbed);
        let void = baseline.void.into_iter().chain(subject.void).min();
        let nothing = [baseline, subject].into_iter().any(|it| !it.can_count());
        let why = void
            .or_else(|| of_block.filter_map(|it| it.noise).min())
            .or_else(|| nothing.then_some(Kind::NoAccounting));
        if let Some(why) = why {
            *left_out.entry(why).or_default() += 1;
        }
    }
    let of = |placement| statistics::interval_of(&of_placement(every, placement), seed, confidence);
    let one = |placement| Some(Placed { placement, ratio: of(Some(placement))? });
    let placements: BTreeSet<Placement> = every.iter().filter_map(|it| it.placement).collect();
    let all = of(None);
    AllPairs {
        pairs: blocks.len(),
        ratio: all.map(|it| it.ratio).or_else(|| every.first().map(|it| it.ratio)),
        ends: all.and_then(|it| it.ends),
        placed: match placements.len() {
            0 | 1 => Vec::new(),
            _ => placements.into_iter().filter_map(one).collect(),
        },
        left_out: left_out.into_iter().map(|(why, pairs)| LeftOut { why, pairs }).collect(),
    }
}
