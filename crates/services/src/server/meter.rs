//! What each worker has done, and the CPU time that it took: read by the worker itself, so that both
//! are of the same moment.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twinring::{JoinHandle, sleep_until, spawn};

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
