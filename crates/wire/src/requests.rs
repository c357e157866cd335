//! The common part of the results of `twinring load tcp` and `twinring load http`: requests over
//! connections.

use serde::{Deserialize, Serialize};

use crate::Fields;
use crate::histogram::{EncodedHistogram, Lag, Latency};
use crate::load::{Cpu, Gate, Window, add_some, throttled};

/// The common fields of both results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct RequestResult {
    /// The measured window.
    pub window: Window,
    /// Requests inside the window.
    pub requests: Requests,
    /// Requests from the first connection to the last byte.
    pub whole_run: WholeRun,
    /// Latencies of the answers inside the window.
    pub latency_us: Latency,
    /// Where latencies begin: `send`, `intended` in an open loop, or `connect` when every request
    /// has a connection of its own.
    pub latency_from: String,
    /// The same answers from when their requests really began, as a load generator that waits for the server would
    /// report them; `null` in a closed loop.
    pub raw_latency_us: Option<Latency>,
    /// Time to open a connection, including its TLS handshake, over the whole run.
    #[serde(default)]
    pub connect_us: Latency,
    /// How late requests left against the schedule; `null` in a closed loop.
    pub schedule_lag_us: Option<Lag>,
    /// All latencies.
    pub histogram: EncodedHistogram,
    /// Connections.
    pub connections: Connections,
    /// The requested gates.
    #[serde(default)]
    pub gates: Vec<Gate>,
    /// The first error in words.
    pub first_error: Option<String>,
    /// CPU use of the load generator inside the window.
    pub cpu: Cpu,
    /// Counters of the load generator's runtime, over the whole run.
    pub runtime_counters: Fields,
}

/// Requests inside the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Requests {
    /// Open loop: due inside the window by the schedule of the load generator. Missing in a closed
    /// loop, and where the number of requests is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<u64>,
    /// Left inside the window.
    pub sent: u64,
    /// Answered inside the window, whenever they were sent.
    pub answered: u64,
    /// Failed inside the window, because their connection was lost or their answer was wrong.
    pub failed: u64,
    /// Without an answer when the window ended.
    pub in_flight_at_end: u64,
    /// Open loop: due before the end of the window and not sent by then, including those of
    /// connections that could not be opened.
    pub unsent: u64,
    /// Unsent for more than a second at the end of the window, or without an answer when the run
    /// ended, for longer than a second and than any answer took.
    #[serde(default)]
    pub overdue: u64,
    /// Age of the oldest request without an answer when the run ended, up to a second after the
    /// window; 0 if all were answered. A hanging connection shows here and in no latency.
    pub oldest_in_flight_us: Option<f64>,
    /// `answered` per second of the window.
    pub per_second: f64,
    /// Open loop: the requests left at the rate that was asked for. Missing in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_reached: Option<bool>,
}

/// Requests of the whole run: `sent = answered + failed + abandoned`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct WholeRun {
    /// All that were sent.
    pub sent: u64,
    /// All that were answered.
    pub answered: u64,
    /// All that failed.
    pub failed: u64,
    /// All that were still without an answer when the run ended.
    pub abandoned: u64,
}

/// Connections of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Connections {
    /// Requested, without idle ones.
    pub asked: u64,
    /// Stood before the load began.
    pub established: u64,
    /// Received at least one answer.
    pub served: u64,
    /// The largest number that were established and had been answered at the same time.
    pub served_at_once_max: u64,
    /// Established ones that ended early and were not replaced.
    pub lost: u64,
    /// New connections that replaced ended ones.
    pub reconnects: u64,
    /// Only `load tcp`: connections of `--idle` that stood before the load began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_established: Option<u64>,
    /// Only `load http`: connections that the server did not close although it was asked to, or had
    /// announced it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_open: Option<u64>,
    /// Fewest answers inside the window to any established connection.
    pub min_answered: u64,
    /// Most answers inside the window to any connection.
    pub max_answered: u64,
}

impl RequestResult {
    /// Requests due inside the window: as the load generator counted them, or by the rate if it did
    /// not. Random arrivals in a window are more or fewer than rate x window.
    pub fn due(&self, rate_per_s: u32) -> f64 {
        let by_rate = || f64::from(rate_per_s) * self.window.seconds;
        self.requests.due.map_or_else(by_rate, |due| due as f64)
    }

    /// Why the run counts as failed, if it does: nothing was answered, all connections were lost, or requests failed
    /// although no gate says how many may.
    pub(crate) fn failure(&self, interrupted: bool) -> Option<String> {
        let Connections { asked, established, lost, .. } = self.connections;
        let Requests { answered, failed, .. } = self.requests;
        if lost > 0 && lost == established {
            return Some("all connections were lost before the end".into());
        }
        if answered == 0 && !interrupted {
            return Some("no request was answered as expected inside the window".into());
        }
        let first = self.first_error.as_ref().map_or(String::new(), |first| format!("; {first}"));
        if established < asked && !interrupted {
            return Some(format!("{established} of {asked} connections could be opened{first}"));
        }
        let is_judged = self.gates.iter().any(|gate| gate.gate == "max_error_rate");
        let all = answered.saturating_add(failed);
        (failed > 0 && !is_judged)
            .then(|| format!("{failed} of {all} requests failed (--max-error-rate){first}"))
    }

    /// Why the load was not the one that was asked for, if it was not.
    pub(crate) fn shortfall(&self, rate_per_s: Option<u64>) -> Vec<String> {
        let Requests { per_second, overdue, rate_reached, .. } = self.requests;
        let mut all = Vec::new();
        if let (Some(false), Some(rate)) = (rate_reached, rate_per_s) {
            let why = match self.cpu.saturated {
                true => "the load generator used all of its CPU: give it more --threads",
                false => "the server was too slow for these connections",
            };
            all.push(format!("RATE NOT REACHED: {per_second:.0} of {rate} /s; {why}"));
        }
        if overdue > 0 {
            all.push(format!("NOT ANSWERED: {overdue} requests, for more than a second"));
        }
        all.extend(throttled(&self.cpu));
        all
    }

    pub(crate) fn add(&mut self, other: RequestResult) -> Result<(), String> {
        let (mine, theirs) = (&mut self.requests, &other.requests);
        add_counts!(mine, theirs; answered);
        add_some(&mut mine.due, theirs.due);
        let oldest = [mine.oldest_in_flight_us, theirs.oldest_in_flight_us];
        mine.oldest_in_flight_us = oldest.into_iter().flatten().reduce(f64::max);
        mine.per_second += theirs.per_second;
        add_counts!(self.whole_run, other.whole_run; sent, answered, failed, abandoned);
        self.latency_us = Latency::of(&self.histogram.add(&other.histogram)?);
        // Of the schedules the latest.
        let lags = [self.schedule_lag_us, other.schedule_lag_us].into_iter().flatten();
        self.schedule_lag_us = lags.reduce(|a, b| if a.p99 < b.p99 { b } else { a });
        self.connections.add(&other.connections);
        self.first_error = self.first_error.take().or(other.first_error);
        self.cpu.add(&other.cpu);
        Ok(())
    }
}

impl Connections {
    /// Adds those of others.
    pub fn add(&mut self, other: &Connections) {
        add_counts!(self, other; asked, established, served, served_at_once_max, lost, reconnects);
        add_some(&mut self.idle_established, other.idle_established);
        add_some(&mut self.kept_open, other.kept_open);
        self.min_answered = self.min_answered.min(other.min_answered);
        self.max_answered = self.max_answered.max(other.max_answered);
    }
}
