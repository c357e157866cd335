//! A subject against the baseline: ratios with intervals, and what may be said.

use serde::{Deserialize, Serialize};

use super::Judged;
use super::figures::Figures;
use crate::experiment::{MIN_PAIRS, UnderTest};
use crate::placement::Placement;
use crate::statistics::{self, Interval};

/// A subject against the baseline. Every ratio is above 1 where the subject is better: less CPU,
/// more throughput, lower latency. A unit is a request or a packet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The subject.
    pub subject: String,
    /// The baseline.
    pub baseline: String,
    /// Pairs that count.
    pub pairs: usize,
    /// Which figure the verdict is about.
    #[serde(default)]
    pub record: Record,
    /// Per-pair ratios of the figure of record, in the order of time; only of pairs in which both
    /// did the work that was asked for.
    pub pair_ratios: Vec<f64>,
    /// CPU of the server's CPU per unit.
    pub server_cpu: Option<Interval>,
    /// CPU time of the server's process alone, by its own clock, per unit: what most benchmarks
    /// show. It misses the softirq and interrupts that others pay for.
    pub server_process: Option<Interval>,
    /// CPU of the client's CPU per unit.
    #[serde(default)]
    pub client_cpu: Option<Interval>,
    /// CPU of both per unit.
    pub both_cpus: Option<Interval>,
    /// Units per second.
    pub throughput: Option<Interval>,
    /// 99th percentile of latency.
    pub latency_p99: Option<Interval>,
    /// The load generator was the bottleneck of one of them and is not under test, so the ratio of
    /// throughput says nothing about the servers.
    pub throughput_is_client_bound: bool,
    /// The figure of record by placement of the CPUs, if the pairs have several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placed: Vec<Placed>,
    /// Who did the work that was asked for, where there is a schedule to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_up: Option<KeptUp>,
    /// What may be said.
    pub verdict: Verdict,
}

/// The figure that a verdict is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// CPU of the server's CPU per unit.
    #[default]
    ServerCpu,
    /// CPU of both per unit: both sides are under test.
    BothCpus,
}

impl Record {
    pub(super) fn of(under_test: UnderTest) -> Record {
        match under_test {
            UnderTest::Server => Record::ServerCpu,
            UnderTest::Both => Record::BothCpus,
        }
    }

    fn figure(self, figures: &Figures) -> f64 {
        match self {
            Record::ServerCpu => figures.server_cpu_ns,
            Record::BothCpus => figures.both_cpus_ns,
        }
    }
}

impl Comparison {
    /// The interval of the figure of record.
    pub fn of_record(&self) -> Option<&Interval> {
        match self.record {
            Record::ServerCpu => self.server_cpu.as_ref(),
            Record::BothCpus => self.both_cpus.as_ref(),
        }
    }
}

/// A ratio of the figure of record over the pairs of one placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// How the CPUs lay to each other.
    pub placement: Placement,
    /// The ratio.
    pub ratio: Interval,
}

/// In how many pairs the work was done that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptUp {
    /// By the baseline.
    pub baseline: usize,
    /// By the subject.
    pub subject: usize,
    /// By both; only these can be compared.
    pub both: usize,
}

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
    /// There are fewer than [`MIN_PAIRS`] pairs in which both did the work that was asked for.
    UnequalWork {
        /// How many there are.
        pairs: usize,
    },
    /// An audit failed.
    Void {
        /// Which, and for whom.
        why: String,
    },
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Ahead { winner } => write!(f, "{winner} ahead"),
            Verdict::OnlyOneKeepsUp { winner } => {
                write!(f, "only {winner} keeps up")
            }
            Verdict::NoDifference { would_have_seen_percent: percent } => {
                write!(f, "no difference detected (would have seen {percent:.1} %)")
            }
            Verdict::TooFewPairs { pairs } => {
                write!(f, "no verdict: {pairs} of the {MIN_PAIRS} pairs that one needs")
            }
            Verdict::UnequalWork { pairs } => {
                write!(
                    f,
                    "no verdict: both kept up with the schedule in {pairs} of the {MIN_PAIRS} \
                     pairs that one needs"
                )
            }
            Verdict::Void { why } => write!(f, "void: {why}"),
        }
    }
}

/// The figures of two runs of the same block: baseline, subject.
type Pair<'a> = (&'a Figures, &'a Figures);

/// The pairs, with the placement of the CPUs in each.
fn pairs<'a>(
    baseline: &[&'a Judged<'_>],
    subject: &[&'a Judged<'_>],
) -> Vec<(Option<Placement>, Pair<'a>)> {
    let figures = |judged: &'a Judged<'_>| judged.read.as_ref().map(|read| &read.figures);
    let partner = |block| figures(subject.iter().find(|j| j.run.block == block)?);
    let placement = |j: &Judged<'_>| j.run.distance.and_then(|distance| distance.placement());
    let pair = |j: &&'a Judged<'_>| Some((placement(j), (figures(j)?, partner(j.run.block)?)));
    baseline.iter().filter_map(pair).collect()
}

/// The ratios of the figure of record by placement; none if all pairs are of one.
fn placed(
    pairs: &[(Option<Placement>, Pair<'_>)],
    ratio: impl Fn(&Pair<'_>) -> f64,
    seed: u64,
) -> Vec<Placed> {
    let of = |placement: Placement| -> Option<Placed> {
        let these = pairs.iter().filter(|(placed, _)| *placed == Some(placement));
        let ratios: Vec<f64> = these.map(|(_, pair)| ratio(pair)).collect();
        let ratio = statistics::interval(&ratios, seed)?;
        Some(Placed { placement, ratio })
    };
    match (of(Placement::Close), of(Placement::Apart)) {
        (Some(close), Some(apart)) => vec![close, apart],
        _ => Vec::new(),
    }
}

/// Who is compared, and by which rules.
pub(super) struct Rules<'a> {
    pub(super) baseline: &'a str,
    pub(super) subject: &'a str,
    pub(super) record: Record,
    /// Whether a run did the work that was asked for, where something was.
    pub(super) did_its_work: &'a dyn Fn(&Figures) -> Option<bool>,
    pub(super) seed: u64,
    /// One of them was limited by a load generator that is not under test.
    pub(super) client_bound: bool,
    /// Why there can be no verdict, if so.
    pub(super) void: Option<String>,
}

pub(super) fn compare(
    rules: Rules<'_>,
    baseline: &[&Judged<'_>],
    subject: &[&Judged<'_>],
) -> Comparison {
    let Rules { record, seed, .. } = rules;
    let with_placement = pairs(baseline, subject);
    let pairs: Vec<Pair<'_>> = with_placement.iter().map(|(_, pair)| *pair).collect();
    let keeps_up = |figures: &Figures| (rules.did_its_work)(figures).unwrap_or(true);
    let equal: Vec<&Pair<'_>> = pairs
        .iter()
        .filter(|(baseline, subject)| keeps_up(baseline) && keeps_up(subject))
        .collect();
    let scheduled = pairs.iter().any(|(baseline, _)| (rules.did_its_work)(baseline).is_some());
    let kept_up = scheduled.then(|| KeptUp {
        baseline: pairs.iter().filter(|(baseline, _)| keeps_up(baseline)).count(),
        subject: pairs.iter().filter(|(_, subject)| keeps_up(subject)).count(),
        both: equal.len(),
    });
    let less_is_better = |field: &dyn Fn(&Figures) -> f64| -> Vec<f64> {
        equal.iter().map(|(baseline, subject)| field(baseline) / field(subject)).collect()
    };
    let interval = |ratios: &[f64]| statistics::interval(ratios, seed);
    let less = |field: fn(&Figures) -> f64| interval(&less_is_better(&field));
    let throughput: Vec<f64> = pairs
        .iter()
        .map(|(baseline, subject)| subject.requests_per_s / baseline.requests_per_s)
        .collect();
    let mut comparison = Comparison {
        subject: rules.subject.to_owned(),
        baseline: rules.baseline.to_owned(),
        pairs: pairs.len(),
        record,
        server_cpu: less(|figures| figures.server_cpu_ns),
        server_process: less(|figures| figures.server_process_ns),
        client_cpu: less(|figures| figures.client_cpu_ns),
        both_cpus: less(|figures| figures.both_cpus_ns),
        throughput: interval(&throughput),
        latency_p99: less(|figures| figures.latency_us_p99),
        throughput_is_client_bound: rules.client_bound,
        placed: placed(
            &with_placement,
            |(baseline, subject)| record.figure(baseline) / record.figure(subject),
            seed,
        ),
        kept_up,
        pair_ratios: less_is_better(&|figures| record.figure(figures)),
        verdict: Verdict::TooFewPairs { pairs: pairs.len() },
    };
    comparison.verdict = match rules.void {
        Some(why) => Verdict::Void { why },
        None => verdict(&comparison),
    };
    comparison
}

/// Who does the work comes before what it costs.
fn verdict(comparison: &Comparison) -> Verdict {
    let Comparison { subject, baseline, pairs, kept_up, .. } = comparison;
    if *pairs < MIN_PAIRS {
        return Verdict::TooFewPairs { pairs: *pairs };
    }
    if let Some(kept) = kept_up {
        let (by_subject, by_baseline) = (kept.subject - kept.both, kept.baseline - kept.both);
        let p_value = statistics::sign_test(by_subject as u64, by_baseline as u64);
        if p_value <= 1.0 - statistics::CONFIDENCE {
            let winner = if by_subject > by_baseline { subject } else { baseline };
            return Verdict::OnlyOneKeepsUp { winner: winner.clone() };
        }
        if kept.both < MIN_PAIRS {
            return Verdict::UnequalWork { pairs: kept.both };
        }
    }
    match comparison.of_record() {
        None => Verdict::TooFewPairs { pairs: *pairs },
        Some(interval) if !interval.shows_a_difference() => {
            Verdict::NoDifference { would_have_seen_percent: interval.detectable_percent }
        }
        Some(interval) => {
            let winner = if interval.ratio > 1.0 { subject } else { baseline };
            Verdict::Ahead { winner: winner.clone() }
        }
    }
}
