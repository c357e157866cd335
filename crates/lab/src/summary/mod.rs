//! From raw runs to figures and verdicts. Everything printed anywhere is computed here, and only
//! from the run records and the experiment, so that `twinring lab verify` can do it again.

mod aa;
mod all_pairs;
mod calls;
mod compare;
mod comparison;
mod figures;
mod judge;
mod judged;
mod keeps_up;
mod knee;
mod level;
mod metrics;
mod ratios;
mod reading;
mod sensitivity;
mod stored;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};

use hdrhistogram::Histogram;

use crate::audit::{self, Finding, Kind, Severity};
use crate::experiment::{Cell, Experiment, UnderTest};
use crate::placement::Placement;
use crate::record::RunRecord;
use crate::statistics::{CONFIDENCE, Outliers, median};

pub use crate::workload::Axis;
pub use aa::{Aa, AaCounts, Resolution};
pub use all_pairs::{AllPairs, LeftOut, Placed};
pub use calls::CallFigures;
pub use comparison::{Comparison, KeptUp, OnOccasion, Record};
pub use figures::Figures;
pub(crate) use figures::figures_of;
pub(crate) use keeps_up::did_its_work;
pub use level::Level;
pub use metrics::{Better, METRICS, Metric, PARTS};
pub(crate) use metrics::{SIDES, Unit};
pub use sensitivity::{Judgement, Selection, WouldChange};
pub use stored::{
    Bottleneck, CellSummary, Knee, PlacementSummary, SubjectSummary, Summary,
};
pub(crate) use verdict::Pairs;
pub use verdict::{Claim, RequiredPairs, Verdict};

use compare::{Rules, compare, drift};
use figures::{Read, read};
use judged::Judged;
use sensitivity::Tests;

/// A CPU busier than this is the bottleneck.
pub const SATURATED_SHARE: f64 = 0.95;

/// Two subjects are equivalent if neither needs this many percent less than the other.
const EQUIVALENCE_PERCENT: f64 = 3.0;

/// The points of the latency curve.
const CURVE_QUANTILES: &[f64] = &[
    0.0, 0.1, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.993,
    0.995, 0.997, 0.998, 0.999, 0.9995, 0.9999, 0.99995, 0.99999, 1.0,
];

/// Computes the summary of an experiment's runs.
pub fn summarise(experiment: &Experiment, seed: u64, runs: &[RunRecord]) -> Summary {
    let mut nets: Vec<_> = runs.iter().map(|run| run.cell.net).collect();
    nets.sort_unstable();
    nets.dedup();
    let begun = |cell: &Cell| runs.iter().any(|run| run.cell == *cell);
    let cells = experiment.cells(&nets).into_iter().filter(begun);
    let of_cell = |cell| runs.iter().filter(|run| run.cell == cell).collect::<Vec<_>>();
    let mut cells: Vec<CellSummary> =
        cells.map(|cell| cell_summary(experiment, seed, cell, &of_cell(cell))).collect();
    judge::judge_together(cells.iter_mut().flat_map(|cell| &mut cell.comparisons));
    let with_themselves = cells.iter().flat_map(|cell| &cell.comparisons);
    let aa = aa::totals(with_themselves.filter_map(|it| it.aa.as_ref()));
    let knees = knee::knees(&cells);
    Summary { cells, runs: runs.len(), aa, knees }
}

/// The findings of each run of a cell.
fn audited(experiment: &Experiment, runs: &[&RunRecord]) -> Vec<Vec<Finding>> {
    let of_run = |run: &&RunRecord| {
        // Runs are in the order of time, so this is the first of its block.
        let first = runs.iter().find(|it| it.block == run.block).unwrap_or(run);
        audit::audit_in_block(experiment.placement, first, run)
    };
    let mut found: Vec<Vec<Finding>> = runs.iter().map(of_run).collect();
    let mut late: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (run, found) in runs.iter().zip(&found) {
        let (late, all) = late.entry(&run.subject).or_default();
        *all += 1;
        *late += usize::from(found.iter().any(|it| it.kind == Kind::ScheduleLag));
    }
    // A load generator that is late in most runs was not disturbed, it is too slow for the rate. The
    // runs in which it was not are the exceptions, and no sample of what was asked for.
    for finding in found.iter_mut().flatten().filter(|it| it.kind == Kind::ScheduleLag) {
        if late.get(finding.subject.as_str()).is_some_and(|(late, all)| 2 * late > *all) {
            finding.severity = Severity::Void;
        }
    }
    found
}

fn cell_summary(
    experiment: &Experiment,
    seed: u64,
    cell: Cell,
    runs: &[&RunRecord],
) -> CellSummary {
    let found = audited(experiment, runs);
    let mut findings = Vec::new();
    let judged: Vec<Judged<'_>> = runs
        .iter()
        .zip(found)
        .map(|(run, found)| {
            let first_of = |severity| {
                let of_it = found.iter().filter(|finding| finding.severity == severity);
                of_it.map(|finding| finding.kind).min()
            };
            let (void, noise) = (first_of(Severity::Void), first_of(Severity::Noise));
            let disturbed = noise.is_some();
            findings.extend(found);
            let (read, unanswered) = (read(run), audit::is_unanswered(run));
            Judged { run, read, void, noise, disturbed, unanswered }
        })
        .collect();
    let is_excluded = |block: usize| judged.iter().any(|j| j.run.block == block && j.disturbed);
    let counted: Vec<&Judged<'_>> =
        judged.iter().filter(|j| j.can_count() && !is_excluded(j.run.block)).collect();
    let blocks: BTreeSet<usize> = runs.iter().map(|run| run.block).collect();
    let excluded_blocks = blocks.iter().filter(|block| is_excluded(**block)).count();
    let of_subject =
        |name: &str| counted.iter().copied().filter(|j| j.run.subject == name).collect::<Vec<_>>();
    let protocol = cell.protocol();
    let did_its_work = |figures: &Figures| did_its_work(experiment, protocol, figures);
    let speakers = experiment.subjects_of(protocol);
    let under_test = experiment.under_test(protocol);
    let record = Record::of(under_test);
    let mut subjects: Vec<SubjectSummary> = speakers
        .iter()
        .map(|&position| {
            let name = &experiment.subjects[position].name;
            let runs = runs.iter().filter(|run| run.subject == *name).count();
            subject_summary(name, runs, record, &of_subject(name), &did_its_work)
        })
        .collect();
    for subject in &mut subjects {
        subject.level = level::level(record, &of_subject(&subject.name), &did_its_work, seed);
    }
    let void = |name: &str| {
        let of_name =
            |finding: &&Finding| finding.severity == Severity::Void && finding.subject == name;
        let kinds: BTreeSet<Kind> =
            findings.iter().filter(of_name).map(|finding| finding.kind).collect();
        let titles: Vec<&str> = kinds.into_iter().map(Kind::title).collect();
        (!titles.is_empty()).then(|| format!("{name}: {}", titles.join(", ")))
    };
    let lost_packets =
        |name: &str| findings.iter().any(|it| it.kind == Kind::PacketsLost && it.subject == name);
    let is_bound = |side: &SubjectSummary| side.bottleneck.is_some_and(Bottleneck::is_client_bound);
    let speaker = |subject: usize| speakers.iter().position(|speaker| *speaker == subject);
    let comparisons = experiment
        .contests(protocol)
        .into_iter()
        .filter_map(|(baseline, subject)| {
            let same = experiment.subjects[baseline].is_twin_of(&experiment.subjects[subject]);
            Some((speaker(baseline)?, speaker(subject)?, same))
        })
        .map(|(baseline, subject, same)| {
            let [baseline, subject] = [&subjects[baseline], &subjects[subject]];
            let rules = Rules {
                baseline: &baseline.name,
                subject: &subject.name,
                record,
                same,
                confidence: CONFIDENCE,
                equivalence_percent: EQUIVALENCE_PERCENT,
                did_its_work: &did_its_work,
                seed,
                client_bound: under_test == UnderTest::Server
                    && (is_bound(baseline) || is_bound(subject)),
                lost: lost_packets(&baseline.name) || lost_packets(&subject.name),
                void: void(&baseline.name).or_else(|| void(&subject.name)),
            };
            let counted = [baseline, subject].map(|it| of_subject(&it.name));
            let mut comparison = compare(rules, &counted[0], &counted[1]);
            let both = [&*baseline.name, &*subject.name];
            let every = all_pairs::ratios(both, record.metric(), &judged, &did_its_work);
            if comparison.is_judged_by_pairs() {
                let bound_percent = comparison.equivalence.map(|it| it.bound_percent);
                let tests = Tests { confidence: comparison.confidence, bound_percent, seed };
                let ratios = &comparison.pair_ratios;
                comparison.would_change = sensitivity::would_change(tests, ratios, &every);
            }
            let confidence = comparison.confidence;
            comparison.all_pairs =
                Some(all_pairs::all_pairs(both, &judged, &every, seed, confidence));
            comparison
        })
        .collect();
    let placements = placements(&counted);
    let load_mode = runs.iter().find_map(|run| {
        let load = run.load_result()?.ok()?;
        Some(load.mode().to_owned())
    });
    let blocks = blocks.len();
    CellSummary {
        cell,
        load_mode,
        subjects,
        comparisons,
        blocks,
        excluded_blocks,
        busy_unsure_share: runs
            .iter()
            .filter_map(|run| run.cpu.as_ref()?.unsure_share())
            .reduce(f64::max),
        placements,
        findings,
    }
}

/// How the CPUs lay, by placement.
fn placements(counted: &[&Judged<'_>]) -> Vec<PlacementSummary> {
    let mut by_placement: BTreeMap<Placement, (BTreeSet<usize>, Vec<f64>)> = BTreeMap::new();
    for judged in counted {
        let Some(distance) = judged.run.distance else { continue };
        let Some(placement) = distance.placement() else { continue };
        let (blocks, round_trips) = by_placement.entry(placement).or_default();
        blocks.insert(judged.run.block);
        round_trips.extend([distance.before_ns, distance.after_ns].into_iter().flatten());
    }
    let summary = |(placement, (blocks, round_trips)): (_, (BTreeSet<usize>, Vec<f64>))| {
        let round_trip_ns = median(round_trips)?;
        Some(PlacementSummary { placement, blocks: blocks.len(), round_trip_ns })
    };
    by_placement.into_iter().filter_map(summary).collect()
}

fn subject_summary(
    name: &str,
    runs: usize,
    record: Record,
    counted: &[&Judged<'_>],
    did_its_work: &dyn Fn(&Figures) -> Option<bool>,
) -> SubjectSummary {
    let read: Vec<&Read> = counted.iter().filter_map(|j| j.read.as_ref()).collect();
    let figures: Vec<&Figures> = read.iter().map(|read| &read.figures).collect();
    let kept_up: Vec<bool> = figures.iter().filter_map(|figures| did_its_work(figures)).collect();
    let unanswered = counted.iter().filter(|j| j.unanswered).count();
    let in_time: Vec<_> = counted
        .iter()
        .filter_map(|j| {
            let placement = j.run.distance.and_then(|distance| distance.placement());
            Some(((placement, j.run.occasion), j.run.index, j.figures()?[record.metric()]))
        })
        .collect();
    SubjectSummary {
        name: name.to_owned(),
        runs,
        counted: counted.len(),
        unanswered,
        outliers: Outliers::among(in_time.iter().map(|(.., figure)| *figure)),
        drift: drift(&in_time),
        kept_up: (unanswered > 0 || !kept_up.is_empty())
            .then(|| kept_up.iter().filter(|kept| **kept).count()),
        bottleneck: bottleneck(counted),
        figures: Figures::together(&figures),
        level: None,
        latency_curve: curve(read.iter().map(|read| &read.latencies)),
        lateness_curve: curve(read.iter().filter_map(|read| read.lateness.as_ref())),
        calls: calls::medians(counted.iter().map(|judged| judged.run)),
    }
}

/// Value in microseconds by quantile, of all these histograms together.
fn curve<'a>(histograms: impl Iterator<Item = &'a Histogram<u64>>) -> Vec<(f64, f64)> {
    let mut sum: Option<Histogram<u64>> = None;
    for histogram in histograms {
        match &mut sum {
            None => sum = Some(histogram.clone()),
            // Histograms of one load generator have one shape; one of another shape is left out
            // of the curve, which is the only thing this sum is for.
            Some(sum) => drop(sum.add(histogram)),
        }
    }
    let Some(sum) = sum else { return Vec::new() };
    let point = |share: &f64| (*share, sum.value_at_quantile(*share) as f64 / 1e3);
    CURVE_QUANTILES.iter().map(point).collect()
}

/// What limited most of the runs.
fn bottleneck(counted: &[&Judged<'_>]) -> Option<Bottleneck> {
    if counted.first()?.run.cpu.as_ref()?.is_shared() {
        return Some(Bottleneck::SharedCpu);
    }
    let saturated = |share: Metric| {
        let shares = counted.iter().filter_map(|judged| judged.figures()?.get(share));
        median(shares).is_some_and(|share| share >= SATURATED_SHARE)
    };
    let server = saturated(Metric::ServerBusyShare);
    let client = saturated(Metric::ClientBusyShare) || saturated(Metric::ClientThreadShare);
    Some(match (server, client) {
        (true, true) => Bottleneck::BothCpus,
        (true, false) => Bottleneck::ServerCpu,
        (false, true) => Bottleneck::ClientCpu,
        (false, false) => Bottleneck::Neither,
    })
}
