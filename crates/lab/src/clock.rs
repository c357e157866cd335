//! The offset between the clocks of two hosts.
//!
//! `CLOCK_MONOTONIC` counts from the boot of each host. The lab asks the other host for its time a
//! few times and keeps the quickest answer: somewhere between question and answer the other clock
//! was read, so the offset is known to half the round trip. No clock of the day is needed.

use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// How often the clock is asked for: one quick answer is enough.
const QUESTIONS: usize = 16;

/// How far the clock of a host is ahead of the lab's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Offset {
    /// In nanoseconds.
    pub offset_ns: i64,
    /// How far off that may be, either way, in microseconds.
    pub uncertainty_us: f64,
}

impl Offset {
    /// Of the lab's own host.
    pub(crate) const NONE: Offset = Offset { offset_ns: 0, uncertainty_us: 0.0 };

    /// Asks for the time with `theirs`, and for the own one with `ours`, in nanoseconds.
    ///
    /// # Errors
    /// When there is no answer.
    pub(crate) fn measure(
        mut ours: impl FnMut() -> Result<u64, LabError>,
        mut theirs: impl FnMut() -> Result<u64, LabError>,
    ) -> Result<Offset, LabError> {
        let mut best: Option<(u64, i64)> = None;
        for _ in 0..QUESTIONS {
            let asked = ours()?;
            let told = theirs()?;
            let answered = ours()?;
            let round_trip = answered.saturating_sub(asked);
            let offset = told.wrapping_sub(asked.midpoint(answered)) as i64;
            if best.is_none_or(|(quickest, _)| round_trip < quickest) {
                best = Some((round_trip, offset));
            }
        }
        let (round_trip, offset_ns) = best.unwrap_or_default();
        Ok(Offset { offset_ns, uncertainty_us: round_trip as f64 / 2e3 })
    }

    /// The offset over the time between two measurements. Clocks drift by up to 500 millionths
    /// while they are slewed (adjtimex(2)), which is the difference of the two; it is added to the
    /// uncertainty.
    ///
    /// Clocks count modulo 2^64, and the one of another host may say anything.
    pub(crate) fn between(before: Offset, after: Offset) -> Offset {
        let drift_ns = after.offset_ns.wrapping_sub(before.offset_ns);
        Offset {
            offset_ns: before.offset_ns.wrapping_add(drift_ns / 2),
            uncertainty_us: before.uncertainty_us.max(after.uncertainty_us)
                + drift_ns.unsigned_abs() as f64 / 2e3,
        }
    }

    /// A time of this host, by the clock of another.
    pub(crate) fn translate(self, at_ns: u64, to: Offset) -> u64 {
        at_ns.wrapping_add_signed(to.offset_ns.wrapping_sub(self.offset_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_quickest_answer_decides() {
        // Its clock is 5 s ahead; answers take 40 us each way, but one takes 4 us.
        let (now, asked) = (Cell::new(1_000_000_000_u64), Cell::new(0));
        let ours = || Ok(now.get());
        let theirs = || {
            asked.set(asked.get() + 1);
            let way = if asked.get() == 5 { 4_000 } else { 40_000 };
            let told = now.get() + way / 4 + 5_000_000_000;
            now.set(now.get() + 2 * way);
            Ok(told)
        };
        let offset = Offset::measure(ours, theirs).unwrap();
        assert_eq!(offset.uncertainty_us, 4.0);
        assert!((offset.offset_ns - 5_000_000_000).unsigned_abs() <= 4_000, "{offset:?}");
    }

    #[test]
    fn times_are_translated_and_drift_is_uncertainty() {
        let (a, b) = (
            Offset { offset_ns: 1_000, uncertainty_us: 1.0 },
            Offset { offset_ns: -500, uncertainty_us: 2.0 },
        );
        assert_eq!(a.translate(10_000, b), 8_500);
        assert_eq!(b.translate(8_500, a), 10_000);
        assert_eq!(Offset::NONE.translate(7, Offset::NONE), 7);
        let between = Offset::between(a, Offset { offset_ns: 3_000, uncertainty_us: 0.5 });
        assert_eq!(between, Offset { offset_ns: 2_000, uncertainty_us: 2.0 });
    }

    /// Found while the fuzz target `agent_lines` was written: the difference overflowed.
    #[test]
    fn clocks_that_are_ages_apart_can_be_counted_with() {
        let at = |offset_ns| Offset { offset_ns, uncertainty_us: 1.0 };
        let (first, last) = (at(i64::MIN), at(i64::MAX));
        // Only one nanosecond apart, modulo 2^64.
        assert!(Offset::between(first, last).uncertainty_us < 1.1);
        assert_eq!(last.translate(first.translate(7, last), first), 7);
    }
}
