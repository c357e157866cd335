//! What a machine charges for a system call, a notification, a wake-up and a copied byte.
//!
//! `lab run` has the server's own program measure the prices before the first run ([`measure`]). The report multiplies
//! differences in counts by them.

mod measure;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use measure::measure;

/// The prices of the machine, or why there are none.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PriceRecord {
    /// The prices, by name: nanoseconds of CPU time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub list: BTreeMap<String, Price>,
    /// Why none was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// One price, or why it could not be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Price {
    /// It was measured.
    Measured {
        /// The median.
        median: f64,
        /// Lower end of its interval at 95 %.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// It was not.
    Unavailable {
        /// Why.
        unavailable: String,
    },
}

/// The prices that a bundle keeps, with what each is the price of.
pub(crate) const PRICES: [(&str, &str); 4] = [
    ("syscall_ns", "a system call that does nothing"),
    ("notification_busy_ns", "notifying a busy CPU, both sides"),
    ("wakeup_ns", "waking a thread"),
    ("copy_ns_per_kb", "copying 1 KB to or from the kernel"),
];

/// No price is higher: a bundle may come from anywhere.
const PRICE_NS_MAX: f64 = 1e9;

impl PriceRecord {
    pub(crate) fn none(why: impl Into<String>) -> PriceRecord {
        PriceRecord { unavailable: Some(why.into()), ..PriceRecord::default() }
    }

    /// The median of a price, if it was measured.
    pub fn median(&self, name: &str) -> Option<f64> {
        let Price::Measured { median, .. } = self.list.get(name)? else { return None };
        Some(*median).filter(|it| (0.0..=PRICE_NS_MAX).contains(it))
    }
}
