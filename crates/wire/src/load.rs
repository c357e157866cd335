//! The result of any load generator, and the sum of several.
//!
//! Counts and rates are added. Latencies come from the sum of the histograms, which is lossless.
//! Each load generator counts inside its own window; the windows are equally long and open at
//! nearly the same time (audited by the lab), so the sum is that of one window of the mean length.
//! Values that cannot be added without their raw data become the worst of all, or are dropped, as
//! stated at each.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{HttpResult, RequestResult, TcpResult, UdpResult, http, tcp, udp};

pub use crate::common::{Cpu, Gate, Head, RATE_TOLERANCE, SATURATED_SHARE, Window};

/// The event of the first mark.
pub const WINDOW_START: &str = "window_start";
/// The event of the second mark.
pub const WINDOW_END: &str = "window_end";

/// A mark of the run, written at the moment that it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Reads a `result` line. Its schema determines the protocol; a line without one is of TCP.
    ///
    /// # Errors
    /// The missing or wrong field, or an unknown schema.
    pub fn read(line: &Value) -> Result<LoadResult, String> {
        let schema = line.get("schema").map_or(Some(tcp::SCHEMA), Value::as_str);
        let result = match schema {
            Some(tcp::SCHEMA) => TcpResult::deserialize(line).map(Box::new).map(LoadResult::Tcp),
            Some(udp::SCHEMA) => UdpResult::deserialize(line).map(Box::new).map(LoadResult::Udp),
            Some(http::SCHEMA) => HttpResult::deserialize(line).map(Box::new).map(LoadResult::Http),
            other => return Err(format!("its schema is {other:?}, which this lab cannot read")),
        };
        result.map_err(|error| error.to_string())
    }

    /// The combined result of several load generators.
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
    ///
    /// # Errors
    /// As [`crate::EncodedHistogram::decode`].
    pub fn latencies(&self) -> Result<Histogram<u64>, String> {
        match self.either() {
            Ok(requests) => requests.histogram.decode(),
            Err(udp) => udp.histograms.round_trip.decode(),
        }
    }
}

#[cfg(test)]
mod tests;
