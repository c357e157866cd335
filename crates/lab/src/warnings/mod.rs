//! What limits the conclusions of an experiment: each with its figures and with advice.
//!
//! Audits ([`crate::audit`]) ask of each run whether it may count. Warnings ask of what was made of
//! the runs, and of the machine, what a reader must not conclude from it.

mod cells;
mod kinds;
mod machine;

use crate::result::Bundle;

pub use cells::{
    COARSE_SHARE, DRIFT_FIGURE_PERCENT, DRIFT_RATIO_PERCENT, EXCLUDED_SHARE, NOISY_PERCENT,
};
pub use kinds::{Warning, WarningKind};

/// All warnings of a bundle: those about what was measured first, in the order of the cells, then
/// those about the machine. They follow from the rest of the bundle and from nothing else.
pub fn warnings(bundle: &Bundle) -> Vec<Warning> {
    let Some(summary) = &bundle.summary else { return Vec::new() };
    let mut warnings = cells::warnings(&bundle.experiment, summary);
    warnings.extend(machine::warnings(bundle));
    warnings
}
