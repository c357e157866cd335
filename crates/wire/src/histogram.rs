//! Histograms without loss, and percentiles of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::{Deserialize, Serialize};

/// The beginning of an HdrHistogram of version 2, and the length of its header: its second word is
/// the number of bytes behind that.
const HISTOGRAM_COOKIE: u32 = 0x1c84_9313;
const HISTOGRAM_HEADER_BYTES: usize = 40;
const UNIT: &str = "ns";
const ENCODING: &str = "hdr-v2-base64";

/// A histogram without loss: the HdrHistogram V2 encoding, uncompressed, in base64.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct EncodedHistogram {
    /// Unit of the values, always `ns`.
    pub unit: String,
    /// Always `hdr-v2-base64`.
    pub encoding: String,
    /// The encoded bytes.
    pub data: String,
}

impl EncodedHistogram {
    /// Encodes a histogram of nanoseconds.
    pub fn of(histogram_ns: &Histogram<u64>) -> EncodedHistogram {
        let mut bytes = Vec::new();
        // Writing to memory cannot fail, and the counts of a run stay below 2^63. An invalid
        // encoding cannot be decoded.
        let _in_memory = V2Serializer::new().serialize(histogram_ns, &mut bytes);
        let (unit, encoding) = (UNIT.to_owned(), ENCODING.to_owned());
        EncodedHistogram { unit, encoding, data: STANDARD.encode(bytes) }
    }

    /// The values in nanoseconds.
    ///
    /// # Errors
    /// When the encoding is another one or the data is damaged.
    pub fn decode(&self) -> Result<Histogram<u64>, String> {
        let EncodedHistogram { unit, encoding, data } = self;
        if unit != UNIT || encoding != ENCODING {
            return Err(format!("a histogram in {unit} as {encoding}"));
        }
        let bytes = STANDARD.decode(data).map_err(|error| format!("histogram: {error}"))?;
        // The decoder allocates as much memory as the header states, before it reads the content. A
        // compressed histogram would state the length again, inside.
        let word = |at| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let behind_header = bytes.len().saturating_sub(HISTOGRAM_HEADER_BYTES);
        if word(0) != Some(HISTOGRAM_COOKIE) || word(4).is_none_or(|it| it as usize > behind_header)
        {
            return Err("histogram: damaged, or not of version 2 without compression".to_owned());
        }
        let histogram = Deserializer::new().deserialize(&mut bytes.as_slice());
        histogram.map_err(|error| format!("histogram: {error:?}"))
    }

    /// Adds `other`, and returns the sum.
    pub fn add(&mut self, other: &EncodedHistogram) -> Result<Histogram<u64>, String> {
        let mut all = self.decode()?;
        let other = other.decode()?;
        all.auto(true);
        all.add(&other).map_err(|error| format!("histograms that cannot be added: {error}"))?;
        *self = EncodedHistogram::of(&all);
        Ok(all)
    }
}

/// Times in microseconds; all 0 without samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Latency {
    /// The shortest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// 99.99th percentile.
    pub p99_99: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// Of a histogram of nanoseconds.
    pub fn of(histogram_ns: &Histogram<u64>) -> Latency {
        let quantile = |share| quantile_us(histogram_ns, share);
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

/// How late requests left against their schedule, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Lag {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The latest.
    pub max: f64,
}

impl Lag {
    /// Of a histogram of nanoseconds.
    pub fn of(histogram_ns: &Histogram<u64>) -> Lag {
        Lag {
            p50: quantile_us(histogram_ns, 0.5),
            p99: quantile_us(histogram_ns, 0.99),
            max: micros(histogram_ns.max()),
        }
    }
}

/// Nanoseconds in microseconds.
pub fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn quantile_us(histogram_ns: &Histogram<u64>, share: f64) -> f64 {
    micros(histogram_ns.value_at_quantile(share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::V2DeflateSerializer;

    fn encoded(bytes: &[u8]) -> EncodedHistogram {
        EncodedHistogram {
            unit: UNIT.to_owned(),
            encoding: ENCODING.to_owned(),
            data: STANDARD.encode(bytes),
        }
    }

    #[test]
    fn an_encoded_histogram_is_lossless() {
        let mut histogram: Histogram<u64> = Histogram::new_with_bounds(1, 1 << 40, 3).unwrap();
        (1..5000).for_each(|n| histogram.saturating_record_n(n * n, n));
        assert_eq!(EncodedHistogram::of(&histogram).decode(), Ok(histogram));
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
