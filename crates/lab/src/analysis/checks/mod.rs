//! Whether a run is what it claims to be. Each check is one function; what disturbed a run is no matter of theirs
//! ([`crate::noise`]), but for the tolerances of what a busy machine does to any program.

mod load;
mod network;
mod requests;

use serde::{Deserialize, Serialize};

use crate::record::{Failed, Failure, RunRecord};
use twinring_wire::LoadResult;

use Check::*;

/// A check, causes before their consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The server was ready, stayed, and ended well when it was asked to.
    ServerRuns,
    /// The load generator ran to its end, and CPU use could be established.
    LoadRuns,
    /// The network does what it says.
    Network,
    /// The result can be read and agrees with itself.
    Result,
    /// The load is the one that was asked for.
    Load,
    /// The bytes that came back are right.
    Bytes,
    /// The load generator met no errors.
    Errors,
    /// Every connection or stream was served.
    Admission,
    /// Everything sent is accounted for.
    Balance,
    /// Something was answered in the window.
    Answers,
    /// No request, connection or stream was forgotten.
    Stalled,
    /// Rate, latency and requests in flight agree with Little's law.
    LittlesLaw,
    /// The load generator kept its schedule.
    Schedule,
    /// No packets were lost, or so few that latency is still that of the servers.
    Packets,
    /// The bytes that came back were compared.
    Verified,
}

/// What follows from a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It is said.
    Note,
    /// The run does not count, nor its pair; if most runs of a subject do not, the subject is void.
    Excluded,
    /// The subject is void in this cell: its figures are not what they claim to be.
    Void,
}

/// What a check found in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Finding {
    /// Which check.
    pub check: Check,
    /// What follows.
    pub effect: Effect,
    /// The subject.
    pub subject: String,
    /// The run.
    pub run: usize,
    /// What was seen, with figures.
    pub what: String,
}

/// What a check says of a run.
type Found = Option<(Effect, String)>;

fn void(what: String) -> Found {
    Some((Effect::Void, what))
}

fn void_unless(right: bool, what: impl FnOnce() -> String) -> Found {
    if right { None } else { void(what()) }
}

fn note(what: String) -> Found {
    Some((Effect::Note, what))
}

/// A run as its checks see it.
struct Seen<'a> {
    run: &'a RunRecord,
    /// What the load generator said, if it can be read and is of the cell's protocol.
    load: Option<&'a LoadResult>,
    /// Seconds of the window in which the programs may not have had their CPUs, at most: the hypervisor or other
    /// processes had them, or the machine stood still, as the lab noticed by its own samples. No fault of a subject
    /// makes this larger.
    taken_s: f64,
}

impl Seen<'_> {
    /// The first failure of these kinds.
    fn failed(&self, kinds: &[Failed]) -> Option<&Failure> {
        self.run.failures.iter().find(|failure| kinds.contains(&failure.what))
    }

    /// Whether the load generator ended, perhaps before its window, because of what its result says of the server: ours
    /// ends with 1 if answers were wrong, broken off or missing.
    fn is_of_server(&self) -> bool {
        let of_server = [load::bytes, load::errors, load::admission, load::answers];
        self.run.client_exit.as_ref().is_some_and(|exit| matches!(exit.code, Some(0 | 1)))
            && of_server.into_iter().any(|check| check(self).is_some())
    }

    fn window_s(&self) -> f64 {
        self.run.cpu.as_ref().map_or(0.0, |cpu| cpu.window_s)
    }

    /// Void, unless so much of the window was taken that no program could have done better.
    fn void_unless_starved(&self, what: String) -> Found {
        match self.taken_s > STARVED_SHARE * self.window_s() {
            true => Some((
                Effect::Excluded,
                format!("{what}, with {:.2} s of the window taken by others", self.taken_s),
            )),
            false => void(what),
        }
    }
}

/// Programs that had less than the rest of the window cannot be expected to serve anybody.
const STARVED_SHARE: f64 = 0.75;

/// How far a printed figure may be from the one recomputed from the histogram: hdr histograms of three digits are
/// good to 0.1 %.
const RECOMPUTED_TOLERANCE: f64 = 0.005;

/// A check, its function, what is wrong when it fails, and what the reader can do about it.
type CheckRow = (Check, fn(&Seen<'_>) -> Found, &'static str, &'static str);

/// Every check, in the order of [`Check`].
const CHECKS: [CheckRow; 15] = [
    (ServerRuns, server_runs, "the server failed", "run its command by hand, under the same load"),
    (LoadRuns, load_runs, "the load generator failed", "run its command; check its descriptors"),
    (Network, network::network, "the network is not what it says", "see docs/networks.md"),
    (Result, load::result, "bad result", "compare the load's output with docs/json.md"),
    (Load, load::as_asked, "another load than asked for", "see the options in its command"),
    (Bytes, load::bytes, "wrong bytes", "the server sends wrong bytes or answers: fix it first"),
    (Errors, load::errors, "errors", "check the server's limits on connections and descriptors"),
    (Admission, load::admission, "not all connections served", "raise the server's limits"),
    (Balance, load::balance, "requests unaccounted for", "the load generator miscounts"),
    (Answers, load::answers, "nothing answered", "check the server, for UDP its receive buffer"),
    (Stalled, requests::stalled, "a request was forgotten", "the server lost bytes or clients"),
    (LittlesLaw, requests::littles_law, "Little's law broken", "latencies or counts are wrong"),
    (Schedule, requests::schedule, "late schedule", "lower the rate, or give the load a CPU"),
    (Packets, network::packets, "packets lost", "keep less in flight; raise netdev_max_backlog"),
    (Verified, load::verified, "bytes not compared", "have the load generator compare what comes"),
];

/// What the checks find in a run.
pub fn check(run: &RunRecord) -> Vec<Finding> {
    let load = run.load_result().and_then(|load| load.ok());
    let is_of_cell = |load: &&LoadResult| run.cell.protocol() == (*load).into();
    let seen = Seen { run, load: load.as_ref().filter(is_of_cell), taken_s: taken_s(run) };
    let finding = |(check, function, ..): CheckRow| {
        let (effect, what) = function(&seen)?;
        Some(Finding { check, effect, subject: run.subject.clone(), run: run.index, what })
    };
    CHECKS.into_iter().filter_map(finding).collect()
}

fn taken_s(run: &RunRecord) -> f64 {
    let Some(cpu) = &run.cpu else { return 0.0 };
    let steal_s: f64 = cpu.cpus().iter().map(|busy| busy.steal_coarse_s).sum();
    let others_s = run.others.as_ref().map_or(0.0, |others| others.cpu_s);
    let late_s = cpu.sample_delay_us.into_iter().fold(0.0, f64::max) / 1e6;
    (steal_s + others_s + late_s).min(cpu.window_s)
}

/// Packets were sent in the window and none came back, with a load generator that ran to its end: the worst of
/// losses, and no fault of the measurement. Such a run missed the SLO.
pub(super) fn is_unanswered(run: &RunRecord) -> bool {
    let Some(Ok(load)) = run.load_result() else { return false };
    let Some(load) = load.udp() else { return false };
    // `twinring load udp` ends with 1 if no packet came back at all.
    let ended = run.client_exit.as_ref().is_some_and(|exit| matches!(exit.code, Some(0 | 1)));
    ended && load.packets.sent > 0 && load.packets.received == 0
}

fn server_runs(seen: &Seen<'_>) -> Found {
    use Failed::{ServerDidNotStop, ServerDied, ServerNotReady};
    let failure = seen.failed(&[ServerNotReady, ServerDied, ServerDidNotStop])?;
    // A foreign server that ends badly has served well; ours has to end well.
    match failure.what == ServerDidNotStop && seen.run.ready.is_none() {
        true => note(failure.to_string()),
        false => void(failure.to_string()),
    }
}

fn load_runs(seen: &Seen<'_>) -> Found {
    use Failed::{ClientFailed, ClientTimeout, NoAccounting};
    let own = seen.failed(&[ClientFailed]).filter(|_| !seen.is_of_server());
    let failure = own.or_else(|| seen.failed(&[ClientTimeout, NoAccounting]))?;
    // The windows of several load generators were apart.
    let is_apart = failure.what == NoAccounting;
    Some((if is_apart { Effect::Excluded } else { Effect::Void }, failure.to_string()))
}

/// Whether two figures that should be one are further apart than rounding. What is not a number differs from
/// everything.
fn differ(a: f64, b: f64) -> bool {
    let apart = (a - b).abs();
    apart.is_nan() || apart > RECOMPUTED_TOLERANCE * a.abs().max(b.abs()) + 1e-9
}

impl Check {
    /// All of them.
    pub fn all() -> [Check; 15] {
        CHECKS.map(|row| row.0)
    }

    /// What is wrong when it fails, in words.
    pub fn title(self) -> &'static str {
        CHECKS[self as usize].2
    }

    /// What the reader can do about it.
    pub fn advice(self) -> &'static str {
        CHECKS[self as usize].3
    }
}
