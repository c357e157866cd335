//! Two bundles: what changed from one to the other, cell by cell and subject by subject.
//!
//! Their runs are not paired. Where both have three sessions or more, the interval rests on the sessions' means;
//! else it is of the runs of two sessions, and says nothing of other ones.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::analysis::{FIGURES, Figures, figures_of};
use crate::bundle::{self, Stored};
use crate::error::LabError;
use crate::experiment::Cell;
use crate::gate::{Gate, Gated};
use crate::record::RunRecord;
use crate::report::{Block, Style, align, wrapped};
use crate::statistics::{Estimate, MIN_SESSIONS, Run, difference, family_level, mean};
use crate::verify::verify;

/// The figures that are shown of every subject, whatever changed.
const SHOWN: [&str; 4] = ["server_cpu_ns", "throughput_per_s", "p99_us", "syscalls"];

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
    pub gates: Vec<Judged>,
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
}

/// What a gate says.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Judged {
    /// The gate.
    pub gate: String,
    /// The worst of all cells and subjects; nothing if it could not be judged.
    pub is: Option<Gated>,
    /// Where.
    pub at: Vec<String>,
}

/// Compares two bundles.
///
/// # Errors
/// When one cannot be read, or fails verification and `unverified` is not set, or when they have nothing in common.
pub fn diff(a: &Path, b: &Path, gates: &[Gate], unverified: bool) -> Result<Diff, LabError> {
    let read = |path: &Path| -> Result<Stored, LabError> {
        let found = verify(path)?;
        if !found.holds() && !unverified {
            let why =
                format!("it fails verification: {}", found.problems.first().map_or("", |it| it));
            return Err(LabError::not_a_bundle(path, &why));
        }
        bundle::read(path)
    };
    let (a, b) = (read(a)?, read(b)?);
    let of = |stored: &Stored| {
        let mut runs: BTreeMap<(Cell, String), Vec<Measured>> = BTreeMap::new();
        for run in stored.runs.iter().filter(|run| is_sound(run, &stored.runs)) {
            let Some(figures) = figures_of(run) else { continue };
            let stratum =
                run.distance.and_then(|it| it.placement()).map_or(0, |it| it as usize + 1);
            let key = (run.cell, run.subject.clone());
            runs.entry(key).or_default().push((
                run.occasion,
                Run { figure: 0.0, stratum },
                figures,
            ));
        }
        runs
    };
    let (before, after) = (of(&a), of(&b));
    let common: Vec<&(Cell, String)> =
        before.keys().filter(|key| after.contains_key(key)).collect();
    if common.is_empty() {
        let why = "the two bundles have no subject of the same name in the same cell".to_owned();
        return Err(LabError::Machine { why });
    }
    let level = family_level(common.len());
    let change = |key: &&(Cell, String)| change(key, &before[*key], &after[*key], level);
    let changes: Vec<Change> = common.iter().map(change).collect();
    let gates = gates.iter().map(|gate| judge(gate, &changes)).collect();
    let family = common.len();
    Ok(Diff {
        event: "result",
        schema: "twinring.lab.diff/2",
        family,
        changes,
        conditions: a.bundle.differences(&b.bundle),
        gates,
    })
}

fn is_sound(run: &RunRecord, runs: &[RunRecord]) -> bool {
    let first = runs.iter().find(|it| (it.cell, it.block) == (run.cell, run.block)).unwrap_or(run);
    crate::noise::noise(first, run).is_empty()
        && crate::analysis::check(run).iter().all(|it| it.effect == crate::analysis::Effect::Note)
}

type Measured = (usize, Run, Figures);

fn change((cell, subject): &(Cell, String), a: &[Measured], b: &[Measured], level: f64) -> Change {
    let sessions = |runs: &[Measured]| {
        let mut all: Vec<usize> = runs.iter().map(|it| it.0).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let over_sessions = [a, b].iter().all(|runs| sessions(runs).len() >= MIN_SESSIONS);
    let mut figures = BTreeMap::new();
    for (name, _) in FIGURES {
        let values = |runs: &[Measured]| -> Vec<Run> {
            let value = |it: &Measured| Some((it.0, Run { figure: *it.2.get(name)?, ..it.1 }));
            let each: Vec<(usize, Run)> = runs.iter().filter_map(value).collect();
            if !over_sessions {
                return each.into_iter().map(|it| it.1).collect();
            }
            let of_session = |session: usize| {
                let own: Vec<f64> =
                    each.iter().filter(|it| it.0 == session).map(|it| it.1.figure).collect();
                Some(Run { figure: mean(&own)?, stratum: 0 })
            };
            sessions(runs).into_iter().filter_map(of_session).collect()
        };
        let least = if over_sessions { MIN_SESSIONS } else { crate::statistics::RUNS_MIN };
        figures.extend(
            difference(&values(a), &values(b), least, level).map(|it| (name.to_owned(), it)),
        );
    }
    Change { cell: *cell, subject: subject.clone(), figures, over_sessions }
}

fn judge(gate: &Gate, changes: &[Change]) -> Judged {
    let found: Vec<(Gated, String)> = changes
        .iter()
        .filter_map(|it| {
            Some((
                gate.judge(it.figures.get(&gate.figure)?)?,
                format!("{}, {}", it.subject, it.cell),
            ))
        })
        .collect();
    let rank = |it: Gated| it as usize;
    let worst = found.iter().map(|it| it.0).max_by_key(|it| rank(*it));
    let at = found
        .into_iter()
        .filter(|it| Some(it.0) == worst && it.0 != Gated::Holds)
        .map(|it| it.1)
        .collect();
    Judged { gate: gate.to_string(), is: worst, at }
}

pub(crate) fn exit_code(gates: impl Iterator<Item = Option<Gated>> + Clone) -> u8 {
    match gates.clone().any(|it| it == Some(Gated::Breached)) {
        true => 3,
        false => u8::from(gates.into_iter().any(|it| it.is_none())),
    }
}

impl Diff {
    /// 3 if a gate was breached, 1 if one could not be judged, else 0.
    pub fn exit_code(&self) -> u8 {
        exit_code(self.gates.iter().map(|it| it.is))
    }

    /// As one line of JSON.
    pub fn json_line(&self) -> String {
        // A struct of strings and numbers always serialises.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut table = vec![vec!["subject".to_owned(), "cell".to_owned()]];
        table[0].extend(SHOWN.map(str::to_owned));
        for change in &self.changes {
            let mut row = vec![change.subject.clone(), change.cell.to_string()];
            let shown = SHOWN
                .map(|name| change.figures.get(name).map_or("-".to_owned(), crate::report::change));
            row.extend(shown);
            table.push(row);
        }
        table
    }

    fn sentences(&self) -> Vec<String> {
        let mut all = Vec::new();
        if !self.conditions.is_empty() {
            all.push(format!("Differs as well: {}.", self.conditions.join(", ")));
        }
        let over = self.changes.iter().all(|it| it.over_sessions);
        all.push(match over {
            true => "Intervals over the means of sessions, for all together.".to_owned(),
            false => "Intervals of the runs of these sessions, for all together: other sessions may differ by more.".to_owned(),
        });
        for gate in &self.gates {
            let is = match gate.is {
                Some(Gated::Breached) => "BREACHED",
                Some(Gated::Undecided) => "not shown",
                Some(Gated::Holds) => "holds",
                None => "cannot be judged",
            };
            let at = if gate.at.is_empty() {
                String::new()
            } else {
                format!(": {}", gate.at.join("; "))
            };
            all.push(format!("gate {}: {is}{at}", gate.gate));
        }
        all
    }

    /// As a table for the terminal.
    pub fn table(&self, style: Style) -> String {
        let mut text = String::new();
        for line in align(&self.rows()) {
            text.push_str(&line);
            text.push('\n');
        }
        for sentence in self.sentences() {
            for line in wrapped(&sentence, "", "  ") {
                text.push_str(&if line.contains("BREACHED") {
                    style.paint("1", &line)
                } else {
                    line
                });
                text.push('\n');
            }
        }
        text
    }

    /// As Markdown, for a pull request.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let table = Block::Table(self.rows());
        let items = self.sentences().into_iter().map(Block::Item);
        for block in std::iter::once(table).chain(items) {
            crate::report::render_markdown(&block, &mut text);
        }
        text
    }
}
