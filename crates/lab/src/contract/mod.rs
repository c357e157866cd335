//! The JSON lines of `twinring serve` and `twinring load`, as far as the lab reads them. Fields it
//! does not know are kept in the bundle all the same: runs store the lines as they came.

pub(crate) mod http;
mod merge;
pub(crate) mod requests;
pub(crate) mod tcp;
pub(crate) mod udp;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde::Deserialize;
use serde_json::Value;

pub(crate) use http::HttpResult;
pub(crate) use tcp::TcpResult;
pub(crate) use udp::UdpResult;

use crate::experiment::Protocol;

/// How an HdrHistogram of version 2 begins, and how long its header is: its second word says how many
/// bytes there are behind that.
const HISTOGRAM_COOKIE: u32 = 0x1c84_9313;
const HISTOGRAM_HEADER_BYTES: usize = 40;

/// The result of a load generator.
#[derive(Debug, Clone)]
pub(crate) enum LoadResult {
    Tcp(Box<TcpResult>),
    Udp(Box<UdpResult>),
    Http(Box<HttpResult>),
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Window {
    pub(crate) start_monotonic_ns: u64,
    pub(crate) end_monotonic_ns: u64,
    pub(crate) seconds: f64,
}

impl Window {
    /// Seconds between the two marks.
    pub(crate) fn between_marks_s(&self) -> f64 {
        self.end_monotonic_ns.saturating_sub(self.start_monotonic_ns) as f64 / 1e9
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct EncodedHistogram {
    unit: String,
    encoding: String,
    data: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ClientCpu {
    pub(crate) busiest_thread_share: f64,
    pub(crate) saturated: bool,
}

impl LoadResult {
    /// Reads a `result` line. Its schema tells the protocol; a line without one is of TCP.
    ///
    /// # Errors
    /// What is missing or of the wrong kind, or a schema that the lab does not know.
    pub(crate) fn read(line: &Value) -> Result<LoadResult, String> {
        let schema = line.get("schema").map_or(Some(tcp::SCHEMA), Value::as_str);
        let result = match schema {
            Some(tcp::SCHEMA) => {
                TcpResult::deserialize(line).map(|result| LoadResult::Tcp(Box::new(result)))
            }
            Some(udp::SCHEMA) => {
                UdpResult::deserialize(line).map(|result| LoadResult::Udp(Box::new(result)))
            }
            Some(http::SCHEMA) => {
                HttpResult::deserialize(line).map(|result| LoadResult::Http(Box::new(result)))
            }
            other => return Err(format!("its schema is {other:?}, which this lab cannot read")),
        };
        result.map_err(|error| error.to_string())
    }

    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            LoadResult::Tcp(_) => Protocol::Tcp,
            LoadResult::Udp(_) => Protocol::Udp,
            LoadResult::Http(_) => Protocol::Http,
        }
    }

    /// What requests over connections have in common; nothing of datagrams.
    pub(crate) fn requests(&self) -> Option<&requests::RequestResult> {
        match self {
            LoadResult::Tcp(result) => Some(&result.all),
            LoadResult::Http(result) => Some(&result.all),
            LoadResult::Udp(_) => None,
        }
    }

    pub(crate) fn window(&self) -> &Window {
        match self {
            LoadResult::Tcp(result) => &result.all.window,
            LoadResult::Udp(result) => &result.window,
            LoadResult::Http(result) => &result.all.window,
        }
    }

    /// Requests answered, or packets that came back, inside the window.
    pub(crate) fn done(&self) -> u64 {
        match self {
            LoadResult::Tcp(result) => result.all.requests.answered,
            LoadResult::Udp(result) => result.packets.received,
            LoadResult::Http(result) => result.all.requests.answered,
        }
    }

    /// `closed` when the load waits for answers, else `open`.
    pub(crate) fn mode(&self) -> &str {
        match self {
            LoadResult::Tcp(result) => &result.settings.mode,
            LoadResult::Udp(_) => "open",
            LoadResult::Http(result) => &result.settings.mode,
        }
    }

    pub(crate) fn cpu(&self) -> &ClientCpu {
        match self {
            LoadResult::Tcp(result) => &result.all.cpu,
            LoadResult::Udp(result) => &result.cpu,
            LoadResult::Http(result) => &result.all.cpu,
        }
    }

    /// Latencies or round trips in nanoseconds.
    ///
    /// # Errors
    /// As [`EncodedHistogram::decode`].
    pub(crate) fn latencies(&self) -> Result<Histogram<u64>, String> {
        match self {
            LoadResult::Tcp(result) => result.all.histogram.decode(),
            LoadResult::Http(result) => result.all.histogram.decode(),
            LoadResult::Udp(result) => result.histograms.round_trip.decode(),
        }
    }
}

impl EncodedHistogram {
    /// The values in nanoseconds.
    ///
    /// # Errors
    /// When the encoding is not the one of the contract or the data is damaged.
    pub(crate) fn decode(&self) -> Result<Histogram<u64>, String> {
        let EncodedHistogram { unit, encoding, data } = self;
        if unit != "ns" || encoding != "hdr-v2-base64" {
            return Err(format!("a histogram in {unit} as {encoding}"));
        }
        let bytes = STANDARD.decode(data).map_err(|error| format!("histogram: {error}"))?;
        // The decoder takes as much memory as the header states, before it has read a byte of that. A
        // compressed one would state it once more, inside.
        let word = |at| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let behind_header = bytes.len().saturating_sub(HISTOGRAM_HEADER_BYTES);
        if word(0) != Some(HISTOGRAM_COOKIE) || word(4).is_none_or(|it| it as usize > behind_header)
        {
            return Err("histogram: damaged, or not of version 2 without compression".to_owned());
        }
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

/// A counter of the service in the server's `final` line.
pub(crate) fn service_counter(final_line: Option<&Value>, name: &str) -> Option<f64> {
    final_line?.get("service_counters")?.get(name)?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer, V2Serializer};

    fn encoded(bytes: &[u8]) -> EncodedHistogram {
        let data = STANDARD.encode(bytes);
        EncodedHistogram { unit: "ns".to_owned(), encoding: "hdr-v2-base64".to_owned(), data }
    }

    /// A header that states 4 GB cost as much memory.
    #[test]
    fn a_histogram_that_states_more_than_there_is_is_refused() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        histogram.record(7_000).unwrap();
        let (mut plain, mut compressed) = (Vec::new(), Vec::new());
        V2Serializer::new().serialize(&histogram, &mut plain).unwrap();
        V2DeflateSerializer::new().serialize(&histogram, &mut compressed).unwrap();
        assert_eq!(encoded(&plain).decode(), Ok(histogram));
        let mut larger = plain.clone();
        larger[4..8].fill(0xff);
        let cut_off = [0, 3, 7, 20, 39, plain.len() - 1].map(|length| plain[..length].to_vec());
        for bytes in cut_off.into_iter().chain([larger, compressed]) {
            let error = encoded(&bytes).decode().unwrap_err();
            assert!(error.contains("damaged"), "{error}");
        }
    }
}
