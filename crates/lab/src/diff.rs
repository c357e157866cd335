//! Two bundles: what changed from one to the other, cell by cell and subject by subject.
//!
//! Their runs are not paired. Where both have three sessions or more, the interval rests on the sessions' means;
//! else it is of the runs of two sessions, and says nothing of other ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;

use crate::analysis::{FIGURES, Figure, Figures, resolution, sound_runs};
use crate::bundle::Stored;
use crate::error::LabError;
use crate::experiment::Cell;
use crate::gate::{Gate, Verdict};
use crate::record::RunRecord;
use crate::report::{Element, change_of, plain, render_markdown};
use crate::statistics::{Estimate, MIN_SESSIONS, RUNS_MIN, Sample, difference, family_level, mean};
use crate::verify::verified;

/// The figures that are shown of every subject, whatever changed, and their titles.
const SHOWN: [(&str, &str); 4] = [
    ("server_cpu_ns", "server CPU"),
    ("throughput_per_s", "requests/s"),
    ("p99_us", "p99"),
    ("syscalls", "system calls"),
];

/// What changed between two bundles.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Diff {
    /// `result`.
    pub event: &'static str,
    /// `twinring.lab.diff/2`.
    pub schema: &'static str,
    /// How many subjects in cells are judged together.
    pub family: usize,
    /// One for each subject in each cell that both have.
    pub changes: Vec<Change>,
    /// What differs beside the figures.
    pub conditions: Vec<&'static str>,
    /// What each gate says.
    pub gates: Vec<Verdict>,
}

/// A subject in a cell.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Change {
    /// The cell.
    pub cell: Cell,
    /// The subject.
    pub subject: String,
    /// How many times the figure of the first bundle that of the second is, by figure.
    pub figures: BTreeMap<String, Estimate>,
    /// The intervals rest on the means of sessions.
    pub over_sessions: bool,
    /// The least change of the CPU that the clock shows, as a share.
    #[serde(skip)]
    pub resolution: f64,
}

/// Compares two bundles.
///
/// # Errors
/// When one cannot be read, or fails verification and `unverified` is not set, or when they have nothing in common.
pub fn diff(a: &Path, b: &Path, gates: &[Gate], unverified: bool) -> Result<Diff, LabError> {
    let read = |path: &Path| -> Result<Stored, LabError> {
        let (stored, found) = verified(path)?;
        if !found.holds() && !unverified {
            let why =
                format!("it fails verification: {}", found.problems.first().map_or("", |it| it));
            return Err(LabError::not_a_bundle(path, &why));
        }
        Ok(stored)
    };
    let (a, b) = (read(a)?, read(b)?);
    let [before, after] = [&a, &b].map(|it| sound_runs(&it.bundle.experiment, &it.runs));
    let common: Vec<&(Cell, String)> =
        before.keys().filter(|key| after.contains_key(key)).collect();
    if common.is_empty() {
        let why = "the two bundles have no subject of the same name in the same cell";
        return Err(LabError::failed(why.to_owned()));
    }
    let level = family_level(common.len());
    let change = |key: &&(Cell, String)| change(key, &before[*key], &after[*key], level);
    let changes: Vec<Change> = common.iter().map(change).collect();
    let mut conditions = a.bundle.differences(&b.bundle);
    let rates = |runs: &[Measured<'_>]| -> BTreeSet<u32> {
        runs.iter().map(|it| it.0.rate_per_s()).collect()
    };
    // A share of the load is one of what the slowest could serve in its own session.
    let has_other_rate = |key: &&(Cell, String)| {
        let [a, b] = [&before, &after].map(|it| rates(&it[*key]));
        !a.is_empty() && !b.is_empty() && a != b
    };
    if common.iter().any(has_other_rate) {
        conditions.push("the rates that are a share of the load");
    }
    let judge = |gate: &Gate| {
        let place = |it: &Change| format!("{}, {}", it.subject, it.cell);
        let found =
            changes.iter().map(|it| (it.figures.get(&gate.figure), it.resolution, place(it)));
        let gone = before.keys().filter(|key| !after.contains_key(key));
        let gone =
            gone.map(|(cell, subject)| (None, 0.0, format!("{subject}, {cell}: only before")));
        gate.over(found.chain(gone))
    };
    Ok(Diff {
        event: "result",
        schema: "twinring.lab.diff/2",
        family: common.len(),
        gates: gates.iter().map(judge).collect(),
        conditions,
        changes,
    })
}

type Measured<'a> = (&'a RunRecord, Figures);

fn change(
    (cell, subject): &(Cell, String),
    a: &[Measured<'_>],
    b: &[Measured<'_>],
    level: f64,
) -> Change {
    let sessions =
        |runs: &[Measured<'_>]| runs.iter().map(|it| it.0.occasion).collect::<BTreeSet<_>>().len();
    let over_sessions = [a, b].iter().all(|runs| sessions(runs) >= MIN_SESSIONS);
    let least = if over_sessions { MIN_SESSIONS } else { RUNS_MIN };
    let figure = |Figure { name, .. }: &Figure| {
        let values = |runs: &[Measured<'_>]| -> Vec<Sample> {
            let mut by_session: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
            let mut each = Vec::new();
            for (run, figures) in runs {
                let Some(figure) = figures.get(*name).copied() else { continue };
                by_session.entry(run.occasion).or_default().push(figure);
                each.push(Sample { value: figure, stratum: run.stratum() });
            }
            let mean = |own: &Vec<f64>| Some(Sample { value: mean(own)?, stratum: 0 });
            if over_sessions { by_session.values().filter_map(mean).collect() } else { each }
        };
        Some(((*name).to_owned(), difference(&values(a), &values(b), least, level)?))
    };
    let figures = FIGURES.iter().filter_map(figure).collect();
    let runs: Vec<&RunRecord> = a.iter().chain(b).map(|it| it.0).collect();
    let resolution = resolution(&runs);
    Change { cell: *cell, subject: subject.clone(), figures, over_sessions, resolution }
}

impl Diff {
    /// As one line of JSON.
    pub fn json_line(&self) -> String {
        // A struct of strings and numbers always serialises.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn blocks(&self) -> Vec<Element> {
        let about = "Change from the first to the second in percent; less is negative, the interval is in brackets.";
        let mut blocks = vec![Element::Text(about.to_owned())];
        for changes in self.changes.chunk_by(|a, b| a.cell == b.cell) {
            let row = |title: &str, value: &dyn Fn(&Change) -> String| -> Vec<String> {
                [title.to_owned()].into_iter().chain(changes.iter().map(value)).collect()
            };
            let mut table = vec![row("", &|it| it.subject.clone())];
            table.extend(
                SHOWN.map(|(name, title)| row(title, &|it| change_of(it.figures.get(name)))),
            );
            blocks.extend([Element::Heading(changes[0].cell.to_string()), Element::Table(table)]);
        }
        let differs = (!self.conditions.is_empty())
            .then(|| format!("Differs as well: {}.", self.conditions.join(", ")));
        let over = match self.changes.iter().all(|it| it.over_sessions) {
            true => "Intervals over the means of sessions, for all together.",
            false => {
                "Intervals of the runs of these sessions, for all together: other sessions may differ by more."
            }
        };
        let gates = self
            .gates
            .iter()
            .map(|it| it.to_string().split_whitespace().collect::<Vec<_>>().join(" "));
        let items = differs.into_iter().chain([over.to_owned()]).chain(gates);
        blocks.extend(items.map(Element::Item));
        blocks
    }

    /// As a table for the terminal.
    pub fn table(&self) -> String {
        plain(&self.blocks())
    }

    /// As Markdown, for a pull request.
    pub fn markdown(&self) -> String {
        render_markdown(&self.blocks())
    }
}
