//! How a subject is compared with the baseline.

use std::collections::BTreeMap;

use super::aa;
use super::comparison::{Comparison, KeptUp, OnOccasion, Record};
use super::figures::Figures;
use super::judge::verdict;
use super::judged::Judged;
use super::metrics::{Better, Metric};
use super::ratios::Ratios;
use super::verdict::Verdict;
use crate::placement::Placement;
use crate::statistics::{self, Drift, OfOccasions};

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
