//! One run as it is stored: a line of `runs.jsonl`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounting::{CpuUse, MemoryUse, OtherProcesses};
use crate::clock::Offset;
use crate::contract::LoadResult;
use crate::experiment::Cell;
use crate::placement::Distance;
use crate::process::Exit;

/// The schema of the lines of `runs.jsonl`.
pub const RUN_SCHEMA: &str = "twinring.lab.run/5";

/// The number at the end of a schema; 0 if there is none.
pub(crate) fn version(schema: &str) -> u32 {
    schema.rsplit_once('/').and_then(|(_, version)| version.parse().ok()).unwrap_or(0)
}

/// One run: a fresh server, a fresh client, and what both said and cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`RUN_SCHEMA`].
    pub schema: String,
    /// Number of the run, from 0, in the order of time.
    pub index: usize,
    /// Number of the occasion, from 0: see [`Bundle::occasions`](crate::result::Bundle::occasions).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub occasion: usize,
    /// The cell.
    pub cell: Cell,
    /// Number of the block within the cell, from 0. Runs of one block are paired.
    pub block: usize,
    /// Name of the subject.
    pub subject: String,
    /// Requests per second that were asked for, where the cell says a share of what the slowest
    /// subject can serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<u32>,
    /// Seconds since the experiment began.
    pub at_s: f64,
    /// The server's command, without the paths of this machine; of the first of several.
    pub server_command: Vec<String>,
    /// The configuration file that the lab wrote for the server, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_config: Option<String>,
    /// The load generator's command, likewise; of the first of several.
    pub client_command: Vec<String>,
    /// The server's `ready` line, if it prints one.
    pub ready: Option<Value>,
    /// The load generator's `result` line, with the histogram. With several client hosts it stands
    /// with each in `clients`, and what they did together is computed from there.
    pub load: Option<Value>,
    /// The server's `final` line, if it prints one.
    pub server_final: Option<Value>,
    /// CPU use inside the window.
    pub cpu: Option<CpuUse>,
    /// The server's memory and the kernel's, before the load and behind the window; the sum of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
    /// How far apart the two CPUs were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<Distance>,
    /// CPU use of everybody else around the run.
    pub others: Option<OtherProcesses>,
    /// How the server ended.
    pub server_exit: Option<Exit>,
    /// How the load generator ended.
    pub client_exit: Option<Exit>,
    /// Each host, the servers' first, if the run was between hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostRun>,
    /// The other servers, if there were several: what is said above of the server is of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_servers: Vec<ServerRun>,
    /// Each load generator's part, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<ClientRun>,
    /// What went wrong while running; judged by [`crate::audit`].
    pub failures: Vec<Failure>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl RunRecord {
    /// The version of the schema, which decides by which rules it is judged: bundles of earlier
    /// versions keep the verdicts that they were given.
    pub(crate) fn version(&self) -> u32 {
        version(&self.schema)
    }

    /// How many load generators there were.
    pub(crate) fn load_generators(&self) -> usize {
        self.clients.len().max(1)
    }

    /// Whether another run was between the same hosts.
    pub(crate) fn has_hosts_of(&self, other: &RunRecord) -> bool {
        let names =
            |run: &RunRecord| run.hosts.iter().map(|it| it.host.clone()).collect::<Vec<_>>();
        names(self) == names(other)
    }

    /// How many servers there were.
    pub(crate) fn servers(&self) -> usize {
        1 + self.further_servers.len()
    }

    /// A counter of the runtime in the servers' `final` lines, which are added.
    pub(crate) fn runtime_counter(&self, name: &str) -> Option<f64> {
        self.final_counter("runtime_counters", name)
    }

    /// A counter of the service, likewise.
    pub(crate) fn service_counter(&self, name: &str) -> Option<f64> {
        self.final_counter("service_counters", name)
    }

    fn final_counter(&self, group: &str, name: &str) -> Option<f64> {
        let further = self.further_servers.iter().map(|it| it.server_final.as_ref());
        let lines = std::iter::once(self.server_final.as_ref()).chain(further);
        lines.map(|line| line?.get(group)?.get(name)?.as_f64()).sum()
    }

    /// Requests per second that were asked for; 0 in a closed loop.
    pub(crate) fn rate_per_s(&self) -> u32 {
        self.rate_per_s.unwrap_or(self.cell.point.rate_per_s())
    }

    /// What the load generator reports, or all of them together; nothing if there is none.
    ///
    /// # Errors
    /// What is wrong with a line, or why the lines cannot be added.
    pub(crate) fn load_result(&self) -> Option<Result<LoadResult, String>> {
        if self.clients.is_empty() {
            return self.load.as_ref().map(LoadResult::read);
        }
        let lines: Option<Vec<&Value>> =
            self.clients.iter().map(|client| client.load.as_ref()).collect();
        let results: Result<Vec<LoadResult>, String> =
            lines?.into_iter().map(LoadResult::read).collect();
        Some(results.and_then(LoadResult::merged))
    }
}

/// What a run between hosts was like on one of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostRun {
    /// Which host, as the bundle names it.
    pub host: String,
    /// How far its clock was ahead of the lab's.
    pub clock: Offset,
    /// CPU use of everybody else around the run.
    pub others: Option<OtherProcesses>,
}

/// One of several servers of a run, from the second on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerRun {
    /// Its host, as the bundle names it.
    pub host: String,
    /// Its command, exactly.
    pub command: Vec<String>,
    /// The configuration file that the lab wrote for it, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Its `ready` line, if it prints one.
    pub ready: Option<Value>,
    /// Its `final` line, if it prints one.
    pub server_final: Option<Value>,
    /// How it ended.
    pub exit: Option<Exit>,
}

/// One of several load generators of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientRun {
    /// Its host, as the bundle names it.
    pub host: String,
    /// Its command, exactly.
    pub command: Vec<String>,
    /// Its `result` line, with the histogram.
    pub load: Option<Value>,
    /// How it ended.
    pub exit: Option<Exit>,
}

/// What can go wrong in a run, as seen by the runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Failure {
    /// The server could not be used in time.
    ServerNotReady {
        /// What it said or did.
        why: String,
    },
    /// The server ended before it was asked to.
    ServerDied {
        /// How, and the end of its standard error.
        why: String,
    },
    /// The server did not end well when it was asked to.
    ServerDidNotStop {
        /// How it ended.
        why: String,
    },
    /// The load generator failed.
    ClientFailed {
        /// How, and the end of its standard error.
        why: String,
    },
    /// The load generator did not finish in time.
    ClientTimeout {
        /// Seconds it was given.
        limit_s: f64,
    },
    /// A line that the contract promises is missing or cannot be read.
    BadLine {
        /// Which, and what is wrong with it.
        why: String,
    },
    /// CPU use could not be established.
    NoAccounting {
        /// What was missing.
        why: String,
    },
}
