//! Simulates a bad path for datagrams: reproducible and counted.
//!
//! A state machine without sockets and without a clock: datagrams and times go in, datagrams come
//! out.
//!
//! - Every arrival draws four random numbers, independent of the configuration. The same seed and
//!   order of arrival therefore give the same decisions, and adding a delay, for example, does not
//!   change which datagrams are lost.
//! - The order within a source is kept, with or without jitter, except for requested swaps: a
//!   selected datagram waits for the next one of its source that is not lost, and goes behind it.
//!   If no datagram arrives within [`SWAP_PATIENCE`], it goes alone, and does not count as swapped.
//! - The waiting datagrams are bounded ([`WAITING_MAX`], [`WAITING_BYTES_MAX`]); datagrams beyond
//!   that are dropped and counted. A source is remembered only while a datagram of it waits.

use oorandom::Rand64;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a datagram chosen for an exchange waits for its successor, beyond its delay.
pub const SWAP_PATIENCE: Duration = Duration::from_millis(100);
/// Datagrams that may wait on each socket; one that waits for its successor counts twice.
pub const WAITING_MAX: usize = 1 << 17;
/// Bytes that may wait for their moment, for each socket.
pub const WAITING_BYTES_MAX: usize = 128 << 20;

/// The impairments of a reflector. Shares are from 0 (never) to 1 (always).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Impairments {
    /// How long answers are held back.
    #[serde(rename = "delay_us", serialize_with = "as_us")]
    pub delay: Duration,
    /// The delay of each varies evenly by up to this much in either direction; at most `delay`.
    #[serde(rename = "jitter_us", serialize_with = "as_us")]
    pub jitter: Duration,
    /// Share of datagrams that are not answered.
    pub loss: f64,
    /// Share of datagrams that are answered twice.
    pub duplicate: f64,
    /// Share of datagrams that are swapped with the next one of the same source.
    pub swap: f64,
    /// Names the sequence of decisions.
    pub seed: u64,
}

fn as_us<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(duration.as_micros() as u64)
}

impl Impairments {
    /// True if something is done at all.
    pub fn is_any(&self) -> bool {
        !self.delay.is_zero() || self.loss > 0.0 || self.duplicate > 0.0 || self.swap > 0.0
    }
}

/// The impairments so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImpairmentCounts {
    /// Datagrams dropped on purpose.
    pub impaired_lost: u64,
    /// Datagrams sent twice: each adds one.
    pub impaired_duplicated: u64,
    /// Pairs of successive datagrams of one source that were swapped.
    pub impaired_swapped: u64,
    /// Datagrams that were held back for their delay.
    pub impaired_delayed: u64,
    /// Datagrams dropped because too many were waiting.
    pub impaired_overflowed: u64,
}

impl ImpairmentCounts {
    /// Adds the counts of another socket.
    pub(crate) fn merge(&mut self, other: &ImpairmentCounts) {
        self.impaired_lost += other.impaired_lost;
        self.impaired_duplicated += other.impaired_duplicated;
        self.impaired_swapped += other.impaired_swapped;
        self.impaired_delayed += other.impaired_delayed;
        self.impaired_overflowed += other.impaired_overflowed;
    }
}

/// The decisions about one datagram.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fate {
    lost: bool,
    duplicated: bool,
    swapped: bool,
    delay: Duration,
}

/// The sequence of decisions that a seed names.
struct Dice {
    random: Rand64,
    options: Impairments,
}

impl Dice {
    /// Each `stream` of a seed is a sequence of its own.
    fn new(options: Impairments, stream: u64) -> Dice {
        let seed = u128::from(options.seed) << 64 | u128::from(stream);
        Dice { random: Rand64::new(seed), options }
    }

    fn throw(&mut self) -> Fate {
        let random = &mut self.random;
        let mut chance = |share: f64| random.rand_float() < share;
        let Impairments { delay, jitter, loss, duplicate, swap, .. } = self.options;
        let (lost, duplicated, swapped) = (chance(loss), chance(duplicate), chance(swap));
        // Evenly from 0 to twice the jitter: the high half of a 128-bit product.
        let span_ns = jitter.as_nanos() * 2 + 1;
        let jitter_ns = (span_ns * u128::from(random.rand_u64())) >> 64;
        let delay = (delay + Duration::from_nanos(jitter_ns as u64)).saturating_sub(jitter);
        Fate { lost, duplicated, swapped, delay }
    }
}

/// A datagram, and how many times it is sent.
struct Unit<T> {
    item: T,
    bytes: usize,
    copies: usize,
}

/// A datagram that waits for the next one of its source.
struct Held<T> {
    unit: Unit<T>,
    due: Instant,
    number: u64,
}

/// A source of which something waits.
struct Source<T> {
    /// Its datagrams in the queue.
    queued: usize,
    /// When the last of them is due: no later datagram of this source may go before.
    last_due: Instant,
    held: Option<Held<T>>,
}

enum Event<T> {
    Send(Unit<T>),
    /// The held datagram of this number has waited long enough, if it still waits.
    PatienceEnds,
}

/// A datagram and its time. Equal times are ordered by number.
struct Entry<T> {
    due: Instant,
    number: u64,
    source: SocketAddr,
    event: Event<T>,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Entry<T>) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// The bad path of one socket. `T` is a datagram.
pub(crate) struct BadPath<T> {
    dice: Dice,
    sources: HashMap<SocketAddr, Source<T>>,
    queue: BinaryHeap<Reverse<Entry<T>>>,
    next_number: u64,
    /// Sources with a held datagram.
    held: usize,
    /// Queued and held, copies included, and their bytes.
    waiting: usize,
    waiting_bytes: usize,
    waiting_max: usize,
    counts: ImpairmentCounts,
}

impl<T: Clone> BadPath<T> {
    /// `stream` distinguishes the sockets of a service; each has its own decisions.
    pub(crate) fn new(options: Impairments, stream: u64) -> BadPath<T> {
        BadPath {
            dice: Dice::new(options, stream),
            sources: HashMap::new(),
            queue: BinaryHeap::new(),
            next_number: 0,
            held: 0,
            waiting: 0,
            waiting_bytes: 0,
            waiting_max: WAITING_MAX,
            counts: ImpairmentCounts::default(),
        }
    }

    pub(crate) fn counts(&self) -> ImpairmentCounts {
        self.counts
    }

    /// Datagrams that were not sent yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// When [`release`](BadPath::release) has something to do next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse(entry)| entry.due)
    }

    /// A datagram of `bytes` from `source` arrives. Datagrams that can be sent at once go to `out`.
    pub(crate) fn arrive(
        &mut self,
        source: SocketAddr,
        item: T,
        bytes: usize,
        now: Instant,
        out: &mut impl FnMut(T),
    ) {
        let fate = self.dice.throw();
        if fate.lost {
            self.counts.impaired_lost += 1;
            return;
        }
        let known = self.sources.get(&source);
        let earliest = now + fate.delay;
        let due = known.map_or(earliest, |source| source.last_due.max(earliest));
        let follows_held = known.is_some_and(|source| source.held.is_some());
        let is_held = fate.swapped && !follows_held;
        if (is_held || due > now) && !self.has_room() {
            self.counts.impaired_overflowed += 1;
            return;
        }
        self.counts.impaired_duplicated += u64::from(fate.duplicated);
        self.counts.impaired_delayed += u64::from(due > now);
        let unit = Unit { item, bytes, copies: 1 + usize::from(fate.duplicated) };
        self.waiting += unit.copies;
        self.waiting_bytes += unit.bytes;
        if is_held {
            return self.hold(source, unit, due, now);
        }
        self.pass(source, unit, due, now, out);
        if follows_held && let Some(held) = self.take_held(source) {
            self.counts.impaired_swapped += 1;
            self.pass(source, held.unit, due.max(held.due), now, out);
        }
    }

    /// Passes on the due datagrams.
    pub(crate) fn release(&mut self, now: Instant, out: &mut impl FnMut(T)) {
        while self.next_due().is_some_and(|due| due <= now) {
            let Some(Reverse(entry)) = self.queue.pop() else { return };
            match entry.event {
                Event::Send(unit) => {
                    if let Some(source) = self.sources.get_mut(&entry.source) {
                        source.queued -= 1;
                    }
                    self.emit(unit, out);
                    self.forget_if_idle(entry.source);
                }
                Event::PatienceEnds => {
                    let held = self.sources.get(&entry.source).and_then(|s| s.held.as_ref());
                    if held.is_some_and(|held| held.number == entry.number)
                        && let Some(held) = self.take_held(entry.source)
                    {
                        self.emit(held.unit, out);
                        self.forget_if_idle(entry.source);
                    }
                }
            }
        }
    }

    /// A held datagram has two places: for the end of its patience and for itself.
    fn has_room(&self) -> bool {
        self.queue.len() + self.held + 2 <= self.waiting_max
            && self.waiting_bytes < WAITING_BYTES_MAX
    }

    fn hold(&mut self, address: SocketAddr, unit: Unit<T>, due: Instant, now: Instant) {
        let number = self.push(due + SWAP_PATIENCE, address, Event::PatienceEnds);
        self.held += 1;
        self.source(address, now).held = Some(Held { unit, due, number });
    }

    fn take_held(&mut self, address: SocketAddr) -> Option<Held<T>> {
        let held = self.sources.get_mut(&address)?.held.take()?;
        self.held -= 1;
        Some(held)
    }

    /// Sends datagrams that are due and first of their source, and queues the others.
    fn pass(
        &mut self,
        address: SocketAddr,
        unit: Unit<T>,
        due: Instant,
        now: Instant,
        out: &mut impl FnMut(T),
    ) {
        let is_first = self.sources.get(&address).is_none_or(|source| source.queued == 0);
        if due <= now && is_first {
            self.emit(unit, out);
            return self.forget_if_idle(address);
        }
        let source = self.source(address, now);
        source.queued += 1;
        source.last_due = due;
        self.push(due, address, Event::Send(unit));
    }

    fn emit(&mut self, unit: Unit<T>, out: &mut impl FnMut(T)) {
        self.waiting -= unit.copies;
        self.waiting_bytes -= unit.bytes;
        for _ in 1..unit.copies {
            out(unit.item.clone());
        }
        out(unit.item);
    }

    fn source(&mut self, address: SocketAddr, now: Instant) -> &mut Source<T> {
        self.sources.entry(address).or_insert(Source { queued: 0, last_due: now, held: None })
    }

    fn forget_if_idle(&mut self, address: SocketAddr) {
        if self.sources.get(&address).is_some_and(|s| s.queued == 0 && s.held.is_none()) {
            self.sources.remove(&address);
        }
    }

    fn push(&mut self, due: Instant, source: SocketAddr, event: Event<T>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.queue.push(Reverse(Entry { due, number, source, event }));
        number
    }
}

#[cfg(test)]
mod tests;
