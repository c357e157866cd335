//! What the command line changes in an experiment.

use super::source::Source;
use super::{Axis, Experiment, Protocol, Subject};
use crate::error::LabError;
use crate::workload::axes_of;

impl Experiment {
    /// Looks at it again after changes.
    ///
    /// # Errors
    /// When it makes no sense any more.
    pub fn checked(self) -> Result<Experiment, LabError> {
        self.check(&Source::named("the options"))?;
        Ok(self)
    }

    /// Sets the seconds of warm-up and of the measured window, for all protocols.
    pub fn set_pace(&mut self, warmup_s: Option<f64>, window_s: Option<f64>) {
        self.warmup_s = warmup_s.unwrap_or(self.warmup_s);
        self.window_s = window_s.unwrap_or(self.window_s);
        for (_, grid) in self.grids_mut() {
            grid.warmup_s = warmup_s.or(grid.warmup_s);
            grid.window_s = window_s.or(grid.window_s);
        }
    }

    /// Compares these instead: see [`Subject::parse`]. Cells of a protocol that not all of them speak are left out.
    pub fn set_subjects(&mut self, subjects: Vec<Subject>) {
        let first = self.first_protocol();
        self.subjects = subjects;
        for subject in self.subjects.iter_mut().filter(|subject| subject.command.is_some()) {
            subject.protocol.get_or_insert(first);
        }
        let all_speak = |it: &Protocol| self.subjects.len() == self.subjects_of(*it).len();
        let kept: Vec<Protocol> = self.protocols().filter(all_speak).collect();
        self.keep_protocols(|protocol| kept.contains(&protocol));
    }

    /// Replaces the points of an axis, by key, in every protocol that has the axis; `bytes` is the size in any of them.
    ///
    /// # Errors
    /// When no cell has the axis.
    pub fn set_axis(&mut self, key: &str, values: &[u32]) -> Result<(), LabError> {
        let mut is_known = false;
        for (protocol, grid) in self.grids_mut() {
            let Some(spec) = Axis::of_key(protocol, key) else { continue };
            grid.set(spec, values);
            is_known = true;
            // Both give a rate: the one that is given replaces the other.
            let other = match spec.axis {
                Axis::RatePerS => "load_percent",
                Axis::LoadPercent => "rate_per_s",
                _ => continue,
            };
            if let Some(other) = Axis::of_key(protocol, other) {
                grid.set(other, &[0]);
            }
        }
        if is_known {
            return Ok(());
        }
        let mut known: Vec<&str> =
            self.protocols().flat_map(axes_of).map(|spec| spec.key).collect();
        known.sort_unstable();
        known.dedup();
        let found = format!("no cell of this experiment has an axis `{key}`");
        Err(LabError::request(
            "--set",
            found,
            format!("{}, which its cells have", known.join(", ")),
        ))
    }
}
