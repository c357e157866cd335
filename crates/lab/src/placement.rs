//! How far apart two CPUs are, just now.
//!
//! The distance is the time that a cache line takes from one CPU to the other and back, while both
//! write to it in turn: some 80 ns within a last-level cache, 200 to 500 ns beyond. `docs/accounting.md` says why it is
//! measured with each run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;

/// Round trips below this are taken for those of a shared cache.
const SHARED_NS: f64 = 150.0;

/// Round trips of one sample, and samples of a measurement; the quickest sample counts, as
/// everything that disturbs one makes it longer. About a millisecond in all.
const ROUND_TRIPS: u32 = 1_000;
const SAMPLES: u32 = 7;

/// Longest measurement: when something else has one of the CPUs, it is given up.
const PATIENCE: Duration = Duration::from_millis(100);

/// How far apart the CPUs of server and client were, before and after something.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Distance {
    /// Round trip of a cache line before it, in nanoseconds, if it could be measured.
    pub before_ns: Option<f64>,
    /// And after it.
    pub after_ns: Option<f64>,
}

impl Distance {
    /// The placement, if it is known and was the same before and after.
    pub fn placement(&self) -> Option<Placement> {
        let [before, after] = [self.before_ns?, self.after_ns?].map(Placement::of);
        (before == after).then_some(before)
    }
}

/// Whether two CPUs share a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// A cache line goes there and back within 150 ns.
    Shared,
    /// It takes longer.
    Separate,
}

impl Placement {
    pub(crate) fn of(round_trip_ns: f64) -> Placement {
        if round_trip_ns < SHARED_NS { Placement::Shared } else { Placement::Separate }
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Placement::Shared => "on a shared cache",
            Placement::Separate => "on separate caches",
        })
    }
}

/// The time of a cache line from CPU `one` to CPU `other` and back, in nanoseconds; `None` when
/// they are the same, this process may not use one of them, or another one kept it busy.
pub(crate) fn round_trip_ns(one: usize, other: usize) -> Option<f64> {
    if one == other {
        return None;
    }
    let line = &Line(AtomicU32::new(0));
    let deadline = Instant::now() + PATIENCE;
    std::thread::scope(|scope| {
        // Threads of their own: the affinity of the caller stays as it is.
        let pin = |cpu| CpuList::one(cpu).pin(0).ok();
        let here = scope.spawn(move || pin(one).and_then(|()| call(&line.0, deadline)));
        let there = scope.spawn(move || pin(other).map(|()| answer(&line.0, deadline)));
        there.join().ok().flatten()?;
        here.join().ok().flatten()
    })
}

/// A cache line of its own (two, as processors fetch them in pairs).
#[repr(align(128))]
struct Line(AtomicU32);

const CALL: u32 = 1;
const ANSWER: u32 = 2;
const END: u32 = 3;

fn call(line: &AtomicU32, deadline: Instant) -> Option<f64> {
    let mut best: Option<Duration> = None;
    for _ in 0..SAMPLES {
        let started = Instant::now();
        for _ in 0..ROUND_TRIPS {
            line.store(CALL, Ordering::Release);
            if !wait_for(line, ANSWER, deadline) {
                line.store(END, Ordering::Release);
                return None;
            }
        }
        let took = started.elapsed();
        best = Some(best.map_or(took, |best| best.min(took)));
    }
    line.store(END, Ordering::Release);
    best.map(|best| best.as_nanos() as f64 / f64::from(ROUND_TRIPS))
}

fn answer(line: &AtomicU32, deadline: Instant) {
    while wait_for(line, CALL, deadline) {
        line.store(ANSWER, Ordering::Release);
    }
}

/// Spins until the line holds `wanted`; `false` at the end of the measurement or of the patience.
fn wait_for(line: &AtomicU32, wanted: u32, deadline: Instant) -> bool {
    loop {
        // The clock is read seldom: it would become part of what is measured.
        for _ in 0..1 << 16 {
            match line.load(Ordering::Acquire) {
                END => return false,
                found if found == wanted => return true,
                // No pause instruction: it takes longer than what is measured, and a hypervisor
                // takes many of them for a lock whose holder waits for this CPU.
                _ => {}
            }
        }
        if Instant::now() > deadline {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cpus_have_a_distance_and_one_has_none() {
        assert_eq!((round_trip_ns(0, 0), round_trip_ns(0, 1023)), (None, None));
        assert_eq!([82.0, 371.0].map(Placement::of), [Placement::Shared, Placement::Separate]);
        let cpus: Vec<usize> = crate::cpus::allowed_cores().unwrap().into_keys().collect();
        // On a machine of one CPU there is only the distance to itself.
        let [one, other] = [cpus[0], cpus[cpus.len() - 1]];
        // Other tests may keep a CPU busy for longer than the patience.
        let measured = (0..20).find_map(|_| round_trip_ns(one, other));
        assert!(one != other || measured.is_none(), "a CPU's distance to itself: {measured:?}");
        assert!(measured.is_none_or(|ns| (5.0..1e6).contains(&ns)), "{measured:?} ns");
    }
}
