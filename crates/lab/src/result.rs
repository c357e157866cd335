//! The main file of a bundle, `bundle.json`, as types. The lines of `runs.jsonl` are in
//! [`crate::record`].

use serde::{Deserialize, Serialize};

use crate::analysis::Summary;
use crate::cpus::Cpus;
use crate::experiment::Experiment;
use crate::machine::{Fingerprint, Program};
use crate::net::NetRecord;
use crate::prices::PriceRecord;

/// The schema of `bundle.json`.
pub const BUNDLE_SCHEMA: &str = "twinring.lab.bundle/6";

/// The most sessions of one bundle.
pub(crate) const OCCASIONS_MAX: usize = 64;

/// Everything about an experiment but its raw data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Bundle {
    /// [`BUNDLE_SCHEMA`].
    pub schema: String,
    /// Version of the lab that measured.
    pub lab_version: String,
    /// When it began, in UTC, as `2026-01-31T12:00:00Z`.
    pub started: String,
    /// How it ended, or that it still runs (or was killed).
    pub state: State,
    /// The experiment with every option applied.
    pub experiment: Experiment,
    /// The command that led here. With `--seed` and the seed it repeats the order of the runs.
    pub command: Vec<String>,
    /// Seed of the order of runs and of the resampling.
    pub seed: u64,
    /// Programs that were measured or measured with.
    pub programs: Vec<Program>,
    /// Which CPU did what.
    pub cpus: Cpus,
    /// The networks.
    pub networks: Vec<NetRecord>,
    /// Why it was not the network that was asked for first.
    pub network_fallback: Option<String>,
    /// Subjects and cells that were asked for and are not in the experiment, because they cannot run here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<NotRun>,
    /// The machine.
    pub machine: Fingerprint,
    /// Each occasion on which runs were made, if there were several; what this bundle says of
    /// programs, CPUs and machine is then that of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub occasions: Vec<Occasion>,
    /// What came out, recomputed by `twinring lab verify` from the raw data; missing while the
    /// experiment runs.
    pub summary: Option<Summary>,
    /// What the machine charges; not in older bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceRecord>,
}

/// One run of an experiment from its start to its end, hours or machines apart from the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Occasion {
    /// When it began, in UTC.
    pub started: String,
    /// Version of the lab that measured.
    pub lab_version: String,
    /// The command.
    pub command: Vec<String>,
    /// Seed of the order of its runs.
    pub seed: u64,
    /// Programs that were measured or measured with.
    pub programs: Vec<Program>,
    /// Which CPU did what.
    pub cpus: Cpus,
    /// The machine.
    pub machine: Fingerprint,
    /// What the machine charges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceRecord>,
}

impl Bundle {
    /// The occasions of its runs, one or more.
    pub fn all_occasions(&self) -> Vec<Occasion> {
        if !self.occasions.is_empty() {
            return self.occasions.clone();
        }
        vec![Occasion {
            started: self.started.clone(),
            lab_version: self.lab_version.clone(),
            command: self.command.clone(),
            seed: self.seed,
            programs: self.programs.clone(),
            cpus: self.cpus.clone(),
            machine: self.machine.clone(),
            prices: self.prices.clone(),
        }]
    }

    pub(crate) fn differences(&self, other: &Bundle) -> Vec<&'static str> {
        let hashes = |it: &Bundle| -> Vec<(Option<String>, Option<String>)> {
            it.programs.iter().map(|it| (it.peer.clone(), it.sha256.clone())).collect()
        };
        let found = [
            ("the machine", !self.machine.is_same_machine(&other.machine)),
            ("the kernel", self.machine.kernel != other.machine.kernel),
            ("the mitigations", self.machine.mitigations != other.machine.mitigations),
            ("the CPUs used", self.cpus != other.cpus),
            ("the programs", hashes(self) != hashes(other)),
            ("the experiment", self.experiment != other.experiment),
        ];
        found.into_iter().filter(|(_, differs)| *differs).map(|(what, _)| what).collect()
    }
}

/// A subject, or cells, that cannot run on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NotRun {
    /// Its name, or which cells.
    pub subject: String,
    /// What is missing, and what to do.
    pub why: String,
}

/// How far an experiment got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum State {
    /// It runs, or its process was killed.
    Running,
    /// Every planned run was made.
    Complete,
    /// A signal ended it; what was measured before is valid.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// An error ended it; what was measured before is valid.
    Failed {
        /// The error.
        error: String,
    },
}
