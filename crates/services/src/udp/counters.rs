//! The counters of the reflector, and the way in which another thread reads them.
//!
//! A worker counts without atomics, and adds the counts that only it can read: those of its sockets
//! and the kernel's drops. A reader sends the worker a request, which wakes it, and waits for the
//! reply. Statistics therefore cost a datagram nothing, and an idle worker sleeps.

use serde::Serialize;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use twinring::net::UdpStats;

/// How long a reader waits for a worker that is too busy to reply; then the last reply counts.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

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

#[derive(Debug, Default)]
struct State {
    sent: u64,
    answered: u64,
    worker: Option<Waker>,
    /// The worker has ended; its counters are the last ones.
    closed: bool,
    counters: UdpCounters,
}

/// A request to one worker for its counters, and the reply.
#[derive(Debug, Default)]
pub(super) struct StatsRequest {
    state: Mutex<State>,
    replied: Condvar,
}

impl StatsRequest {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends it; [`reply`](StatsRequest::reply) waits for the reply.
    pub(super) fn send(&self) {
        let mut state = self.state();
        state.sent += 1;
        let worker = state.worker.take();
        drop(state);
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    pub(super) fn reply(&self) -> UdpCounters {
        let state = self.state();
        let sent = state.sent;
        let is_open = |state: &mut State| state.answered < sent && !state.closed;
        let waited = self.replied.wait_timeout_while(state, REPLY_TIMEOUT, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.counters
    }

    /// For the worker: ready when there is a request.
    pub(super) fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.answered < state.sent {
            return Poll::Ready(());
        }
        state.worker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn answer(&self, counters: UdpCounters) {
        let mut state = self.state();
        state.counters = counters;
        state.answered = state.sent;
        self.replied.notify_all();
    }

    /// Sets the reply to all later requests.
    pub(super) fn close(&self, counters: UdpCounters) {
        self.state().closed = true;
        self.answer(counters);
    }
}
