//! An experiment with what the command line changes in it.

use super::source::Source;
use super::{Axis, Experiment, NetChoice, Protocol, Subject, Via};
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::workload::axes_of;

/// What the command line changes in an experiment. `None` leaves the experiment's own value.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Pairs per cell.
    pub pairs: Option<usize>,
    /// Excluded blocks that may be replaced.
    pub spare_pairs: Option<usize>,
    /// Seconds of the measured window.
    pub window_s: Option<f64>,
    /// Seconds of warm-up.
    pub warmup_s: Option<f64>,
    /// The only protocol whose cells are kept.
    pub protocol: Option<Protocol>,
    /// The points of axes, by key, in every protocol that has the axis; `bytes` is the size in any of them.
    pub axes: Vec<(String, Vec<u32>)>,
    /// The network.
    pub net: Option<NetChoice>,
    /// CPUs of the server.
    pub server_cpu: Option<CpuList>,
    /// CPUs of the load generator.
    pub client_cpu: Option<CpuList>,
    /// Where the load generators run.
    pub via: Option<Via>,
    /// When not empty, these subjects instead of the experiment's: see [`Subject::parse`]. Cells
    /// of a protocol that not all of them speak are left out.
    pub subjects: Vec<Subject>,
}

impl Experiment {
    /// This experiment with the command line's changes.
    ///
    /// # Errors
    /// When the result makes no sense, or an axis was given that no cell of it has.
    pub fn with(mut self, overrides: &Overrides) -> Result<Experiment, LabError> {
        self.pairs = overrides.pairs.unwrap_or(self.pairs);
        self.spare_pairs = overrides.spare_pairs.unwrap_or(self.spare_pairs);
        self.net = overrides.net.clone().unwrap_or(self.net);
        self.pin.server_cpu = overrides.server_cpu.clone().or(self.pin.server_cpu);
        self.pin.client_cpu = overrides.client_cpu.clone().or(self.pin.client_cpu);
        self.via = overrides.via.clone().or(self.via);
        self.window_s = overrides.window_s.unwrap_or(self.window_s);
        self.warmup_s = overrides.warmup_s.unwrap_or(self.warmup_s);
        for (_, grid) in self.grids_mut() {
            grid.warmup_s = overrides.warmup_s.or(grid.warmup_s);
            grid.window_s = overrides.window_s.or(grid.window_s);
        }
        if !overrides.subjects.is_empty() {
            self.replace_subjects(&overrides.subjects);
        }
        if let Some(only) = overrides.protocol {
            self.keep_protocols(|protocol| protocol == only);
        }
        for (key, values) in &overrides.axes {
            self.set_axis(key, values)?;
        }
        self.check(&Source::named("the options"))?;
        Ok(self)
    }

    fn replace_subjects(&mut self, subjects: &[Subject]) {
        let first = self.first_protocol();
        self.subjects = subjects.to_vec();
        for subject in self.subjects.iter_mut().filter(|subject| subject.command.is_some()) {
            subject.protocol.get_or_insert(first);
        }
        let all_speak = |it: &Protocol| subjects.len() == self.subjects_of(*it).len();
        let kept: Vec<Protocol> = self.protocols().filter(all_speak).collect();
        self.keep_protocols(|protocol| kept.contains(&protocol));
    }

    fn set_axis(&mut self, key: &str, values: &[u32]) -> Result<(), LabError> {
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
