//! Joins bundles of one experiment: sessions hours apart, or several machines.
//!
//! Each keeps its runs as they are, but for the numbers of run, block and session. The summary is
//! computed again from all of them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::analysis::summarise;
use crate::bundle::{self, Stored};
use crate::error::LabError;
use crate::experiment::Cell;
use crate::prices::PriceRecord;
use crate::progress::say;
use crate::record::RunRecord;
use crate::result::{Bundle, OCCASIONS_MAX, Occasion, State};

/// Joins bundles of the same experiment into a new one.
///
/// # Errors
/// When they are of different experiments or networks, `out` is there already, a bundle cannot be read or the new one
/// cannot be written.
pub fn merge(out: &Path, bundles: &[impl AsRef<Path>]) -> Result<Bundle, LabError> {
    if out.exists() {
        return Err(cannot(out, "it is there already; give the name of a new directory"));
    }
    let mut joined: Option<Stored> = None;
    for path in bundles {
        let next = bundle::read(path.as_ref())?;
        joined = Some(match joined {
            None => next,
            Some(joined) => join(joined, next, path.as_ref())?,
        });
    }
    let joined = joined.ok_or_else(|| cannot(out, "there are no bundles to join"))?;
    fs::create_dir_all(out).map_err(|error| LabError::write(out, error))?;
    write(out, joined).inspect_err(|_| {
        // Nothing was written.
        let _ = fs::remove_dir(out);
    })
}

/// Adds the runs of `other`, made on the same machine, to the bundle in `directory` as a further
/// session, and removes `other`. What differs between the two is said.
///
/// # Errors
/// When the machine or the experiment is another one; then both bundles stay as they are. When one cannot be read or
/// written.
pub fn add(directory: &Path, other: &Path) -> Result<Bundle, LabError> {
    let (stored, next) = (bundle::read(directory)?, bundle::read(other)?);
    if !stored.bundle.machine.is_same_machine(&next.bundle.machine) {
        let why = "the machine is another one (processor, CPUs or caches differ); `twinring lab merge` joins bundles of \
                   several machines";
        return Err(cannot(other, why));
    }
    let differences = stored.bundle.differences(&next.bundle);
    let joined = join(stored, next, other)?;
    for what in differences {
        say(&format!("not the same as in the first session: {what}"));
    }
    let bundle = write(directory, joined)?;
    // All of it is in the other bundle now.
    fs::remove_dir_all(other).map_err(|error| LabError::write(other, error))?;
    Ok(bundle)
}

fn cannot(path: &Path, why: &str) -> LabError {
    LabError::failed(format!("{} cannot be joined: {why}", path.display()))
}

fn write(directory: &Path, joined: Stored) -> Result<Bundle, LabError> {
    let Stored { mut bundle, runs, calibrations, .. } = joined;
    bundle.summary = Some(summarise(&bundle, &runs));
    let runs = bundle::draft_of_runs(directory, calibrations.iter().chain(&runs))?;
    bundle::finish(directory, &bundle, Some(runs))?;
    Ok(bundle)
}

fn join(first: Stored, second: Stored, path: &Path) -> Result<Stored, LabError> {
    let (mut bundle, mut runs) = (first.bundle, first.runs);
    let next = second.bundle;
    let kinds = |it: &Bundle| it.networks.iter().map(|network| network.kind).collect::<Vec<_>>();
    let [known, new] = [bundle.all_occasions(), next.all_occasions()];
    let is_known = |it: &Occasion| {
        known.iter().any(|other| (it.seed, &it.started) == (other.seed, &other.started))
    };
    let is_new = !new.iter().any(is_known);
    let occasions = [&known[..], &new].concat();
    for (is_right, why) in [
        (bundle.experiment == next.experiment, "it is of another experiment"),
        (kinds(&bundle) == kinds(&next), "it was measured on other networks"),
        (is_new, "a session of it is there already, and would count twice"),
        (occasions.len() <= OCCASIONS_MAX, "there would be more sessions than one bundle may have"),
        (
            !first.cut_off && !second.cut_off,
            "its last run was cut off; `twinring lab report` first",
        ),
    ] {
        if !is_right {
            return Err(cannot(path, why));
        }
    }
    let machine = &bundle.machine;
    if !occasions.iter().all(|it| it.machine.is_same_machine(machine)) {
        bundle.prices = Some(PriceRecord::none("the sessions are of several machines"));
    }
    if bundle.state == State::Complete {
        bundle.state = next.state.clone();
    }
    let before = known.len();
    let mut calibrations = first.calibrations;
    append(&mut runs, second.runs, before);
    append(&mut calibrations, second.calibrations, before);
    bundle.occasions = occasions;
    Ok(Stored { bundle, summary: None, runs, calibrations, cut_off: false })
}

/// Numbers the runs of further sessions behind those that are there, in every cell.
fn append(runs: &mut Vec<RunRecord>, next: Vec<RunRecord>, occasions: usize) {
    let mut blocks: HashMap<Cell, usize> = HashMap::new();
    for run in runs.iter().filter(|run| !run.calibration) {
        let after = blocks.entry(run.cell).or_default();
        *after = (*after).max(run.block.saturating_add(1));
    }
    for mut run in next {
        run.index = runs.len();
        run.occasion = run.occasion.saturating_add(occasions);
        run.block = run.block.saturating_add(blocks.get(&run.cell).copied().unwrap_or(0));
        runs.push(run);
    }
}
