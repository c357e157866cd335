//! The runtime's own counters.
//!
//! Each worker is the only writer of its own [`Counters`], so a count is a load and a store and no
//! locked instruction. Any thread may read them at any time.

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
    pub(crate) fn subtract(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).saturating_sub(amount), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// For gauges.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters of one worker.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: Count,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> CounterSnapshot {
                let mut snapshot = CounterSnapshot::default();
                $(snapshot.$name = self.$name.get();)*
                // Each enter, and each wait of epoll, is one more.
                snapshot.syscalls += snapshot.enters.max(snapshot.waits);
                snapshot
            }
        }

        /// Counters of one worker or the sum over several, at one moment.
        #[derive(Clone, Debug, Default, Serialize)]
        pub struct CounterSnapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl CounterSnapshot {
            /// Adds the counts of another worker.
            pub fn merge(&mut self, other: &CounterSnapshot) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Calls of `io_uring_enter`.
    enters,
    /// Operations handed to the ring.
    submissions,
    /// System calls of the runtime, enters included.
    syscalls,
    /// Calls that could wait: enters with a wait, `epoll_pwait`, or with a deadline `epoll_pwait2`.
    waits,
    /// Completions taken from the ring.
    completions,
    /// Events reported by epoll.
    events,
    /// Receives that delivered bytes.
    received,
    /// Sends that the kernel accepted, whole or in part.
    sent,
    /// Sends that the kernel accepted only in part or not at all, because the peer is slow.
    short_sends,
    /// System calls answered with EAGAIN.
    eagain,
    /// Receives that found no provided buffer.
    enobufs,
    /// Times that the completion ring overflowed into the kernel's backlog.
    cq_overflows,
    /// Receives stopped because the socket held its maximum.
    pauses,
    /// Received buffers copied to the heap because the pool ran low.
    copied_out,
    /// Times that accepting stopped for lack of descriptors or memory.
    accept_stalls,
    /// Connections closed by the linger limit with bytes still unsent.
    lingers_expired,
    /// Wake-ups from other threads.
    wakes,
    /// Operations on files submitted to the ring, because they may wait.
    file_operations,
    /// Operations on files handed to a thread.
    file_jobs,
    /// Calls of `sendfile` that sent something.
    sendfiles,
    /// Tasks that panicked, or whose destructors did.
    panics,
    /// Chunks of files that were not in the page cache when they were due to be sent.
    cold_pieces,
    /// Slots of the engine that hold something: sockets, listeners, its own eventfd, and operations with memory of their own. 0 when the worker has ended.
    slots_in_use,
    /// Buffers of the receive pools with unconsumed bytes, when the worker last waited; on io_uring
    /// also those of sends submitted by that wait. 0 when the worker has ended.
    buffers_in_use,
}
