//! The counters of the reflector, and the way in which another thread reads them.
//!
//! A worker counts without atomics, and adds the counts that only it can read: those of its sockets
//! and the kernel's drops. A reader sends the worker a request, which wakes it, and waits for the
//! reply. Statistics therefore cost a datagram nothing, and an idle worker sleeps.

use serde::Serialize;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use twinring::net::UdpStats;

/// How long a reader waits for a worker that is too busy to reply; then the last reply counts.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests that may wait for one worker.
const REQUESTS_MAX: usize = 16;

/// Counters of the reflector, summed over its sockets, at one moment. They balance: `received = sent +
/// waiting + truncated + from_self + bad_source + not_allowed + over_rate + send_errors`.
/// `kernel_drops` were never received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UdpCounters {
    /// The counters of the sockets.
    #[serde(flatten)]
    pub sockets: UdpStats,
    /// Payload received.
    pub received_bytes: u64,
    /// Payload handed over for sending.
    pub sent_bytes: u64,
    /// Answers that the kernel has not accepted yet; at the end, those that the drain timeout cut.
    pub waiting: u64,
    /// Datagrams that claimed to come from the reflector itself. Their answers would loop for ever.
    pub from_self: u64,
    /// Datagrams whose source is port 0, or not the address of one host (multicast, broadcast).
    pub bad_source: u64,
    /// Datagrams from addresses that are not allowed.
    pub not_allowed: u64,
    /// Datagrams beyond the rate of their source.
    pub over_rate: u64,
}

impl UdpCounters {
    /// Adds the counts of another socket.
    pub(super) fn merge(&mut self, other: &UdpCounters) {
        self.sockets.merge(&other.sockets);
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.waiting += other.waiting;
        self.from_self += other.from_self;
        self.bad_source += other.bad_source;
        self.not_allowed += other.not_allowed;
        self.over_rate += other.over_rate;
    }

    /// Received datagrams that were not answered, and answers that could not be sent.
    pub fn dropped(&self) -> u64 {
        self.sockets.truncated
            + self.sockets.send_errors.total()
            + self.from_self
            + self.bad_source
            + self.not_allowed
            + self.over_rate
    }
}

/// Where one worker takes requests for its counters.
#[derive(Debug)]
pub(super) struct WorkerStats {
    requests: Sender<SyncSender<UdpCounters>>,
    /// Until the worker starts.
    received: Mutex<Option<Receiver<SyncSender<UdpCounters>>>>,
    /// The last reply; at the end, the final counters.
    last: Mutex<UdpCounters>,
}

impl WorkerStats {
    pub(super) fn new() -> Arc<WorkerStats> {
        let (requests, received) = channel(REQUESTS_MAX);
        let received = Mutex::new(Some(received));
        Arc::new(WorkerStats { requests, received, last: Mutex::default() })
    }

    /// Asks the worker; none if it has ended, or has too many requests.
    fn ask(&self) -> Option<mpsc::Receiver<UdpCounters>> {
        let (reply, replied) = mpsc::sync_channel(1);
        self.requests.try_send(reply).ok().map(|()| replied)
    }

    fn last(&self) -> MutexGuard<'_, UdpCounters> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_requests(&self) -> Option<Receiver<SyncSender<UdpCounters>>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn keep(&self, counters: UdpCounters) {
        *self.last() = counters;
    }
}

/// The counters of all workers, which reply at the same time.
pub(super) fn read(workers: &[Arc<WorkerStats>]) -> UdpCounters {
    let asked: Vec<_> = workers.iter().map(|worker| worker.ask()).collect();
    let mut sum = UdpCounters::default();
    for (worker, replied) in workers.iter().zip(asked) {
        let reply = replied.and_then(|replied| replied.recv_timeout(REPLY_TIMEOUT).ok());
        sum.merge(&reply.unwrap_or_else(|| *worker.last()));
    }
    sum
}
