//! From records to figures and decisions. Everything printed anywhere is computed here, and only from the records
//! and the experiment, so that `twinring lab verify` can do it again.

mod checks;
mod compare;
mod figures;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::accounting::IdleClock;
use crate::experiment::{Cell, Experiment, NetKind, Protocol, UnderTest};
use crate::noise::{Noise, noise};
use crate::record::RunRecord;
use crate::result::Bundle;
use crate::statistics::family_level;

pub use checks::{Check, Effect, Finding, check};
pub use compare::{Comparison, LeftOut, Scope};
pub(crate) use figures::full_name;
pub use figures::{FIGURES, Figure, Figures};

use compare::{Contest, compare};
use figures::figures_of;

/// A CPU busier than this is the bottleneck.
pub const SATURATED_SHARE: f64 = 0.95;

/// What an experiment found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Summary {
    /// How many comparisons are judged together: with 95 % probability all of their intervals hold the true ratios.
    pub family: usize,
    /// How many runs there were.
    pub runs: usize,
    /// The clock that idle time was read from: the coarsest of all runs.
    pub idle_clock: IdleClock,
    /// One entry for each cell that was begun, in the order of the experiment.
    pub cells: Vec<CellSummary>,
}

/// What was found in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CellSummary {
    /// The cell.
    pub cell: Cell,
    /// `closed` or `open`: whether the load waited for answers. It decides what latency means.
    pub load_mode: Option<String>,
    /// The subjects, the baseline first.
    pub subjects: Vec<SubjectSummary>,
    /// Every other subject against the baseline; then those that the experiment compares as well.
    pub comparisons: Vec<Comparison>,
    /// Blocks that were run.
    pub blocks: usize,
    /// How many of them something disturbed.
    pub disturbed_blocks: usize,
    /// What the checks found, in the order of time.
    pub findings: Vec<Finding>,
}

/// One subject in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SubjectSummary {
    /// Its name.
    pub name: String,
    /// How many runs it had.
    pub runs: usize,
    /// How many of them were undisturbed and passed every check.
    pub counted: usize,
    /// How many of these met the SLO, where there is a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met_slo: Option<usize>,
    /// The mean over those that met it.
    pub figures: Option<Figures>,
    /// What limited it.
    pub bottleneck: Option<Bottleneck>,
}

/// What kept a subject from answering more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The server's CPU: what one wants to measure.
    ServerCpu,
    /// The load generator's CPU: the throughput is a lower bound.
    ClientCpu,
    /// Both at once.
    BothCpus,
    /// One CPU that both share.
    SharedCpu,
    /// Neither CPU: the schedule, wake-ups, timers or the network.
    Neither,
}

impl Bottleneck {
    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Bottleneck::ServerCpu => "server CPU",
            Bottleneck::ClientCpu => "client CPU",
            Bottleneck::BothCpus => "both CPUs",
            Bottleneck::SharedCpu => "the one CPU",
            Bottleneck::Neither => "neither CPU",
        }
    }

    fn of(figures: &Figures, is_shared: bool) -> Bottleneck {
        if is_shared {
            return Bottleneck::SharedCpu;
        }
        let is_saturated =
            |name: &str| figures.get(name).is_some_and(|share| *share >= SATURATED_SHARE);
        let client = is_saturated("client_busy_share") || is_saturated("client_thread_share");
        match (is_saturated("server_busy_share"), client) {
            (true, true) => Bottleneck::BothCpus,
            (true, false) => Bottleneck::ServerCpu,
            (false, true) => Bottleneck::ClientCpu,
            (false, false) => Bottleneck::Neither,
        }
    }
}

impl CellSummary {
    /// A subject of the cell.
    pub fn subject(&self, name: &str) -> Option<&SubjectSummary> {
        self.subjects.iter().find(|subject| subject.name == name)
    }

    /// Whether the load waits for answers: a closed loop.
    pub fn is_saturated(&self) -> bool {
        match self.load_mode.as_deref() {
            Some(mode) => mode == "closed",
            // No run had a result: it is what the cell asks for.
            None => {
                let point = &self.cell.point;
                let is_scheduled = point.load_percent() > 0 || point.rate_per_s() > 0;
                point.protocol() != Protocol::Udp && !is_scheduled
            }
        }
    }
}

/// The comparisons of an experiment in these cells: known before anything is measured.
pub(crate) fn family(experiment: &Experiment, cells: &[Cell]) -> usize {
    cells.iter().map(|cell| experiment.contests(cell.protocol()).len()).sum()
}

/// Computes the summary of a bundle's runs.
pub fn summarise(bundle: &Bundle, runs: &[RunRecord]) -> Summary {
    let experiment = &bundle.experiment;
    let mut nets: Vec<NetKind> = bundle.networks.iter().map(|network| network.kind).collect();
    if nets.is_empty() {
        nets = runs.iter().map(|run| run.cell.net).collect();
        nets.sort_unstable();
        nets.dedup();
    }
    let planned = experiment.cells(&nets);
    let family = family(experiment, &planned);
    let machines = machines(bundle);
    let mut cells = Vec::new();
    for cell in planned {
        let runs: Vec<&RunRecord> = runs.iter().filter(|run| run.cell == cell).collect();
        if !runs.is_empty() {
            cells.push(cell_summary(bundle, cell, &runs, family, &machines));
        }
    }
    let clocks = runs.iter().filter_map(|run| Some(run.cpu.as_ref()?.idle_clock));
    Summary { family, runs: runs.len(), idle_clock: clocks.max().unwrap_or_default(), cells }
}

/// A run as comparisons see it.
struct Judged<'a> {
    run: &'a RunRecord,
    figures: Option<Figures>,
    findings: Vec<Finding>,
    /// What disturbed the block, each with the subject in whose run it was seen.
    noise_of_block: Vec<(Noise, String)>,
    /// Whether it met the SLO, where there is a schedule.
    met_slo: Option<bool>,
}

impl<'a> Judged<'a> {
    /// All runs of a cell, in the order of time.
    fn all(experiment: &Experiment, runs: &[&'a RunRecord]) -> Vec<Judged<'a>> {
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
                findings: check(run),
                noise_of_block: noise_of.get(&run.block).cloned().unwrap_or_default(),
            }
        };
        runs.iter().map(judge).collect()
    }

    /// The first check by which it does not count.
    fn failed(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.effect != Effect::Note)
    }

    /// Whether it passed every check, nothing disturbed its block, and something can be said of it.
    fn counts(&self) -> bool {
        self.failed().is_none()
            && self.noise_of_block.is_empty()
            && (self.figures.is_some() || self.met_slo == Some(false))
    }
}

/// Why a subject is void in a cell: one of its runs is not what it claims to be, or most cannot count.
fn void(name: &str, judged: &[Judged<'_>]) -> Option<String> {
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

/// The runs that count and met the SLO, of every subject in every cell that has runs: none of a subject that is void
/// there.
pub(crate) fn sound_runs<'a>(
    experiment: &Experiment,
    runs: &'a [RunRecord],
) -> BTreeMap<(Cell, String), Vec<(&'a RunRecord, Figures)>> {
    let mut of_cells: BTreeMap<Cell, Vec<&RunRecord>> = BTreeMap::new();
    runs.iter().for_each(|run| of_cells.entry(run.cell).or_default().push(run));
    let mut sound: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (cell, runs) in of_cells {
        let judged = Judged::all(experiment, &runs);
        for it in &judged {
            let own = sound.entry((cell, it.run.subject.clone())).or_default();
            let met = it.met_slo != Some(false);
            if it.counts() && met && void(&it.run.subject, &judged).is_none() {
                own.extend(it.figures.clone().map(|figures| (it.run, figures)));
            }
        }
    }
    sound
}

/// The number of the machine of each session.
pub(crate) fn machines(bundle: &Bundle) -> Vec<usize> {
    let sessions = bundle.all_occasions();
    let first_like = |session: &crate::result::Occasion| {
        sessions
            .iter()
            .position(|other| other.machine.is_same_machine(&session.machine))
            .unwrap_or(0)
    };
    sessions.iter().map(first_like).collect()
}

fn cell_summary(
    bundle: &Bundle,
    cell: Cell,
    runs: &[&RunRecord],
    family: usize,
    machines: &[usize],
) -> CellSummary {
    let experiment = &bundle.experiment;
    let protocol = cell.protocol();
    let judged = Judged::all(experiment, runs);
    let subjects = experiment.subjects_of(protocol);
    let name = |position: usize| &*experiment.subjects[position].name;
    let primary = match experiment.under_test(protocol) {
        UnderTest::Server => "server_cpu_ns",
        UnderTest::Both => "both_cpus_ns",
    };
    let contest = |(baseline, subject): (usize, usize)| Contest {
        baseline: name(baseline),
        subject: name(subject),
        primary,
        aa: experiment.subjects[baseline].is_twin_of(&experiment.subjects[subject]),
        level: family_level(family),
        machines,
        seed: bundle.seed,
        resolution: resolution(runs),
    };
    let comparisons =
        experiment.contests(protocol).into_iter().map(|it| compare(&contest(it), &judged));
    let mut blocks: Vec<(usize, bool)> =
        judged.iter().map(|it| (it.run.block, !it.noise_of_block.is_empty())).collect();
    blocks.sort_unstable();
    blocks.dedup();
    CellSummary {
        cell,
        load_mode: runs.iter().find_map(|run| Some(run.load_result()?.ok()?.mode().to_owned())),
        subjects: subjects
            .iter()
            .map(|position| subject_summary(name(*position), &judged))
            .collect(),
        comparisons: comparisons.collect(),
        blocks: blocks.len(),
        disturbed_blocks: blocks.iter().filter(|(_, is_disturbed)| *is_disturbed).count(),
        findings: judged.iter().flat_map(|it| it.findings.clone()).collect(),
    }
}

/// How coarse the busy time of a run is, as a share of it, where the clock counts ticks; else 0.
pub(crate) fn resolution(runs: &[&RunRecord]) -> f64 {
    let of_run = |run: &&RunRecord| {
        let cpu = run.cpu.as_ref().filter(|cpu| cpu.idle_clock == IdleClock::ProcStat)?;
        Some(cpu.server_cpu.busy_unsure_s? / cpu.server_cpu.busy_s.max(1e-9))
    };
    runs.iter().filter_map(of_run).fold(0.0, f64::max)
}

fn subject_summary(name: &str, judged: &[Judged<'_>]) -> SubjectSummary {
    let runs: Vec<&Judged<'_>> = judged.iter().filter(|it| it.run.subject == name).collect();
    let counted: Vec<&&Judged<'_>> = runs.iter().filter(|it| it.counts()).collect();
    let met: Vec<bool> = counted.iter().filter_map(|it| it.met_slo).collect();
    let of_mean = counted.iter().filter(|it| it.met_slo != Some(false));
    let all: Vec<&Figures> = of_mean.filter_map(|it| it.figures.as_ref()).collect();
    let figures = figures::mean(&all);
    let is_shared = runs.iter().any(|it| it.run.cpu.as_ref().is_some_and(|cpu| cpu.shared));
    SubjectSummary {
        name: name.to_owned(),
        runs: runs.len(),
        counted: counted.len(),
        met_slo: (!met.is_empty()).then(|| met.iter().filter(|met| **met).count()),
        bottleneck: figures.as_ref().map(|figures| Bottleneck::of(figures, is_shared)),
        figures,
    }
}
