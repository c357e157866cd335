//! The loop of an experiment: which run is next, which block is repeated, and when to stop.
//!
//! What it needs from outside is a [`Machine`]. The lab measures; tests substitute a machine whose runs
//! are known and take no time.

pub(crate) mod machine;
mod replay;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::audit::{Severity, audit_in_block};
use crate::bench::Slot;
use crate::error::LabError;
use crate::estimate::too_few_pairs;
use crate::experiment::{Cell, Experiment, NetKind, Protocol};
use crate::placement::Wanted;
use crate::plan::{Block, Group, groups, plan, two_more};
use crate::progress::{Progress, say};
use crate::rates::Rates;
use crate::record::RunRecord;
use crate::summary::is_narrow;
use machine::{Attempt, Machine};
use replay::Replay;

/// How long a block waits for the placement that is wanted, and between two samples of it.
const PLACEMENT_PATIENCE: Duration = Duration::from_secs(60);
const PLACEMENT_TICK: Duration = Duration::from_millis(300);

/// How a block ended.
enum BlockEnd {
    /// All of it was run; `noisy` if something disturbed one of the runs.
    Done {
        noisy: bool,
    },
    Stopped,
    Void,
}

/// How the measuring ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    Stopped,
}

/// Measures every cell of an experiment on these networks. `runs` has the records also after an error. Those that it has
/// before were made by the same experiment and seed; what follows them is measured.
///
/// # Errors
/// Those of [`Machine::run`] and [`Machine::store`], and of [`Rates::find`]; [`LabError::OtherPlan`].
pub(crate) fn measure(
    experiment: &Experiment,
    networks: &[NetKind],
    seed: u64,
    machine: &mut dyn Machine,
    runs: &mut Vec<RunRecord>,
) -> Result<Ended, LabError> {
    let mut machine = Replay::new(machine, std::mem::take(runs));
    let ended = measure_rest(experiment, networks, seed, &mut machine, runs);
    // It may have ended before it got beyond them.
    runs.extend(machine.into_stored());
    ended
}

fn measure_rest(
    experiment: &Experiment,
    networks: &[NetKind],
    seed: u64,
    machine: &mut Replay<'_>,
    runs: &mut Vec<RunRecord>,
) -> Result<Ended, LabError> {
    let mut schedule = Schedule::new(experiment, networks, seed);
    let mut progress = Progress::start(experiment, schedule.sizes());
    let comparisons = |cell: &Cell| experiment.contests(cell.protocol()).len();
    let comparisons = schedule.cells.iter().map(comparisons).sum();
    if let Some(warning) = too_few_pairs(experiment, comparisons) {
        say(&warning);
    }
    let known = Rates::of_runs(machine.stored());
    let rates = known.find(experiment, &schedule.cells, machine.live(), &progress)?;
    let Some(rates) = rates else { return Ok(Ended::Stopped) };
    progress.skip(schedule.take(rates));
    while let Some(block) = schedule.blocks.pop_front() {
        let order = schedule.excluded.left(experiment, schedule.cell(&block), &block.order);
        progress.skip(block.order.len() - order.len());
        if order.is_empty() {
            continue;
        }
        if !machine.is_replaying() {
            wait_for_placement(machine.live(), experiment.placement);
        }
        let before = runs.len();
        match run_block(&mut schedule, &block, &order, machine, runs, &mut progress)? {
            BlockEnd::Stopped => return Ok(Ended::Stopped),
            BlockEnd::Done { noisy } => progress.more(schedule.after(&block, noisy, runs)),
            BlockEnd::Void => {
                progress.more(runs.len() - before);
                schedule.repeat(block, runs.len() > before);
            }
        }
        if machine.live().is_stopped() {
            return Ok(Ended::Stopped);
        }
    }
    Ok(Ended::Done)
}

/// Runs these subjects of a block.
fn run_block(
    schedule: &mut Schedule<'_>,
    block: &Block,
    order: &[usize],
    machine: &mut Replay<'_>,
    runs: &mut Vec<RunRecord>,
    progress: &mut Progress,
) -> Result<BlockEnd, LabError> {
    let experiment = schedule.experiment;
    let cell = schedule.cell(block);
    let number = schedule.blocks_of_cell[schedule.groups[block.group].cell];
    let (mut noisy, first) = (false, runs.len());
    for &subject in order {
        let subject = &experiment.subjects[subject];
        let is_stored = machine.is_replaying();
        if !is_stored {
            progress.next(&cell, &subject.name);
        }
        let rate_per_s = schedule.rates.of(&cell);
        let slot = Slot { index: runs.len(), cell, block: number, subject, rate_per_s };
        let run = match machine.run(&slot)? {
            Attempt::Made(run) => *run,
            Attempt::Stopped => return Ok(BlockEnd::Stopped),
            Attempt::Void => return Ok(BlockEnd::Void),
        };
        if is_stored {
            progress.skip(1);
        } else {
            machine.live().store(&run)?;
        }
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
    Ok(BlockEnd::Done { noisy })
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

    /// Puts a block that came to no end back in front. Its number is used up if any of its runs is stored: these have no
    /// partner.
    fn repeat(&mut self, block: Block, is_stored: bool) {
        self.blocks_of_cell[self.groups[block.group].cell] += usize::from(is_stored);
        self.blocks.push_front(block);
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
