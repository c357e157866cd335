//! How often system calls of each kind were made on a worker, and how long they took.
//!
//! Off by default, because reading the clock twice for each call is not free; then a call pays one
//! branch that is always predicted. Recorded are calls that can block, and those of datagram
//! sockets: the table that AsyncUdpTests prints.

use crate::sys;
use serde::Serialize;
use std::cell::RefCell;

/// The duration of the system calls of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CallTime {
    /// Name of the call; for `io_uring_enter` with its task.
    pub call: &'static str,
    /// How many there were.
    pub count: u64,
    /// How long they took, together; the time that a wait sleeps included.
    pub time_ns: u64,
    /// How long the longest took.
    pub max_ns: u64,
}

thread_local! {
    /// Of the worker of this thread.
    static TABLE: RefCell<Vec<CallTime>> = const { RefCell::new(Vec::new()) };
}

/// The durations of this worker's system calls since it started, or since [`restart_call_times`];
/// empty without [`Builder::call_times`](crate::Builder::call_times).
pub fn call_times() -> Vec<CallTime> {
    TABLE.with_borrow(Vec::clone)
}

/// Resets [`call_times`].
pub fn restart_call_times() {
    TABLE.take();
}

/// Makes a call, and records its duration if requested.
#[inline(always)]
pub(crate) fn timed<R>(on: bool, call: &'static str, make: impl FnOnce() -> R) -> R {
    let start_ns = if on { sys::monotonic_ns() } else { 0 };
    let made = make();
    if on {
        record(call, sys::monotonic_ns() - start_ns);
    }
    made
}

#[cold]
fn record(call: &'static str, took_ns: u64) {
    TABLE.with_borrow_mut(|table| match table.iter_mut().find(|row| row.call == call) {
        Some(row) => {
            row.count += 1;
            row.time_ns += took_ns;
            row.max_ns = row.max_ns.max(took_ns);
        }
        None => table.push(CallTime { call, count: 1, time_ns: took_ns, max_ns: took_ns }),
    });
}

/// The name of an enter that submits, fetches completions, and waits for them. An enter that
/// fetches without waiting counts as a fetch, regardless of what it submits.
pub(crate) fn name_of_enter(submits: bool, fetches: bool, waits: bool) -> &'static str {
    match (submits, fetches, waits) {
        (true, _, true) => "io_uring_enter (submit and wait)",
        (false, _, true) => "io_uring_enter (wait)",
        (_, true, false) => "io_uring_enter (collect)",
        (_, false, false) => "io_uring_enter (submit)",
    }
}
