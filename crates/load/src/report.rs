//! The result of a run: the JSON of `docs/json.md` and a table for people.

pub(crate) mod table;

use crate::recorder::{Recorder, Trouble, Troubles};
use crate::run::Share;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use serde::Serialize;
use twinring::{CounterSnapshot, Features};

/// A worker that used this share of its CPU was the bottleneck.
pub const SATURATED_SHARE: f64 = 0.95;

/// The `result` line of `twinring load tcp`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always `"result"`.
    pub event: &'static str,
    /// Always `"twinring.load.tcp/1"`.
    pub schema: &'static str,
    /// Address of the server.
    pub target: String,
    /// The engine of the load generator.
    pub engine: String,
    /// The engine's features in use.
    pub features: Features,
    /// Why `auto` did not take io_uring.
    pub why_not: Option<String>,
    /// The run was ended by a signal.
    pub interrupted: bool,
    /// What was asked for.
    pub settings: SettingsReport,
    /// The measured window.
    pub window: Window,
    /// Requests inside the window.
    pub requests: RequestsReport,
    /// Requests from the first connection to the last byte.
    pub whole_run: WholeRun,
    /// Bytes of the requests and answers counted in `requests`.
    pub bytes: Bytes,
    /// Latencies of the answers inside the window.
    pub latency_us: Latency,
    /// `"send"`, or `"intended"` in an open loop.
    pub latency_from: &'static str,
    /// How late requests left against the schedule, in an open loop.
    pub schedule_lag_us: Option<Lag>,
    /// All latencies.
    pub histogram: EncodedHistogram,
    /// Connections.
    pub connections: Connections,
    /// Connections lost and attempts failed, by kind.
    pub errors: ErrorCounts,
    /// The first of them in words.
    pub first_error: Option<String>,
    /// CPU use of the worker threads inside the window.
    pub cpu: Cpu,
    /// Counters of the runtime, over the whole run.
    pub runtime_counters: CounterSnapshot,
}

/// What was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct SettingsReport {
    /// Connections that send.
    pub connections: u64,
    /// Size of a request and of its answer.
    pub message_bytes: u64,
    /// Requests in flight per connection, at most.
    pub depth: u64,
    /// Worker threads.
    pub threads: u64,
    /// `"closed"` or `"open"`.
    pub mode: &'static str,
    /// Requests a second in an open loop.
    pub rate_per_s: Option<u64>,
    /// Requests per connection before it reconnects.
    pub churn: Option<u64>,
    /// Connections that only stay open.
    pub idle: u64,
    /// Connections read slowly.
    pub slow_reader: bool,
    /// Answers are compared byte by byte.
    pub verify: bool,
    /// Number of requests after which the window ends.
    pub messages: Option<u64>,
    /// Load before the window, in seconds.
    pub warmup_s: f64,
    /// Length of the window, in seconds; with `messages`, its longest.
    pub duration_s: f64,
}

/// The measured window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Window {
    /// Its start on CLOCK_MONOTONIC.
    pub start_monotonic_ns: u64,
    /// Its end on CLOCK_MONOTONIC.
    pub end_monotonic_ns: u64,
    /// Its length.
    pub seconds: f64,
}

/// Requests inside the window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RequestsReport {
    /// Left inside the window.
    pub sent: u64,
    /// Answered inside the window, whenever they were sent.
    pub answered: u64,
    /// Given up inside the window, because their connection was lost.
    pub failed: u64,
    /// Without an answer when the window ended.
    pub in_flight_at_end: u64,
    /// Open loop: due before the end of the window and not sent by then.
    pub unsent: u64,
    /// For these there is no hope: unsent, and due for more than a second before the end of the window; or
    /// sent and without an answer when the run ended, for longer than a second and than any answer took.
    pub overdue: u64,
    /// Age of the oldest request that had no answer when the run ended, 0 if all had.
    pub oldest_in_flight_us: f64,
    /// `answered` per second of the window.
    pub per_second: f64,
}

impl RequestsReport {
    pub(crate) fn of(all: &Share, seconds: f64) -> RequestsReport {
        let counted = &all.recorder;
        RequestsReport {
            sent: counted.window.sent,
            answered: counted.window.answered,
            failed: counted.window.failed,
            in_flight_at_end: counted.until_end.in_flight(),
            unsent: all.unsent.count,
            overdue: all.unsent.overdue + all.hopeless_ns().len(),
            oldest_in_flight_us: all.oldest_ns as f64 / 1e3,
            per_second: match seconds > 0.0 {
                true => counted.window.answered as f64 / seconds,
                false => 0.0,
            },
        }
    }
}

/// Requests of the whole run: `sent = answered + failed + abandoned`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WholeRun {
    /// All that were sent.
    pub sent: u64,
    /// All that were answered.
    pub answered: u64,
    /// All whose connection was lost.
    pub failed: u64,
    /// All that were still without an answer when the run ended.
    pub abandoned: u64,
}

impl WholeRun {
    pub(crate) fn of(counted: &Recorder) -> WholeRun {
        WholeRun {
            sent: counted.whole.sent,
            answered: counted.whole.answered,
            failed: counted.whole.failed,
            abandoned: counted.whole.in_flight(),
        }
    }
}

/// Payload.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bytes {
    /// Of the requests sent inside the window.
    pub sent: u64,
    /// Of the answers inside the window.
    pub received: u64,
}

/// Latencies in microseconds; all 0 if there are none.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub min: f64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
}

impl Latency {
    pub(crate) fn of(histogram_ns: &Histogram<u64>) -> Latency {
        let quantile = |share| micros(histogram_ns.value_at_quantile(share));
        Latency {
            min: micros(histogram_ns.min()),
            mean: histogram_ns.mean() / 1e3,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p99_9: quantile(0.999),
            p99_99: quantile(0.9999),
            max: micros(histogram_ns.max()),
        }
    }
}

/// Lateness of sends in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Lag {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Lag {
    pub(crate) fn of(histogram_ns: &Histogram<u64>) -> Lag {
        Lag {
            p50: micros(histogram_ns.value_at_quantile(0.5)),
            p99: micros(histogram_ns.value_at_quantile(0.99)),
            max: micros(histogram_ns.max()),
        }
    }
}

pub(crate) fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// A histogram without loss: the HdrHistogram V2 encoding, uncompressed, in base64.
#[derive(Clone, Debug, Serialize)]
pub struct EncodedHistogram {
    /// Always `"ns"`.
    pub unit: &'static str,
    /// Always `"hdr-v2-base64"`.
    pub encoding: &'static str,
    /// The bytes.
    pub data: String,
}

impl EncodedHistogram {
    pub(crate) fn of(histogram_ns: &Histogram<u64>) -> EncodedHistogram {
        let mut bytes = Vec::new();
        // Writing to memory cannot fail, and the counts of a run stay below 2^63.
        let _in_memory = V2Serializer::new().serialize(histogram_ns, &mut bytes);
        EncodedHistogram { unit: "ns", encoding: "hdr-v2-base64", data: STANDARD.encode(bytes) }
    }
}

/// Connections.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Connections {
    /// Asked for, idle ones not counted.
    pub asked: u64,
    /// Stood before the load began.
    pub established: u64,
    /// Got at least one answer.
    pub served: u64,
    /// The largest number that stood and had been answered at the same time.
    pub served_at_once_max: u64,
    /// Of the established ones, those that ended because they could not go on.
    pub lost: u64,
    /// New connections made in place of ones that had done their share.
    pub reconnects: u64,
    /// Idle connections that stood before the load began.
    pub idle_established: u64,
    /// Fewest answers inside the window to any established connection.
    pub min_answered: u64,
    /// Most answers inside the window to any connection.
    pub max_answered: u64,
}

impl Connections {
    pub(crate) fn of(
        all: &Share,
        asked: u64,
        served_at_once_max: u64,
        idle_established: u64,
    ) -> Connections {
        Connections {
            asked,
            established: all.answered.len() as u64,
            served: all.served,
            served_at_once_max,
            lost: all.lost,
            reconnects: all.reconnects,
            idle_established,
            min_answered: all.answered.iter().copied().min().unwrap_or(0),
            max_answered: all.answered.iter().copied().max().unwrap_or(0),
        }
    }
}

/// Connections lost and attempts failed, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ErrorCounts {
    /// Attempts to connect that failed or took too long.
    pub connect: u64,
    /// Connections that the server reset.
    pub reset: u64,
    /// Connections that the server closed although more was to come.
    pub closed_early: u64,
    /// Connections given up because an answer took too long.
    pub timeout: u64,
    /// Connections given up because other bytes came back than were sent.
    pub mismatch: u64,
    /// Connections lost otherwise.
    pub other: u64,
}

impl ErrorCounts {
    pub(crate) fn of(troubles: &Troubles) -> ErrorCounts {
        ErrorCounts {
            connect: troubles.count(Trouble::Connect),
            reset: troubles.count(Trouble::Reset),
            closed_early: troubles.count(Trouble::ClosedEarly),
            timeout: troubles.count(Trouble::Timeout),
            mismatch: troubles.count(Trouble::Mismatch),
            other: troubles.count(Trouble::Other),
        }
    }

    fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("connect", self.connect),
            ("reset", self.reset),
            ("closed early", self.closed_early),
            ("timeout", self.timeout),
            ("mismatch", self.mismatch),
            ("other", self.other),
        ]
    }
}

/// CPU use of the worker threads inside the window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cpu {
    /// In the program itself, all threads together.
    pub user_s: f64,
    /// In the kernel on its behalf, all threads together.
    pub system_s: f64,
    /// Share of one CPU that the busiest thread used.
    pub busiest_thread_share: f64,
    /// The busiest thread used [`SATURATED_SHARE`] or more: the load generator was the limit.
    pub saturated: bool,
}

impl Report {
    /// Why the run counts as failed, if it does.
    pub fn failure(&self) -> Option<String> {
        let errors = &self.errors;
        if errors.mismatch > 0 {
            let count = errors.mismatch;
            return Some(format!("{count} connections got back other bytes than were sent"));
        }
        let Connections { lost, established, .. } = self.connections;
        if lost > 0 && lost == established {
            return Some("all connections were lost before the end".into());
        }
        if self.requests.answered == 0 && !self.interrupted {
            return Some("no request was answered inside the window".into());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoded_histogram_is_lossless() {
        let mut histogram: Histogram<u64> = Histogram::new_with_bounds(1, 1 << 40, 3).unwrap();
        (1..5000).for_each(|n| histogram.saturating_record_n(n * n, n));
        let encoded = EncodedHistogram::of(&histogram);
        let bytes = STANDARD.decode(encoded.data).unwrap();
        let decoded: Histogram<u64> = hdrhistogram::serialization::Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .unwrap();
        assert_eq!(decoded, histogram);
    }
}
