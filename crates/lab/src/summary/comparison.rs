//! What a comparison of a subject with the baseline says.

use serde::{Deserialize, Serialize};

use super::aa::Aa;
use super::all_pairs::AllPairs;
use super::metrics::Metric;
use super::ratios::Ratios;
use super::sensitivity::WouldChange;
use super::verdict::{RequiredPairs, Verdict};
use crate::experiment::UnderTest;
use crate::statistics::{self, CONFIDENCE, Drift, Equivalence, Interval, Spread};

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
    pub(super) ratios: Ratios,
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

    /// Whether its pairs alone make its verdict about the primary metric. Over several occasions, the occasion is
    /// what varies most: the ratio of each is beside the verdict.
    pub(super) fn is_judged_by_pairs(&self) -> bool {
        let is_judged = matches!(
            self.verdict,
            Verdict::Ahead { .. } | Verdict::Equivalent { .. } | Verdict::NoDifference { .. }
        );
        is_judged && self.occasions.is_empty()
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
