//! An experiment from its first process to its report.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::accounting::BackgroundLoad;
use crate::analysis::{Effect, check, summarise};
use crate::available::{Available, available};
use crate::bundle::{self, Writer};
use crate::calibration::{Rates, calibrate};
use crate::cpus::{CpuList, Cpus};
use crate::error::LabError;
use crate::estimate::too_few_pairs;
use crate::experiment::{Cell, Experiment, NetKind};
use crate::gate::{Gate, Verdict};
use crate::machine::{Fingerprint, Program, hash};
use crate::net::{self, Network};
use crate::noise::{self, Noise};
use crate::peers::PeerPrograms;
use crate::plan::{Block, Plan};
use crate::prices::{self, PriceRecord};
use crate::progress::{Progress, say};
use crate::record::RunRecord;
use crate::report::first_page;
use crate::result::{BUNDLE_SCHEMA, Bundle, NotRun, State};
use crate::runner::{self, Bench, Slot};
use crate::site::Site;
use crate::stop::{Stop, keep_children};

/// After so many excluded blocks in a row an experiment stops, if what disturbs it can be ended.
const EXCLUDED_MAX: usize = 6;

/// What to run and where to put it.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The experiment, options applied: see [`Experiment::checked`].
    pub experiment: Experiment,
    /// The directory that gets a directory for this bundle.
    pub out: PathBuf,
    /// Seed of the order and the resampling; from the clock if not given.
    pub seed: Option<u64>,
    /// The `twinring` binary: `{twinring}` in commands.
    pub binary: PathBuf,
    /// Program and first arguments that lead to [`crate::helper()`].
    pub helper: Vec<OsString>,
    /// The directory in which peers are looked for first.
    pub peers: Option<PathBuf>,
    /// Measure the machine's prices first, and look for background load meanwhile; takes seconds.
    pub prices: bool,
    /// Go on beside a busy process, however many blocks it disturbs.
    pub busy: bool,
    /// Arguments that led here, recorded so that the experiment can be repeated.
    pub command: Vec<String>,
}

/// What came out of an experiment.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Where the bundle is.
    pub directory: PathBuf,
    /// What is in it.
    pub bundle: Bundle,
}

impl Outcome {
    /// The exit code of the command: 128 + the signal for an interrupted experiment; 1 when every
    /// comparison is void or no cell was measured; else 0, for any decision.
    pub fn exit_code(&self) -> u8 {
        if let State::Interrupted { signal } = self.bundle.state {
            return (128 + signal) as u8;
        }
        let cells = || self.bundle.summary.iter().flat_map(|summary| &summary.cells);
        let mut comparisons = cells().flat_map(|cell| &cell.comparisons).peekable();
        let any = comparisons.peek().is_some() || cells().next().is_none();
        u8::from(any && comparisons.all(|it| it.void.is_some()))
    }

    /// The first page of the report.
    pub fn page(&self) -> String {
        first_page(&self.bundle, &self.directory.display().to_string())
    }

    /// What gates say of the comparisons.
    pub fn judged(&self, gates: &[Gate]) -> Vec<Verdict> {
        let cells = || self.bundle.summary.iter().flat_map(|summary| &summary.cells);
        let compared: usize = cells().map(|cell| cell.comparisons.len()).sum();
        let missing = self.bundle.summary.iter().filter(|summary| compared < summary.family);
        let missing = missing.map(|_| "a cell that could not be measured".to_owned());
        let not_run = self.bundle.not_run.iter().map(|it| format!("{}: {}", it.subject, it.why));
        let missing: Vec<String> = not_run.chain(missing).collect();
        let over = |gate: &Gate| {
            let found = cells().flat_map(|cell| {
                cell.comparisons.iter().map(|it| {
                    let change = it.figures.get(&gate.figure).filter(|_| it.void.is_none());
                    let place = format!("{} against {}, {}", it.subject, it.baseline, cell.cell);
                    (change, it.resolution, place)
                })
            });
            gate.over(found.chain(missing.iter().map(|what| (None, 0.0, what.clone()))))
        };
        gates.iter().map(over).collect()
    }
}

/// Runs an experiment and writes its bundle.
///
/// Progress goes to standard error. On return, also with an error, every process the lab started has
/// ended, and its namespaces with them. The calling thread stays off the measured CPUs.
///
/// # Errors
/// [`LabError`], when the experiment could not be carried out. The bundle then holds what was
/// measured before; there is none if nothing could be measured.
pub fn run(options: &RunOptions, stop: &Stop) -> Result<Outcome, LabError> {
    let started = jiff::Timestamp::now();
    keep_children().map_err(LabError::signals)?;
    try_to_write(&options.out)?;
    let cpus = Cpus::choose(&options.experiment.pin, options.experiment.workers_most())?;
    let Available { experiment, peers, load_engine, not_run } = available(options, &cpus)?;
    for NotRun { subject, why } in &not_run {
        say(&format!("{subject} is left out: {why}"));
    }
    if let Some(warning) = too_few_pairs(&experiment) {
        say(&warning);
    }
    let prices = look_around(options, &cpus, stop)?;
    // Off the measured CPUs while there are others; without that the measurement is a little noisier, no more. Children
    // are pinned one by one.
    let _ = CpuList::new(cpus.others.clone()).map(|others| others.pin(0));
    let (mut networks, network_fallback) = net::set_up(&experiment, &cpus)?;
    let mut bundle = Bundle {
        schema: BUNDLE_SCHEMA.to_owned(),
        lab_version: env!("CARGO_PKG_VERSION").to_owned(),
        started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        state: State::Running,
        experiment: experiment.clone(),
        command: options.command.clone(),
        seed: options.seed.unwrap_or(started.as_nanosecond() as u64),
        programs: programs(options, &experiment, &peers),
        networks: networks.iter().map(|network| network.record.clone()).collect(),
        network_fallback,
        not_run,
        machine: Fingerprint::read(&cpus),
        cpus,
        occasions: Vec::new(),
        summary: None,
        prices: Some(prices),
    };
    let directory = bundle::fresh_directory(&options.out, &experiment.name, started);
    let kinds: Vec<NetKind> = networks.iter().map(|it| it.record.kind).collect();
    let cells = experiment.cells(&kinds);
    let writer = Writer::create(&directory, &bundle)?;
    let (mut runs, seed) = (Vec::new(), bundle.seed);
    let addresses: Vec<_> = networks.iter().map(|it| it.record.server_ip).collect();
    let measured = Site::make(&directory, &cells, seed, &addresses).and_then(|site| {
        let bench = Bench {
            experiment: &experiment,
            cpus: &bundle.cpus,
            helper: &options.helper,
            binary: &options.binary.to_string_lossy(),
            stop,
            site: site.as_ref(),
            peers: &peers,
            load_engine,
            began: Instant::now(),
        };
        Lab {
            bench: &bench,
            networks: &mut networks,
            writer,
            runs: &mut runs,
            calibrations: 0,
            busy: options.busy,
        }
        .measure(cells, seed)
    });
    drop(networks);
    // What a stop breaks off is no failure.
    let measured = measured.or_else(|error| stop.signal().map(drop).ok_or(error));
    bundle.state = match (&measured, stop.signal()) {
        (Err(error), _) => State::Failed { error: error.to_string() },
        (Ok(()), Some(signal)) => State::Interrupted { signal },
        (Ok(()), None) => State::Complete,
    };
    bundle.summary = Some(summarise(&bundle, &runs));
    let finished = bundle::finish(&directory, &bundle, None);
    if measured.is_err() && !runs.is_empty() {
        say(&format!("what was measured is in {}", directory.display()));
    }
    // The first error is the cause, a second one most often its consequence.
    measured?;
    finished?;
    Ok(Outcome { directory, bundle })
}

fn try_to_write(out: &Path) -> Result<(), LabError> {
    let existed = out.exists();
    let file = out.join(format!(".twinring-{}", std::process::id()));
    let tried = fs::create_dir_all(out)
        .and_then(|()| fs::write(&file, ""))
        .map_err(|e| LabError::write(out, e));
    // It was the lab's own a moment ago.
    let _ = fs::remove_file(&file);
    if !existed {
        let _ = fs::remove_dir(out);
    }
    tried
}

/// Measures the machine's prices, which takes as long as it takes to see whether other processes use the CPUs;
/// says so if they do.
fn look_around(options: &RunOptions, cpus: &Cpus, stop: &Stop) -> Result<PriceRecord, LabError> {
    if !options.prices {
        return Ok(PriceRecord::none("they were not to be measured"));
    }
    let before = BackgroundLoad::take()?;
    // It uses both CPUs, so it comes before the lab leaves them.
    let prices = prices::measure(options, cpus, stop);
    let others = before.until(&BackgroundLoad::take()?);
    if noise::is_too_busy(others.cpu_s, others.cpus, others.span_s) {
        let share = others.cpu_s / others.span_s * 100.0;
        let most = others.largest.unwrap_or_default();
        say(&format!(
            "this machine is busy: {share:.0} % of a CPU goes to other processes, most to {most}. Runs that \
             they disturb are excluded"
        ));
    }
    Ok(prices)
}

struct Lab<'a> {
    bench: &'a Bench<'a>,
    networks: &'a mut [Network],
    writer: Writer,
    runs: &'a mut Vec<RunRecord>,
    calibrations: usize,
    busy: bool,
}

impl Lab<'_> {
    /// Measures every cell. `runs` has the records also after an error.
    fn measure(mut self, cells: Vec<Cell>, seed: u64) -> Result<(), LabError> {
        let experiment = self.bench.experiment;
        let plan = Plan::new(experiment, cells.clone(), seed);
        let progress = Progress::start(experiment, plan.runs_left());
        let rates =
            calibrate(experiment, &cells, &progress, &mut |slot: &Slot<'_>| self.run(slot))?;
        let covered = |cell: &Cell| cell.point.load_percent() == 0 || rates.contains_key(cell);
        let cells: Vec<Cell> = cells.into_iter().filter(covered).collect();
        let mut plan = Plan::new(experiment, cells, seed);
        let mut excluded = 0;
        while let Some(block) = plan.next() {
            let (noise, is_invalid) = self.run_block(&mut plan, &block, &rates, &progress)?;
            if is_invalid || !noise.is_empty() {
                progress.more(plan.replace(&block));
            }
            let cause = noise.into_iter().find(|(noise, _)| noise.can_be_ended());
            excluded = if cause.is_some() { excluded + 1 } else { 0 };
            if let Some((_, why)) = cause.filter(|_| excluded >= EXCLUDED_MAX && !self.busy) {
                return Err(LabError::failed(format!(
                    "stopped after {excluded} excluded blocks in a row: {why}; end that, and measure again; or go on \
                     with --busy"
                )));
            }
        }
        Ok(())
    }

    /// What disturbed the block, and whether a check excludes one of its runs. No figure of a run decides what is run
    /// again: one that missed the SLO is valid.
    fn run_block(
        &mut self,
        plan: &mut Plan<'_>,
        block: &Block,
        rates: &Rates,
        progress: &Progress,
    ) -> Result<(Vec<(Noise, String)>, bool), LabError> {
        let experiment = self.bench.experiment;
        let cell = plan.cell(block);
        let (first, mut noise, mut is_invalid) = (self.runs.len(), Vec::new(), false);
        for &position in &block.order {
            let subject = &experiment.subjects[position];
            progress.next(&cell, &subject.name);
            let rate_per_s = rates.get(&cell).copied();
            let run = self.run(&Slot { cell, block: Some(block.number), subject, rate_per_s })?;
            let found = check(&run);
            let has = |effect| found.iter().any(|it| it.effect == effect);
            if let Some(failure) = run.failures.first() {
                progress.say(&format!("{cell}, {}: {failure}", subject.name));
                // A foreign server that only ended badly has served well.
                if has(Effect::Void) {
                    plan.failed(block, position);
                }
            }
            noise.extend(noise::noise(&self.runs[first], &run));
            is_invalid |= has(Effect::Excluded);
        }
        Ok((noise, is_invalid))
    }

    fn run(&mut self, slot: &Slot<'_>) -> Result<RunRecord, LabError> {
        let network = self.networks.iter_mut().find(|it| it.record.kind == slot.cell.net);
        let why = || LabError::machine(format!("it has no network for the cell {}", slot.cell));
        let mut run = runner::run(self.bench, network.ok_or_else(why)?, slot)?;
        run.index = if run.calibration { self.calibrations } else { self.runs.len() };
        self.writer.append(&run)?;
        match run.calibration {
            true => self.calibrations += 1,
            false => self.runs.push(run.clone()),
        }
        Ok(run)
    }
}

/// Files whose hashes tell what was measured: our binary, and the programs of all commands on this machine.
fn programs(options: &RunOptions, experiment: &Experiment, peers: &PeerPrograms) -> Vec<Program> {
    let own = options.binary.to_string_lossy().into_owned();
    let mut paths = vec![own.clone()];
    for subject in &experiment.subjects {
        let loads =
            experiment.protocols().map(|protocol| experiment.load_template(protocol, subject));
        let commands = loads.chain(subject.command.clone());
        let words = commands.filter_map(|command| command.into_iter().next());
        paths.extend(words.map(|word| word.replace("{twinring}", &own)));
    }
    paths.sort_unstable();
    paths.dedup();
    let mut programs: Vec<Program> = paths.iter().map(|path| hash(path, None)).collect();
    for (peer, path) in peers {
        programs.push(hash(&path.to_string_lossy(), Some(peer)));
    }
    programs
}

/// The summary of a bundle as one JSON line, for `--json`.
pub fn json_line(outcome: &Outcome) -> String {
    serde_json::json!({
        "event": "result",
        "schema": BUNDLE_SCHEMA,
        "bundle": outcome.directory,
        "state": outcome.bundle.state,
        "summary": outcome.bundle.summary,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole plan was made, and the calibration run, before it was found out.
    #[test]
    fn a_place_that_cannot_be_written_to_is_found_first() {
        let place = tempfile::tempdir().unwrap();
        try_to_write(&place.path().join("a/b")).unwrap();
        assert!(!place.path().join("a/b").exists());
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        let error = try_to_write(&file.join("bundles")).unwrap_err();
        assert!(error.to_string().contains("--out"), "{error}");
    }
}
