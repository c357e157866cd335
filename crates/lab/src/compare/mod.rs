//! Two bundles against each other.
//!
//! Two questions are kept apart. Did a subject change from A to B, in absolute figures? That can
//! be asked only if the machine and its conditions were the same. Did the ratio between two
//! subjects change, as each bundle measured it in pairs? That can also be asked of two machines.
//! `docs/statistics.md` explains the statistics and what an unpaired comparison cannot know.

mod changes;
mod conditions;
mod gate;
mod judge;
mod report;
mod side;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::LabError;
use crate::experiment::Cell;
use crate::summary::Metric;

pub use changes::{Change, FigureChange, Finding, SubjectChange, VerdictChange};
pub use conditions::Difference;
pub use gate::{Gate, GateError};
pub use judge::{GateOutcome, GateResult, Judged};

use changes::changes;
use side::Side;

/// The schema of the JSON line.
pub const COMPARE_SCHEMA: &str = "twinring.lab.compare/1";

/// How bundles are compared.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Conditions under which the comparison fails.
    pub gates: Vec<Gate>,
    /// Compare also what does not hold.
    pub unverified: bool,
}

/// Two bundles, compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BundleComparison {
    /// [`COMPARE_SCHEMA`].
    pub schema: &'static str,
    /// The bundle that is compared with.
    pub a: Compared,
    /// The bundle that is looked at.
    pub b: Compared,
    /// Why absolute figures are not compared, if so: the machine was not the same.
    pub machine_differs: Vec<Difference>,
    /// What else a reader has to know.
    pub notes: Vec<String>,
    /// Cells that A has and B has not.
    pub only_in_a: Vec<String>,
    /// Cells that B has and A has not.
    pub only_in_b: Vec<String>,
    /// Each subject in B against itself in A.
    pub absolute: Vec<SubjectChange>,
    /// Each ratio between two subjects in B against the same in A.
    pub relative: Vec<SubjectChange>,
    /// The verdicts of both.
    pub verdicts: Vec<VerdictChange>,
    /// The gates.
    pub gates: Vec<GateResult>,
}

/// One of the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// Where it is.
    pub bundle: PathBuf,
    /// Name of the experiment.
    pub experiment: String,
    /// When it began, in UTC.
    pub started: String,
    /// How many runs it has.
    pub runs: usize,
}

impl BundleComparison {
    /// The exit code of the command: 3 when a gate is breached, 1 when one cannot be judged, else 0.
    pub fn exit_code(&self) -> u8 {
        match self.gates.iter().map(|gate| gate.outcome).max() {
            Some(GateOutcome::Breached) => 3,
            Some(GateOutcome::Unjudged) => 1,
            Some(GateOutcome::Held) | None => 0,
        }
    }

    /// All of it as one JSON line.
    ///
    /// # Errors
    /// None in practice: everything in it can be written as JSON.
    pub fn json_line(&self) -> Result<String, LabError> {
        #[derive(Serialize)]
        struct Line<'a> {
            event: &'static str,
            #[serde(flatten)]
            comparison: &'a BundleComparison,
        }
        let line = Line { event: "result", comparison: self };
        serde_json::to_string(&line).map_err(|error| LabError::NotABundle {
            path: self.b.bundle.clone(),
            why: error.to_string(),
        })
    }
}

/// Compares bundle `b` with bundle `a`. Both are verified first.
///
/// # Errors
/// When one cannot be read, does not hold ([`LabError::DoesNotHold`]), or a gate is about nothing
/// in them ([`LabError::BadExperiment`]).
pub fn bundles(a: &Path, b: &Path, options: &Options) -> Result<BundleComparison, LabError> {
    let [a, b] = [Side::read(a, options.unverified)?, Side::read(b, options.unverified)?];
    let machine_differs = conditions::machine(&a.bundle, &b.bundle);
    let asked: Vec<Metric> = options.gates.iter().filter_map(Gate::metric).collect();
    let changes = changes(&a, &b, &machine_differs, &asked);
    let gates: Result<Vec<_>, _> =
        options.gates.iter().map(|gate| judge::judge(gate, &changes, &a, &b)).collect();
    let mut notes = conditions::notes(&a.bundle, &b.bundle);
    notes.extend(other_networks(&a, &b));
    let only_in = |one: &Side, other: &Side| {
        let missing = one.cells.iter().filter(|cell| !other.cells.contains(cell));
        missing.map(Cell::to_string).collect()
    };
    Ok(BundleComparison {
        schema: COMPARE_SCHEMA,
        only_in_a: only_in(&a, &b),
        only_in_b: only_in(&b, &a),
        machine_differs,
        notes,
        absolute: changes.absolute,
        relative: changes.relative,
        verdicts: changes.verdicts,
        gates: gates?,
        a: Compared::of(a),
        b: Compared::of(b),
    })
}

impl Compared {
    fn of(side: Side) -> Compared {
        Compared {
            bundle: side.directory,
            experiment: side.bundle.experiment.name,
            started: side.bundle.started,
            runs: side.runs.len(),
        }
    }
}

/// Points that both have, but on other networks.
fn other_networks(a: &Side, b: &Side) -> Vec<String> {
    let unmatched = a.cells.iter().filter(|cell| !b.cells.contains(cell));
    let other = |cell: &Cell| b.cells.iter().find(|other| other.point == cell.point).copied();
    let note = |cell: &Cell| {
        let other = other(cell)?;
        Some(format!("{cell} in A, {other} in B: another network is not comparable"))
    };
    unmatched.filter_map(note).collect()
}
