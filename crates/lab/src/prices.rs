//! What a machine charges for a system call, a notification and a wake-up. The report multiplies differences in counts
//! by it.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cpus::{CpuList, Cpus};
use crate::error::from_value;
use crate::lab::RunOptions;
use crate::namespace::Place;
use crate::process::{self, Event, Role};
use crate::stop::Stop;

/// How long a program may measure; ours takes 5 seconds at most.
const PATIENCE: Duration = Duration::from_secs(15);
const END_PATIENCE: Duration = Duration::from_secs(1);

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

const PRICES: [&str; 3] = ["syscall_ns", "notification_busy_ns", "wakeup_ns"];

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

/// Runs `BINARY probe --measure --json --cpus A,B`. A program that cannot measure prices, as older ones
/// cannot, takes nothing else from an experiment: the record says why there are none.
pub(crate) fn measure(options: &RunOptions, cpus: &Cpus, stop: &Stop) -> PriceRecord {
    let (server, client) = (cpus.server.first(), cpus.client.first());
    let Ok(both) = CpuList::new(vec![server, client]) else {
        return PriceRecord::none("server and load generator share one CPU");
    };
    let binary = options.binary.to_string_lossy();
    let pair = format!("{server},{client}");
    let command = [&*binary, "probe", "--measure", "--json", "--cpus", &pair].map(str::to_owned);
    let (sender, events) = channel();
    stop.wake(sender.clone());
    let started =
        process::start(&options.helper, &Place::Here, &both, &command, Role::Client, sender);
    let mut program = match started {
        Ok(program) => program,
        Err(error) => return PriceRecord::none(error.to_string()),
    };
    let (deadline, mut found) = (Instant::now() + PATIENCE, None);
    let left = || deadline.saturating_duration_since(Instant::now());
    while let Ok(Event::Line(_, line)) = events.recv_timeout(left()) {
        found = found.or_else(|| read(&line));
    }
    let exit = program.finish(END_PATIENCE, false);
    found.filter(|_| exit.is_clean()).unwrap_or_else(|| {
        PriceRecord::none(format!(
            "`probe --measure` of the measured program, which may be of a version without it, prints no prices \
             ({exit})"
        ))
    })
}

/// Those prices that a bundle keeps, of a line of `probe --measure --json`.
fn read(line: &str) -> Option<PriceRecord> {
    let line: Value = serde_json::from_str(line).ok()?;
    let prices = line.get("prices")?;
    let price = |name: &&str| {
        let price: Price = from_value(prices.get(name)?).ok()?;
        Some(((*name).to_owned(), price))
    };
    Some(PriceRecord { list: PRICES.iter().filter_map(price).collect(), unavailable: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_that_are_known_are_kept() {
        let line = "{\"event\":\"probe\",\"prices\":{\"syscall_ns\":{\"median\":80.5,\"low\":79,\"high\":82},\
                    \"other\":1,\"notification_busy_ns\":{\"unavailable\":\"no time\"},\"wakeup_ns\":7}}";
        let found = read(line).expect("a line of a probe");
        assert_eq!(
            (found.median("syscall_ns"), found.median("notification_busy_ns")),
            (Some(80.5), None)
        );
        assert_eq!((found.list.len(), &found.unavailable), (2, &None));
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<PriceRecord>(&text).unwrap(), found);
        assert!(["nonsense", "{\"event\":\"probe\"}"].into_iter().all(|it| read(it).is_none()));
    }
}
