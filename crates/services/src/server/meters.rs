//! What each worker has done: its counters, and the CPU time that its work took.
//!
//! Each worker is the only writer of its own counters, so a count is a load and a store and no locked instruction. Any
//! thread may read them at any time. CPU time is read by the worker itself when it ends.

use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use twinring::measure::thread_cpu_time_ns;

#[derive(Debug, Default)]
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

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

/// Counters of a service, summed over its workers at one moment, by their names.
pub type ServiceCounters = BTreeMap<String, u64>;

/// The sum of the counters of these workers, and how many connections are open. They count `closed` before `accepted`,
/// which it therefore never exceeds.
pub(crate) fn sum<'a, C: Serialize + 'a>(
    workers: impl IntoIterator<Item = &'a C>,
) -> ServiceCounters {
    let mut sum = ServiceCounters::new();
    for worker in workers {
        // Numbers serialise without fail.
        let counted = serde_json::to_value(worker).and_then(serde_json::from_value);
        for (name, count) in counted.unwrap_or_else(|_| ServiceCounters::new()) {
            *sum.entry(name).or_default() += count;
        }
    }
    let open = difference(&sum, "accepted", "closed");
    sum.insert("open".to_owned(), open);
    sum
}

/// How many were counted by one, but not by the other.
pub(crate) fn difference(counters: &ServiceCounters, all: &str, some: &str) -> u64 {
    let count = |name| counters.get(name).copied().unwrap_or(0);
    count(all).saturating_sub(count(some))
}

/// What a worker has done when it ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Answered requests or datagrams; for the echo, which sees no messages, received bytes.
    pub units: u64,
    /// Bytes received and sent.
    pub bytes: u64,
    /// Connections that were accepted; 0 for UDP.
    pub connections: u64,
    /// CPU time of its thread in user mode.
    pub cpu_user_ns: u64,
    /// CPU time of its thread in the kernel. What the kernel did for its sockets on other threads and
    /// CPUs is not in there.
    pub cpu_system_ns: u64,
}

/// The readings of all workers.
#[derive(Clone, Debug)]
pub struct Meters(Arc<[Mutex<Reading>]>);

impl Meters {
    pub(super) fn new(workers: usize) -> Meters {
        Meters((0..workers).map(|_| Mutex::default()).collect())
    }

    /// The reading of each worker that has ended.
    pub fn read(&self) -> Vec<Reading> {
        let read = |worker: &Mutex<Reading>| *worker.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.iter().map(read).collect()
    }

    /// Keeps the work of a worker, with the CPU time of the calling thread.
    pub(super) fn keep(&self, worker: usize, work: Reading) {
        let (cpu_user_ns, cpu_system_ns) = thread_cpu_time_ns();
        *self.0[worker].lock().unwrap_or_else(PoisonError::into_inner) =
            Reading { cpu_user_ns, cpu_system_ns, ..work };
    }
}
