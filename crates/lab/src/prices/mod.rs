//! What a machine charges for a system call, a notification, a wake-up and a copied byte, and how much
//! of the differences between servers that explains.
//!
//! `lab run` has the server's own program measure the prices before the first run ([`measure`]). Each count of
//! the summary is multiplied by its price ([`explain`]).

mod explain;
mod measure;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::Cell;
use crate::summary::{Figures, Metric};

pub(crate) use explain::{Explained, explain};
pub(crate) use measure::measure;

/// The prices of the machine, or why there are none.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
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
pub(crate) const PRICES: [(&str, &str); 5] = [
    ("syscall_ns", "a system call that does nothing"),
    ("notification_busy_ns", "notifying a busy CPU, both sides"),
    ("notification_idle_ns", "notifying an idle CPU, both sides"),
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

/// Something that a server pays for by the piece.
pub(crate) struct Term {
    pub(crate) title: &'static str,
    /// The price in the list.
    price: &'static str,
    /// The part of the price that the server's CPU pays.
    share: f64,
    count: fn(&Figures, &Cell) -> Option<f64>,
}

/// Everything that is paid for by the piece.
pub(crate) const TERMS: [Term; 4] = [
    Term {
        title: "system calls",
        price: "syscall_ns",
        share: 1.0,
        count: |figures, _| figures.get(Metric::ServerSyscalls),
    },
    Term {
        title: "notifications",
        price: "notification_busy_ns",
        // They are counted on both CPUs, and the price is for both. The server sends some and receives some.
        share: 0.5,
        count: |figures, _| figures.get(Metric::Notifications),
    },
    Term {
        title: "switches",
        price: "wakeup_ns",
        share: 1.0,
        count: |figures, _| figures.get(Metric::ServerSwitches),
    },
    Term {
        title: "copies",
        price: "copy_ns_per_kb",
        share: 1.0,
        count: |_, cell| Some(copied_kb(cell)),
    },
];

/// What a server copies from and to the kernel for a unit of work, in KB.
fn copied_kb(cell: &Cell) -> f64 {
    cell.point.copied_bytes() / 1024.0
}
