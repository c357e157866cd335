//! The faults, drawn from a seed, so that every failure can be repeated. They lose no data, break no
//! connection, and refuse nothing for long: a program on the engines does not notice them.

use oorandom::Rand64;
use std::cell::Cell;
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
    /// ENOBUFS.
    NoBuffers,
    /// An operation ends with ECANCELED although it was not cancelled.
    Cancelled,
    /// A multishot operation ends although it could continue.
    EndedEarly,
    /// EAGAIN although the socket is ready.
    Again,
    /// EINTR.
    Interrupted,
    /// EMFILE, when a descriptor is created.
    NoDescriptor,
    /// ENFILE, likewise.
    FileTableFull,
    /// ENOMEM, likewise.
    NoMemory,
    /// An armed receive does not report a reset behind data (`driver/uring/lost_events.rs`).
    LostReset,
}

/// All kinds, and how often in a million chances they happen at most.
const KINDS: &[(Fault, u32)] = &[
    (Fault::ShortSend, 300_000),
    (Fault::ShortReceive, 300_000),
    (Fault::Late, 300_000),
    (Fault::Reordered, 300_000),
    (Fault::NoBuffers, 300_000),
    (Fault::Cancelled, 300_000),
    (Fault::EndedEarly, 300_000),
    (Fault::Again, 300_000),
    (Fault::Interrupted, 300_000),
    // Each holds up accepting for a tenth of a second.
    (Fault::NoDescriptor, 5_000),
    (Fault::FileTableFull, 5_000),
    (Fault::NoMemory, 5_000),
    // Each is found out after a second or two.
    (Fault::LostReset, 100_000),
];

/// The faults of creating a descriptor.
pub(super) const OF_DESCRIPTORS: &[(Fault, i32)] = &[
    (Fault::NoDescriptor, libc::EMFILE),
    (Fault::FileTableFull, libc::ENFILE),
    (Fault::NoMemory, libc::ENOMEM),
];

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
    /// test, as the harness names threads after them.
    pub(super) fn asked_for() -> Option<Dice> {
        let asked = std::env::var(ENVIRONMENT).ok()?;
        let (seed, kind) = asked.split_once(':').unwrap_or((&asked, ""));
        let seed: u64 = seed.parse().ok()?;
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let number = ENGINES.replace(ENGINES.get() + 1);
        let own = BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, name, number));
        let mut dice = Dice::new(own);
        if !kind.is_empty() {
            let is_asked = |(fault, _): &(Fault, u32)| format!("{fault:?}") == kind;
            let kind = KINDS.iter().position(is_asked);
            dice.per_million = [0; KINDS.len()];
            dice.per_million[kind.expect("a kind of fault")] = 333_333;
        }
        let mix = KINDS.iter().zip(dice.per_million).filter(|(_, chance)| *chance > 0);
        let mix: Vec<_> = mix.map(|((fault, _), chance)| (fault, chance)).collect();
        // Captured by the harness, and shown when the test fails.
        eprintln!(
            "faults in a million chances: {mix:?}\nagain with: {ENVIRONMENT}={asked}, and the same test ({name}) of the \
             same binary"
        );
        Some(dice)
    }

    /// A mix that the seed chooses.
    fn new(seed: u64) -> Dice {
        let mut random = Rand64::new(u128::from(seed));
        let mut per_million = [0; KINDS.len()];
        for (chance, (_, most)) in per_million.iter_mut().zip(KINDS) {
            if random.rand_range(0..4) > 0 {
                *chance = most >> random.rand_range(0..6);
            }
        }
        Dice { random, per_million }
    }

    /// True if a fault of this kind occurs here.
    pub(super) fn strikes(&mut self, fault: Fault) -> bool {
        let chance = u64::from(self.per_million[fault as usize]);
        chance > 0 && self.random.rand_range(0..1_000_000) < chance
    }

    /// The errno of one of these kinds, if one occurs here.
    pub(super) fn errno(&mut self, faults: &[(Fault, i32)]) -> Option<i32> {
        faults.iter().find(|(fault, _)| self.strikes(*fault)).map(|(_, errno)| *errno)
    }

    pub(super) fn between(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() { range.start } else { self.random.rand_range(range) }
    }

    /// A part of `whole`, at least one of it.
    pub(super) fn part(&mut self, whole: usize) -> usize {
        self.between(1..whole.max(1) as u64 + 1) as usize
    }
}
