//! The result of any load generator, and the sum of several.
//!
//! Counts and rates are added. Latencies come from the sum of the histograms, which is lossless.
//! Each load generator counts inside its own window; the windows are equally long and open at
//! nearly the same time (audited by the lab), so the sum is that of one window of the mean length.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Fields, HttpResult, RequestResult, TcpResult, UdpResult, http, tcp, udp};

/// A worker that used this share of its CPU was the bottleneck.
pub const SATURATED_SHARE: f64 = 0.95;

/// How every result begins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Head {
    /// Always `result`.
    pub event: String,
    /// Kind and version of the line.
    pub schema: String,
    /// Address of the server; for HTTP with its scheme.
    pub target: String,
    /// The engine of the load generator.
    pub engine: String,
    /// The features of that engine that are in use.
    pub features: Fields,
    /// Why `--engine auto` did not choose io_uring; `null` if it did, or was not requested.
    #[serde(rename = "why_not")]
    pub fallback_reason: Option<String>,
    /// The run was ended by a signal.
    pub interrupted: bool,
}

/// The measured window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Window {
    /// Its start on CLOCK_MONOTONIC.
    pub start_monotonic_ns: u64,
    /// Its end on CLOCK_MONOTONIC.
    pub end_monotonic_ns: u64,
    /// Its length.
    pub seconds: f64,
}

impl Window {
    /// Seconds between the two marks.
    pub fn between_marks_s(&self) -> f64 {
        self.end_monotonic_ns.saturating_sub(self.start_monotonic_ns) as f64 / 1e9
    }

    /// A window as long as these on average, beginning with the first; by the clock of its host.
    pub(crate) fn mean(windows: &[Window]) -> Window {
        let of = |field: fn(&Window) -> f64| {
            windows.iter().map(field).sum::<f64>() / windows.len().max(1) as f64
        };
        let start_monotonic_ns = windows.first().map_or(0, |window| window.start_monotonic_ns);
        let length_ns = (of(Window::between_marks_s) * 1e9).round() as u64;
        Window {
            start_monotonic_ns,
            end_monotonic_ns: start_monotonic_ns.saturating_add(length_ns),
            seconds: of(|window| window.seconds),
        }
    }
}

/// CPU use of the load generator's worker threads inside the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Cpu {
    /// In the program itself, all threads together.
    pub user_s: f64,
    /// In the kernel on its behalf, all threads together.
    pub system_s: f64,
    /// Share of one CPU that the busiest thread used.
    pub busiest_thread_share: f64,
    /// The busiest thread used at least 95 % of its CPU: the load generator was the limit.
    pub saturated: bool,
    /// The CPU quota of the load generator's control groups, in CPUs; missing without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_cpus: Option<f64>,
    /// Periods inside the window in which that quota was used up and the load generator had to wait.
    #[serde(default)]
    pub throttled_periods: u64,
}

impl Cpu {
    /// Of the busiest thread, that which is nearer to its limit: if any of them is there, the load
    /// is limited by it.
    pub fn add(&mut self, other: &Cpu) {
        self.user_s += other.user_s;
        self.system_s += other.system_s;
        self.busiest_thread_share = self.busiest_thread_share.max(other.busiest_thread_share);
        self.saturated |= other.saturated;
        self.throttled_periods = self.throttled_periods.saturating_add(other.throttled_periods);
    }
}

/// A limit for use in scripts, and the value measured inside the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Gate {
    /// `slo_` and a percentile, such as `slo_p99.9` or `slo_max`, in microseconds; or `max_error_rate` as a share.
    pub gate: String,
    /// The largest value that passes.
    pub limit: f64,
    /// The measured value; `null` if nothing was answered.
    pub measured: Option<f64>,
    /// The measured value is above the limit, or nothing was measured.
    pub breached: bool,
}

/// A share of the due requests that may leave after the window before the rate counts as not reached.
pub const RATE_TOLERANCE: f64 = 0.01;

/// What the CPU quota did to a run, if it did anything.
pub(crate) fn throttled(cpu: &Cpu) -> Option<String> {
    let quota = cpu.quota_cpus.map_or(String::new(), |cpus| format!(" of {cpus:.2} CPUs"));
    (cpu.throttled_periods > 0).then(|| {
        format!(
            "THROTTLED: the CPU quota{quota} stopped the load generator in {} periods; give it more, or measure from \
             elsewhere",
            cpu.throttled_periods
        )
    })
}

/// The sum of two rates or limits that may not have been set.
pub(crate) fn add_some(sum: &mut Option<u64>, other: Option<u64>) {
    *sum = sum.zip(other).map(|(mine, theirs)| mine.saturating_add(theirs));
}

/// The event of the first mark.
pub const WINDOW_START: &str = "window_start";
/// The event of the second mark.
pub const WINDOW_END: &str = "window_end";

/// A mark of the run, written at the moment that it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Mark {
    /// `window_start` or `window_end`.
    pub event: String,
    /// That moment on CLOCK_MONOTONIC.
    pub monotonic_ns: u64,
}

/// The result of a load generator.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum LoadResult {
    /// Of `twinring load tcp`.
    Tcp(Box<TcpResult>),
    /// Of `twinring load udp`.
    Udp(Box<UdpResult>),
    /// Of `twinring load http`.
    Http(Box<HttpResult>),
}

impl LoadResult {
    /// Reads a `result` line. Its schema determines the protocol.
    pub fn read(line: &Value) -> Result<LoadResult, String> {
        let schema = line.get("schema").and_then(Value::as_str);
        let result = match schema {
            Some(tcp::SCHEMA) => TcpResult::deserialize(line).map(Box::new).map(LoadResult::Tcp),
            Some(udp::SCHEMA) => UdpResult::deserialize(line).map(Box::new).map(LoadResult::Udp),
            Some(http::SCHEMA) => HttpResult::deserialize(line).map(Box::new).map(LoadResult::Http),
            other => {
                let schema = other.unwrap_or("missing");
                return Err(format!("its schema is {schema}, which this lab cannot read"));
            }
        };
        result.map_err(|error| error.to_string())
    }

    /// The combined result of several load generators. What the lab does not read is that of the first.
    ///
    /// # Errors
    /// When they are of different kinds, empty, or their histograms cannot be added.
    pub fn merged(results: Vec<LoadResult>) -> Result<LoadResult, String> {
        let mut results = results.into_iter();
        let mut sum = results.next().ok_or("there is no result")?;
        let mut windows = vec![*sum.window()];
        for result in results {
            windows.push(*result.window());
            match (&mut sum, result) {
                (LoadResult::Tcp(sum), LoadResult::Tcp(result)) => sum.add(*result)?,
                (LoadResult::Udp(sum), LoadResult::Udp(result)) => sum.add(*result)?,
                (LoadResult::Http(sum), LoadResult::Http(result)) => sum.add(*result)?,
                _ => return Err("the load generators speak different protocols".to_owned()),
            }
        }
        let window = Window::mean(&windows);
        match &mut sum {
            LoadResult::Tcp(result) => result.all.window = window,
            LoadResult::Udp(result) => result.window = window,
            LoadResult::Http(result) => result.all.window = window,
        }
        Ok(sum)
    }

    /// The common part of requests over connections, or the result of datagrams.
    fn either(&self) -> Result<&RequestResult, &UdpResult> {
        match self {
            LoadResult::Tcp(result) => Ok(&result.all),
            LoadResult::Http(result) => Ok(&result.all),
            LoadResult::Udp(result) => Err(result),
        }
    }

    /// The common part of requests over connections; `None` for datagrams.
    pub fn requests(&self) -> Option<&RequestResult> {
        self.either().ok()
    }

    /// The result of datagrams, if it is one.
    pub fn udp(&self) -> Option<&UdpResult> {
        self.either().err()
    }

    /// The measured window.
    pub fn window(&self) -> &Window {
        match self.either() {
            Ok(requests) => &requests.window,
            Err(udp) => &udp.window,
        }
    }

    /// Requests answered, or packets that came back, inside the window.
    pub fn done(&self) -> u64 {
        match self.either() {
            Ok(requests) => requests.requests.answered,
            Err(udp) => udp.packets.received,
        }
    }

    /// `closed` when the load waits for answers, else `open`.
    pub fn mode(&self) -> &str {
        match self {
            LoadResult::Tcp(result) => &result.settings.mode,
            LoadResult::Udp(_) => "open",
            LoadResult::Http(result) => &result.settings.mode,
        }
    }

    /// Why the run counts as failed, if it does.
    pub fn failure(&self) -> Option<String> {
        match self {
            LoadResult::Tcp(result) => result.failure(),
            LoadResult::Udp(result) => result.failure(),
            LoadResult::Http(result) => result.failure(),
        }
    }

    /// Why the load was not the one that was asked for, if it was not.
    pub fn shortfall(&self) -> Vec<String> {
        match self {
            LoadResult::Tcp(result) => result.all.shortfall(result.settings.rate_per_s),
            LoadResult::Udp(result) => result.shortfall(),
            LoadResult::Http(result) => result.all.shortfall(result.settings.rate_per_s),
        }
    }

    /// The requested gates.
    pub fn gates(&self) -> &[Gate] {
        match self.either() {
            Ok(requests) => &requests.gates,
            Err(udp) => &udp.gates,
        }
    }

    /// CPU use of the load generator.
    pub fn cpu(&self) -> &Cpu {
        match self.either() {
            Ok(requests) => &requests.cpu,
            Err(udp) => &udp.cpu,
        }
    }

    /// Latencies or round trips in nanoseconds.
    pub fn latencies(&self) -> Result<Histogram<u64>, String> {
        match self.either() {
            Ok(requests) => requests.histogram.decode(),
            Err(udp) => udp.histograms.round_trip.decode(),
        }
    }
}

#[cfg(test)]
mod tests;
