//! What was seen in the cells.

use std::collections::BTreeSet;

use super::kinds::{Warning, WarningKind};
use crate::audit::Kind;
use crate::experiment::{Experiment, UnderTest};
use crate::statistics::MIN_PAIRS;
use crate::statistics::{CONFIDENCE, Drift};
use crate::summary::{
    AaCounts, Bottleneck, CellSummary, Comparison, Metric, SubjectSummary, Summary,
    Verdict,
};

/// A comparison that would not have detected this many percent is noisy.
pub const NOISY_PERCENT: f64 = 5.0;

/// A cell is noisy if more than this share of its blocks was excluded.
pub const EXCLUDED_SHARE: f64 = 0.25;

/// How far a ratio has to move over an experiment to be called drifting, in percent.
pub const DRIFT_RATIO_PERCENT: f64 = 2.0;

/// The same of a subject's figure: pairs cancel a part of that.
pub const DRIFT_FIGURE_PERCENT: f64 = 5.0;

/// A CPU time that is precise only to this share of the window causes a warning: it is a tenth of
/// the differences that verdicts are about.
pub const COARSE_SHARE: f64 = 0.002;

pub(super) fn warnings(experiment: &Experiment, summary: &Summary) -> Vec<Warning> {
    let looks = trends(summary);
    let mut warnings: Vec<Warning> = summary.aa.iter().filter_map(false_verdicts).collect();
    for cell in &summary.cells {
        let fixed_load = experiment.under_test(cell.cell.protocol()) == UnderTest::Server;
        let mut found = Vec::new();
        for comparison in &cell.comparisons {
            found.extend(pairs_and_noise(comparison));
            found.extend(drifting_ratio(comparison, looks));
        }
        found.extend(disturbed(cell));
        found.extend(coarse(cell));
        for subject in &cell.subjects {
            found.extend(client_bound(subject).filter(|_| fixed_load));
            found.extend(outliers(subject));
            found.extend(drifting_figure(cell, subject, looks));
        }
        found.extend(findings(cell));
        found.sort_by_key(|warning| warning.kind);
        warnings.extend(found.into_iter().map(|warning| warning.in_cell(cell.cell)));
    }
    warnings
}

/// How exact the CPU figures of a run are, if that can matter.
fn coarse(cell: &CellSummary) -> Option<Warning> {
    let unsure = cell.busy_unsure_share.filter(|share| *share >= COARSE_SHARE)?;
    let of_figures = cell.subjects.iter().filter_map(|subject| {
        let busy_share = subject.figures.as_ref()?[Metric::ServerBusyShare];
        (busy_share > 0.0).then(|| unsure / busy_share * 100.0)
    });
    let most =
        of_figures.reduce(f64::max).map(|most| format!(", {most:.1} % of a server's figure"));
    let what = format!(
        "the busy time of a CPU in a run is precise to {:.1} % of the window{}",
        unsure * 100.0,
        most.unwrap_or_default()
    );
    Some(Warning::of(WarningKind::CoarseCpu, what))
}

fn false_verdicts(aa: &AaCounts) -> Option<Warning> {
    let AaCounts { groups, false_verdicts, chance } = aa;
    let what = format!(
        "{false_verdicts} of {groups} groups of {MIN_PAIRS} pairs of a subject with itself show a \
         difference; the probability of as many or more by chance is {:.1} %",
        chance * 100.0
    );
    (*chance <= 1.0 - CONFIDENCE).then(|| Warning::of(WarningKind::AaFalseVerdict, what))
}

fn pairs_and_noise(comparison: &Comparison) -> Option<Warning> {
    let Comparison { subject, baseline, verdict, .. } = comparison;
    let kind = match verdict {
        Verdict::TooFewPairs { .. }
        | Verdict::TooFewOccasions { .. }
        | Verdict::TooFewForSoMany { .. }
        | Verdict::UnequalWork { .. } => WarningKind::TooFewPairs,
        Verdict::AaFailed { .. } => WarningKind::AaFalseVerdict,
        Verdict::NoDifference { would_have_seen_percent }
        | Verdict::AaPassed { would_have_seen_percent }
            if *would_have_seen_percent > NOISY_PERCENT =>
        {
            WarningKind::Noisy
        }
        _ => return None,
    };
    let what = match verdict {
        Verdict::NoDifference { would_have_seen_percent }
        | Verdict::AaPassed { would_have_seen_percent } => {
            format!(
                "{subject} and {baseline}: differences below {would_have_seen_percent:.1} % would \
                 probably not have been detected{}",
                pairs_for(comparison, NOISY_PERCENT)
            )
        }
        _ => format!("{subject} and {baseline}: {verdict}"),
    };
    Some(Warning::of(kind, what).about(subject))
}

/// How many pairs would show this many percent, if that is known.
fn pairs_for(comparison: &Comparison, percent: f64) -> String {
    let required = comparison.required_pairs.iter().find(|it| it.percent == percent);
    match required.and_then(|required| required.pairs) {
        Some(pairs) => format!("; {percent} % takes about {pairs} pairs"),
        None => String::new(),
    }
}

fn disturbed(cell: &CellSummary) -> Option<Warning> {
    let CellSummary { blocks, excluded_blocks, .. } = cell;
    let noisy = *excluded_blocks as f64 > EXCLUDED_SHARE * *blocks as f64;
    let what =
        format!("{excluded_blocks} of {blocks} blocks were excluded because of background load");
    noisy.then(|| Warning::of(WarningKind::Noisy, what))
}

/// How many trends are tested: with each one grows the probability of a false alarm.
fn trends(summary: &Summary) -> usize {
    let of_cell = |cell: &CellSummary| {
        let figures = cell.subjects.iter().filter(|it| it.drift.is_some()).count();
        figures + cell.comparisons.iter().filter(|it| it.drift.is_some()).count()
    };
    summary.cells.iter().map(of_cell).sum()
}

/// Whether something moved by so much that it matters, and significantly among so many tests
/// (Bonferroni: the share of experiments with any false alarm stays under 5 %).
fn moved(drift: Option<&Drift>, looks: usize, least_percent: f64) -> Option<&Drift> {
    drift.filter(|drift| {
        drift.percent.abs() >= least_percent && drift.p_value * looks as f64 <= 1.0 - CONFIDENCE
    })
}

fn drifting_ratio(comparison: &Comparison, looks: usize) -> Option<Warning> {
    let drift = moved(comparison.drift.as_ref(), looks, DRIFT_RATIO_PERCENT)?;
    let Comparison { subject, baseline, .. } = comparison;
    let what = format!(
        "the ratio of {subject} and {baseline} moved by {:+.1} % from the first pair to the last \
         (p = {:.4}): one figure does not describe all of them",
        drift.percent, drift.p_value
    );
    Some(Warning::of(WarningKind::Drifting, what).about(subject))
}

/// A figure that moved is reported where no ratio of it moved; otherwise the ratio is.
fn drifting_figure(cell: &CellSummary, subject: &SubjectSummary, looks: usize) -> Option<Warning> {
    let drift = moved(subject.drift.as_ref(), looks, DRIFT_FIGURE_PERCENT)?;
    let name = &subject.name;
    let mut concerned =
        cell.comparisons.iter().filter(|it| it.subject == *name || it.baseline == *name);
    let ratio_moved = concerned
        .any(|comparison| moved(comparison.drift.as_ref(), looks, DRIFT_RATIO_PERCENT).is_some());
    let what = format!(
        "the CPU of {name} moved by {:+.1} % from the first run to the last (p = {:.4}), but its \
         ratio to others did not: the pairs cancel it",
        drift.percent, drift.p_value
    );
    (!ratio_moved).then(|| Warning::of(WarningKind::Drifting, what).about(name))
}

fn client_bound(subject: &SubjectSummary) -> Option<Warning> {
    let figures = subject.figures.as_ref()?;
    let percent = |share: f64| share * 100.0;
    let what = format!(
        "with {} the load generator's CPU was busy for {:.0} % of the window (its busiest thread for \
         {:.0} %), the server's for {:.0} %",
        subject.name,
        percent(figures[Metric::ClientBusyShare]),
        percent(figures[Metric::ClientThreadShare]),
        percent(figures[Metric::ServerBusyShare])
    );
    let bound = subject.bottleneck.is_some_and(Bottleneck::is_client_bound);
    bound.then(|| Warning::of(WarningKind::ClientBound, what).about(&subject.name))
}

fn outliers(subject: &SubjectSummary) -> Option<Warning> {
    let outliers = &subject.outliers;
    let what = format!(
        "of {} runs of {}, {} needed far more CPU and {} far less than the others (beyond 3 \
         interquartile ranges)",
        subject.counted, subject.name, outliers.severe_high, outliers.severe_low
    );
    (outliers.severe() > 0).then(|| Warning::of(WarningKind::Outliers, what).about(&subject.name))
}

/// What audits of single runs found that concerns the conclusions, once for each subject.
fn findings(cell: &CellSummary) -> Vec<Warning> {
    let mut told = BTreeSet::new();
    let mut warnings = Vec::new();
    for finding in &cell.findings {
        let kind = match finding.kind {
            Kind::UnequalAdmission => WarningKind::UnequalAdmission,
            Kind::UnverifiedPayload => WarningKind::UnverifiedPayload,
            _ => continue,
        };
        if told.insert((kind, &finding.subject)) {
            let what = format!("{}: {}", finding.subject, finding.what);
            warnings.push(Warning::of(kind, what).about(&finding.subject));
        }
    }
    warnings
}
