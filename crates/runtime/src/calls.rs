//! The cost of system calls: how many there were of a kind, and how long they took.
//!
//! Off by default, because reading the clock twice for each call is not free; then a call pays one
//! branch that is always predicted. Recorded are calls that can block, and those of datagram
//! sockets: the table that AsyncUdpTests prints.

use crate::counters::Count;
use crate::sys;
use serde::Serialize;

/// Kinds of calls. An `io_uring_enter` is classified by its task.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    EnterSubmit,
    EnterWait,
    EnterSubmitAndWait,
    EnterCollect,
    EpollWait,
    Recvmmsg,
    Sendmmsg,
}

impl Call {
    /// In the order of the kinds.
    const NAMES: [&str; 7] = [
        "io_uring_enter (submit)",
        "io_uring_enter (wait)",
        "io_uring_enter (submit and wait)",
        "io_uring_enter (collect)",
        "epoll_pwait2",
        "recvmmsg",
        "sendmmsg",
    ];

    /// The kind of an enter that submits, fetches completions, and waits for them. An enter that
    /// fetches without waiting counts as a fetch, regardless of what it submits.
    pub(crate) fn of_enter(submits: bool, fetches: bool, waits: bool) -> Call {
        match (submits, fetches, waits) {
            (true, _, true) => Call::EnterSubmitAndWait,
            (false, _, true) => Call::EnterWait,
            (_, true, false) => Call::EnterCollect,
            (_, false, false) => Call::EnterSubmit,
        }
    }
}

/// The calls of one kind.
#[derive(Debug, Default)]
struct CallTotals {
    count: Count,
    time_ns: Count,
    max_ns: Count,
}

/// The calls of one worker, which is the only one to write.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) on: bool,
    entries: [CallTotals; Call::NAMES.len()],
}

impl Calls {
    pub(crate) fn new(on: bool) -> Calls {
        Calls { on, ..Calls::default() }
    }

    /// Makes a call, and records its duration if requested.
    #[inline(always)]
    pub(crate) fn timed<R>(&self, call: Call, make: impl FnOnce() -> R) -> R {
        let start_ns = if self.on { sys::monotonic_ns() } else { 0 };
        let made = make();
        if self.on {
            self.record(call, sys::monotonic_ns() - start_ns);
        }
        made
    }

    #[cold]
    fn record(&self, call: Call, took_ns: u64) {
        let entry = &self.entries[call as usize];
        entry.count.add(1);
        entry.time_ns.add(took_ns);
        entry.max_ns.add(took_ns.saturating_sub(entry.max_ns.get()));
    }

    /// Resets the records. Only for the worker itself, which is the only writer.
    pub(crate) fn restart(&self) {
        for entry in &self.entries {
            for count in [&entry.count, &entry.time_ns, &entry.max_ns] {
                count.set(0);
            }
        }
    }

    /// The kinds that occurred.
    pub(crate) fn table(&self) -> Vec<CallTime> {
        let of = |(call, entry): (&'static str, &CallTotals)| {
            let (count, time_ns, max_ns) =
                (entry.count.get(), entry.time_ns.get(), entry.max_ns.get());
            CallTime { call, count, time_ns, max_ns }
        };
        let kinds = Call::NAMES.into_iter().zip(&self.entries);
        kinds.map(of).filter(|time| time.count > 0).collect()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_timed_by_kind_only_on_request() {
        let off = Calls::new(false);
        assert_eq!(off.timed(Call::Recvmmsg, || 7), 7);
        assert_eq!(off.table(), []);
        let on = Calls::new(true);
        [30, 50, 20].into_iter().for_each(|ns| on.record(Call::Sendmmsg, ns));
        on.record(Call::of_enter(true, false, false), 5);
        let expected = [("io_uring_enter (submit)", 1, 5, 5), ("sendmmsg", 3, 100, 50)]
            .map(|(call, count, time_ns, max_ns)| CallTime { call, count, time_ns, max_ns });
        assert_eq!(on.table(), expected);
        on.restart();
        assert_eq!(on.table(), []);
    }
}
