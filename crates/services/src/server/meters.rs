//! What each worker has done: its counters, and the CPU time that its work took.
//!
//! Each worker is the only writer of its own [`WorkerCounters`], so a count is a load and a store
//! and no locked instruction. Any thread may read them at any time. CPU time is read by the worker
//! itself, so that it is of the same moment as its counters.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twinring::{JoinHandle, sleep_until, spawn};

/// A count with one writer.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

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

/// Live counters of one worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerCounters {
    pub(crate) accepted: Count,
    pub(crate) closed: Count,
    pub(crate) refused: Count,
    pub(crate) refused_of_address: Count,
    pub(crate) not_allowed: Count,
    pub(crate) reset: Count,
    pub(crate) idle_closed: Count,
    pub(crate) cut: Count,
    pub(crate) received_bytes: Count,
    pub(crate) sent_bytes: Count,
}

impl WorkerCounters {
    /// The work of this worker. Its service sees no messages: a unit is a received byte.
    pub(crate) fn work(&self) -> Work {
        let units = self.received_bytes.get();
        let (closed, accepted) = (self.closed.get(), self.accepted.get());
        let bytes = units + self.sent_bytes.get();
        let open = accepted.saturating_sub(closed);
        Work { units, bytes, accepted, open, ..Work::default() }
    }
}

/// Counters of a service, summed over its workers, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServiceCounters {
    /// Connections that were accepted and served.
    pub accepted: u64,
    /// Closed connections.
    pub closed: u64,
    /// Open connections.
    pub open: u64,
    /// Connections that were accepted and closed immediately because the maximum was reached.
    pub refused: u64,
    /// The same for the maximum of their address.
    pub refused_of_address: u64,
    /// The same because their address is not allowed.
    pub not_allowed: u64,
    /// Connections that ended with an error: the peer reset them or became unreachable.
    pub reset: u64,
    /// Connections closed by the idle timeout.
    pub idle_closed: u64,
    /// Connections cut at the drain timeout, with work unfinished.
    pub cut: u64,
    /// Bytes received from peers.
    pub received_bytes: u64,
    /// Bytes passed to the engine for sending, including those dropped by a broken connection.
    pub sent_bytes: u64,
}

impl ServiceCounters {
    pub(crate) fn sum<'a>(workers: impl Iterator<Item = &'a WorkerCounters>) -> ServiceCounters {
        let mut sum = ServiceCounters::default();
        for worker in workers {
            // `closed` is read first: it never runs ahead of `accepted`, so `open` stays >= 0.
            sum.closed += worker.closed.get();
            sum.accepted += worker.accepted.get();
            sum.refused += worker.refused.get();
            sum.refused_of_address += worker.refused_of_address.get();
            sum.not_allowed += worker.not_allowed.get();
            sum.reset += worker.reset.get();
            sum.idle_closed += worker.idle_closed.get();
            sum.cut += worker.cut.get();
            sum.received_bytes += worker.received_bytes.get();
            sum.sent_bytes += worker.sent_bytes.get();
        }
        sum.open = sum.accepted.saturating_sub(sum.closed);
        sum
    }
}

/// The work of a worker since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Answered requests or datagrams; for the echo, which sees no messages, received bytes.
    pub units: u64,
    /// Bytes received and sent.
    pub bytes: u64,
    /// Connections that were accepted; 0 for UDP, as for `open`.
    pub accepted: u64,
    /// Open connections.
    pub open: u64,
    /// The durations of requests that the service measured, in all, and their number.
    pub latency_us: u64,
    /// See `latency_us`.
    pub latencies: u64,
}

impl Work {
    /// Adds the work of another worker.
    pub fn merge(&mut self, other: &Work) {
        self.units += other.units;
        self.bytes += other.bytes;
        self.accepted += other.accepted;
        self.open += other.open;
        self.latency_us += other.latency_us;
        self.latencies += other.latencies;
    }
}

/// One reading of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// CPU time of its thread in user mode, since the first reading.
    pub user_us: u64,
    /// CPU time of its thread in the kernel, since the first reading. What the kernel did for its
    /// sockets on other threads and CPUs is not in there.
    pub system_us: u64,
    /// Its work.
    pub work: Work,
}

/// The latest readings of all workers.
#[derive(Clone, Debug)]
pub struct Meters(Arc<[Mutex<Reading>]>);

impl Meters {
    pub(super) fn new(workers: usize) -> Meters {
        Meters((0..workers).map(|_| Mutex::default()).collect())
    }

    /// The latest reading of each worker.
    pub fn read(&self) -> Vec<Reading> {
        let read = |worker: &Mutex<Reading>| *worker.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.iter().map(read).collect()
    }
}

/// Reads one worker.
struct Meter<W> {
    meters: Meters,
    worker: usize,
    work: W,
    at_start: (u64, u64),
}

impl<W: Fn() -> Work> Meter<W> {
    fn read(&self) {
        let (user_us, system_us) = thread_times();
        let reading = Reading {
            user_us: user_us.saturating_sub(self.at_start.0),
            system_us: system_us.saturating_sub(self.at_start.1),
            work: (self.work)(),
        };
        *self.meters.0[self.worker].lock().unwrap_or_else(PoisonError::into_inner) = reading;
    }
}

/// User and system time of the calling thread.
fn thread_times() -> (u64, u64) {
    // Fails for no valid argument.
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return (0, 0) };
    let us = |time: nix::sys::time::TimeVal| time.num_microseconds().try_into().unwrap_or(0);
    (us(usage.user_time()), us(usage.system_time()))
}

/// Reads the worker periodically until it is dropped, and once more then.
pub(crate) struct Metering {
    task: JoinHandle<()>,
    read: Box<dyn Fn()>,
}

impl Metering {
    pub(super) fn start(
        meters: &Meters,
        worker: usize,
        period: Duration,
        work: impl Fn() -> Work + 'static,
    ) -> Metering {
        let meters = meters.clone();
        let meter = std::rc::Rc::new(Meter { meters, worker, work, at_start: thread_times() });
        let periodic = std::rc::Rc::clone(&meter);
        let task = spawn(async move {
            let mut next = Instant::now() + period;
            loop {
                sleep_until(next).await;
                periodic.read();
                // A busy worker is late; it does not catch up.
                next = (next + period).max(Instant::now());
            }
        });
        Metering { task, read: Box::new(move || meter.read()) }
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        self.task.abort();
        (self.read)();
    }
}
