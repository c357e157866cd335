//! An experiment with what the command line changes in it.

use super::source::Source;
use super::{Accounting, Experiment, MAX_PAIRS, NetChoice, Protocol, Subject, Until};
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::placement::Wanted;
use crate::workload::Points;

/// What the command line changes in an experiment. `None` leaves the experiment's own value.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Pairs per cell.
    pub pairs: Option<usize>,
    /// Blocks that may be run again.
    pub spare_pairs: Option<usize>,
    /// Seconds of the measured window.
    pub window_s: Option<f64>,
    /// Seconds of warm-up.
    pub warmup_s: Option<f64>,
    /// The only protocol whose cells are kept.
    pub protocol: Option<Protocol>,
    /// Connection counts of TCP and HTTP.
    pub connections: Option<Vec<u32>>,
    /// Sizes of messages and files, in bytes.
    pub message_bytes: Option<Vec<u32>>,
    /// Requests in flight per connection.
    pub depth: Option<Vec<u32>>,
    /// Requests per second of TCP and HTTP; 0 is a closed loop.
    pub rate_per_s: Option<Vec<u32>>,
    /// The rate as a percentage of what the slowest subject can serve; 0 is a closed loop.
    pub load_percent: Option<Vec<u32>>,
    /// Requests of a connection of TCP; 0 keeps it.
    pub churn: Option<Vec<u32>>,
    /// Workers of the server, each on a CPU of its own.
    pub workers: Option<Vec<u32>>,
    /// Goes on until the intervals are at most this wide, in percent.
    pub until_percent: Option<f64>,
    /// Stream counts.
    pub streams: Option<Vec<u32>>,
    /// Packets per second of each stream.
    pub packets_per_s: Option<Vec<u32>>,
    /// The network.
    pub net: Option<NetChoice>,
    /// How CPU use is found.
    pub accounting: Option<Accounting>,
    /// How the two CPUs have to lie to each other.
    pub placement: Option<Wanted>,
    /// CPUs of the server.
    pub server_cpu: Option<CpuList>,
    /// CPUs of the load generator.
    pub client_cpu: Option<CpuList>,
    /// When not empty, these subjects instead of the experiment's: see [`Subject::parse`]. Cells
    /// of a protocol that not all of them speak are left out.
    pub subjects: Vec<Subject>,
}

impl Experiment {
    /// This experiment with the command line's changes.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`] when the result makes no sense, or an axis was given that no
    /// cell of it has.
    pub fn with(mut self, overrides: &Overrides) -> Result<Experiment, LabError> {
        self.pairs = overrides.pairs.unwrap_or(self.pairs);
        self.spare_pairs = overrides.spare_pairs.unwrap_or(self.spare_pairs);
        self.net = overrides.net.unwrap_or(self.net);
        self.placement = overrides.placement.unwrap_or(self.placement);
        self.pin.server_cpu = overrides.server_cpu.clone().or(self.pin.server_cpu);
        self.pin.client_cpu = overrides.client_cpu.clone().or(self.pin.client_cpu);
        self.accounting = overrides.accounting.unwrap_or(self.accounting);
        self.window_s = overrides.window_s.unwrap_or(self.window_s);
        self.warmup_s = overrides.warmup_s.unwrap_or(self.warmup_s);
        for (_, grid) in self.grids_mut() {
            grid.set_pace([overrides.warmup_s, overrides.window_s]);
        }
        if !overrides.subjects.is_empty() {
            self.replace_subjects(&overrides.subjects);
        }
        if let Some(only) = overrides.protocol {
            self.keep_protocols(|protocol| protocol == only);
        }
        self.set_axes(overrides)?;
        if let Some(interval_percent) = overrides.until_percent {
            // As many pairs as an experiment may have: the width decides when it ends.
            let max_pairs = self.until.map_or(MAX_PAIRS, |until| until.max_pairs);
            self.until = Some(Until { interval_percent, max_pairs });
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

    fn set_axes(&mut self, overrides: &Overrides) -> Result<(), LabError> {
        // Both say how many requests/s there are: the one that is given replaces the other.
        let replaced = |axis: &Points<'_>| match axis.option {
            "--load-percent" => overrides.rate_per_s.is_some(),
            "--rates" => overrides.load_percent.is_some(),
            _ => false,
        };
        let axes = self.grids_mut().flat_map(|(_, grid)| grid.axes());
        axes.filter(replaced).for_each(|axis| *axis.points = vec![0]);
        for (option, given) in [
            ("--connections", &overrides.connections),
            ("--sizes", &overrides.message_bytes),
            ("--depth", &overrides.depth),
            ("--rates", &overrides.rate_per_s),
            ("--load-percent", &overrides.load_percent),
            ("--churn", &overrides.churn),
            ("--workers", &overrides.workers),
            ("--streams", &overrides.streams),
            ("--pps", &overrides.packets_per_s),
        ] {
            let Some(given) = given else { continue };
            let mut others: Vec<&str> = Vec::new();
            let mut is_known = false;
            for axis in self.grids_mut().flat_map(|(_, grid)| grid.axes()) {
                if axis.option == option {
                    axis.points.clone_from(given);
                    is_known = true;
                } else if !axis.option.is_empty() && !others.contains(&axis.option) {
                    others.push(axis.option);
                }
            }
            if !is_known {
                return Err(LabError::BadExperiment {
                    place: "the options".to_owned(),
                    problem: format!("{option} concerns no cell of this experiment"),
                    expected: format!("{}, which its cells have", others.join(", ")),
                });
            }
        }
        Ok(())
    }
}
