//! The history of a run: a hash that two runs of one seed have in common, and its last events as
//! text.

use std::collections::VecDeque;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};

/// Events kept for the report of a failure.
const KEPT: usize = 60;

/// One event: time, kind, object, and amount.
type Event = (u64, &'static str, i64, i64);

#[derive(Default)]
pub(super) struct Trace {
    // Its keys are fixed: equal events give equal numbers in every process.
    hasher: DefaultHasher,
    events: u64,
    last: VecDeque<Event>,
}

impl Trace {
    pub(super) fn note(&mut self, at_ns: u64, what: &'static str, who: i64, value: i64) {
        self.events += 1;
        self.hasher.write_u64(at_ns);
        self.hasher.write(what.as_bytes());
        self.hasher.write_i64(who);
        self.hasher.write_i64(value);
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back((at_ns, what, who, value));
    }

    pub(super) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// The last events, one per line.
    pub(super) fn tail(&self) -> String {
        let mut lines = String::new();
        for (at_ns, what, who, value) in &self.last {
            let _infallible =
                writeln!(lines, "{:>14.6} s  {what} #{who}: {value}", *at_ns as f64 / 1e9);
        }
        lines
    }
}
