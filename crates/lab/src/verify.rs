//! Whether a bundle holds: everything in it is computed again from its raw data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::accounting::CpuUse;
use crate::analysis::summarise;
use crate::bundle::{
    self, BUNDLE_FILE, COVERED, HTML_FILE, MANIFEST_FILE, MARKDOWN_FILE, RUNS_FILE, Stored,
};
use crate::error::{LabError, MESSAGE_CHARS_MAX, shortened};
use crate::experiment::{Cell, NetKind};
use crate::record::{RUN_SCHEMA, RunRecord};
use crate::report::lines_of;
use crate::result::{Bundle, State};

/// How far a recomputed figure may be from the stored one, relatively: logarithms and quantiles
/// may round differently on another machine.
const FIGURE_TOLERANCE: f64 = 1e-9;

/// The most characters that are printed of one figure: a list may stand where a number should.
const FIGURE_CHARS_MAX: usize = 120;

/// What `twinring lab verify` found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// Everything that is not as it should be; empty for a bundle that holds.
    pub problems: Vec<String>,
    /// What could not be checked, and why.
    pub notes: Vec<String>,
    /// How many runs the figures were recomputed from.
    pub runs: usize,
    /// How many stored figures were compared.
    pub figures: usize,
}

impl Verification {
    /// Whether the bundle holds.
    pub fn holds(&self) -> bool {
        self.problems.is_empty()
    }
}

impl std::fmt::Display for Verification {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (kind, all) in [("problem", &self.problems), ("note", &self.notes)] {
            for it in all {
                writeln!(f, "{}", lines_of(&format!("{kind}: {it}")))?;
            }
        }
        let outcome = if self.holds() { "holds" } else { "does NOT hold" };
        let Verification { runs, figures, .. } = self;
        write!(
            f,
            "the bundle {outcome}: {figures} figures recomputed from the raw data of {runs} runs"
        )
    }
}

/// Recomputes every figure of a bundle from its raw data, and every checksum. Looks whether the
/// runs are of the experiment.
pub fn verify(directory: &Path) -> Result<Verification, LabError> {
    Ok(verified(directory)?.1)
}

pub(crate) fn verified(directory: &Path) -> Result<(Stored, Verification), LabError> {
    let stored = bundle::read(directory)?;
    let Stored { bundle, summary, runs, cut_off, .. } = &stored;
    let mut found = Verification { runs: runs.len(), ..Verification::default() };
    if *cut_off {
        found.notes.push(format!("the last line of {RUNS_FILE} was cut off and is left out"));
    }
    found.notes.extend(incomplete(bundle));
    check_manifest(directory, bundle, &mut found);
    let computed = summarise(bundle, runs);
    check_runs(bundle, runs, &mut found);
    match summary {
        // Numbers, strings, maps and lists always serialise.
        Some(stored) => {
            let computed = serde_json::to_value(&computed).unwrap_or_default();
            compare(stored, &computed, "summary", &mut found);
        }
        None if may_be_without_summary(bundle) => {}
        None => found.problems.push("the summary is missing".to_owned()),
    }
    if bundle.summary.is_none() {
        let reports = [MARKDOWN_FILE, HTML_FILE].into_iter();
        let reports = reports.filter(|name| bundle::has(directory, name));
        let problem = |name| format!("there is no summary that {name} could say");
        found.problems.extend(reports.map(problem));
    }
    for said in found.problems.iter_mut().chain(&mut found.notes) {
        *said = shortened(said, MESSAGE_CHARS_MAX);
    }
    Ok((stored, found))
}

/// Why a bundle has less than was asked for, if its lab came to no end.
fn incomplete(bundle: &Bundle) -> Option<String> {
    let what = match &bundle.state {
        State::Complete | State::Interrupted { .. } => return None,
        State::Running => "it is incomplete: its lab still runs, was killed, or could not write \
                           even that it failed"
            .to_owned(),
        State::Failed { error } => format!("it is incomplete, because its lab failed: {error}"),
    };
    let rest = "; `twinring lab report` makes the rest from the runs that it has";
    Some(what + if bundle.summary.is_none() { rest } else { "" })
}

/// Whether the runs are of the experiment, each once.
fn check_runs(bundle: &Bundle, runs: &[RunRecord], found: &mut Verification) {
    let occasions = bundle.occasions.len().max(1);
    let experiment = &bundle.experiment;
    let nets: Vec<NetKind> = bundle.networks.iter().map(|network| network.kind).collect();
    let cells: BTreeSet<Cell> = experiment.cells(&nets).into_iter().collect();
    let mut seen: BTreeMap<(Cell, usize), Vec<&RunRecord>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.schema != RUN_SCHEMA) {
        found.problems.push(format!("run {} is of the schema {}", run.index, run.schema));
    }
    for (position, run) in runs.iter().enumerate() {
        let mut speakers = experiment.subjects_of(run.cell.protocol()).into_iter();
        let cpus = run.cpu.as_ref();
        let of_block = seen.entry((run.cell, run.block)).or_default();
        let what = if run.index != position {
            format!("it stands where run {position} should")
        } else if !cells.contains(&run.cell) {
            format!("the experiment has no cell {}", run.cell)
        } else if !speakers.any(|it| experiment.subjects[it].name == run.subject) {
            format!("the experiment has no subject {} in {}", run.subject, run.cell)
        } else if of_block.iter().any(|other| other.subject == run.subject) {
            format!("{} ran twice in block {} of {}", run.subject, run.block, run.cell)
        } else if run.occasion >= occasions {
            format!("the bundle has no session {}", run.occasion)
        } else if cpus.is_some_and(|cpu| !is_on(cpu, bundle, run)) {
            "it was measured on other CPUs".to_owned()
        } else {
            of_block.push(run);
            continue;
        };
        found.problems.push(format!("run {}: {what}", run.index));
    }
}

fn is_on(cpu: &CpuUse, bundle: &Bundle, run: &RunRecord) -> bool {
    let cpus = bundle.occasions.get(run.occasion).map_or(&bundle.cpus, |it| &it.cpus);
    cpu.server_cpu.cpus == cpus.server.first_of(run.cell.point.workers())
        && cpu.client_cpu.as_ref().is_none_or(|it| it.cpus == cpus.client)
}

/// A lab that runs has written neither summary nor reports yet, one that failed may have had no room.
fn may_be_without_summary(bundle: &Bundle) -> bool {
    match bundle.state {
        State::Running => true,
        State::Failed { .. } => bundle.summary.is_none(),
        State::Complete | State::Interrupted { .. } => false,
    }
}

fn check_manifest(directory: &Path, bundle: &Bundle, found: &mut Verification) {
    let manifest = match bundle::text_of(directory, MANIFEST_FILE) {
        Ok(manifest) => manifest,
        Err(_) if may_be_without_summary(bundle) => return,
        Err(error) => return found.problems.push(format!("{MANIFEST_FILE}: {error}")),
    };
    let is_report = |name| [MARKDOWN_FILE, HTML_FILE].contains(name);
    // `lab report` writes reports again, so a stored bundle can do without them.
    for name in COVERED.iter().filter(|name| !is_report(name) || bundle::has(directory, name)) {
        let stored = manifest.lines().find_map(|line| line.strip_suffix(name)).map(str::trim);
        match (stored, bundle::hash_of(directory, name)) {
            (None, _) => found.problems.push(format!("{MANIFEST_FILE} does not name {name}")),
            (_, Err(error)) => found.problems.push(format!("{name}: {error}")),
            (Some(stored), Ok(hash)) if stored != hash => {
                found.problems.push(format!("{name} was changed after the manifest was written"));
            }
            _ => {}
        }
    }
}

fn compare(stored: &Value, computed: &Value, path: &str, found: &mut Verification) {
    match (stored, computed) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            for (key, value) in a {
                compare(value, &b[key], &format!("{path}.{key}"), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(a, b, &format!("{path}[{index}]"), found);
            }
        }
        _ => {
            found.figures += 1;
            let close = match (stored.as_f64(), computed.as_f64()) {
                (Some(a), Some(b)) => (a - b).abs() <= FIGURE_TOLERANCE * a.abs().max(b.abs()),
                _ => stored == computed,
            };
            if !close {
                let [stored, computed] =
                    [stored, computed].map(|value| shortened(&value.to_string(), FIGURE_CHARS_MAX));
                let problem = format!("{path} is {stored}, but the raw data give {computed}");
                found.problems.push(problem);
            }
        }
    }
}

/// A bundle whose summary is computed again from its raw data, ignoring the stored one.
pub fn recomputed(directory: &Path) -> Result<Bundle, LabError> {
    let Stored { mut bundle, runs, .. } = bundle::read(directory)?;
    bundle.summary = Some(summarise(&bundle, &runs));
    Ok(bundle)
}

/// Whether there is a bundle in a directory.
pub fn is_bundle(directory: &Path) -> bool {
    bundle::has(directory, BUNDLE_FILE)
}

/// Computes the summary of a bundle again and writes reports and manifest again, also for a bundle
/// whose lab was killed.
pub fn rerender(directory: &Path) -> Result<Bundle, LabError> {
    let bundle = recomputed(directory)?;
    bundle::finish(directory, &bundle, None)?;
    Ok(bundle)
}
