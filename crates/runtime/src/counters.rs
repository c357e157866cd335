//! The runtime's own counters.
//!
//! Each worker is the only writer of its own [`Counters`], so a count is a load and a store and no
//! locked instruction. Any thread may read them at any time.

use crate::calls::Calls;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

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
            pub(crate) wait_overrun: Overruns,
            pub(crate) calls: Calls,
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> CounterSnapshot {
                let mut snapshot = CounterSnapshot {
                    $($name: self.$name.get(),)*
                    completions_per_enter: 0.0,
                    wait_overrun_us: OverrunSummary::default(),
                    overrun_buckets: self.wait_overrun.counts(),
                };
                snapshot.derive();
                snapshot
            }
        }

        /// Counters of one worker or the sum over several, at one moment.
        #[derive(Clone, Debug, Default, Serialize)]
        pub struct CounterSnapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// `completions / enters`; 0 without enters.
            pub completions_per_enter: f64,
            /// How late waits that ended by their deadline ended.
            pub wait_overrun_us: OverrunSummary,
            #[serde(skip)]
            overrun_buckets: [u64; Overruns::BUCKETS],
        }

        impl CounterSnapshot {
            /// Adds the counts of another worker.
            pub fn merge(&mut self, other: &CounterSnapshot) {
                $(self.$name += other.$name;)*
                for (mine, theirs) in self.overrun_buckets.iter_mut().zip(other.overrun_buckets) {
                    *mine += theirs;
                }
                self.derive();
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
    /// Calls that could wait: enters with a wait, or `epoll_pwait2`.
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
    /// Multishot operations armed again after they had ended.
    rearms,
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
    /// also those of sends submitted by that wait. Single-shot receives of datagrams have pools of
    /// their own, which are not counted. 0 when the worker has ended.
    buffers_in_use,
}

impl Counters {
    /// With the table of single calls switched on or off.
    pub(crate) fn with_call_times(on: bool) -> Counters {
        Counters { calls: Calls::new(on), ..Counters::default() }
    }
}

impl CounterSnapshot {
    fn derive(&mut self) {
        self.completions_per_enter = match self.enters {
            0 => 0.0,
            enters => self.completions as f64 / enters as f64,
        };
        self.wait_overrun_us = OverrunSummary::of(&self.overrun_buckets);
    }
}

/// A histogram of wait overruns with one bucket per power of two of microseconds.
#[derive(Debug, Default)]
pub(crate) struct Overruns([Count; Overruns::BUCKETS]);

impl Overruns {
    /// Bucket `i` counts overruns below `2^i` us; the last one counts everything from 2^30 us.
    const BUCKETS: usize = 32;

    pub(crate) fn record(&self, overrun: Duration) {
        let us = overrun.as_micros() as u64;
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        self.0[bucket.min(Overruns::BUCKETS - 1)].add(1);
    }

    fn counts(&self) -> [u64; Overruns::BUCKETS] {
        std::array::from_fn(|bucket| self.0[bucket].get())
    }
}

/// Wait overruns: requested against actual, in microseconds rounded up to a power of two.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct OverrunSummary {
    /// Waits that ended by their deadline.
    pub count: u64,
    /// Half of them were at most this late.
    pub p50: u64,
    /// 99 % of them were at most this late.
    pub p99: u64,
    /// All of them were at most this late.
    pub max: u64,
}

impl OverrunSummary {
    fn of(buckets: &[u64]) -> OverrunSummary {
        let count: u64 = buckets.iter().sum();
        let at_rank = |rank: u64| {
            let mut seen = 0;
            let bucket = buckets.iter().position(|in_bucket| {
                seen += in_bucket;
                seen >= rank && rank > 0
            });
            bucket.map_or(0, |bucket| 1u64 << bucket)
        };
        OverrunSummary {
            count,
            p50: at_rank(count.div_ceil(2)),
            p99: at_rank((count * 99).div_ceil(100)),
            max: at_rank(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overruns_are_summed_over_workers() {
        let (a, b) = (Counters::default(), Counters::default());
        (0..99).for_each(|_| a.wait_overrun.record(Duration::from_micros(5)));
        b.wait_overrun.record(Duration::from_micros(300));
        let mut both = a.snapshot();
        both.merge(&b.snapshot());
        let summary = both.wait_overrun_us;
        assert_eq!((summary.count, summary.p50, summary.p99, summary.max), (100, 8, 8, 512));
    }
}
