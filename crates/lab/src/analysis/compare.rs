//! One subject against another: one estimator, one interval, one decision.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Check, FIGURES, Figure, Figures, Judged, void};
use crate::noise::Noise;
use crate::statistics::{
    CONFIDENCE, Estimate, MIN_SESSIONS, SESSION_PAIRS_MIN, Sample, Session, estimate, least_pairs,
    over_sessions, sign_test,
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
    /// The baseline's means of what pages show beside the change, over the pairs of `ratio`. Those of the subject are
    /// as many times as large as the ratio says.
    #[serde(skip)]
    pub of_baseline: Figures,
    /// The least change of the CPU that the clock shows, as a share; 0 for the idle clock.
    #[serde(skip)]
    pub resolution: f64,
    /// The decision would be another one over all runs.
    #[serde(skip)]
    pub is_fragile: bool,
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

/// What pages show beside a change, and what explains it.
const OF_BASELINE: [&str; 6] =
    ["both_cpus_ns", "notifications", "server_busy_share", "server_cpu_ns", "switches", "syscalls"];

pub(super) fn compare(contest: &Contest<'_>, judged: &[Judged<'_>]) -> Comparison {
    let blocks = blocks(contest, judged);
    let (counted, left_out) = split(&blocks);
    let met = |side: usize| counted.iter().filter(|both| both[side].met_slo != Some(false)).count();
    let met_slo = counted.iter().any(|both| both[0].met_slo.is_some()).then(|| [met(0), met(1)]);
    let both_met = |both: &&Both<'_, '_>| both.iter().all(|it| it.met_slo != Some(false));
    let mut at_work: Vec<Both<'_, '_>> = counted.iter().filter(both_met).copied().collect();
    let alone = met_slo.and_then(|met| contest.alone(&counted, met));
    if alone.is_some() {
        at_work.clear();
    }
    let lost = judged.iter().flat_map(|it| &it.findings).any(|it| it.check == Check::Packets);
    let is_compared = |it: &&Figure| it.is_compared && !(lost && it.name.ends_with("_us"));
    let change = |Figure { name, .. }: &Figure| {
        let found = contest.over(&samples(&at_work, name), ratio_of).estimate?;
        Some(((*name).to_owned(), found))
    };
    let baseline = |name: &str| {
        let mean = contest.baseline_mean(&samples(&at_work, name))?;
        Some((name.to_owned(), mean))
    };
    let over = contest.over(&samples(&at_work, contest.primary), ratio_of);
    let over_all = contest.over(&samples(&blocks, contest.primary), ratio_of);
    let void = [contest.baseline, contest.subject].into_iter().find_map(|name| void(name, judged));
    let (less, because) = match contest.decide(&over, void.as_deref(), alone) {
        Ok(less) => (Some(less), None),
        Err(because) => (None, Some(because)),
    };
    Comparison {
        subject: contest.subject.to_owned(),
        baseline: contest.baseline.to_owned(),
        aa: contest.aa,
        primary: contest.primary.to_owned(),
        pairs: blocks.len(),
        is_fragile: less.is_some() && over_all.subject_needs_less() != over.subject_needs_less(),
        all_runs: over_all.estimate,
        ratio: over.estimate,
        left_out,
        scope: over.scope,
        sessions: over.sessions,
        figures: FIGURES.iter().filter(is_compared).filter_map(change).collect(),
        met_slo,
        less,
        because,
        void,
        of_baseline: OF_BASELINE.into_iter().filter_map(baseline).collect(),
        resolution: contest.resolution,
    }
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
    // Of both sides the first: summaries that were published say so.
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

/// A pair that has a figure: its session and stratum, and what it is for the baseline and for the subject.
struct Measured {
    session: usize,
    stratum: usize,
    figures: [f64; 2],
}

fn samples(blocks: &[Both<'_, '_>], figure: &str) -> Vec<Measured> {
    let sample = |both: &Both<'_, '_>| {
        let [baseline, subject] =
            both.map(|it| it.figures.as_ref().and_then(|it| it.get(figure).copied()));
        let (figures, run) = ([baseline?, subject?], both[0].run);
        let ratio = ratio_of(&figures);
        let sample = Measured { session: run.occasion, stratum: run.stratum(), figures };
        (ratio.is_finite() && ratio > 0.0).then_some(sample)
    };
    blocks.iter().filter_map(sample).collect()
}

fn ratio_of([baseline, subject]: &[f64; 2]) -> f64 {
    subject / baseline
}

/// The estimate over some pairs, each session by itself if there are several, and how far the estimate reaches.
struct Over {
    estimate: Option<Estimate>,
    sessions: Vec<Estimate>,
    scope: Scope,
}

impl Over {
    /// Whether it is the subject that needs less, if a difference is shown.
    fn subject_needs_less(&self) -> Option<bool> {
        let found = self.estimate?;
        let same =
            |it: &Estimate| it.shows_a_difference() && (it.ratio < 1.0) == (found.ratio < 1.0);
        let is_shown = match found.ends {
            Some(ends) => ends.excludes_one(),
            // Too few sessions for an interval over them: each has to show the same.
            None => self.sessions.len() > 1 && self.sessions.iter().all(same),
        };
        is_shown.then_some(found.ratio < 1.0)
    }
}

impl Contest<'_> {
    /// The estimate of a value of each pair: of one session over its pairs; of several over the means of sessions, or
    /// of machines if there are several. Of several, those with few pairs do not count.
    fn over(&self, samples: &[Measured], value: fn(&[f64; 2]) -> f64) -> Over {
        let mut by_session: BTreeMap<usize, Vec<Sample>> = BTreeMap::new();
        for Measured { session, stratum, figures } in samples {
            let pair = Sample { value: value(figures), stratum: *stratum };
            by_session.entry(*session).or_default().push(pair);
        }
        let several = by_session.len() > 1;
        by_session.retain(|_, pairs| !several || pairs.len() >= SESSION_PAIRS_MIN);
        let each = |pairs: &Vec<Sample>| estimate(pairs, self.level, self.seed);
        if by_session.len() < 2 {
            let count = if several { by_session.len() } else { 1 };
            let scope = Scope { sessions: count, machines: count };
            return Over {
                estimate: by_session.values().find_map(each),
                sessions: Vec::new(),
                scope,
            };
        }
        let mut by_machine: BTreeMap<usize, Vec<Session>> = BTreeMap::new();
        for (session, pairs) in &by_session {
            let machine = self.machines.get(*session).copied().unwrap_or(0);
            by_machine.entry(machine).or_default().extend(Session::of(pairs));
        }
        let scope = Scope { sessions: by_session.len(), machines: by_machine.len() };
        let values: Vec<Session> = match by_machine.len() {
            1 => by_machine.into_values().flatten().collect(),
            _ => by_machine.values().filter_map(|sessions| Session::of_machine(sessions)).collect(),
        };
        let sessions = by_session.values().filter_map(each).collect();
        Over { estimate: over_sessions(&values, self.level), sessions, scope }
    }

    /// The baseline's mean by which the subject's is the ratio. One pair has it as well.
    fn baseline_mean(&self, samples: &[Measured]) -> Option<f64> {
        match samples {
            [one] => Some(one.figures[0]),
            _ => Some(self.over(samples, |[baseline, _]| *baseline).estimate?.ratio),
        }
    }

    /// That one of the two meets the SLO more often, in every session: sessions are not pooled as pairs.
    fn alone(&self, counted: &[Both<'_, '_>], [baseline, subject]: [usize; 2]) -> Option<String> {
        // The pairs of each, and those in which only the baseline or only the subject met it.
        let mut sessions: BTreeMap<usize, (usize, [u64; 2])> = BTreeMap::new();
        for both in counted {
            let (pairs, only) = sessions.entry(both[0].run.occasion).or_default();
            let met = both.map(|it| u64::from(it.met_slo != Some(false)));
            *pairs += 1;
            only[0] += met[0].saturating_sub(met[1]);
            only[1] += met[1].saturating_sub(met[0]);
        }
        let several = sessions.len() > 1;
        sessions.retain(|_, (pairs, _)| !several || *pairs >= SESSION_PAIRS_MIN);
        let shown = |(_, [one, other]): &(usize, [u64; 2])| {
            (sign_test(*one, *other) <= 1.0 - CONFIDENCE).then_some(other > one)
        };
        let shown: BTreeSet<Option<bool>> = sessions.values().map(shown).collect();
        let [one, other] = [self.baseline, self.subject];
        (shown.len() == 1 && !shown.contains(&None))
            .then(|| format!("{one} meets the SLO in {baseline} pairs, {other} in {subject}"))
    }

    /// Which of the two needs less CPU, or why that is not shown.
    fn decide(
        &self,
        over: &Over,
        void: Option<&str>,
        alone: Option<String>,
    ) -> Result<String, String> {
        if let Some(why) = void {
            return Err(format!("void: {why}"));
        }
        if let Some(why) = alone {
            return Err(why);
        }
        let needed = least_pairs(self.level);
        let Some(found) = over.estimate else {
            return Err(too_few(0, needed));
        };
        if found.ratio.ln().abs() < self.resolution {
            return Err(format!("finer than the clock, {:.1} %", self.resolution * 100.0));
        }
        match (over.subject_needs_less(), found.ends) {
            (Some(true), _) => Ok(self.subject.to_owned()),
            (Some(false), _) => Ok(self.baseline.to_owned()),
            (None, Some(_)) => Err("no difference found".to_owned()),
            (None, None) if over.sessions.is_empty() => Err(too_few(found.pairs, needed)),
            (None, None) => Err("not shown in every session".to_owned()),
        }
    }
}

/// In the words of summaries that were published.
fn too_few(pairs: usize, needed: usize) -> String {
    format!("{pairs} pair{}, {needed} needed", if pairs == 1 { "" } else { "s" })
}
