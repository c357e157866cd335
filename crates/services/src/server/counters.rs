//! The counters of a service.
//!
//! Each worker is the only writer of its own [`WorkerCounters`], so a count is a load and a store
//! and no locked instruction. Any thread may read them at any time.

use super::meter::Work;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
