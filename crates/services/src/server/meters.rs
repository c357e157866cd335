//! The counters of workers. Each worker is the only writer of its own, so a count is a load and a store and no locked
//! instruction. Any thread may read them at any time.

use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters by their names; those of one kind are an object.
pub type ServiceCounters = Map<String, Value>;

/// The counters of each of these workers. They count `closed` before `accepted`, which it therefore never exceeds.
pub(crate) fn counted<C: Serialize>(workers: impl Iterator<Item = C>) -> Vec<ServiceCounters> {
    let counted = |worker| match serde_json::to_value(worker) {
        Ok(Value::Object(counters)) => counters,
        // Numbers serialise without fail.
        _ => ServiceCounters::new(),
    };
    workers.map(counted).collect()
}

/// The sum of these counters, and how many connections are open, if they are counted.
pub(crate) fn sum(all: impl IntoIterator<Item = ServiceCounters>) -> ServiceCounters {
    let mut sum = ServiceCounters::new();
    all.into_iter().for_each(|counters| add(&mut sum, counters));
    if sum.contains_key("accepted") {
        sum.insert("open".to_owned(), difference(&sum, "accepted", "closed").into());
    }
    sum
}

fn add(sum: &mut ServiceCounters, counters: ServiceCounters) {
    for (name, counted) in counters {
        match (sum.entry(name).or_insert(Value::Null), counted) {
            (Value::Object(sum), Value::Object(counted)) => add(sum, counted),
            (sum @ Value::Null, counted) => *sum = counted,
            (sum, counted) => {
                *sum = (sum.as_u64().unwrap_or(0) + counted.as_u64().unwrap_or(0)).into();
            }
        }
    }
}

/// How many were counted by one, but not by the other.
pub(crate) fn difference(counters: &ServiceCounters, all: &str, some: &str) -> u64 {
    let count = |name: &str| counters.get(name).and_then(Value::as_u64).unwrap_or(0);
    count(all).saturating_sub(count(some))
}
