//! The faults, drawn from a seed, so that every failure can be repeated. They lose no data, break no
//! connection, and refuse nothing for long: a program on the engines does not notice them.

use oorandom::Rand64;
use std::cell::Cell;
use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Range;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The kernel accepts fewer bytes than fit.
    ShortSend,
    /// The kernel delivers fewer bytes than are there.
    ShortReceive,
    /// A completion or event is reported some looks after it happened.
    Late,
    /// Completions of different operations are reported in another order.
    Reordered,
    /// A multishot operation ends although it could continue.
    EndedEarly,
    /// ENOBUFS.
    NoBuffers,
    /// An operation ends with ECANCELED although it was not cancelled.
    Cancelled,
    /// EAGAIN although the socket is ready.
    Again,
    /// EINTR.
    Interrupted,
    /// EMFILE, ENFILE or ENOMEM, when a descriptor is created. Holds up accepting for a tenth of a
    /// second.
    Exhausted,
    /// An armed receive does not report a reset behind data (`driver/uring/lost_events.rs`), which
    /// is found out after a second or two.
    LostReset,
}

const KINDS: [Fault; 11] = [
    Fault::ShortSend,
    Fault::ShortReceive,
    Fault::Late,
    Fault::Reordered,
    Fault::EndedEarly,
    Fault::NoBuffers,
    Fault::Cancelled,
    Fault::Again,
    Fault::Interrupted,
    Fault::Exhausted,
    Fault::LostReset,
];

impl Fault {
    /// How often in a million chances it happens at most.
    fn most(self) -> u32 {
        match self {
            Fault::Exhausted => 15_000,
            Fault::LostReset => 100_000,
            _ => 300_000,
        }
    }
}

/// With this in its environment, a process built with the feature `faults` has them; the value is
/// their seed, or `SEED:KIND` for faults of one kind, each at every third chance.
const ENVIRONMENT: &str = "TWINRING_FAULTS";

thread_local! {
    /// Engines that this thread has created.
    static ENGINES: Cell<u64> = const { Cell::new(0) };
}

/// Draws the faults; the same ones for one seed.
#[derive(Debug)]
pub(super) struct Dice {
    random: Rand64,
    per_million: [u32; KINDS.len()],
}

impl Dice {
    /// If the environment requests faults. Each thread has its own, by its name, and so has each
    /// test, whose thread the harness names after it (`crates/testing`).
    pub(super) fn asked_for() -> Option<Dice> {
        let asked = std::env::var(ENVIRONMENT).ok()?;
        let (seed, kind) = asked.split_once(':').unwrap_or((&asked, ""));
        let seed: u64 = seed.parse().ok()?;
        let is_known = kind.is_empty() || KINDS.iter().any(|fault| format!("{fault:?}") == kind);
        assert!(is_known, "{ENVIRONMENT}={asked}: the kinds of faults are {KINDS:?}");
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let number = ENGINES.replace(ENGINES.get() + 1);
        let own = BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, name, number));
        let mut random = Rand64::new(u128::from(own));
        // A mix that the seed chooses.
        let per_million = KINDS.map(|fault| match format!("{fault:?}") == kind {
            true => 333_333,
            false if kind.is_empty() && random.rand_range(0..4) > 0 => {
                fault.most() >> random.rand_range(0..6)
            }
            false => 0,
        });
        eprintln!(
            "faults in a million chances, of {KINDS:?}: {per_million:?}\n\
             again with: {ENVIRONMENT}={asked}, and the same test ({name}) of the same binary"
        );
        Some(Dice { random, per_million })
    }

    pub(super) fn strikes(&mut self, fault: Fault) -> bool {
        let chance = u64::from(self.per_million[fault as usize]);
        chance > 0 && self.random.rand_range(0..1_000_000) < chance
    }

    /// The errno of one of these kinds, if one occurs here.
    pub(super) fn errno(&mut self, kinds: &[Fault]) -> Option<i32> {
        let kind = kinds.iter().find(|kind| self.strikes(**kind))?;
        Some(match kind {
            Fault::NoBuffers => libc::ENOBUFS,
            Fault::Cancelled => libc::ECANCELED,
            Fault::Again => libc::EAGAIN,
            Fault::Exhausted => [libc::EMFILE, libc::ENFILE, libc::ENOMEM][self.between(0..3)],
            _ => libc::EINTR,
        })
    }

    pub(super) fn between(&mut self, range: Range<usize>) -> usize {
        match range.is_empty() {
            true => range.start,
            false => self.random.rand_range(range.start as u64..range.end as u64) as usize,
        }
    }

    /// A part of `whole`, at least one of it.
    pub(super) fn part(&mut self, whole: usize) -> usize {
        self.between(1..whole.max(1) + 1)
    }
}

/// The maximum number of looks for which something is held back.
const LOOKS_MAX: usize = 8;

/// What is reported some looks after it happened, with the looks that are left.
pub(super) struct Held<T>(pub(super) VecDeque<(usize, T)>);

impl<T> Held<T> {
    pub(super) fn nothing() -> Held<T> {
        Held(VecDeque::new())
    }

    pub(super) fn hold(&mut self, dice: &mut Dice, what: T) {
        self.0.push_back((dice.between(1..LOOKS_MAX), what));
    }

    /// A look: what was held back long enough.
    pub(super) fn due(&mut self) -> Vec<T> {
        for (left, _) in &mut self.0 {
            *left = left.saturating_sub(1);
        }
        let due = self.0.iter().take_while(|(left, _)| *left == 0).count();
        self.0.drain(..due).map(|(_, what)| what).collect()
    }
}
