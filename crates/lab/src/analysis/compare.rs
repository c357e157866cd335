//! One subject against another: one estimator, one interval, one decision.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::checks::Check;
use super::figures::{FIGURES, Figure};
use super::judged::{Judged, void};
use crate::noise::Noise;
use crate::statistics::{
    CONFIDENCE, Estimate, MIN_SESSIONS, Pair, Session, estimate, least_pairs, over_sessions,
    sign_test,
};

/// A subject against the baseline. Every ratio is that of the subject's figure to the baseline's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Comparison {
    /// The subject.
    pub subject: String,
    /// The baseline.
    pub baseline: String,
    /// The two are the same but for their names: a difference is a false positive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aa: bool,
    /// The primary metric: `server_cpu_ns`, or `both_cpus_ns` where both sides are under test.
    pub primary: String,
    /// Blocks in which both ran.
    pub pairs: usize,
    /// The primary metric over every pair that has figures, whatever disturbed or failed it.
    pub all_runs: Option<Estimate>,
    /// Over the undisturbed pairs that passed every check and in which both met the SLO. The decision is its interval.
    pub ratio: Option<Estimate>,
    /// Pairs that are in the first and not in the second, by the first reason of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// How far the decision reaches.
    pub scope: Scope,
    /// Each session by itself, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<Estimate>,
    /// Every compared figure over the same pairs as `ratio`, with intervals of the same level.
    pub figures: BTreeMap<String, Estimate>,
    /// In how many counted pairs the baseline and the subject met the SLO, where there is a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met_slo: Option<[usize; 2]>,
    /// The one that needs less CPU, if the interval shows a difference.
    pub less: Option<String>,
    /// Why there is no decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Why the comparison is void.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<String>,
}

/// Pairs that do not count for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// The reason.
    pub why: String,
    /// On which side it was seen: a subject, or `both`.
    pub side: String,
    /// How many pairs.
    pub pairs: usize,
}

/// The sessions and machines behind an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Scope {
    /// Sessions with enough pairs.
    pub sessions: usize,
    /// Machines that they were on.
    pub machines: usize,
}

impl Scope {
    /// Of what the decision is said.
    pub fn words(self) -> String {
        match self {
            Scope { sessions: 0 | 1, .. } => "in this session".to_owned(),
            Scope { machines: 1, sessions } if sessions >= MIN_SESSIONS => {
                format!("on this machine ({sessions} sessions)")
            }
            Scope { machines, .. } if machines >= MIN_SESSIONS => format!("on {machines} machines"),
            Scope { sessions, .. } => format!("in {sessions} sessions"),
        }
    }
}

impl Comparison {
    /// Whether the decision would be another one over all runs.
    pub fn is_fragile(&self) -> bool {
        let (Some(_), Some(ratio)) = (&self.less, self.ratio) else { return false };
        let agrees =
            |all: Estimate| all.shows_a_difference() && (all.ratio < 1.0) == (ratio.ratio < 1.0);
        // Of few sessions neither has an interval.
        ratio.ends.is_some() && !self.all_runs.is_some_and(agrees)
    }

    /// How many pairs count.
    pub fn counted(&self) -> usize {
        self.ratio.map_or(0, |ratio| ratio.pairs)
    }
}

pub(super) struct Contest<'a> {
    pub(super) baseline: &'a str,
    pub(super) subject: &'a str,
    pub(super) primary: &'a str,
    pub(super) aa: bool,
    pub(super) level: f64,
    /// The number of the machine of each session.
    pub(super) machines: &'a [usize],
    pub(super) seed: u64,
    /// No difference below this share is decided: the clock is no finer.
    pub(super) resolution: f64,
}

/// The two runs of a block, the baseline's first.
type Both<'a, 'b> = [&'a Judged<'b>; 2];

pub(super) fn compare(contest: &Contest<'_>, judged: &[Judged<'_>]) -> Comparison {
    let blocks = blocks(contest, judged);
    let (counted, left_out) = split(&blocks);
    let met = |side: usize| counted.iter().filter(|both| both[side].met_slo != Some(false)).count();
    let met_slo = counted.iter().any(|both| both[0].met_slo.is_some()).then(|| [met(0), met(1)]);
    let at_work: Vec<Both<'_, '_>> = counted
        .into_iter()
        .filter(|both| both.iter().all(|it| it.met_slo != Some(false)))
        .collect();
    let lost = judged.iter().flat_map(|it| &it.findings).any(|it| it.check == Check::Packets);
    let mut figures = BTreeMap::new();
    let is_compared = |it: &&Figure| it.is_compared && !(lost && it.name.ends_with("_us"));
    for Figure { name, .. } in FIGURES.iter().filter(is_compared) {
        let found = contest.over(&samples(&at_work, name)).0;
        figures.extend(found.map(|found| ((*name).to_owned(), found)));
    }
    let (ratio, sessions, scope) = contest.over(&samples(&at_work, contest.primary));
    let mut comparison = Comparison {
        subject: contest.subject.to_owned(),
        baseline: contest.baseline.to_owned(),
        aa: contest.aa,
        primary: contest.primary.to_owned(),
        pairs: blocks.len(),
        all_runs: contest.over(&samples(&blocks, contest.primary)).0,
        ratio,
        left_out,
        scope,
        sessions,
        figures,
        met_slo,
        less: None,
        because: None,
        void: [contest.baseline, contest.subject].into_iter().find_map(|name| void(name, judged)),
    };
    match contest.decide(&comparison) {
        Ok(less) => comparison.less = Some(less),
        Err(because) => comparison.because = Some(because),
    }
    comparison
}

fn blocks<'a, 'b>(contest: &Contest<'_>, judged: &'a [Judged<'b>]) -> Vec<Both<'a, 'b>> {
    let mut of_block: BTreeMap<usize, [Option<&'a Judged<'b>>; 2]> = BTreeMap::new();
    for it in judged {
        let side =
            [contest.baseline, contest.subject].iter().position(|name| *name == it.run.subject);
        if let Some(side) = side {
            of_block.entry(it.run.block).or_default()[side] = Some(it);
        }
    }
    of_block.into_values().filter_map(|[baseline, subject]| Some([baseline?, subject?])).collect()
}

/// The blocks that count, and why the others do not.
fn split<'a, 'b>(blocks: &[Both<'a, 'b>]) -> (Vec<Both<'a, 'b>>, Vec<LeftOut>) {
    let mut counted = Vec::new();
    let mut reasons: BTreeMap<(String, String), usize> = BTreeMap::new();
    for both in blocks {
        let why = reason(both);
        counted.extend(why.is_none().then_some(*both));
        let missed = both.iter().filter(|it| it.met_slo == Some(false));
        let missed = side_of(missed.map(|it| &*it.run.subject));
        if let Some(why) = why.or(missed.map(|side| ("missed the SLO".to_owned(), side))) {
            *reasons.entry(why).or_default() += 1;
        }
    }
    let left_out = |((why, side), pairs)| LeftOut { why, side, pairs };
    (counted, reasons.into_iter().map(left_out).collect())
}

/// Why a pair does not count, and on which side that was seen.
fn reason(both: &Both<'_, '_>) -> Option<(String, String)> {
    let failed = both.iter().filter_map(|it| it.failed());
    if let Some(finding) = failed.min_by_key(|finding| finding.check) {
        return Some((finding.check.title().to_owned(), finding.subject.clone()));
    }
    // A block may have further subjects, whose disturbance is one of all.
    let noise = &both[0].noise_of_block;
    if let Some((first, _)) = noise.iter().min_by_key(|(noise, _)| *noise) {
        let seen = noise.iter().filter(|(noise, _)| noise == first).map(|(_, subject)| &**subject);
        return Some((title(*first).to_owned(), side_of(seen)?));
    }
    let without = both.iter().filter(|it| it.figures.is_none() && it.met_slo.is_none());
    Some(("no figures".to_owned(), side_of(without.map(|it| &*it.run.subject))?))
}

fn side_of<'a>(subjects: impl Iterator<Item = &'a str>) -> Option<String> {
    let subjects: BTreeSet<&str> = subjects.collect();
    let first = subjects.first().map(|it| (*it).to_owned());
    if subjects.len() > 1 { Some("both".to_owned()) } else { first }
}

fn title(noise: Noise) -> &'static str {
    match noise {
        Noise::Steal => "CPU taken by other guests",
        Noise::OtherProcesses => "other processes",
        Noise::Throttled => "CPU quota",
        Noise::Moved => "virtual CPUs moved",
        Noise::LateSample => "late sample",
    }
}

/// The pairs that have a figure, each with its session.
fn samples(blocks: &[Both<'_, '_>], figure: &str) -> Vec<(usize, Pair)> {
    let sample = |both: &Both<'_, '_>| {
        let [baseline, subject] =
            both.map(|it| it.figures.as_ref().and_then(|it| it.get(figure).copied()));
        let ratio = subject? / baseline?;
        let run = both[0].run;
        let pair = Pair { ratio, stratum: run.stratum() };
        (ratio.is_finite() && ratio > 0.0).then_some((run.occasion, pair))
    };
    blocks.iter().filter_map(sample).collect()
}

impl Contest<'_> {
    /// The estimate over these pairs: of one session over its pairs; of several over the means of sessions, or of
    /// machines if there are several. And each session by itself.
    fn over(&self, samples: &[(usize, Pair)]) -> (Option<Estimate>, Vec<Estimate>, Scope) {
        let mut by_session: BTreeMap<usize, Vec<Pair>> = BTreeMap::new();
        for (session, pair) in samples {
            by_session.entry(*session).or_default().push(*pair);
        }
        let machine = |session: usize| self.machines.get(session).copied().unwrap_or(0);
        if by_session.len() < 2 {
            let pairs = by_session.into_values().next().unwrap_or_default();
            let scope = Scope { sessions: 1, machines: 1 };
            return (estimate(&pairs, self.level, self.seed), Vec::new(), scope);
        }
        let each = by_session
            .values()
            .filter_map(|pairs| estimate(pairs, self.level, self.seed))
            .collect();
        let mut by_machine: BTreeMap<usize, Vec<Session>> = BTreeMap::new();
        for (session, pairs) in &by_session {
            by_machine.entry(machine(*session)).or_default().extend(Session::of(pairs));
        }
        by_machine.retain(|_, sessions| !sessions.is_empty());
        let sessions = by_machine.values().map(Vec::len).sum();
        let scope = Scope { sessions, machines: by_machine.len() };
        let values: Vec<Session> = match by_machine.len() {
            1 => by_machine.into_values().flatten().collect(),
            _ => by_machine.values().filter_map(|sessions| Session::of_machine(sessions)).collect(),
        };
        (over_sessions(&values, self.level), each, scope)
    }

    /// Which of the two needs less CPU.
    ///
    /// # Errors
    /// Why that is not shown.
    fn decide(&self, of: &Comparison) -> Result<String, String> {
        let winner = |ratio: f64| if ratio < 1.0 { self.subject } else { self.baseline }.to_owned();
        if let Some(why) = &of.void {
            return Err(format!("void: {why}"));
        }
        if let Some([baseline, subject]) = of.met_slo
            && sign_test(
                baseline.saturating_sub(of.counted()) as u64,
                subject.saturating_sub(of.counted()) as u64,
            ) <= 1.0 - CONFIDENCE
        {
            let [who, met] = if subject > baseline {
                [self.subject.to_owned(), format!("{subject} pairs against {baseline}")]
            } else {
                [self.baseline.to_owned(), format!("{baseline} pairs against {subject}")]
            };
            return Err(format!("only {who} meets the SLO, in {met}"));
        }
        let needed = least_pairs(self.level);
        let Some(ratio) = of.ratio else {
            return Err(too_few(of.counted(), needed));
        };
        if ratio.ratio.ln().abs() < self.resolution {
            return Err(format!("finer than the clock, {:.1} %", self.resolution * 100.0));
        }
        match ratio.ends {
            Some(ends) if ends.excludes_one() => Ok(winner(ratio.ratio)),
            Some(_) => Err("no difference found".to_owned()),
            None if of.sessions.len() < 2 => Err(too_few(ratio.pairs, needed)),
            None => {
                // Too few sessions for an interval over them: each has to show the same.
                let same = |it: &Estimate| {
                    it.shows_a_difference() && (it.ratio < 1.0) == (ratio.ratio < 1.0)
                };
                match of.sessions.iter().all(same) && of.scope.sessions == of.sessions.len() {
                    true => Ok(winner(ratio.ratio)),
                    false => Err("sessions differ; three are needed".to_owned()),
                }
            }
        }
    }
}

/// In the words of summaries that were published.
fn too_few(pairs: usize, needed: usize) -> String {
    format!("{pairs} pair{}, {needed} needed", if pairs == 1 { "" } else { "s" })
}
