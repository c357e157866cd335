//! The io_uring engine: operations handed to the kernel, completions taken from it.
//!
//! One turn of the loop: give released buffers back, submit what the tasks queued and wait in
//! the same enter, take the completions, settle the sends. Receives and accepts are multishot,
//! so a connection costs one submission in its life and one completion for each piece of data.
//!
//! Sends are submitted with MSG_DONTWAIT and, where the kernel can, without a completion for
//! success. Such a send is over when the enter that submitted it has returned: either it posted
//! a completion because it was short or failed, or it was sent whole and its buffer is free.
//! The order in `UringDriver::turn` follows from it: completions first, then `settle` treats
//! every quick send that did not complain as done. And since a silent success wakes nobody, the
//! enter must not wait while anything is held up behind one.

mod operations;
mod provided;
mod ring;
mod stream;

use self::provided::Provided;
use self::ring::{Completion, Ring};
use self::stream::{InFlight, Stream};
use super::DriverSetup;
use super::linger::Lingering;
use super::queues::Waiters;
use super::slots::{Key, Slots};
use crate::config::{Split, UringFeatures};
use crate::counters::Counters;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Accepted connections a listener may hold before its multishot accept is cancelled.
const ACCEPTED_MAX: usize = 1024;

/// Queued sends of at least this size on average go out in an enter of their own, so that their
/// buffers are free again before more data arrives.
const SPLIT_BYTES_MIN: usize = 4096;

/// What an operation is; with the key of its slot it forms the user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Op {
    Wake = 1,
    Accept,
    Receive,
    Send,
    Connect,
    Cancel,
    Close,
}

impl Op {
    const ALL: [Op; 7] =
        [Op::Wake, Op::Accept, Op::Receive, Op::Send, Op::Connect, Op::Cancel, Op::Close];

    fn tag(self, key: Key) -> u64 {
        key.to_bits() | (self as u64) << Key::BITS
    }

    fn of(user_data: u64) -> Option<Op> {
        let code = (user_data >> Key::BITS) as usize;
        code.checked_sub(1).and_then(|index| Op::ALL.get(index)).copied()
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly every entry is a stream, and a box would cost each a further cache miss"
)]
enum Entry {
    Wake(WakeWatch),
    Listener(Listener),
    Stream(Stream),
}

/// The poll on the worker's eventfd.
struct WakeWatch {
    eventfd: RawFd,
    armed: bool,
}

struct Listener {
    /// Empty once it was closed.
    socket: Option<OwnedFd>,
    armed: bool,
    again: bool,
    expected: u32,
    closing: bool,
    accepted: VecDeque<io::Result<OwnedFd>>,
    waiters: Waiters,
}

/// One worker's ring and everything registered with it.
pub(crate) struct UringDriver {
    // Dropped in this order: the ring goes before the memory it was given.
    ring: Ring,
    provided: Provided,
    entries: Slots<Entry>,
    completions: Vec<Completion>,
    /// Silent quick sends, by stream and serial number, to settle after the enter that takes them.
    quick: Vec<(Key, u32)>,
    quick_bytes: usize,
    /// Serial number of the last quick send.
    serial: u32,
    /// Number of this turn.
    turn: u32,
    /// Somebody is held up behind a quick send: the next enter must not wait.
    held_up: bool,
    /// Another thread signalled during this turn: the worker has to look at its inbox first.
    signalled: bool,
    /// Streams whose receive found no buffer, and behind them those that asked later.
    starved: Vec<Key>,
    /// Buffers stayed with readers although all tasks ran: new data is copied out of the pool.
    pressure: bool,
    lingering: Lingering,
    features: UringFeatures,
    counters: Arc<Counters>,
    torn_down: bool,
}

impl UringDriver {
    pub(crate) fn new(features: UringFeatures, setup: &DriverSetup) -> io::Result<UringDriver> {
        let ring = Ring::new(&features, Arc::clone(&setup.counters))?;
        let provided = Provided::new(&ring, &features)?;
        let mut driver = UringDriver {
            ring,
            provided,
            entries: Slots::new(),
            completions: Vec::new(),
            quick: Vec::new(),
            quick_bytes: 0,
            serial: 0,
            turn: 0,
            held_up: false,
            signalled: false,
            starved: Vec::new(),
            pressure: false,
            lingering: Lingering::new(setup.linger),
            features,
            counters: Arc::clone(&setup.counters),
            torn_down: false,
        };
        let wake = Entry::Wake(WakeWatch { eventfd: setup.wake_fd, armed: false });
        let wake = driver.entries.insert(wake);
        driver.arm_wake(wake);
        Ok(driver)
    }

    /// One enter (two with a split submit) and everything it brings.
    pub(crate) fn turn(
        &mut self,
        timeout: Option<Duration>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        self.signalled = false;
        self.turn = self.turn.wrapping_add(1);
        self.return_buffers();
        if self.should_split() {
            self.enter_and_settle(false, None, wakes)?;
            self.return_buffers();
        }
        let nothing_to_do = !self.held_up && !self.signalled && wakes.is_empty();
        let wait = nothing_to_do && !self.ring.has_completions();
        self.enter_and_settle(wait, timeout, wakes)?;
        self.expire_lingering();
        Ok(())
    }

    fn enter_and_settle(
        &mut self,
        wait: bool,
        timeout: Option<Duration>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        let quick = self.quick.len();
        self.ring.enter(wait, timeout)?;
        // Completions below may queue further sends; those belong to the next enter.
        let taken = if self.ring.all_submitted() { quick } else { 0 };
        self.reap(wakes)?;
        self.settle(taken, wakes);
        Ok(())
    }

    /// Takes completions until none is left in the ring or behind it.
    fn reap(&mut self, wakes: &mut Vec<Waker>) -> io::Result<()> {
        loop {
            let mut completions = std::mem::take(&mut self.completions);
            self.ring.take_completions(&mut completions);
            self.counters.completions.add(completions.len() as u64);
            for completion in completions.drain(..) {
                self.complete(completion, wakes);
            }
            self.completions = completions;
            if !self.ring.overflowed() {
                return Ok(());
            }
            // A quick send may have complained into the kernel's overflow list: fetch that
            // before any send is taken for done.
            self.counters.cq_overflows.add(1);
            self.ring.enter(false, None)?;
        }
    }

    /// Treats the first `taken` quick sends, which the kernel has run, as sent unless they
    /// complained: then another send is in flight by now, or none.
    fn settle(&mut self, taken: usize, wakes: &mut Vec<Waker>) {
        self.held_up = taken < self.quick.len();
        if taken == 0 {
            return;
        }
        let mut quick = std::mem::take(&mut self.quick);
        self.quick_bytes = 0;
        for (key, serial) in quick.drain(..taken) {
            if let Some(Entry::Stream(stream)) = self.entries.get_mut(key)
                && stream.in_flight.is_silent(serial)
            {
                stream.in_flight = InFlight::None;
                self.counters.sent.add(1);
                self.after_send(key, wakes);
            }
        }
        // `after_send` queued new sends into `self.quick`; keep the larger allocation.
        quick.append(&mut self.quick);
        self.quick = quick;
    }

    fn should_split(&self) -> bool {
        if self.quick.is_empty() {
            return false;
        }
        match self.features.split {
            Split::On => true,
            Split::Off => false,
            Split::Auto => {
                let pool = self.provided.pool();
                self.quick_bytes >= self.quick.len() * SPLIT_BYTES_MIN
                    || pool.available() * 2 < pool.count()
            }
        }
    }

    /// Gives released buffers to the kernel, and those who waited for one another try.
    fn return_buffers(&mut self) {
        self.provided.publish(&mut self.ring);
        let pool = self.provided.pool();
        let in_transit = self.quick.len();
        self.pressure = (pool.available() + in_transit) * 4 < pool.count();
        if !self.starved.is_empty() && self.provided.any_with_kernel() {
            for key in std::mem::take(&mut self.starved) {
                if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
                    stream.receive.starved = false;
                    self.arm_receive(key);
                }
            }
        }
    }

    fn complete(&mut self, completion: Completion, wakes: &mut Vec<Waker>) {
        let Some(op) = Op::of(completion.user_data) else { return };
        let key = Key::from_bits(completion.user_data);
        let Completion { result, flags, .. } = completion;
        match op {
            Op::Wake => self.on_wake(key, flags),
            Op::Accept => self.on_accept(key, result, flags, wakes),
            Op::Receive => self.on_receive(key, result, flags, wakes),
            Op::Send => self.on_send(key, result, wakes),
            Op::Connect => self.on_connect(key, result, wakes),
            // A close that skips success completes only when it fails, and is not expected.
            Op::Close if self.features.skip_success => {}
            Op::Cancel | Op::Close => self.on_bookkeeping(key),
        }
    }

    fn expire_lingering(&mut self) {
        while let Some(key) = self.lingering.pop_expired() {
            if let Some(Entry::Stream(stream)) = self.entries.get(key)
                && stream.socket.is_some()
            {
                self.counters.lingers_expired.add(1);
                stream.cut_off();
                self.abandon(key);
            }
        }
    }

    /// The moment by which `turn` has to run even if nothing happens.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        let entries = &self.entries;
        self.lingering.next_deadline(
            |key| matches!(entries.get(key), Some(Entry::Stream(s)) if s.socket.is_some()),
        )
    }

    /// True while closed streams still send.
    pub(crate) fn is_lingering(&mut self) -> bool {
        self.next_deadline().is_some()
    }

    /// Cancels everything and waits for the last completion, so that the kernel holds no pointer
    /// into our memory when it is freed.
    pub(crate) fn teardown(&mut self) {
        if std::mem::replace(&mut self.torn_down, true) {
            return;
        }
        let mut nobody = Vec::new();
        for key in self.entries.keys() {
            if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
                stream.cut_off();
                stream.queued.fail(libc::ECANCELED, &mut nobody);
            }
            self.cancel_all(key);
        }
        // Each turn makes progress or waits for it; a request that ignores its cancellation this
        // long would be a kernel bug, and then leaking is safer than freeing.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.entries.is_empty() && Instant::now() < deadline {
            let wait = Duration::from_millis(100);
            if self.enter_and_settle(!self.held_up, Some(wait), &mut nobody).is_err() {
                break;
            }
            nobody.clear();
        }
        if !self.entries.is_empty() {
            std::mem::forget(std::mem::replace(&mut self.entries, Slots::new()));
            self.provided.leak();
        }
    }
}

impl Drop for UringDriver {
    fn drop(&mut self) {
        self.teardown();
    }
}
