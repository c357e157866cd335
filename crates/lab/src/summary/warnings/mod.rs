//! What limits the conclusions of an experiment: each with its figures and with advice.
//!
//! Audits ([`crate::audit`]) ask of each run whether it may count. Warnings ask of what was made of
//! the runs, and of the machine, what a reader must not conclude from it.

mod cells;
mod kinds;
mod machine;

use serde::{Deserialize, Serialize};

use crate::experiment::Cell;
use crate::result::Bundle;

pub use cells::{
    COARSE_SHARE, DRIFT_FIGURE_PERCENT, DRIFT_RATIO_PERCENT, EXCLUDED_SHARE, NOISY_PERCENT,
};
pub use kinds::WarningKind;

/// One thing to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    /// What it is about.
    pub kind: WarningKind,
    /// The cell, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<Cell>,
    /// The subject, if it is about one; of a comparison the one that is compared with the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What was seen, with figures.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

impl Warning {
    fn of(kind: WarningKind, what: String) -> Warning {
        Warning { kind, cell: None, subject: None, what, advice: kind.advice().to_owned() }
    }

    fn in_cell(self, cell: Cell) -> Warning {
        Warning { cell: Some(cell), ..self }
    }

    fn about(self, subject: &str) -> Warning {
        Warning { subject: Some(subject.to_owned()), ..self }
    }
}

/// All warnings of a bundle: those about what was measured first, in the order of the cells, then
/// those about the machine. They follow from the rest of the bundle and from nothing else.
pub fn warnings(bundle: &Bundle) -> Vec<Warning> {
    let Some(summary) = &bundle.summary else { return Vec::new() };
    let mut warnings = cells::warnings(&bundle.experiment, summary);
    warnings.extend(machine::warnings(bundle));
    warnings
}
