//! A sequence of moments at equal distances.

use super::sleep_until;
use crate::sys;
use std::time::{Duration, Instant};

/// Shortest period of a [`Interval`].
const PERIOD_MIN: Duration = Duration::from_micros(1);

/// Times at equal distances, fixed from the start: a late tick does not delay the following ones.
#[derive(Debug)]
pub struct Interval {
    origin: Instant,
    period: Duration,
    /// Number of the last tick handed out.
    number: u64,
}

/// One tick of a [`Interval`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tick {
    /// Counts from 1, ticks that were missed included.
    pub number: u64,
    /// When it was due.
    pub deadline: Instant,
    /// Ticks before this one that passed before they were awaited.
    pub missed: u64,
    /// How late the wait for it ended. `None` if there was no wait, because the task was busy until
    /// this tick was due.
    pub overrun: Option<Duration>,
}

impl Interval {
    /// The first tick is one period (at least 1 us) from now.
    pub fn new(period: Duration) -> Interval {
        Interval { origin: sys::now(), period: period.max(PERIOD_MIN), number: 0 }
    }

    /// Waits for the next tick. If several have passed, it returns the last of them, at once.
    pub async fn tick(&mut self) -> Tick {
        let next = self.number + 1;
        let waits = sys::now() < self.deadline(next);
        sleep_until(self.deadline(next)).await;
        let late = sys::now().saturating_duration_since(self.deadline(next));
        let missed = (late.as_nanos() / self.period.as_nanos()) as u64;
        self.number = next + missed;
        let overrun = waits.then_some(late);
        Tick { number: self.number, deadline: self.deadline(self.number), missed, overrun }
    }

    fn deadline(&self, number: u64) -> Instant {
        let ns = self.period.as_nanos().saturating_mul(number.into());
        let since_origin = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        // A time beyond the clock's range never comes; the one before it serves as well.
        self.origin.checked_add(since_origin).unwrap_or(self.origin)
    }
}
