//! The JSON lines that the programs of twinring print and read, as types (`docs/json.md`).
//!
//! A program that prints a line fills one of these types; a program that reads the line
//! deserialises the same type. A field without a default is required: only what committed bundles lack may be missing.
//!
//! - [`tcp`], [`http`], [`udp`]: results of the load generators; [`requests`] is common to the
//!   first two, [`load`] to all three.
//! - [`histogram`]: histograms without loss, and percentiles of them.
//! - [`serve`]: the lines of a server.

/// Adds the counters of a result to those of another; sums from files may overflow.
macro_rules! add_counts {
    ($sum:expr, $other:expr; $($field:ident),+ $(,)?) => {
        $($sum.$field = $sum.$field.saturating_add($other.$field);)+
    };
}

#[cfg(test)]
mod examples;
pub mod histogram;
pub mod http;
pub mod load;
pub mod requests;
pub mod serve;
pub mod tcp;
pub mod udp;

pub use histogram::EncodedHistogram;
pub use http::HttpResult;
pub use load::LoadResult;
pub use requests::RequestResult;
pub use tcp::TcpResult;
pub use udp::UdpResult;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An object whose fields depend on the program that prints it, and on its version: counters or
/// features by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Fields(pub Map<String, Value>);

impl Fields {
    /// The fields of a structure; empty for anything else.
    pub fn of(structure: &impl Serialize) -> Fields {
        match serde_json::to_value(structure) {
            Ok(Value::Object(fields)) => Fields(fields),
            _ => Fields::default(),
        }
    }
}

/// A sum of counts that may come from a file: too large a sum is the largest number.
pub fn sum<const N: usize>(counts: [u64; N]) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// The event of a line: its `event` field, if the line is JSON at all.
pub fn event_of(line: &str) -> Option<(String, Value)> {
    let value: Value = serde_json::from_str(line).ok()?;
    let event = value.get("event")?.as_str()?.to_owned();
    Some((event, value))
}
