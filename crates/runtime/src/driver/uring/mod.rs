//! The io_uring engine: operations are submitted to the kernel, and completions taken from it.
//!
//! One turn of the loop: give released buffers back, submit what the tasks queued and wait in
//! the same enter, take the completions, settle the sends. Receives and accepts are multishot,
//! so a connection costs one submission in its life and one completion for each piece of data.
//!
//! Sends are submitted with MSG_DONTWAIT and, where the kernel can, without a completion for
//! success. Such a send is over when the enter that submitted it has returned: either it posted a
//! completion because it was short or failed, or it was sent whole and its buffer is free. The
//! order in `UringDriver::turn` follows from it: completions first, then `settle` treats every
//! quick send that posted no error as done. Since a silent success wakes no task, the enter must
//! not wait while anything waits for one.

mod close;
mod connect;
mod files;
mod listener;
mod lost_events;
mod op;
mod primitives;
mod provided;
mod receive;
mod restrictions;
mod ring;
mod send;
mod stream;
mod udp;
mod wake;

use self::files::Files;
use self::lost_events::LostEvents;
use self::op::Op;
use self::provided::{Groups, STREAMS};
use self::ring::{Completion, Enter, Ring};
use self::stream::Stream;
use self::udp::{RecvOp, SendOp};
use self::wake::WakeWatch;
use super::mmsg::SendBatch;
use super::socket::{self, Sockets};
use crate::config::UringFeatures;
use crate::counters::Counters;
use crate::driver::common::{DriverSetup, InUse};
use crate::slots::{Key, Slots};
use crate::sys;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// Arrivals handled before their tasks run. The state of a connection is then still in the
/// first-level cache when its task runs, with any number of connections.
const PORTION: usize = 32;

/// Queued sends of so much go out in an enter of their own, so that their buffers, which the cache
/// still has, are free again before more data arrives. Less is not worth the system call.
const SPLIT_BYTES_MIN: usize = 128 * 1024;

/// How long teardown waits for cancelled operations on sockets; one that takes longer would be a
/// fault of the kernel.
const SOCKETS_CANCELLED_WITHIN: Duration = Duration::from_secs(5);

type Entry = socket::Entry<Uring>;

/// One worker's ring and the sockets registered with it.
pub(crate) type UringDriver = Sockets<Uring>;

/// One worker's ring, its memory, and its operations.
pub(crate) struct Uring {
    // Dropped in this order: the ring before the memory that it uses.
    ring: Ring,
    groups: Groups,
    /// Memory of sendmmsg(2).
    bursts: SendBatch,
    /// The memory of datagram operations that are with the kernel.
    sends: Slots<Box<SendOp>>,
    receives: Slots<Box<RecvOp>>,
    /// Memory of completed sends, for the next ones.
    #[expect(clippy::vec_box, reason = "they move between here and `sends` without being copied")]
    spare_sends: Vec<Box<SendOp>>,
    files: Files,
    /// Empty between turns, kept for its allocation.
    completions: Vec<Completion>,
    /// Arrivals of the last enters; those before `next_arrival` were handled.
    arrived: Vec<Completion>,
    next_arrival: usize,
    /// Silent quick sends, by stream and serial number, to settle after the enter that takes them.
    quick: Vec<(Key, u32)>,
    /// The same for datagrams, by operation: a key whose operation is gone has posted an error.
    quick_datagrams: Vec<Key>,
    quick_bytes: usize,
    /// Quick sends since the last enter, for `UringOptions::gather`.
    ungathered: u32,
    /// Serial number of the last quick send.
    serial: u32,
    /// Number of this turn.
    turn: u32,
    /// A task waits for a quick send: the next enter must not wait.
    held_up: bool,
    /// Another thread signalled during this turn: the worker has to check its inbox first.
    signalled: bool,
    /// Wakers to call because of what happened outside of a turn.
    woken: Vec<Waker>,
    /// Sockets that may receive again; empty between turns, kept for its allocation.
    fed: Vec<Key>,
    /// Buffers of streams stayed with readers although all tasks ran: new data is copied out of
    /// the pool.
    pressure: bool,
    lost_events: LostEvents,
    features: UringFeatures,
    counters: Arc<Counters>,
    torn_down: bool,
}

impl UringDriver {
    pub(crate) fn new(features: UringFeatures, setup: &DriverSetup) -> io::Result<UringDriver> {
        let ring = Ring::new(&features, setup)?;
        let groups = Groups::new(&ring, &features)?;
        if let Some(uses) = setup.confined {
            restrictions::apply(&ring, uses, &features)?;
        }
        let engine = Uring {
            ring,
            groups,
            sends: Slots::new(),
            receives: Slots::new(),
            bursts: SendBatch::new(),
            spare_sends: Vec::new(),
            files: Files::new(),
            completions: Vec::new(),
            arrived: Vec::new(),
            next_arrival: 0,
            quick: Vec::new(),
            quick_datagrams: Vec::new(),
            quick_bytes: 0,
            ungathered: 0,
            serial: 0,
            turn: 0,
            held_up: false,
            signalled: false,
            woken: Vec::new(),
            fed: Vec::new(),
            pressure: false,
            lost_events: LostEvents::default(),
            features,
            counters: Arc::clone(&setup.counters),
            torn_down: false,
        };
        let mut driver = Sockets::with(engine, setup.linger);
        let wake = Entry::Wake(WakeWatch { eventfd: setup.wake_fd, armed: false });
        let wake = driver.entries.insert(wake);
        driver.arm_wake(wake);
        Ok(driver)
    }

    /// The next arrivals: those of the last enter, a portion at a time, or of a new one (of two
    /// with a split submit).
    pub(crate) fn turn(
        &mut self,
        timeout: Option<Duration>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        self.engine.signalled = false;
        self.engine.turn = self.engine.turn.wrapping_add(1);
        if !self.engine.woken.is_empty() {
            wakes.append(&mut self.engine.woken);
        }
        if !self.has_arrivals() {
            self.return_buffers();
            if self.engine.should_split() {
                // Without collecting: what arrives now would take further buffers, before those
                // that these sends hold are back.
                self.enter_and_settle(Enter::Submit, None, wakes)?;
                self.return_buffers();
            }
            let hurry = self.engine.held_up
                || self.engine.signalled
                || !wakes.is_empty()
                || self.has_arrivals()
                || self.engine.groups.can_feed()
                || self.engine.lost_events.is_due()
                || self.engine.ring.has_completions();
            let how = if hurry { Enter::Collect } else { Enter::Wait };
            self.enter_and_settle(how, timeout, wakes)?;
            if !self.lingering.is_empty() {
                self.expire_lingering();
            }
            if self.engine.lost_events.is_due() {
                self.check_for_lost_events(PORTION);
            }
        }
        self.handle_arrivals(PORTION, wakes);
        Ok(())
    }

    /// True if arrivals wait to be handled, so that `turn` will not enter the kernel.
    #[inline]
    pub(crate) fn has_arrivals(&self) -> bool {
        self.engine.next_arrival < self.engine.arrived.len()
    }

    pub(crate) fn in_use(&self) -> InUse {
        let datagrams = self.engine.sends.len() + self.engine.receives.len();
        InUse {
            sockets: self.entries.len(),
            operations: datagrams + self.engine.files.len(),
            buffers: self.engine.groups.buffers_in_use(),
        }
    }

    #[inline]
    fn handle_arrivals(&mut self, most: usize, wakes: &mut Vec<Waker>) {
        let end = self.engine.arrived.len().min(self.engine.next_arrival.saturating_add(most));
        while self.engine.next_arrival < end {
            let completion = self.engine.arrived[self.engine.next_arrival];
            self.engine.next_arrival += 1;
            self.complete(completion, wakes);
        }
        if self.engine.next_arrival == self.engine.arrived.len() {
            self.engine.arrived.clear();
            self.engine.next_arrival = 0;
        }
    }

    /// Submits queued operations now, and leaves completions for later.
    pub(crate) fn submit(&mut self, wakes: &mut Vec<Waker>) -> io::Result<()> {
        // First, because a receive that is submitted without a buffer ends at once.
        self.return_buffers();
        self.enter_and_settle(Enter::Submit, None, wakes)
    }

    fn enter_and_settle(
        &mut self,
        how: Enter,
        timeout: Option<Duration>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        let quick = (self.engine.quick.len(), self.engine.quick_datagrams.len());
        self.engine.ring.enter(how, timeout)?;
        // Completions below may queue further sends; those belong to the next enter.
        let all_submitted = self.engine.ring.all_submitted();
        let (taken, taken_datagrams) = if all_submitted { quick } else { (0, 0) };
        if all_submitted {
            self.engine.groups.all_submitted();
        }
        self.engine.quick_bytes = 0;
        self.engine.ungathered = 0;
        self.reap(wakes)?;
        self.engine.held_up =
            taken < self.engine.quick.len() || taken_datagrams < self.engine.quick_datagrams.len();
        if taken > 0 {
            self.settle(taken, wakes);
        }
        if taken_datagrams > 0 {
            self.settle_datagrams(taken_datagrams, wakes);
        }
        Ok(())
    }

    /// Takes completions until none is left in the ring or behind it. Arrivals are kept for
    /// `handle_arrivals`; the others are handled at once, because a send has to be known to be
    /// over before its connection's next request is.
    fn reap(&mut self, wakes: &mut Vec<Waker>) -> io::Result<()> {
        loop {
            let mut taken = 0;
            for completion in self.engine.ring.completions() {
                taken += 1;
                if Op::is_arrival(completion.user_data) {
                    self.engine.arrived.push(completion);
                } else {
                    self.engine.completions.push(completion);
                }
            }
            self.engine.counters.completions.add(taken);
            if !self.engine.completions.is_empty() {
                let mut others = std::mem::take(&mut self.engine.completions);
                for completion in others.drain(..) {
                    self.complete(completion, wakes);
                }
                self.engine.completions = others;
            }
            if !self.engine.ring.overflowed() {
                return Ok(());
            }
            // The error of a quick send may be in the kernel's overflow list: fetch that before any
            // send is treated as done.
            self.engine.counters.cq_overflows.add(1);
            self.engine.ring.enter(Enter::Collect, None)?;
        }
    }

    /// Gives released buffers to the kernel, and lets receives that waited for a buffer try again.
    fn return_buffers(&mut self) {
        let in_transit = self.engine.quick.len();
        if !self.engine.groups.need_buffers(in_transit) {
            self.engine.pressure = false;
            return;
        }
        self.engine.pressure = self.engine.groups.publish(in_transit);
        // What arrived and was not handled may have taken the buffers: who is fed then finds none, and
        // waits another round behind all others.
        if self.has_arrivals() || !self.engine.groups.can_feed() {
            return;
        }
        let mut fed = std::mem::take(&mut self.engine.fed);
        self.engine.groups.take_fed(&mut fed);
        for key in fed.drain(..) {
            match self.entries.get_mut(key) {
                Some(Entry::Stream(stream)) => self.engine.start_fed_receive(key, stream),
                Some(Entry::Udp(udp)) => {
                    udp.own.starved = false;
                    self.engine.start_datagrams(key, udp);
                }
                _ => {}
            }
        }
        self.engine.fed = fed;
    }

    #[inline]
    fn complete(&mut self, completion: Completion, wakes: &mut Vec<Waker>) {
        match Op::of(completion.user_data) {
            // Apart from the others because it is on the path of each byte.
            Some(Op::Receive) => self.complete_receive(completion, wakes),
            Some(op) => self.complete_other(op, completion, wakes),
            None => {}
        }
    }

    fn complete_receive(&mut self, completion: Completion, wakes: &mut Vec<Waker>) {
        let key = Key::from_bits(completion.user_data);
        let Completion { result, flags, .. } = completion;
        // First, so that the buffer is accounted for regardless of the bytes. An end of stream usually
        // has no buffer, and must not return one then.
        let piece = self.engine.groups.get(STREAMS).take(flags, result.max(0) as usize);
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        self.engine.on_receive(key, stream, (result, flags), piece, wakes);
        if stream.is_done(self.engine.torn_down) {
            self.entries.remove(key);
        }
    }

    fn complete_other(&mut self, op: Op, completion: Completion, wakes: &mut Vec<Waker>) {
        let key = Key::from_bits(completion.user_data);
        let Completion { result, flags, .. } = completion;
        match op {
            Op::Wake => self.on_wake(key, flags),
            Op::Accept => self.on_accept(key, result, flags, wakes),
            Op::Receive => self.complete_receive(completion, wakes),
            Op::Send => {
                self.on_stream(key, |engine, stream| engine.on_send(key, stream, result, wakes))
            }
            Op::Connect => self.on_stream(key, |_, stream| {
                Uring::on_connect(stream, result, wakes);
                false
            }),
            Op::Writable => self.on_stream(key, |_, stream| {
                stream.own.expected -= 1;
                stream.sending.writable(wakes);
                false
            }),
            Op::ReceiveDatagrams => {
                let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
                self.engine.on_datagrams(key, udp, (result, flags), wakes);
                if udp.is_done() {
                    self.remove_if_done(key);
                }
            }
            Op::ReceiveDatagram => self.on_single_datagram(key, result, wakes),
            Op::SendDatagram => self.on_datagram_sent(key, result, wakes),
            Op::File => self.on_file(key, result, wakes),
            Op::LostEvents => self.engine.on_lost_event_timer(),
            // A close completes only when it fails, and is not expected.
            Op::Close => {}
            Op::Cancel => self.on_bookkeeping(key),
        }
    }

    /// A completion of an operation on a stream: `handle` says whether to close it.
    #[inline]
    fn on_stream(&mut self, key: Key, handle: impl FnOnce(&mut Uring, &mut Stream) -> bool) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        if handle(&mut self.engine, stream) {
            self.abandon(key);
        } else if stream.is_done(self.engine.torn_down) {
            self.entries.remove(key);
        }
    }

    /// Cancels everything and waits for the last completion, so that the kernel holds no pointer
    /// into our memory when it is freed. Operations on files may take `patience`: one that waits
    /// for a filesystem that does not answer cannot be cancelled, and remains until the process
    /// ends.
    fn tear_down(&mut self, patience: Duration, wakes: &mut Vec<Waker>) {
        if std::mem::replace(&mut self.engine.torn_down, true) {
            return;
        }
        for key in self.entries.keys() {
            self.wake_waiters(key, wakes);
            if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
                stream.cut_off();
                stream.sending.fail(libc::ECANCELED, wakes);
            }
            self.cancel_all(key);
        }
        self.abandon_files(wakes);
        // Each turn makes progress or waits for it.
        let began = sys::now();
        while !self.is_drained() {
            let only_files = self.entries.is_empty();
            let most = if only_files { patience } else { SOCKETS_CANCELLED_WITHIN };
            let left = most.saturating_sub(sys::now() - began);
            if left.is_zero() {
                break;
            }
            let how = if self.engine.held_up { Enter::Collect } else { Enter::Wait };
            let wait = left.min(Duration::from_millis(10));
            if self.enter_and_settle(how, Some(wait), wakes).is_err() {
                break;
            }
            self.handle_arrivals(usize::MAX, wakes);
        }
        // Leaking is safer than freeing memory that the kernel may still write to.
        if !self.is_drained() {
            std::mem::forget(std::mem::replace(&mut self.engine.files, Files::new()));
            std::mem::forget(std::mem::replace(&mut self.entries, Slots::new()));
            std::mem::forget(std::mem::replace(&mut self.engine.sends, Slots::new()));
            std::mem::forget(std::mem::replace(&mut self.engine.receives, Slots::new()));
            self.engine.groups.leak();
        }
    }

    /// True when the kernel holds nothing of ours.
    fn is_drained(&self) -> bool {
        self.entries.is_empty() && self.engine.files.is_drained()
    }
}

impl Uring {
    fn should_split(&self) -> bool {
        let sends = self.quick.len() + self.quick_datagrams.len();
        if sends == 0 {
            return false;
        }
        // Sockets without a buffer may wait for those that these sends hold.
        if self.groups.any_starved() {
            return true;
        }
        self.quick_bytes >= SPLIT_BYTES_MIN || self.groups.any_half_used()
    }
}
