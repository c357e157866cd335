//! What each worker has done: its counters, and the CPU time that its work took.
//!
//! Each worker is the only writer of its own [`WorkerCounters`], so a count is a load and a store
//! and no locked instruction. Any thread may read them at any time. CPU time is read by the worker
//! itself when it ends.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// For gauges.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of a service: live ones of a worker, or those summed over the workers at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters<T> {
    /// Connections that were accepted and served.
    pub accepted: T,
    /// Closed connections.
    pub closed: T,
    /// Open connections; of a sum only.
    pub open: T,
    /// Connections that were accepted and closed immediately because the maximum was reached.
    pub refused: T,
    /// The same for the maximum of their address.
    pub refused_of_address: T,
    /// The same because their address is not allowed.
    pub not_allowed: T,
    /// Connections that ended with an error: the peer reset them or became unreachable.
    pub reset: T,
    /// Connections closed by the idle timeout.
    pub idle_closed: T,
    /// Connections cut at the drain timeout, with work unfinished.
    pub cut: T,
    /// Bytes received from peers.
    pub received_bytes: T,
    /// Bytes passed to the engine for sending, including those dropped by a broken connection.
    pub sent_bytes: T,
}

/// Counters of a service, summed over its workers.
pub type ServiceCounters = Counters<u64>;

pub(crate) type WorkerCounters = Counters<Count>;

impl WorkerCounters {
    /// The work of this worker. Its service sees no messages: a unit is a received byte.
    pub(crate) fn reading(&self) -> Reading {
        let units = self.received_bytes.get();
        let bytes = units + self.sent_bytes.get();
        Reading { units, bytes, connections: self.accepted.get(), ..Reading::default() }
    }
}

impl ServiceCounters {
    pub(crate) fn sum<'a>(workers: impl Iterator<Item = &'a WorkerCounters>) -> ServiceCounters {
        let mut sum = ServiceCounters::default();
        for worker in workers {
            // `closed` is read first: it never runs ahead of `accepted`, so `open` stays >= 0.
            for (sum, count) in [
                (&mut sum.closed, &worker.closed),
                (&mut sum.accepted, &worker.accepted),
                (&mut sum.refused, &worker.refused),
                (&mut sum.refused_of_address, &worker.refused_of_address),
                (&mut sum.not_allowed, &worker.not_allowed),
                (&mut sum.reset, &worker.reset),
                (&mut sum.idle_closed, &worker.idle_closed),
                (&mut sum.cut, &worker.cut),
                (&mut sum.received_bytes, &worker.received_bytes),
                (&mut sum.sent_bytes, &worker.sent_bytes),
            ] {
                *sum += count.get();
            }
        }
        sum.open = sum.accepted.saturating_sub(sum.closed);
        sum
    }
}

/// What a worker has done when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Answered requests or datagrams; for the echo, which sees no messages, received bytes.
    pub units: u64,
    /// Bytes received and sent.
    pub bytes: u64,
    /// Connections that were accepted; 0 for UDP.
    pub connections: u64,
    /// CPU time of its thread in user mode.
    pub cpu_user: Duration,
    /// CPU time of its thread in the kernel. What the kernel did for its sockets on other threads and
    /// CPUs is not in there.
    pub cpu_system: Duration,
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
}

/// User and system time of the calling thread.
fn thread_times() -> (Duration, Duration) {
    // Fails for no valid argument.
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Default::default() };
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_micros(time.num_microseconds().try_into().unwrap_or(0))
    };
    (time(usage.user_time()), time(usage.system_time()))
}

/// Reads one worker when it is dropped.
pub(crate) struct Metering<W: Fn() -> Reading> {
    pub(super) meters: Meters,
    pub(super) worker: usize,
    /// The reading without CPU time.
    pub(super) work: W,
}

impl<W: Fn() -> Reading> Drop for Metering<W> {
    fn drop(&mut self) {
        let (cpu_user, cpu_system) = thread_times();
        let reading = Reading { cpu_user, cpu_system, ..(self.work)() };
        *self.meters.0[self.worker].lock().unwrap_or_else(PoisonError::into_inner) = reading;
    }
}
