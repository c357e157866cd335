//! A subject against the baseline: ratios with intervals, and what may be said.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Judged;
use super::aa::{self, Aa};
use super::all_pairs::AllPairs;
use super::figures::Figures;
use super::metrics::{Better, Metric};
use super::ratios::Ratios;
use super::sensitivity::WouldChange;
use super::verdict::{RequiredPairs, Verdict, verdict};
use crate::experiment::UnderTest;
use crate::placement::Placement;
use crate::statistics::{self, CONFIDENCE, Drift, Equivalence, Interval, OfOccasions, Spread};

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
    /// Per-pair ratios of the primary metric, in the order of time; only of pairs in which both
    /// did the work that was asked for.
    pub pair_ratios: Vec<f64>,
    /// Confidence of its intervals: more than 95 % if the experiment decided by their width when to
    /// stop. The test of each interval has the level that belongs to it.
    #[serde(default = "usual_confidence")]
    pub confidence: f64,
    /// The primary metric on each occasion, if there were several; every ratio above and below is
    /// then pooled over them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub occasions: Vec<OnOccasion>,
    /// How far apart these are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// Whether the two are equivalent by the primary metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivalence: Option<Equivalence>,
    /// The ratios of CPU of either side and of both, throughput and latency; none of latency if packets
    /// were lost. See [`ratio`](Comparison::ratio).
    #[serde(flatten)]
    ratios: Ratios,
    /// In a run of one of them more packets were lost than the audits let pass. A lost packet is sent
    /// again after 200 ms or so, so latency then says how many were lost and nothing of the servers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packets_lost: bool,
    /// The load generator was the bottleneck of one of them and is not under test, so the ratio of
    /// throughput says nothing about the servers.
    pub throughput_is_client_bound: bool,
    /// Which of the two kept the rate that was asked for, where there is a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_up: Option<KeptUp>,
    /// The ratio without anything left out, over each placement of the CPUs, and what is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_pairs: Option<AllPairs>,
    /// Other choices of pairs that lead to another judgement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_change: Vec<WouldChange>,
    /// Whether the ratio moved while it was measured.
    #[serde(default)]
    pub drift: Option<Drift>,
    /// How many pairs would show certain differences, at `p_value_needed`.
    #[serde(default)]
    pub required_pairs: Vec<RequiredPairs>,
    /// The q value among all comparisons of the experiment that could claim something, if it
    /// corrects for their number. At most 5 % is needed for a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q_value: Option<f64>,
    /// The p value that this comparison had to reach, given what the others claim.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "level")]
    pub p_value_needed: Option<f64>,
    /// What it shows about the method, if the two are the same but for their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aa: Option<Aa>,
    /// What may be said.
    pub verdict: Verdict,
}

fn usual_confidence() -> f64 {
    CONFIDENCE
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
    pub(crate) fn of(under_test: UnderTest) -> Record {
        match under_test {
            UnderTest::Server => Record::ServerCpu,
            UnderTest::Both => Record::BothCpus,
        }
    }

    pub(crate) fn metric(self) -> Metric {
        match self {
            Record::ServerCpu => Metric::ServerCpuNs,
            Record::BothCpus => Metric::BothCpusNs,
        }
    }
}

impl Comparison {
    /// The interval of the primary metric.
    pub fn of_record(&self) -> Option<&Interval> {
        self.ratio(self.record.metric())
    }

    /// The ratio of a metric, if comparisons have it and pairs count: above 1 where the subject is better.
    pub fn ratio(&self, metric: Metric) -> Option<&Interval> {
        self.ratios.get(metric)
    }
}

/// A ratio of the primary metric over the pairs of one occasion.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OnOccasion {
    /// Its number.
    pub occasion: usize,
    /// The ratio.
    pub ratio: Interval,
}

/// In how many pairs the rate that was asked for was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptUp {
    /// By the baseline.
    pub baseline: usize,
    /// By the subject.
    pub subject: usize,
    /// By both; only these can be compared.
    pub both: usize,
}

impl KeptUp {
    /// The pairs in which exactly one kept the rate: the subject, the baseline.
    fn alone(&self) -> [u64; 2] {
        [self.subject, self.baseline].map(|kept| (kept - self.both) as u64)
    }

    /// The sign test of these.
    pub(super) fn sign_test(&self) -> f64 {
        let [subject, baseline] = self.alone();
        statistics::sign_test(subject, baseline)
    }

    /// Whether there are enough of them for the sign test to decide anything.
    pub(super) fn can_decide(&self) -> bool {
        statistics::sign_test(self.alone().iter().sum(), 0) <= 1.0 - CONFIDENCE
    }
}

/// Two runs of the same block that count. A run of which nothing came back has no figures.
struct Pair<'a> {
    /// Number of the baseline's run, in the order of time.
    index: usize,
    occasion: usize,
    /// How the CPUs lay.
    placement: Option<Placement>,
    baseline: Option<&'a Figures>,
    subject: Option<&'a Figures>,
}

fn pairs<'a>(baseline: &[&'a Judged<'_>], subject: &[&'a Judged<'_>]) -> Vec<Pair<'a>> {
    let pair = |of_baseline: &&'a Judged<'_>| {
        let run = of_baseline.run;
        let of_subject = subject.iter().find(|judged| judged.run.block == run.block)?;
        let placement = run.distance.and_then(|distance| distance.placement());
        let [baseline, subject] = [of_baseline.figures(), of_subject.figures()];
        let (index, occasion) = (run.index, run.occasion);
        Some(Pair { index, occasion, placement, baseline, subject })
    };
    baseline.iter().filter_map(pair).collect()
}

/// A pair whose runs both did the work that was asked for.
struct EqualWork<'a> {
    index: usize,
    occasion: usize,
    placement: Option<Placement>,
    baseline: &'a Figures,
    subject: &'a Figures,
}

impl EqualWork<'_> {
    fn ratio(&self, record: Record) -> f64 {
        self.baseline[record.metric()] / self.subject[record.metric()]
    }
}

/// What values have to have in common to be compared for a drift: placement and occasion.
pub(super) type Stratum = (Option<Placement>, usize);

/// The drift of values, each with its stratum and its position in time. Only values of the same
/// stratum are compared with each other.
pub(super) fn drift(values: &[(Stratum, usize, f64)]) -> Option<Drift> {
    let mut series: BTreeMap<Stratum, Vec<(f64, f64)>> = BTreeMap::new();
    for (stratum, index, value) in values {
        series.entry(*stratum).or_default().push((*index as f64, *value));
    }
    statistics::drift(&series.into_values().collect::<Vec<_>>())
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
    /// Packets of one of them were lost.
    pub(super) lost: bool,
    /// They are the same but for their names.
    pub(super) same: bool,
    /// Of the intervals, which decides the level of the tests.
    pub(super) confidence: f64,
    /// What counts as equivalent, in percent.
    pub(super) equivalence_percent: f64,
    /// Why there can be no verdict, if so.
    pub(super) void: Option<String>,
}

pub(super) fn compare(
    rules: Rules<'_>,
    baseline: &[&Judged<'_>],
    subject: &[&Judged<'_>],
) -> Comparison {
    let Rules { record, seed, confidence, .. } = rules;
    let pairs = pairs(baseline, subject);
    let work = |figures: Option<&Figures>| match figures {
        Some(figures) => (rules.did_its_work)(figures),
        // Something was asked for, and nothing came back.
        None => Some(false),
    };
    let keeps_rate = |figures: Option<&Figures>| work(figures).unwrap_or(true);
    let equal: Vec<EqualWork<'_>> = pairs
        .iter()
        .filter(|pair| keeps_rate(pair.baseline) && keeps_rate(pair.subject))
        .filter_map(|pair| {
            let Pair { index, occasion, placement, .. } = *pair;
            let (baseline, subject) = (pair.baseline?, pair.subject?);
            Some(EqualWork { index, occasion, placement, baseline, subject })
        })
        .collect();
    let scheduled = pairs.iter().any(|it| work(it.baseline).or(work(it.subject)).is_some());
    let kept_up = scheduled.then(|| KeptUp {
        baseline: pairs.iter().filter(|pair| keeps_rate(pair.baseline)).count(),
        subject: pairs.iter().filter(|pair| keeps_rate(pair.subject)).count(),
        both: equal.len(),
    });
    let interval = |ratios: &OfOccasions| statistics::interval_of(ratios, seed, confidence);
    let ratios = |metric: Metric| -> Vec<(usize, f64)> {
        let ratio = |it: &EqualWork<'_>| (it.occasion, it.baseline[metric] / it.subject[metric]);
        equal.iter().map(ratio).collect()
    };
    // More of it is compared over all pairs: who did not keep the rate did less.
    let more = |metric: Metric| -> Vec<(usize, f64)> {
        let ratio = |it: &Pair<'_>| Some((it.occasion, it.subject?[metric] / it.baseline?[metric]));
        pairs.iter().filter_map(ratio).collect()
    };
    let ratio = |metric: Metric| match metric.better() {
        Better::More => interval(&more(metric)),
        _ if rules.lost && metric.is_latency() => None,
        _ => interval(&ratios(metric)),
    };
    let primary = ratios(record.metric());
    let pair_ratios: Vec<f64> = primary.iter().map(|(_, ratio)| *ratio).collect();
    let in_time =
        |pair: &EqualWork<'_>| ((pair.placement, pair.occasion), pair.index, pair.ratio(record));
    let occasions =
        statistics::by_occasion(&primary).into_iter().filter_map(|(occasion, ratios)| {
            let ratio = statistics::interval_at(&ratios, seed, confidence)?;
            Some(OnOccasion { occasion, ratio })
        });
    let occasions: Vec<OnOccasion> = occasions.collect();
    let mut comparison = Comparison {
        subject: rules.subject.to_owned(),
        baseline: rules.baseline.to_owned(),
        pairs: pairs.len(),
        record,
        occasions: if occasions.len() > 1 { occasions } else { Vec::new() },
        spread: statistics::spread_of(&primary),
        equivalence: statistics::equivalence_of(
            &primary,
            seed,
            confidence,
            rules.equivalence_percent,
        ),
        ratios: Ratios::of(ratio),
        packets_lost: rules.lost,
        throughput_is_client_bound: rules.client_bound,
        kept_up,
        all_pairs: None,
        would_change: Vec::new(),
        drift: drift(&equal.iter().map(in_time).collect::<Vec<_>>()),
        required_pairs: Vec::new(),
        q_value: None,
        p_value_needed: None,
        aa: rules.same.then(|| aa::check(&pair_ratios, seed)),
        pair_ratios,
        confidence,
        verdict: Verdict::TooFewPairs { pairs: pairs.len() },
    };
    comparison.verdict = match rules.void {
        Some(why) => Verdict::Void { why },
        None if rules.same => aa::suited(verdict(&comparison)),
        None => verdict(&comparison),
    };
    comparison
}
