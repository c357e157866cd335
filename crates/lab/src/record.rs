//! One run as it is stored: a line of `runs.jsonl`, written as the run ends.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounting::{CpuUse, MemoryUse, OtherProcesses, QuotaUse};
use crate::experiment::Cell;
use crate::placement::Distance;
use crate::process::Exit;
use twinring_wire::LoadResult;

/// The schema of the lines of `runs.jsonl`.
pub const RUN_SCHEMA: &str = "twinring.lab.run/6";

/// One run: a fresh server, fresh load generators, and what both said and cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunRecord {
    /// [`RUN_SCHEMA`].
    pub schema: String,
    /// Number of the run, from 0, in the order of time.
    pub index: usize,
    /// Number of the occasion, from 0: see [`Bundle::occasions`](crate::result::Bundle::occasions).
    #[serde(default, skip_serializing_if = "crate::workload::is_default")]
    pub occasion: usize,
    /// The cell.
    pub cell: Cell,
    /// Number of the block within the cell, from 0. Runs of one block are paired.
    pub block: usize,
    /// The run only found out what its subject can serve: it is in no block and in no figure. Shares of the
    /// load follow from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub calibration: bool,
    /// Name of the subject.
    pub subject: String,
    /// Requests per second that were asked for, where the cell says a share of what the slowest
    /// subject can serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<u32>,
    /// Seconds since the experiment began.
    pub at_s: f64,
    /// The server's command.
    pub server_command: Vec<String>,
    /// The configuration file that the lab wrote for the server, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_config: Option<String>,
    /// The command of the load generator, or of what starts several.
    pub client_command: Vec<String>,
    /// How many load generators that starts.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub generators: u32,
    /// The server's `ready` line, if it prints one.
    pub ready: Option<Value>,
    /// The `result` lines of the load generators, with their histograms.
    pub loads: Vec<Value>,
    /// The server's `final` line, if it prints one.
    pub server_final: Option<Value>,
    /// CPU use inside the window.
    pub cpu: Option<CpuUse>,
    /// The server's memory and the kernel's, before the load and after the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
    /// How far apart the two CPUs were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<Distance>,
    /// CPU use of other processes around the run.
    pub others: Option<OtherProcesses>,
    /// What a CPU quota did to the run, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaUse>,
    /// How the server ended.
    pub server_exit: Option<Exit>,
    /// How the load generator ended.
    pub client_exit: Option<Exit>,
    /// What went wrong while running; judged by `analysis::checks`.
    pub failures: Vec<Failure>,
}

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

impl RunRecord {
    /// A counter of the server's `final` line: of the groups `runtime_counters` and `service_counters`.
    pub(crate) fn counter(&self, group: &str, name: &str) -> Option<f64> {
        self.server_final.as_ref()?.get(group)?.get(name)?.as_f64()
    }

    /// The placement of the CPUs, as a number.
    pub(crate) fn stratum(&self) -> usize {
        self.distance.and_then(|it| it.placement()).map_or(0, |it| it as usize + 1)
    }

    /// Requests per second that were asked for; 0 in a closed loop.
    pub(crate) fn rate_per_s(&self) -> u32 {
        self.rate_per_s.unwrap_or(self.cell.point.rate_per_s())
    }

    /// What the load generators report together; nothing if there is no result.
    pub(crate) fn load_result(&self) -> Option<Result<LoadResult, String>> {
        if self.loads.is_empty() {
            return None;
        }
        let results: Result<Vec<LoadResult>, String> =
            self.loads.iter().map(LoadResult::read).collect();
        Some(results.and_then(|results| match results.len() {
            // The sum of one is itself, but for counters that cannot be added.
            1 => results.into_iter().next().ok_or_else(|| "there is no result".to_owned()),
            _ => LoadResult::merged(results),
        }))
    }
}

/// What went wrong in a run, as seen by the runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Failure {
    /// The kind.
    pub what: Failed,
    /// What was seen, said or missing.
    pub why: String,
}

/// What can go wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Failed {
    /// The server was not ready in time.
    ServerNotReady,
    /// The server ended before it was asked to.
    ServerDied,
    /// The server did not end well when it was asked to.
    ServerDidNotStop,
    /// The load generator failed.
    ClientFailed,
    /// The load generator did not finish in time.
    ClientTimeout,
    /// A line that the contract promises is missing or cannot be read.
    BadLine,
    /// CPU use could not be established.
    NoAccounting,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.what {
            Failed::ServerNotReady => "the server was not ready: ",
            Failed::ServerDied => "the server ended: ",
            Failed::ServerDidNotStop => "the server did not stop: ",
            Failed::ClientFailed => "the load generator failed: ",
            Failed::ClientTimeout | Failed::BadLine | Failed::NoAccounting => "",
        })?;
        f.write_str(&self.why)
    }
}
