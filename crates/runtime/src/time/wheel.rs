//! A hierarchical timer wheel whose deadlines stay exact.
//!
//! Six levels of 64 buckets; a bucket of level 0 spans one tick of 2^20 ns (1.05 ms), a bucket of
//! each further level 64 times as much. Buckets only sort timers coarsely: inside the due bucket,
//! exact nanosecond deadlines decide, and [`Wheel::next_deadline_ns`] returns the exact earliest
//! one, so a wait can end to the microsecond. Insert and remove take constant time.

use crate::slots::{Key, Slots};
use crate::task::Waiter;
use std::task::Waker;

const TICK_BITS: u32 = 20;
const LEVEL_BITS: u32 = 6;
const BUCKETS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 6;

/// Ticks that the levels span together: 2^56 ns, 2.3 years. A later deadline waits in the last
/// bucket of the span and is filed again when that is due.
const SPAN_TICKS: u64 = 1 << (LEVEL_BITS as usize * LEVELS);

struct Timer {
    deadline_ns: u64,
    waker: Option<Waker>,
    bucket: usize,
    position: usize,
}

/// Timers of one worker. All times are nanoseconds since an origin that the owner chooses.
pub(crate) struct Wheel {
    timers: Slots<Timer>,
    buckets: Vec<Vec<Key>>,
    occupied: [u64; LEVELS],
    now_tick: u64,
    /// The exact earliest deadline, if known.
    next_ns: Option<u64>,
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        Wheel {
            timers: Slots::new(),
            buckets: (0..BUCKETS * LEVELS).map(|_| Vec::new()).collect(),
            occupied: [0; LEVELS],
            now_tick: 0,
            next_ns: None,
        }
    }

    /// Number of timers waiting.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.timers.len()
    }

    /// Adds a timer that wakes `waker` at `deadline_ns`.
    pub(crate) fn insert(&mut self, deadline_ns: u64, waker: Waker) -> Key {
        let was_empty = self.timers.is_empty();
        let key =
            self.timers.insert(Timer { deadline_ns, waker: Some(waker), bucket: 0, position: 0 });
        self.file(key, deadline_ns);
        if was_empty {
            self.next_ns = Some(deadline_ns);
        } else if let Some(next) = self.next_ns {
            self.next_ns = Some(next.min(deadline_ns));
        }
        key
    }

    /// Renews the waker of a waiting timer; `false` if it has fired.
    pub(crate) fn renew(&mut self, key: Key, waiter: &mut Waiter<'_>) -> bool {
        match self.timers.get_mut(key) {
            Some(timer) => {
                waiter.store(&mut timer.waker);
                true
            }
            None => false,
        }
    }

    /// Removes a timer that has not fired. Drop its waker when nothing is borrowed.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Waker> {
        let timer = self.timers.remove(key)?;
        self.unfile(timer.bucket, timer.position);
        if self.next_ns == Some(timer.deadline_ns) {
            self.next_ns = None;
        }
        timer.waker
    }

    /// True without timers.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }

    /// The next time to check: the exact earliest deadline if it is within 64 ticks, otherwise a
    /// time not later than it.
    pub(crate) fn next_deadline_ns(&mut self) -> Option<u64> {
        if self.timers.is_empty() {
            return None;
        }
        if self.next_ns.is_none() {
            self.next_ns = self.first_bucket().map(|(level, bucket, start_tick)| {
                let exact = || self.buckets[bucket].iter().filter_map(|key| self.timers.get(*key));
                match level {
                    0 => exact().map(|t| t.deadline_ns).min().unwrap_or(start_tick << TICK_BITS),
                    _ => start_tick << TICK_BITS,
                }
            });
        }
        self.next_ns
    }

    /// Fires every timer whose deadline is not after `now_ns`, passing its waker on.
    pub(crate) fn advance(&mut self, now_ns: u64, mut wake: impl FnMut(Waker)) {
        let now_tick = now_ns >> TICK_BITS;
        while let Some((level, bucket, start_tick)) = self.first_bucket() {
            if start_tick > now_tick {
                break;
            }
            self.now_tick = self.now_tick.max(start_tick);
            let mut kept_in_current_tick = false;
            for key in self.empty_bucket(bucket) {
                let Some(deadline_ns) = self.timers.get(key).map(|t| t.deadline_ns) else {
                    continue;
                };
                if deadline_ns <= now_ns {
                    let timer = self.timers.remove(key);
                    timer.and_then(|t| t.waker).into_iter().for_each(&mut wake);
                } else {
                    self.file(key, deadline_ns);
                    kept_in_current_tick |= level == 0;
                }
            }
            if kept_in_current_tick {
                break;
            }
        }
        self.now_tick = self.now_tick.max(now_tick);
        self.next_ns = None;
    }

    /// Level, bucket index and first tick of the earliest non-empty bucket.
    fn first_bucket(&self) -> Option<(usize, usize, u64)> {
        (0..LEVELS).find_map(|level| {
            let shift = LEVEL_BITS * level as u32;
            let here = (self.now_tick >> shift) as usize % BUCKETS;
            // Buckets before `here` on this level are empty: their time has passed, and later
            // rounds are filed one level up.
            let ahead = self.occupied[level] >> here;
            if ahead == 0 {
                return None;
            }
            let slot = here + ahead.trailing_zeros() as usize;
            let round = self.now_tick >> (shift + LEVEL_BITS) << (shift + LEVEL_BITS);
            Some((level, level * BUCKETS + slot, round | (slot as u64) << shift))
        })
    }

    fn file(&mut self, key: Key, deadline_ns: u64) {
        let span_end = self.now_tick | (SPAN_TICKS - 1);
        let tick = (deadline_ns >> TICK_BITS).clamp(self.now_tick, span_end);
        let differing = tick ^ self.now_tick;
        let level = match differing {
            0 => 0,
            bits => ((u64::BITS - 1 - bits.leading_zeros()) / LEVEL_BITS) as usize,
        };
        let slot = (tick >> (LEVEL_BITS * level as u32)) as usize % BUCKETS;
        let bucket = level * BUCKETS + slot;
        let position = self.buckets[bucket].len();
        self.buckets[bucket].push(key);
        self.occupied[level] |= 1 << slot;
        if let Some(timer) = self.timers.get_mut(key) {
            timer.bucket = bucket;
            timer.position = position;
        }
    }

    fn unfile(&mut self, bucket: usize, position: usize) {
        self.buckets[bucket].swap_remove(position);
        if let Some(moved) = self.buckets[bucket].get(position).copied()
            && let Some(timer) = self.timers.get_mut(moved)
        {
            timer.position = position;
        }
        if self.buckets[bucket].is_empty() {
            self.occupied[bucket / BUCKETS] &= !(1 << (bucket % BUCKETS));
        }
    }

    fn empty_bucket(&mut self, bucket: usize) -> Vec<Key> {
        self.occupied[bucket / BUCKETS] &= !(1 << (bucket % BUCKETS));
        std::mem::take(&mut self.buckets[bucket])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fired(wheel: &mut Wheel, now_ns: u64) -> usize {
        let mut count = 0;
        wheel.advance(now_ns, |_| count += 1);
        count
    }

    #[test]
    fn the_earliest_deadline_is_exact_within_a_tick() {
        let mut wheel = Wheel::new();
        wheel.insert(900_123, Waker::noop().clone());
        wheel.insert(700_007, Waker::noop().clone());
        assert_eq!(wheel.next_deadline_ns(), Some(700_007));
        assert_eq!(fired(&mut wheel, 700_006), 0);
        assert_eq!(fired(&mut wheel, 700_007), 1);
        assert_eq!(wheel.next_deadline_ns(), Some(900_123));
    }

    #[test]
    fn a_removed_timer_never_fires() {
        let mut wheel = Wheel::new();
        let keys: Vec<_> = (0..100).map(|i| wheel.insert(i * 777, Waker::noop().clone())).collect();
        keys.iter().step_by(2).for_each(|key| drop(wheel.remove(*key)));
        assert_eq!(fired(&mut wheel, u64::MAX >> 8), 50);
        assert_eq!(wheel.len(), 0);
    }

    proptest! {
        /// Compared with a sorted list: the same timers fire at the same times, for any order,
        /// distances and removals; and the wheel never checks later than a timer is due.
        #[test]
        fn fires_what_a_sorted_list_would_fire(
            steps in proptest::collection::vec((0u8..3, 0u64..1 << 45, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut wheel = Wheel::new();
            let mut model: Vec<(u64, Key)> = Vec::new();
            let mut now_ns = 0u64;
            for (what, distance, pick) in steps {
                // Distances spread over all levels: a random number of low bits.
                let distance = distance >> (distance % 45);
                match what {
                    0 => {
                        let key = wheel.insert(now_ns + distance, Waker::noop().clone());
                        model.push((now_ns + distance, key));
                    }
                    1 if !model.is_empty() => {
                        let (_, key) = model.swap_remove(pick.index(model.len()));
                        wheel.remove(key);
                    }
                    _ => {
                        now_ns += distance;
                        let due = model.iter().filter(|(deadline, _)| *deadline <= now_ns).count();
                        model.retain(|(deadline, _)| *deadline > now_ns);
                        prop_assert_eq!(fired(&mut wheel, now_ns), due);
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                let earliest = model.iter().map(|(deadline, _)| *deadline).min();
                let look = wheel.next_deadline_ns();
                prop_assert_eq!(look.is_some(), earliest.is_some());
                if let (Some(look), Some(earliest)) = (look, earliest) {
                    prop_assert!(look <= earliest);
                }
            }
        }
    }
}
