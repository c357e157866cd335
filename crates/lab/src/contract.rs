//! The JSON lines of `twinring serve` and `twinring load`, as far as the lab reads them. Fields it
//! does not know are kept in the bundle all the same: runs store the lines as they came.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde::Deserialize;
use serde_json::Value;

/// The result of a load generator.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LoadResult {
    pub(crate) settings: Settings,
    pub(crate) window: Window,
    pub(crate) requests: Requests,
    pub(crate) whole_run: WholeRun,
    pub(crate) latency_us: Latency,
    pub(crate) schedule_lag_us: Option<ScheduleLag>,
    pub(crate) histogram: EncodedHistogram,
    pub(crate) connections: Connections,
    pub(crate) errors: Errors,
    pub(crate) first_error: Option<String>,
    pub(crate) cpu: ClientCpu,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Settings {
    pub(crate) connections: u64,
    pub(crate) depth: u64,
    pub(crate) mode: String,
    pub(crate) verify: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Window {
    pub(crate) start_monotonic_ns: u64,
    pub(crate) end_monotonic_ns: u64,
    pub(crate) seconds: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Requests {
    pub(crate) answered: u64,
    pub(crate) per_second: f64,
    /// Age of the oldest request that had no answer when the run ended.
    pub(crate) oldest_in_flight_us: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WholeRun {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) abandoned: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p99: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ScheduleLag {
    pub(crate) p99: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct EncodedHistogram {
    pub(crate) unit: String,
    pub(crate) encoding: String,
    pub(crate) data: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Connections {
    pub(crate) served_at_once_max: u64,
    pub(crate) min_answered: u64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Errors {
    pub(crate) connect: u64,
    pub(crate) reset: u64,
    pub(crate) closed_early: u64,
    pub(crate) timeout: u64,
    pub(crate) mismatch: u64,
    pub(crate) other: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ClientCpu {
    pub(crate) busiest_thread_share: f64,
    pub(crate) saturated: bool,
}

impl Errors {
    /// All but mismatches, which are judged on their own.
    pub(crate) fn failures(&self) -> u64 {
        self.connect + self.reset + self.closed_early + self.timeout + self.other
    }
}

impl LoadResult {
    /// Reads a `result` line.
    ///
    /// # Errors
    /// What is missing or of the wrong kind.
    pub(crate) fn read(line: &Value) -> Result<LoadResult, String> {
        LoadResult::deserialize(line).map_err(|error| error.to_string())
    }

    /// The latencies in nanoseconds.
    ///
    /// # Errors
    /// When the encoding is not the one of the contract or the data is damaged.
    pub(crate) fn latencies(&self) -> Result<Histogram<u64>, String> {
        let EncodedHistogram { unit, encoding, data } = &self.histogram;
        if unit != "ns" || encoding != "hdr-v2-base64" {
            return Err(format!("a histogram in {unit} as {encoding}"));
        }
        let bytes = STANDARD.decode(data).map_err(|error| format!("histogram: {error}"))?;
        let histogram = Deserializer::new().deserialize(&mut bytes.as_slice());
        histogram.map_err(|error| format!("histogram: {error:?}"))
    }
}

/// The kind of a line: its `event` field, if it is JSON at all.
pub(crate) fn event_of(line: &str) -> Option<(String, Value)> {
    let value: Value = serde_json::from_str(line).ok()?;
    let event = value.get("event")?.as_str()?.to_owned();
    Some((event, value))
}

/// A counter of the server's `final` line.
pub(crate) fn runtime_counter(final_line: Option<&Value>, name: &str) -> Option<f64> {
    final_line?.get("runtime_counters")?.get(name)?.as_f64()
}
