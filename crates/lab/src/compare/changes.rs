//! What changed from A to B, cell by cell and subject by subject.

use serde::{Deserialize, Serialize};

use super::conditions::{self, Difference};
use super::side::{Observation, Side};
use crate::audit::Kind;
use crate::experiment::{Cell, Protocol, UnderTest};
use crate::placement::Placement;
use crate::statistics::{
    CONFIDENCE, Incomparable, MIN_RUNS, TwoSamples, benjamini_hochberg, two_samples,
};
use crate::summary::{Better, METRICS, Metric, Verdict};
use crate::workload::Table;

/// A subject in B against the same subject in A; or the ratio of a subject to its baseline, as
/// each bundle measured it in pairs, in B against A.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SubjectChange {
    /// The cell.
    pub cell: Cell,
    /// The subject.
    pub subject: String,
    /// If it is about a ratio: to which subject.
    pub baseline: Option<String>,
    /// The figure that verdicts of this cell are about.
    pub record: Metric,
    /// The headline figures of the protocol, the counts, and what a gate is about.
    pub figures: Vec<FigureChange>,
}

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FigureChange {
    /// Which.
    pub figure: Metric,
    /// Its unit; of a ratio, nothing.
    pub unit: String,
    /// Geometric mean of the runs of A that count.
    pub a: Option<f64>,
    /// The same of B.
    pub b: Option<f64>,
    /// What changed, if that can be said.
    pub change: Option<Change>,
    /// Why it cannot be said.
    pub why_not: Option<String>,
    #[serde(skip)]
    pub(super) estimate: Option<TwoSamples>,
}

/// A change in percent of A, with its interval. If the CPUs had another placement in B than in A, it is not
/// the quotient of the two means: only runs of the same placement are compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// The change.
    pub percent: f64,
    /// Lower end of its interval at [`CONFIDENCE`].
    pub low_percent: f64,
    /// Upper end.
    pub high_percent: f64,
    /// Runs, or pairs, of A and B that it rests on.
    pub runs: [usize; 2],
    /// By the permutation test.
    pub p_value: f64,
    /// Corrected for the number of figures that are compared.
    pub p_adjusted: f64,
    /// The smallest change in percent that runs which scatter like these would have shown.
    pub detectable_percent: f64,
    /// What may be said.
    pub finding: Finding,
}

/// What may be said about a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// B is better: less of it, or more of throughput.
    Better,
    /// B is worse.
    Worse,
    /// B differs, and neither is better.
    Changed,
    /// Nothing but how large a change would have been seen.
    NoDifference,
}

/// The verdict of a comparison in both bundles.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerdictChange {
    /// The cell.
    pub cell: Cell,
    /// The subject.
    pub subject: String,
    /// Its baseline.
    pub baseline: String,
    /// In A, if it was compared there.
    pub a: Option<Verdict>,
    /// In B.
    pub b: Option<Verdict>,
    /// Whether they differ, if both bundles came to a verdict.
    pub changed: Option<bool>,
    /// Why that cannot be said.
    pub why_not: Option<String>,
}

/// Everything that was compared.
pub(super) struct Changes {
    pub(super) absolute: Vec<SubjectChange>,
    pub(super) relative: Vec<SubjectChange>,
    pub(super) verdicts: Vec<VerdictChange>,
}

/// Compares all cells that both experiments have, and all subjects of them that both have.
pub(super) fn changes(a: &Side, b: &Side, machine: &[Difference], asked: &[Metric]) -> Changes {
    let cells: Vec<Cell> = a.cells.iter().copied().filter(|it| b.cells.contains(it)).collect();
    let mut absolute = Vec::new();
    let mut relative = Vec::new();
    let mut verdicts = Vec::new();
    for cell in cells {
        for subject in a.subjects(cell).filter(|name| b.has(cell, name)) {
            let mut differences = machine.to_vec();
            differences.extend(conditions::network(&a.bundle, &b.bundle, cell));
            differences.extend(conditions::work(&a.bundle, &b.bundle, cell, &[subject]));
            absolute.push(subject_change(a, b, cell, subject, None, &differences, asked));
        }
        for (baseline, subject) in contests(a, b, cell) {
            let differences = conditions::work(&a.bundle, &b.bundle, cell, &[&baseline, &subject]);
            relative.push(subject_change(
                a,
                b,
                cell,
                &subject,
                Some(&baseline),
                &differences,
                asked,
            ));
            verdicts.push(verdict_change(a, b, cell, (baseline, subject), &differences));
        }
    }
    // That other metrics are looked at takes nothing from what the headlines can show.
    for family in [&mut absolute, &mut relative] {
        judge(family, true);
        judge(family, false);
    }
    Changes { absolute, relative, verdicts }
}

/// Whether a change of this metric says anything of a subject. Where there is always a schedule, it gives
/// the throughput.
pub(super) fn can_change(metric: Metric, protocol: Protocol) -> bool {
    let is_given = metric == Metric::RequestsPerS && protocol.workload().on_schedule;
    metric.is_of(protocol) && !is_given
}

/// The metrics that are compared. Each takes a test by permutation, so not all are.
fn compared(protocol: Protocol, asked: &[Metric]) -> impl Iterator<Item = Metric> {
    let is_count = |metric: Metric| Metric::columns(&[Table::Counts]).any(|(it, ..)| it == metric);
    let is_wanted = move |it: &Metric| it.is_headline() || is_count(*it) || asked.contains(it);
    let all = METRICS.iter().copied().filter(is_wanted);
    all.filter(move |metric| can_change(*metric, protocol))
}

/// Which subjects were compared, in either bundle: baseline, subject.
fn contests(a: &Side, b: &Side, cell: Cell) -> Vec<(String, String)> {
    let mut contests = a.contests(cell);
    let others = b.contests(cell).into_iter().filter(|contest| !contests.contains(contest));
    // The other way round it would be the same contest.
    let others: Vec<_> =
        others.filter(|(one, other)| !contests.contains(&(other.clone(), one.clone()))).collect();
    contests.extend(others);
    let known = |name: &String| [a, b].iter().all(|side| side.has(cell, name));
    contests.retain(|(baseline, subject)| known(baseline) && known(subject));
    contests
}

fn subject_change(
    a: &Side,
    b: &Side,
    cell: Cell,
    subject: &str,
    baseline: Option<&str>,
    differences: &[Difference],
    asked: &[Metric],
) -> SubjectChange {
    let involved: Vec<&str> = baseline.into_iter().chain([subject]).collect();
    let incomparable = (!differences.is_empty()).then(|| sentence(differences));
    let observed = [("A", a), ("B", b)].map(|(name, side)| {
        let found: Result<Vec<_>, String> =
            involved.iter().map(|subject| side.observations(cell, subject)).collect();
        found.map_err(|why| format!("{why} in {name}"))
    });
    let client_bound = [a, b].iter().any(|side| {
        let summary = side.summary_of(cell);
        let subjects = summary.iter().flat_map(|summary| &summary.subjects);
        let is_bound =
            |name: &str| subjects.clone().any(|it| it.name == name && is_client_bound(it));
        side.bundle.experiment.under_test(cell.protocol()) == UnderTest::Server
            && involved.iter().any(|name| is_bound(name))
    });
    let lost = [a, b].iter().any(|side| {
        let findings = side.summary_of(cell).into_iter().flat_map(|summary| &summary.findings);
        let mut lost = findings.filter(|it| it.kind == Kind::PacketsLost);
        lost.any(|it| involved.contains(&&*it.subject))
    });
    let withheld = |figure: Metric| {
        if client_bound && figure.is_of_the_load_too() {
            return Some("client-bound: the load generator could not give more");
        }
        (lost && figure.is_latency()).then_some("packets were lost, and sent again after a while")
    };
    let figures = compared(cell.protocol(), asked).map(|figure| {
        let mut change = FigureChange::new(figure, cell.protocol(), baseline.is_some());
        match (&incomparable, &observed) {
            (Some(why), _) | (None, [Err(why), _] | [_, Err(why)]) => {
                change.why_not = Some(why.clone());
            }
            (None, [Ok(a), Ok(b)]) => {
                let values = [a, b].map(|observed| values(observed, figure));
                change.fill(&values, withheld(figure));
            }
        }
        change
    });
    SubjectChange {
        cell,
        subject: subject.to_owned(),
        baseline: baseline.map(str::to_owned),
        record: a.record(cell).metric(),
        figures: figures.collect(),
    }
}

fn is_client_bound(subject: &crate::summary::SubjectSummary) -> bool {
    subject.bottleneck.is_some_and(crate::summary::Bottleneck::is_client_bound)
}

/// Why two things were not measured under the same conditions, in one sentence.
pub(super) fn sentence(differences: &[Difference]) -> String {
    let parts: Vec<String> = differences.iter().map(Difference::to_string).collect();
    format!("not measured under the same conditions: {}", parts.join("; "))
}

/// A run: how the CPUs lay, and the logarithm of a figure.
type Value = (Option<Placement>, f64);

fn incomparable(why: Incomparable<Option<Placement>>) -> String {
    let Incomparable::TooFew(counts) = why else {
        return "a run in which it was nothing".to_owned();
    };
    let side = |side: usize| {
        let of = |(placement, runs): (&Option<Placement>, &[usize; 2])| {
            let how = placement.map_or("at an unknown distance".to_owned(), |it| it.to_string());
            (runs[side] > 0).then(|| format!("{} {how}", runs[side]))
        };
        let parts: Vec<String> = counts.iter().filter_map(of).collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(" and ") }
    };
    let [a, b] = [0, 1].map(side);
    format!(
        "too few runs of the same placement: A has {a}, B has {b}; {MIN_RUNS} of each are needed"
    )
}

/// The logarithms of a figure, run by run; or of its ratio, pair by pair.
fn values(observed: &[Vec<Observation<'_>>], figure: Metric) -> Vec<Value> {
    let log = |observation: &Observation<'_>| Some(observation.figures.get(figure)?.ln());
    let value = |observation: &Observation<'_>| Some((observation.placement, log(observation)?));
    match observed {
        [runs] => runs.iter().filter_map(value).collect(),
        [baseline, subject] => {
            let pair = |of_baseline: &Observation<'_>| {
                let partner = subject.iter().find(|it| it.block == of_baseline.block)?;
                Some((of_baseline.placement, log(partner)? - log(of_baseline)?))
            };
            baseline.iter().filter_map(pair).collect()
        }
        _ => Vec::new(),
    }
}

impl FigureChange {
    fn new(figure: Metric, protocol: Protocol, is_ratio: bool) -> FigureChange {
        let unit = if is_ratio { String::new() } else { figure.unit_text(protocol) };
        FigureChange { figure, unit, a: None, b: None, change: None, why_not: None, estimate: None }
    }

    fn fill(&mut self, [a, b]: &[Vec<Value>; 2], withheld: Option<&str>) {
        let mean = |values: &[Value]| {
            let sum: f64 = values.iter().map(|(_, log)| log).sum();
            Some((sum / values.len() as f64).exp()).filter(|mean| mean.is_finite())
        };
        (self.a, self.b) = (mean(a), mean(b));
        let found = if let Some(why) = withheld {
            Err(why.to_owned())
        } else if a.is_empty() && b.is_empty() {
            Err("no run of either has it".to_owned())
        } else {
            // The seed only has to be the same whenever the same bundles are compared.
            two_samples(a, b, self.figure as u64).map_err(incomparable)
        };
        match found {
            Ok(found) => self.estimate = Some(found),
            Err(why) => self.why_not = Some(why),
        }
    }
}

/// Fills in what may be said, now that it is known how many figures are compared.
fn judge(family: &mut [SubjectChange], headlines: bool) {
    let mut all: Vec<(&mut Option<Change>, Metric, TwoSamples)> = family
        .iter_mut()
        .flat_map(|subject| &mut subject.figures)
        .filter(|it| it.figure.is_headline() == headlines)
        .filter_map(|it| Some((&mut it.change, it.figure, it.estimate?)))
        .collect();
    let p_values: Vec<f64> = all.iter().map(|(_, _, estimate)| estimate.p_value).collect();
    for ((change, figure, estimate), p_adjusted) in
        all.iter_mut().zip(benjamini_hochberg(&p_values))
    {
        **change = Some(said(*figure, estimate, p_adjusted));
    }
}

fn said(figure: Metric, estimate: &TwoSamples, p_adjusted: f64) -> Change {
    let [low, high] = estimate.interval(CONFIDENCE);
    let is_seen = (low > 0.0 || high < 0.0) && p_adjusted <= 1.0 - CONFIDENCE;
    let is_less = estimate.log < 0.0;
    let finding = match figure.better() {
        _ if !is_seen => Finding::NoDifference,
        Better::Neither => Finding::Changed,
        Better::Less if is_less => Finding::Better,
        Better::More if !is_less => Finding::Better,
        Better::Less | Better::More => Finding::Worse,
    };
    Change {
        percent: percent(estimate.log),
        low_percent: percent(low),
        high_percent: percent(high),
        runs: estimate.runs,
        p_value: estimate.p_value,
        p_adjusted,
        detectable_percent: percent(estimate.detectable(CONFIDENCE)),
        finding,
    }
}

/// The logarithm of a ratio as a change in percent.
pub(super) fn percent(log: f64) -> f64 {
    log.exp_m1() * 100.0
}

fn verdict_change(
    a: &Side,
    b: &Side,
    cell: Cell,
    (baseline, subject): (String, String),
    differences: &[Difference],
) -> VerdictChange {
    let [a, b] = [a, b].map(|side| {
        let comparisons = side.summary_of(cell).map_or(&[][..], |summary| &summary.comparisons);
        let it = comparisons.iter().find(|it| it.subject == subject && it.baseline == baseline)?;
        Some(it.verdict.clone())
    });
    let why_not = if !differences.is_empty() {
        Some(sentence(differences))
    } else {
        let without = [("A", &a), ("B", &b)].into_iter().find(|(_, it)| found(it).is_none());
        without.map(|(side, verdict)| {
            let why = verdict.as_ref().map_or("it was not compared".to_owned(), Verdict::to_string);
            format!("{side} came to no verdict: {why}")
        })
    };
    let changed = why_not.is_none().then(|| found(&a) != found(&b));
    VerdictChange { cell, subject, baseline, a, b, changed, why_not }
}

/// What a verdict found and who won, if it is one at all. How large a difference would have been
/// seen, or among how many, is no part of that.
fn found(verdict: &Option<Verdict>) -> Option<(&'static str, Option<&str>)> {
    match verdict.as_ref()? {
        Verdict::Ahead { winner, .. } => Some(("ahead", Some(winner))),
        Verdict::OnlyOneKeepsRate { winner } => Some(("keeps the rate", Some(winner))),
        Verdict::Equivalent { .. }
        | Verdict::NoDifference { .. }
        | Verdict::NotAfterCorrection { .. } => Some(("none", None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_by_placement() {
        let close = Some(Placement::Close);
        let why = incomparable(Incomparable::TooFew([(None, [8, 0]), (close, [0, 9])].into()));
        assert!(why.contains("A has 8 at an unknown distance, B has 9 close; 8 of each"), "{why}");
        let why = incomparable(Incomparable::TooFew([(close, [0, 9])].into()));
        assert!(why.contains("A has none"), "{why}");
    }
}
