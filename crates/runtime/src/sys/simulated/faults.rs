//! Faults: events that a kernel and a network may cause at any time, but rarely do under test.
//! Drawn from a seed, so every failure can be repeated.
//!
//! A simulated machine has them inside; between the real kernel and an engine they are in `ring`
//! and in `calls`.

pub(crate) mod calls;
pub(crate) mod ring;

use oorandom::Rand64;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Range;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $most:literal;)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// All kinds.
            pub const ALL: &[Fault] = &[$(Fault::$name),*];

            /// The maximum probability of each in a mix, per million.
            const MOST_PER_MILLION: &[u32] = &[$($most),*];
        }

        impl fmt::Display for Fault {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Fault::$name => $text,)* })
            }
        }
    };
}

faults! {
    /// The kernel accepts fewer bytes than fit.
    ShortSend = "short sends", 300_000;
    /// The kernel delivers fewer bytes than are there.
    ShortReceive = "short receives", 300_000;
    /// A completion is reported up to 20 ms after it happened.
    Late = "late completions", 50_000;
    /// Completions of different operations are reported in another order.
    Reordered = "reordered completions", 200_000;
    /// ENOBUFS.
    NoBuffers = "ENOBUFS", 50_000;
    /// An operation ends with ECANCELED although it was not cancelled.
    Cancelled = "ECANCELED", 20_000;
    /// A multishot operation ends although it could continue.
    EndedEarly = "multishot ended early", 200_000;
    /// Completions find their queue full.
    Overflow = "completion queue overflows", 50_000;
    /// EAGAIN although the socket is ready.
    Again = "EAGAIN", 200_000;
    /// EINTR.
    Interrupted = "EINTR", 50_000;
    /// EMFILE, when a descriptor is created.
    NoDescriptor = "EMFILE", 50_000;
    /// ENFILE, likewise.
    FileTableFull = "ENFILE", 20_000;
    /// ENOMEM, likewise.
    NoMemory = "ENOMEM", 20_000;
    /// A connection breaks with ECONNRESET at both ends.
    Reset = "ECONNRESET", 2_000;
    /// A connection breaks with ETIMEDOUT at both ends.
    TimedOut = "ETIMEDOUT", 1_000;
    /// A connection transfers no data for up to 30 seconds.
    Silent = "silent peers", 1_000;
    /// A connection carries a few bytes at a time from now on.
    Slow = "slow peers", 1_000;
    /// A datagram is lost in transit.
    DatagramLost = "datagrams lost", 50_000;
    /// A datagram arrives twice.
    DatagramDuplicated = "datagrams duplicated", 50_000;
    /// A datagram is overtaken by later ones.
    DatagramReordered = "datagrams reordered", 100_000;
    /// A file ends in the middle of being read or sent.
    FileTruncated = "files truncated", 5_000;
    /// An armed receive does not report a reset behind data (`driver/uring/lost_events.rs`). Only with
    /// io_uring.
    LostReset = "resets lost", 300_000;
    /// A receive or send of a ring on a stream fails with ENOMEM although memory is free. It ends
    /// the connection, so it is part of no mix.
    OperationNoMemory = "ENOMEM of operations", 0;
    /// The creation of a ring fails with ENOMEM. Part of no mix.
    RingNoMemory = "ENOMEM of rings", 0;
    /// A wait ends up to a second after its timeout. Part of no mix.
    WaitOverrun = "waits overrun", 0;
}

/// How often each kind of fault happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    per_million: Vec<u32>,
}

impl Faults {
    /// No faults.
    pub fn none() -> Faults {
        Faults { per_million: vec![0; Fault::ALL.len()] }
    }

    /// A mix that the seed chooses: about half of the kinds, each with a probability from a
    /// thousandth of its maximum upwards. One seed in eight has no faults.
    pub fn of_seed(seed: u64) -> Faults {
        let mut random = Rand64::new(u128::from(seed) << 64 | 0xfa17);
        if random.rand_range(0..8) == 0 {
            return Faults::none();
        }
        let mut draw = |most: &u32| match *most > 0 && random.rand_range(0..2) == 1 {
            true => (most >> random.rand_range(0..10)).max(1),
            false => 0,
        };
        Faults { per_million: Fault::MOST_PER_MILLION.iter().map(&mut draw).collect() }
    }

    /// This kind, and so often in a million chances.
    pub fn with(mut self, fault: Fault, per_million: u32) -> Faults {
        self.per_million[fault as usize] = per_million.min(1_000_000);
        self
    }

    /// A mix that the seed chooses among the kinds that do not affect a program on a real kernel:
    /// they lose no data, break no connection, and refuse nothing for long.
    pub fn harmless(seed: u64) -> Faults {
        let mut random = Rand64::new(u128::from(seed) << 64 | 0xfa17);
        HARMLESS.iter().fold(Faults::none(), |faults, (fault, most)| {
            match random.rand_range(0..4) {
                0 => faults,
                _ => faults.with(*fault, most >> random.rand_range(0..6)),
            }
        })
    }

    /// Without these kinds.
    pub fn without(self, faults: &[Fault]) -> Faults {
        faults.iter().fold(self, |left, fault| left.with(*fault, 0))
    }

    /// How often this kind happens in a million chances.
    pub fn per_million(&self, fault: Fault) -> u32 {
        self.per_million[fault as usize]
    }

    /// True if none of these kinds occurs.
    pub fn is_free_of(&self, faults: &[Fault]) -> bool {
        faults.iter().all(|fault| self.per_million(*fault) == 0)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut some = false;
        for fault in Fault::ALL.iter().filter(|fault| self.per_million(**fault) > 0) {
            let comma = if std::mem::replace(&mut some, true) { ", " } else { "" };
            write!(f, "{comma}{fault} {}", f64::from(self.per_million(*fault)) / 1e6)?;
        }
        if some { Ok(()) } else { f.write_str("none") }
    }
}

/// The kinds of [`Faults::harmless`], and how often in a million they happen at most.
const HARMLESS: &[(Fault, u32)] = &[
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

/// With this in its environment, a process built with the feature `sim` has harmless faults between
/// the real kernel and its engines; the value is their seed.
pub const ENVIRONMENT: &str = "TWINRING_FAULTS";

thread_local! {
    /// Engines that this thread has created.
    static ENGINES: Cell<u64> = const { Cell::new(0) };
    /// Requested by the program.
    static INJECTED: RefCell<Option<(u64, Faults)>> = const { RefCell::new(None) };
}

/// Puts faults between the real kernel and the engines that this thread creates from now on, as
/// TWINRING_FAULTS does; only those of [`Faults::harmless`] have an effect there. A simulated world
/// has its own.
pub fn inject(seed: u64, faults: Faults) {
    INJECTED.set(Some((seed, faults)));
}

/// Draws the faults; the same ones for one seed.
#[derive(Debug)]
pub(crate) struct Dice {
    random: Rand64,
    faults: Faults,
    injected: Vec<u64>,
}

impl Dice {
    pub(crate) fn new(seed: u64, faults: Faults) -> Dice {
        let injected = vec![0; Fault::ALL.len()];
        Dice { random: Rand64::new(u128::from(seed)), faults, injected }
    }

    /// For an engine on a real kernel: faults that the program requested, otherwise those of the
    /// environment. With the latter each thread has its own, by its name, and so has each test, as
    /// the harness names threads after them.
    fn asked_for() -> Option<Dice> {
        if let Some((seed, faults)) = INJECTED.with_borrow(Clone::clone) {
            return Some(Dice::new(seed, faults));
        }
        let seed: u64 = std::env::var(ENVIRONMENT).ok()?.parse().ok()?;
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let number = ENGINES.replace(ENGINES.get() + 1);
        let own = BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, name, number));
        let faults = Faults::harmless(own);
        // Captured by the harness, and shown when the test fails.
        eprintln!(
            "faults: {faults}\nagain with: {ENVIRONMENT}={seed}, and the same test ({name}) of the \
             same binary"
        );
        Some(Dice::new(own, faults))
    }

    /// True, and counted, if a fault of this kind occurs here.
    pub(crate) fn strikes(&mut self, fault: Fault) -> bool {
        let chance = self.faults.per_million(fault);
        // Impossible faults, which are nearly all, draw no random number.
        let struck = chance > 0 && self.random.rand_range(0..1_000_000) < u64::from(chance);
        self.injected[fault as usize] += u64::from(struck);
        struck
    }

    /// The errno of one of these kinds, if one occurs here.
    pub(crate) fn errno(&mut self, faults: &[(Fault, i32)]) -> Option<i32> {
        faults.iter().find(|(fault, _)| self.strikes(*fault)).map(|(_, errno)| *errno)
    }

    pub(crate) fn between(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() { range.start } else { self.random.rand_range(range) }
    }

    /// A part of `whole`, at least one of it.
    pub(crate) fn part(&mut self, whole: usize) -> usize {
        self.between(1..whole.max(1) as u64 + 1) as usize
    }

    /// How many faults of each kind occurred, without those that did not.
    pub(crate) fn injected(&self) -> Vec<(Fault, u64)> {
        let counted = Fault::ALL.iter().copied().zip(self.injected.iter().copied());
        counted.filter(|(_, count)| *count > 0).collect()
    }
}

/// The faults of creating a descriptor.
pub(crate) const OF_DESCRIPTORS: &[(Fault, i32)] = &[
    (Fault::NoDescriptor, libc::EMFILE),
    (Fault::FileTableFull, libc::ENFILE),
    (Fault::NoMemory, libc::ENOMEM),
];
