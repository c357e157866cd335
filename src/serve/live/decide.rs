//! `--engine adaptive`: which engine gets the new connections. A pure state machine: one call for
//! each slice of time.
//!
//! A trial gives both engines new connections and bets on the slices. For each engine there is a
//! bet that it needs less CPU than the other by more than [`MARGIN`]: its capital starts at 1, and a
//! slice multiplies it by 1 + b or 1 - b. If the engine is not ahead, that is, if a slice is won with
//! a probability of at most one half, given everything before, then the capital is a non-negative
//! supermartingale, and so is the mean over several b. By Ville's inequality (Étude critique de la
//! notion de collectif, 1939) it ever reaches c with a probability of at most 1 / c, however often
//! one looks. (G. Shafer, "Testing by betting", Journal of the Royal Statistical Society A 184, 2021.)

use twinring::Engine;

/// The chance that a trial chooses an engine that is not ahead, at most.
pub(super) const ERROR_RATE: f64 = 0.05;

/// The capital that chooses an engine: half of the error rate is for each of them.
pub(super) const NEEDED: f64 = 2.0 / ERROR_RATE;

/// A slice is won by the engine that needs less CPU by more than this factor: less is not worth a
/// move.
pub(super) const MARGIN: f64 = 1.03;

/// The parts of the capital that are put on a slice. Large ones choose early what is clear, small
/// ones find what is not.
const BETS: [f64; 3] = [0.25, 0.5, 0.75];

/// A trial ends undecided after this number of compared slices, and this number of slices in all.
const COMPARED_MAX: u32 = 120;
const TRIAL_MAX: u32 = 600;

/// Slices between the end of a trial that chose, or kept, an engine and the next trial.
pub(super) const PAUSE: u32 = 300;

/// Slices whose mean is the usual traffic, from the end of a trial on.
const USUAL: u32 = 10;

/// Traffic has changed if its rate, or its bytes per unit, are beyond this factor of the usual ones
/// for this number of slices in a row. A trial then begins early.
const CHANGE: f64 = 2.0;
const CHANGED: u32 = 10;

/// One slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Slice {
    /// The logarithm of CPU per unit on epoll, divided by that on io_uring, if it was compared.
    pub(super) log_ratio: Option<f64>,
    /// Work of both engines.
    pub(super) units: f64,
    pub(super) bytes: f64,
}

/// The capital of one bet.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Evidence([f64; BETS.len()]);

impl Default for Evidence {
    fn default() -> Evidence {
        Evidence([1.0; BETS.len()])
    }
}

impl Evidence {
    fn bet(&mut self, won: bool) {
        for (capital, part) in self.0.iter_mut().zip(BETS) {
            *capital *= if won { 1.0 + part } else { 1.0 - part };
        }
    }

    fn value(self) -> f64 {
        self.0.iter().sum::<f64>() / BETS.len() as f64
    }
}

/// The usual traffic, and how long it has been otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Usual {
    slices: u32,
    units: f64,
    bytes: f64,
    changed: u32,
}

impl Usual {
    /// True if the traffic has changed.
    fn add(&mut self, slice: Slice) -> bool {
        if self.slices < USUAL {
            self.slices += 1;
            self.units += slice.units;
            self.bytes += slice.bytes;
            return false;
        }
        let beyond = |now: f64, usual: f64| now > usual * CHANGE || now * CHANGE < usual;
        let per_unit = |bytes: f64, units: f64| bytes / units.max(1.0);
        let is_other = beyond(slice.units, self.units / f64::from(USUAL))
            || beyond(per_unit(slice.bytes, slice.units), per_unit(self.bytes, self.units));
        self.changed = if is_other { self.changed + 1 } else { 0 };
        self.changed >= CHANGED
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Both engines get new connections.
    Trial { slices: u32, compared: u32 },
    /// The chosen engine gets them all.
    Pause { left: u32, usual: Usual },
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Decision {
    phase: Phase,
    chosen: Option<Engine>,
    uring: Evidence,
    epoll: Evidence,
    pub(super) trials: u64,
    pub(super) decided: u64,
    pub(super) moves: u64,
}

impl Default for Decision {
    /// The first trial begins.
    fn default() -> Decision {
        Decision {
            phase: Phase::Trial { slices: 0, compared: 0 },
            chosen: None,
            uring: Evidence::default(),
            epoll: Evidence::default(),
            trials: 1,
            decided: 0,
            moves: 0,
        }
    }
}

impl Decision {
    /// The engine that gets new connections; `None` for both.
    pub(super) fn target(&self) -> Option<Engine> {
        match self.phase {
            Phase::Trial { .. } => None,
            Phase::Pause { .. } => self.chosen,
        }
    }

    /// The engine that was chosen last.
    pub(super) fn chosen(&self) -> Option<Engine> {
        self.chosen
    }

    /// The evidence for io_uring and for epoll.
    pub(super) fn evidence(&self) -> (f64, f64) {
        (self.uring.value(), self.epoll.value())
    }

    /// Takes the slice that has just ended.
    pub(super) fn add(&mut self, slice: Slice) {
        match &mut self.phase {
            Phase::Trial { slices, compared } => {
                *slices += 1;
                if let Some(log_ratio) = slice.log_ratio {
                    *compared += 1;
                    self.uring.bet(log_ratio > MARGIN.ln());
                    self.epoll.bet(log_ratio < -MARGIN.ln());
                }
                let is_over = *compared >= COMPARED_MAX || *slices >= TRIAL_MAX;
                if self.uring.value() >= NEEDED {
                    self.choose(Engine::IoUring);
                } else if self.epoll.value() >= NEEDED {
                    self.choose(Engine::Epoll);
                } else if is_over {
                    self.end_undecided();
                }
            }
            Phase::Pause { left, usual } => {
                *left -= 1;
                if usual.add(slice) || *left == 0 {
                    self.begin_trial();
                }
            }
        }
    }

    fn begin_trial(&mut self) {
        self.phase = Phase::Trial { slices: 0, compared: 0 };
        (self.uring, self.epoll) = Default::default();
        self.trials += 1;
    }

    fn choose(&mut self, engine: Engine) {
        self.decided += 1;
        if self.chosen.is_some_and(|chosen| chosen != engine) {
            self.moves += 1;
        }
        self.chosen = Some(engine);
        self.pause();
    }

    /// What was chosen before stays. If nothing was, both engines go on.
    fn end_undecided(&mut self) {
        match self.chosen {
            Some(_) => self.pause(),
            None => self.begin_trial(),
        }
    }

    fn pause(&mut self) {
        self.phase = Phase::Pause { left: PAUSE, usual: Usual::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(log_ratio: f64) -> Slice {
        Slice { log_ratio: Some(log_ratio), units: 1000.0, bytes: 1e6 }
    }

    fn quiet() -> Slice {
        Slice { log_ratio: None, units: 1000.0, bytes: 1e6 }
    }

    /// Slices until the decision targets an engine, or all of `most`.
    fn slices_until_chosen(decision: &mut Decision, log_ratio: f64, most: u32) -> u32 {
        (1..=most)
            .find(|_| {
                decision.add(slice(log_ratio));
                decision.target().is_some()
            })
            .unwrap_or(most + 1)
    }

    #[test]
    fn a_clear_difference_chooses_within_ten_slices() {
        for (log_ratio, engine) in [(0.2, Engine::IoUring), (-0.2, Engine::Epoll)] {
            let mut decision = Decision::default();
            assert!(slices_until_chosen(&mut decision, log_ratio, 100) <= 10);
            assert_eq!((decision.target(), decision.moves), (Some(engine), 0));
        }
    }

    #[test]
    fn a_difference_within_the_margin_and_empty_slices_choose_nothing() {
        for part in [slice(0.02), slice(-0.02), slice(0.0), quiet()] {
            let mut decision = Decision::default();
            (0..5000).for_each(|_| decision.add(part));
            assert_eq!((decision.target(), decision.chosen()), (None, None), "{part:?}");
            assert!(decision.trials > 1);
        }
    }

    #[test]
    fn trials_return_and_move_when_the_other_engine_is_ahead() {
        let mut decision = Decision::default();
        slices_until_chosen(&mut decision, 0.2, 100);
        for _ in 0..PAUSE {
            assert_eq!(decision.target(), Some(Engine::IoUring));
            decision.add(quiet());
        }
        assert_eq!(decision.target(), None);
        assert!(slices_until_chosen(&mut decision, -0.2, 100) <= 10);
        assert_eq!((decision.target(), decision.moves), (Some(Engine::Epoll), 1));
        // An undecided trial keeps it.
        (0..PAUSE + COMPARED_MAX).for_each(|_| decision.add(slice(0.0)));
        assert_eq!((decision.target(), decision.moves), (Some(Engine::Epoll), 1));
        assert_eq!((decision.trials, decision.decided), (3, 2));
    }

    #[test]
    fn changed_traffic_begins_a_trial_early() {
        let others = [
            Slice { units: 2100.0, bytes: 2.1e6, log_ratio: None },
            Slice { units: 400.0, bytes: 4e5, log_ratio: None },
            Slice { units: 1000.0, bytes: 2.1e6, log_ratio: None },
        ];
        for other in others {
            let mut decision = Decision::default();
            slices_until_chosen(&mut decision, 0.2, 100);
            (0..USUAL).for_each(|_| decision.add(quiet()));
            // One slice is a burst, no change.
            decision.add(other);
            decision.add(quiet());
            (1..CHANGED).for_each(|_| decision.add(other));
            assert!(decision.target().is_some(), "{other:?}");
            decision.add(other);
            assert_eq!(decision.target(), None, "{other:?}");
        }
    }

    /// Any sequence of slices: it never panics, counts add up, and only an engine that was chosen
    /// is a target.
    #[test]
    fn its_counts_add_up_whatever_comes() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        let mut decision = Decision::default();
        for _ in 0..200_000 {
            let log_ratio = (random() % 3 > 0).then(|| (random() % 200) as f64 / 500.0 - 0.1);
            let traffic = 10_f64.powi((random() % 3) as i32);
            decision.add(Slice { log_ratio, units: traffic, bytes: traffic * 100.0 });
            assert!(decision.target().is_none() || decision.target() == decision.chosen());
            assert!(decision.moves < decision.decided.max(1));
            assert!(decision.decided <= decision.trials);
            let (uring, epoll) = decision.evidence();
            assert!(uring.is_finite() && epoll.is_finite());
        }
        assert!(decision.decided > 0);
    }

    /// Engines that are equal, at the edge of the margin: a fair coin for each slice is the worst
    /// case that the error rate covers.
    #[test]
    fn equal_engines_are_told_apart_in_at_most_5_percent_of_trials() {
        let mut state = 1_u64;
        let mut heads = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 40 & 1 == 1
        };
        let mut decision = Decision::default();
        while decision.trials < 4000 {
            match decision.target() {
                None => decision.add(slice(if heads() { 0.04 } else { -0.04 })),
                Some(_) => decision.add(quiet()),
            }
        }
        let share = decision.decided as f64 / decision.trials as f64;
        assert!(share <= ERROR_RATE, "{share}");
    }
}
