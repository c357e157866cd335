//! The loop of an experiment: which run is next, which block is repeated, and when to stop.
//!
//! What it needs from outside is a [`Machine`]. The lab measures; tests substitute a machine whose runs
//! are known and take no time.

#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::audit::{Severity, audit_in_block};
use crate::bench::Slot;
use crate::error::LabError;
use crate::estimate::too_few_pairs;
use crate::experiment::{Cell, Experiment, NetKind, Protocol};
use crate::placement::{Placement, Wanted};
use crate::plan::{Block, Group, groups, plan, two_more};
use crate::progress::{Progress, say};
use crate::rates::Rates;
use crate::record::RunRecord;
use crate::summary::is_narrow;

/// How long a block waits for the placement that is wanted, and between two samples of it.
const PLACEMENT_PATIENCE: Duration = Duration::from_secs(60);
const PLACEMENT_TICK: Duration = Duration::from_millis(300);

/// What the loop needs from outside.
pub(crate) trait Machine {
    /// The time.
    fn now(&self) -> Instant;

    /// Waits.
    fn sleep(&self, duration: Duration);

    /// How the two CPUs lie to each other now, if that can be measured.
    fn placement(&self) -> Option<Placement>;

    /// Whether the user wants to stop.
    fn is_stopped(&self) -> bool;

    /// Makes one run. Returns nothing if the run was stopped before its end.
    ///
    /// # Errors
    /// When the run could not even be tried.
    fn run(&mut self, slot: &Slot<'_>) -> Result<Option<RunRecord>, LabError>;

    /// Stores the record of a run.
    ///
    /// # Errors
    /// When it cannot be written.
    fn store(&mut self, run: &RunRecord) -> Result<(), LabError>;
}

/// How the measuring ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    Stopped,
}

/// Measures every cell of an experiment on these networks. `runs` has the records also after an error.
///
/// # Errors
/// Those of [`Machine::run`] and [`Machine::store`], and of [`Rates::find`].
pub(crate) fn measure(
    experiment: &Experiment,
    networks: &[NetKind],
    seed: u64,
    machine: &mut dyn Machine,
    runs: &mut Vec<RunRecord>,
) -> Result<Ended, LabError> {
    let mut schedule = Schedule::new(experiment, networks, seed);
    let mut progress = Progress::start(experiment, schedule.sizes());
    let comparisons = |cell: &Cell| experiment.contests(cell.protocol()).len();
    let comparisons = schedule.cells.iter().map(comparisons).sum();
    if let Some(warning) = too_few_pairs(experiment, comparisons) {
        say(&warning);
    }
    let rates = Rates::find(experiment, &schedule.cells, machine, &progress)?;
    let Some(rates) = rates else { return Ok(Ended::Stopped) };
    progress.skip(schedule.take(rates));
    while let Some(block) = schedule.blocks.pop_front() {
        let order = schedule.excluded.left(experiment, schedule.cell(&block), &block.order);
        progress.skip(block.order.len() - order.len());
        if order.is_empty() {
            continue;
        }
        wait_for_placement(machine, experiment.placement);
        let Some(noisy) = run_block(&mut schedule, &block, &order, machine, runs, &mut progress)?
        else {
            return Ok(Ended::Stopped);
        };
        progress.more(schedule.after(&block, noisy, runs));
        if machine.is_stopped() {
            return Ok(Ended::Stopped);
        }
    }
    Ok(Ended::Done)
}

/// Runs these subjects of a block. Returns whether something disturbed one of the runs; nothing if it
/// was stopped.
fn run_block(
    schedule: &mut Schedule<'_>,
    block: &Block,
    order: &[usize],
    machine: &mut dyn Machine,
    runs: &mut Vec<RunRecord>,
    progress: &mut Progress,
) -> Result<Option<bool>, LabError> {
    let experiment = schedule.experiment;
    let cell = schedule.cell(block);
    let number = schedule.blocks_of_cell[schedule.groups[block.group].cell];
    let (mut noisy, first) = (false, runs.len());
    for &subject in order {
        let subject = &experiment.subjects[subject];
        progress.next(&cell, &subject.name);
        let rate_per_s = schedule.rates.of(&cell);
        let slot = Slot { index: runs.len(), cell, block: number, subject, rate_per_s };
        let Some(run) = machine.run(&slot)? else { return Ok(None) };
        machine.store(&run)?;
        let first = runs.get(first).unwrap_or(&run);
        for finding in audit_in_block(experiment.placement, first, &run) {
            noisy |= finding.severity == Severity::Noise;
            if finding.severity == Severity::Void {
                let (kind, what) = (finding.kind.title(), &finding.what);
                progress.say(&format!("{cell}, {}: {kind}: {what}", subject.name));
                schedule.excluded.add(cell, &subject.name);
            }
        }
        runs.push(run);
    }
    Ok(Some(noisy))
}

/// Waits, within bounds, until the CPUs lie as the experiment wants it.
fn wait_for_placement(machine: &dyn Machine, wanted: Wanted) {
    if wanted.is_any() {
        return;
    }
    let deadline = machine.now() + PLACEMENT_PATIENCE;
    while !wanted.allows(machine.placement()) && !machine.is_stopped() && machine.now() < deadline {
        machine.sleep(PLACEMENT_TICK);
    }
}

/// Blocks that are still to be run, and what has been run.
struct Schedule<'a> {
    experiment: &'a Experiment,
    seed: u64,
    cells: Vec<Cell>,
    rates: Rates,
    groups: Vec<Group>,
    blocks: VecDeque<Block>,
    excluded: Excluded,
    /// Blocks of each cell that have been run: the number of the next one.
    blocks_of_cell: Vec<usize>,
    /// Blocks of each group that have been run.
    blocks_of_group: Vec<usize>,
    /// Blocks that each group may still repeat.
    spare: Vec<usize>,
}

impl<'a> Schedule<'a> {
    fn new(experiment: &'a Experiment, networks: &[NetKind], seed: u64) -> Schedule<'a> {
        let cells = experiment.cells(networks);
        let of_cell = |(number, cell): (usize, &Cell)| {
            let protocol = cell.protocol();
            groups(number, &experiment.subjects_of(protocol), &experiment.contests(protocol))
        };
        let groups: Vec<Group> = cells.iter().enumerate().flat_map(of_cell).collect();
        Schedule {
            experiment,
            seed,
            blocks: plan(seed, &groups, experiment.pairs),
            rates: Rates::default(),
            excluded: Excluded::default(),
            blocks_of_cell: vec![0; cells.len()],
            blocks_of_group: vec![0; groups.len()],
            spare: vec![experiment.spare_pairs; groups.len()],
            cells,
            groups,
        }
    }

    /// Leaves out the cells that have no rate and need one. Returns the number of their runs.
    fn take(&mut self, rates: Rates) -> usize {
        let (cells, groups) = (&self.cells, &self.groups);
        let before: usize = self.blocks.iter().map(|block| block.order.len()).sum();
        self.blocks.retain(|block| rates.cover(&cells[groups[block.group].cell]));
        self.rates = rates;
        before - self.blocks.iter().map(|block| block.order.len()).sum::<usize>()
    }

    fn cell(&self, block: &Block) -> Cell {
        self.cells[self.groups[block.group].cell]
    }

    /// The runs of each block and what they speak.
    fn sizes(&self) -> impl Iterator<Item = (usize, Protocol)> {
        self.blocks.iter().map(|block| (block.order.len(), self.cell(block).protocol()))
    }

    /// Notes that a block has been run, and adds those that follow from it: its repetition, if something
    /// disturbed it, and more pairs, if the interval is still too wide. Returns the number of their runs.
    fn after(&mut self, block: &Block, noisy: bool, runs: &[RunRecord]) -> usize {
        let Schedule { experiment, seed, .. } = *self;
        let number = block.group;
        let group = &self.groups[number];
        let cell = self.cells[group.cell];
        self.blocks_of_cell[group.cell] += 1;
        self.blocks_of_group[number] += 1;
        let mut more = Vec::new();
        if noisy && self.spare[number] > 0 {
            self.spare[number] -= 1;
            let order = block.order.iter().rev().copied().collect();
            more.push(Block { group: number, order });
        }
        let before = self.blocks_of_group[number];
        let is_last = more.is_empty() && self.blocks.iter().all(|other| other.group != number);
        let most = experiment.until.map_or(0, |until| until.max_pairs + experiment.spare_pairs);
        if is_last && before < most && !is_narrow(experiment, seed, cell, &group.subjects, runs) {
            more.extend(two_more(seed, number, before, &self.groups));
        }
        let runs = more.iter().map(|block| block.order.len()).sum();
        self.blocks.extend(more);
        runs
    }
}

/// Subjects that an audit has taken out of a cell. Running them again would cost time and could
/// change nothing.
#[derive(Default)]
struct Excluded(HashSet<(Cell, String)>);

impl Excluded {
    fn add(&mut self, cell: Cell, subject: &str) {
        self.0.insert((cell, subject.to_owned()));
    }

    /// Who of a block is still worth running: those who are in and have somebody to be compared
    /// with.
    fn left(&self, experiment: &Experiment, cell: Cell, order: &[usize]) -> Vec<usize> {
        let is_in =
            |subject: &usize| !self.0.contains(&(cell, experiment.subjects[*subject].name.clone()));
        let left: Vec<usize> = order.iter().copied().filter(is_in).collect();
        if order.len() == 1 {
            return left;
        }
        let contests = experiment.contests(cell.protocol());
        let has_opponent = |subject: &usize| {
            contests.iter().any(|(a, b)| {
                (a == subject && left.contains(b)) || (b == subject && left.contains(a))
            })
        };
        left.iter().copied().filter(has_opponent).collect()
    }
}
