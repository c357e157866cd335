//! A run with what was made of it.

use std::collections::BTreeMap;

use super::checks::{self, Effect, Finding};
use super::figures::{Figures, figures_of};
use crate::experiment::{Experiment, Protocol};
use crate::noise::{Noise, noise};
use crate::record::RunRecord;

/// A run as comparisons see it.
pub(super) struct Judged<'a> {
    pub(super) run: &'a RunRecord,
    pub(super) figures: Option<Figures>,
    pub(super) findings: Vec<Finding>,
    /// What disturbed the block, each with the subject in whose run it was seen.
    pub(super) noise_of_block: Vec<(Noise, String)>,
    /// Whether it met the SLO, where there is a schedule.
    pub(super) met_slo: Option<bool>,
}

impl<'a> Judged<'a> {
    /// All runs of a cell, in the order of time.
    pub(super) fn all(experiment: &Experiment, runs: &[&'a RunRecord]) -> Vec<Judged<'a>> {
        let mut noise_of: BTreeMap<usize, Vec<(Noise, String)>> = BTreeMap::new();
        let mut first_of: BTreeMap<usize, &RunRecord> = BTreeMap::new();
        for run in runs {
            let first = first_of.entry(run.block).or_insert(run);
            let found =
                noise(first, run).into_iter().map(|(noise, _)| (noise, run.subject.clone()));
            noise_of.entry(run.block).or_default().extend(found);
        }
        let judge = |run: &&'a RunRecord| {
            let figures = figures_of(run);
            let unanswered = checks::is_unanswered(run).then_some(false);
            Judged {
                run,
                met_slo: figures
                    .as_ref()
                    .and_then(|it| met_slo(experiment, run.cell.protocol(), it))
                    .or(unanswered),
                figures,
                findings: checks::check(run),
                noise_of_block: noise_of.get(&run.block).cloned().unwrap_or_default(),
            }
        };
        runs.iter().map(judge).collect()
    }

    /// The first check by which it does not count.
    pub(super) fn failed(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.effect != Effect::Note)
    }

    /// Whether it passed every check, nothing disturbed its block, and something can be said of it.
    pub(super) fn counts(&self) -> bool {
        self.failed().is_none()
            && self.noise_of_block.is_empty()
            && (self.figures.is_some() || self.met_slo == Some(false))
    }
}

/// Why a subject is void in a cell: one of its runs is not what it claims to be, or most cannot count.
pub(super) fn void(name: &str, judged: &[Judged<'_>]) -> Option<String> {
    let own: Vec<&Judged<'_>> = judged.iter().filter(|it| it.run.subject == name).collect();
    let findings = || own.iter().flat_map(|it| &it.findings);
    let void = findings().filter(|it| it.effect == Effect::Void).min_by_key(|it| it.check);
    let excluded = own.iter().filter(|it| it.failed().is_some()).count();
    let most =
        || findings().find(|it| it.effect == Effect::Excluded).filter(|_| 2 * excluded > own.len());
    let finding = void.or_else(most)?;
    Some(format!("{name}: {}: {}", finding.check.title(), finding.what))
}

fn met_slo(experiment: &Experiment, protocol: Protocol, figures: &Figures) -> Option<bool> {
    let slo = experiment.grid(protocol)?.slo;
    let figure = |name: &str| figures.get(name).copied();
    let missing = figure("missing_share")?;
    let (missing_most, time_us, limit_us) = match protocol {
        Protocol::Udp => {
            let (missing, lateness_us) = slo.of_packets();
            (missing, figure("lateness_p999_us")?, lateness_us)
        }
        Protocol::Tcp | Protocol::Http => {
            let (missing, p99_us) = slo.of_requests();
            (missing, figure("p99_us")?, p99_us)
        }
    };
    Some(missing <= missing_most && time_us <= limit_us)
}
