//! The io_uring engine: operations are submitted to the kernel, and completions taken from it.
//!
//! One turn of the loop: submit what the tasks queued and wait in the same enter, take the
//! completions, settle the sends, handle what arrived. Released buffers go back when many are out. Receives and accepts are multishot,
//! so a connection costs one submission in its life and one completion for each piece of data.
//!
//! Sends are submitted with MSG_DONTWAIT and, where the kernel can, without a completion for
//! success. Such a send is over when the enter that submitted it has returned: either it posted a
//! completion because it was short or failed, or it was sent whole and its buffer is free. The
//! order in `enter_and_settle` follows from it: completions first, then `settle` frees the buffer of every
//! quick send that posted no error; its stream notices by its number. Since a silent success wakes
//! no task, the enter must not wait while anything waits for one.

mod close;
mod files;
mod listener;
mod lost_events;
mod op;
mod provided;
mod receive;
mod restrictions;
mod ring;
mod send;
mod stream;
mod udp;

pub(super) use self::listener::UringListener;
pub(super) use self::stream::UringStream;
pub(super) use self::udp::UringUdp;

use self::files::PendingRead;
use self::lost_events::LostEvents;
use self::op::Op;
use self::provided::Groups;
use self::ring::{Enter, Ring};
use self::udp::RecvOp;
use super::messages::SendBatch;
use super::sockets::{Sockets, Source};
use super::stream::Stream;
use crate::buf::SendBuf;
use crate::config::UringOptions;
use crate::counters::Counters;
use crate::driver::common::DriverSetup;
use crate::slots::{Key, Slots};
use crate::sys;
use io_uring::cqueue::{self, Entry as Completion};
use io_uring::opcode;
use io_uring::types::Fd;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Arrivals handled before their tasks run. The state of a connection is then still in the
/// first-level cache when its task runs, with any number of connections.
const PORTION: usize = 32;

/// Queued sends of so much go out in an enter of their own, so that their buffers, which the cache
/// still has, are free again before more data arrives. Less is not worth the system call.
const SPLIT_BYTES_MIN: usize = 128 * 1024;

/// How long teardown waits for cancelled operations on sockets; one that takes longer would be a
/// fault of the kernel.
const SOCKETS_CANCELLED_WITHIN: Duration = Duration::from_secs(5);

/// One worker's ring, its memory, and its operations.
pub(crate) struct UringEngine {
    // Dropped in this order: the ring before the memory that it uses.
    ring: Ring,
    groups: Groups,
    bursts: SendBatch,
    /// Receives of datagrams that are with the kernel.
    receives: Slots<Box<RecvOp>>,
    /// Reads of files that are with the kernel, and how many.
    reads: Slots<PendingRead>,
    reads_in_flight: usize,
    /// Completions of the last enters. Of those from `next_arrival` on, the arrivals are to be handled; the others
    /// were. A turn does not wait while there are any: behind it the worker checks its inbox, which may have woken it.
    arrived: Vec<Completion>,
    next_arrival: usize,
    /// The buffers of silent quick sends, to be freed after the enter that takes them.
    quick: Vec<SendBuf>,
    /// The number of the first of them: all before it are over.
    first_quick: u64,
    /// How many of them the kernel has accepted nothing of.
    refused: u64,
    /// Streams that something waits for until their quick send is over.
    awaited: Vec<Key>,
    /// The same as `quick` for datagrams: the socket, and which of its sends.
    quick_datagrams: Vec<(Key, u32)>,
    quick_bytes: usize,
    turn: u32,
    /// Something waits for a quick send: the next enter must not wait.
    pub(super) held_up: bool,
    /// Becomes readable when another thread signals the worker; a poll on it is with the kernel.
    wake_fd: RawFd,
    watches_wakes: bool,
    lost_events: LostEvents,
    features: UringOptions,
    pub(super) counters: Arc<Counters>,
    torn_down: bool,
}

impl UringEngine {
    pub(crate) fn new(features: UringOptions, setup: &DriverSetup) -> io::Result<UringEngine> {
        let ring = Ring::new(&features, setup)?;
        let groups = Groups::new(&ring, &features)?;
        if let Some(uses) = setup.confined {
            restrictions::apply(&ring, uses, &features)?;
        }
        let mut uring = UringEngine {
            ring,
            groups,
            receives: Slots::counted(&setup.counters),
            bursts: SendBatch::new(),
            reads: Slots::counted(&setup.counters),
            reads_in_flight: 0,
            arrived: Vec::new(),
            next_arrival: 0,
            quick: Vec::new(),
            first_quick: 0,
            refused: 0,
            awaited: Vec::new(),
            quick_datagrams: Vec::new(),
            quick_bytes: 0,
            turn: 0,
            held_up: false,
            wake_fd: setup.wake_fd,
            watches_wakes: false,
            lost_events: LostEvents::default(),
            features,
            counters: Arc::clone(&setup.counters),
            torn_down: false,
        };
        uring.watch_wakes();
        Ok(uring)
    }

    /// The next arrivals: those of the last enter, a portion at a time, or of a new one (of two if the
    /// sends go out in one of their own).
    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    pub(crate) fn turn(
        &mut self,
        sockets: &mut Sockets,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.turn = self.turn.wrapping_add(1);
        if self.arrived.is_empty() {
            sockets.round += 1;
            self.counters.buffers_in_use.set(self.groups.buffers_in_use() as u64);
            // Nearly always true: then nothing has to be done before the enter that waits.
            let calm = self.groups.is_calm()
                && self.quick_bytes < SPLIT_BYTES_MIN
                && self.lost_events.due == 0;
            let prepared = if calm { false } else { self.prepare_enter(sockets)? };
            let hurry = prepared
                || self.held_up
                || !sockets.wakes.is_empty()
                || timeout == Some(Duration::ZERO)
                || self.ring.has_completions();
            let how = if hurry { Enter::Collect } else { Enter::Wait };
            self.enter_and_settle(sockets, how, timeout)?;
        }
        self.handle_arrivals(sockets, PORTION);
        Ok(())
    }

    /// Checks for lost events, gives buffers back, and sends what holds many of them, before the enter that
    /// waits. True if that must not wait.
    #[cold]
    fn prepare_enter(&mut self, sockets: &mut Sockets) -> io::Result<bool> {
        if self.lost_events.due > 0 {
            self.check_for_lost_events(sockets, PORTION);
        }
        self.return_buffers(sockets);
        if self.should_split() {
            // Without collecting: what arrives now would take further buffers, before those
            // that these sends hold are back.
            self.enter_now(sockets, Enter::Submit, None)?;
            self.return_buffers(sockets);
        }
        // Sends that were queued meanwhile end silently, and sockets may wait for what they hold.
        let holds_up = !self.quick.is_empty() && self.groups.any_starved();
        let has_work = !self.arrived.is_empty() || self.lost_events.due > 0 || holds_up;
        Ok(has_work || self.groups.can_feed())
    }

    #[inline(always)]
    fn handle_arrivals(&mut self, sockets: &mut Sockets, most: usize) {
        let end = self.next_arrival + most.min(self.arrived.len() - self.next_arrival);
        for at in self.next_arrival..end {
            let arrived = &self.arrived[at];
            let (user_data, result, flags) =
                (arrived.user_data(), arrived.result(), arrived.flags());
            // Apart from the others because it is on the path of each byte.
            if Op::of(user_data) == Op::RECEIVE {
                self.complete_receive(sockets, Key::from_bits(user_data), result, flags);
            } else if Op::is_arrival(user_data) {
                self.complete(sockets, user_data, result, flags);
            }
        }
        self.next_arrival = end;
        if end == self.arrived.len() {
            self.arrived.clear();
            self.next_arrival = 0;
        }
    }

    pub(crate) fn portions_left(&self) -> usize {
        (self.arrived.len() - self.next_arrival).div_ceil(PORTION)
    }

    /// Submits queued operations now, and leaves completions for later.
    #[inline(never)]
    pub(crate) fn submit(&mut self, sockets: &mut Sockets) -> io::Result<()> {
        // First, because a receive that is submitted without a buffer ends at once.
        self.return_buffers(sockets);
        self.enter_now(sockets, Enter::Submit, None)
    }

    /// [`enter_and_settle`](UringEngine::enter_and_settle) for those who seldom need it: one copy, apart from the one
    /// that is laid out in the turn.
    #[inline(never)]
    fn enter_now(
        &mut self,
        sockets: &mut Sockets,
        how: Enter,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.enter_and_settle(sockets, how, timeout)
    }

    #[inline(always)]
    fn enter_and_settle(
        &mut self,
        sockets: &mut Sockets,
        how: Enter,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let (quick, datagrams) = (self.quick.len(), self.quick_datagrams.len());
        self.ring.enter(how, timeout)?;
        let all_submitted = self.ring.all_submitted();
        self.quick_bytes = 0;
        // Completions may queue further sends; those belong to the next enter.
        self.reap(sockets)?;
        if !all_submitted {
            self.held_up = !self.awaited.is_empty() || !self.quick_datagrams.is_empty();
            return Ok(());
        }
        self.held_up = self.quick_datagrams.len() > datagrams;
        if quick > 0 {
            self.settle(sockets, quick);
        }
        self.held_up |= !self.awaited.is_empty();
        if datagrams > 0 {
            self.settle_datagrams(sockets, datagrams);
        }
        Ok(())
    }

    /// Takes completions until none is left in the ring or behind it. Arrivals are left to
    /// `handle_arrivals`; the others are handled at once, because a send has to be known to be
    /// over before its connection's next request is.
    #[inline(always)]
    fn reap(&mut self, sockets: &mut Sockets) -> io::Result<()> {
        loop {
            let before = self.arrived.len();
            self.ring.uring.take_completions(&mut self.arrived);
            let taken = &self.arrived[before..];
            self.counters.completions.add(taken.len() as u64);
            if !taken.iter().all(|taken| Op::is_arrival(taken.user_data())) {
                self.complete_others(sockets, before);
            }
            if !self.ring.uring.overflowed() {
                return Ok(());
            }
            // The error of a quick send may be in the kernel's overflow list: fetch that before any
            // send is treated as done.
            self.counters.cq_overflows.add(1);
            self.ring.enter(Enter::Collect, None)?;
        }
    }

    #[cold]
    fn complete_others(&mut self, sockets: &mut Sockets, from: usize) {
        for at in from..self.arrived.len() {
            let taken = &self.arrived[at];
            let (user_data, result, flags) = (taken.user_data(), taken.result(), taken.flags());
            if !Op::is_arrival(user_data) {
                self.complete(sockets, user_data, result, flags);
            }
        }
    }

    /// Gives released buffers to the kernel, and lets receives that waited for a buffer try again.
    fn return_buffers(&mut self, sockets: &mut Sockets) {
        let in_transit = self.quick.len();
        if !self.groups.need_buffers(in_transit) {
            return;
        }
        self.groups.publish(in_transit);
        // What arrived and was not handled, or was fed before and not submitted, may take the buffers: who is fed
        // then finds none, and waits another round behind all others.
        if !self.arrived.is_empty() || !self.ring.all_submitted() {
            return;
        }
        for key in self.groups.take_fed() {
            match sockets.sources.get_mut(key) {
                Some(Source::Stream(stream)) => self.start_fed_receive(&mut stream.borrow_mut()),
                Some(Source::Udp(udp)) => self.start_fed_datagrams(key, udp),
                _ => {}
            }
        }
    }

    #[inline(never)]
    fn complete(&mut self, sockets: &mut Sockets, user_data: u64, result: i32, flags: u32) {
        let key = Key::from_bits(user_data);
        match Op::of(user_data) {
            Op::WAKE => self.on_wake(flags),
            Op::ACCEPT => self.on_accept(sockets, key, result, flags),
            Op::SEND => self.on_stream(sockets, key, |uring, stream, wakes| {
                uring.on_send(stream, result, wakes)
            }),
            Op::CONNECT => self.on_stream(sockets, key, |_, stream, wakes| {
                stream.uring.expected -= 1;
                stream.uring.connecting = None;
                stream.sending.connected((result < 0).then_some(-result), wakes);
                false
            }),
            Op::WRITABLE => self.on_stream(sockets, key, |_, stream, wakes| {
                stream.uring.expected -= 1;
                stream.sending.writable(wakes);
                false
            }),
            Op::RECEIVE_DATAGRAM => self.on_datagram(sockets, key, (result, flags)),
            Op::SEND_DATAGRAM => self.on_datagram_sent(sockets, key, result),
            Op::FILE => self.on_file(key, result, &mut sockets.wakes),
            Op::LOST_EVENTS => self.on_lost_event_timer(),
            Op::CANCEL => self.on_bookkeeping(sockets, key),
            // A close completes only when it fails, and is not expected. Receives come another way.
            _ => {}
        }
    }

    fn watch_wakes(&mut self) {
        let entry = opcode::PollAdd::new(Fd(self.wake_fd), libc::POLLIN as u32)
            .multi(self.features.multishot)
            .build();
        // SAFETY: a poll names no memory.
        unsafe { self.ring.push(entry.user_data(Op::WAKE.alone())) };
        self.watches_wakes = true;
    }

    fn on_wake(&mut self, flags: u32) {
        if cqueue::more(flags) {
            return;
        }
        self.watches_wakes = false;
        if self.torn_down {
            return;
        }
        // A poll that is armed again reports a level. A signal that arrived after the inbox was
        // emptied (a waker first adds to the inbox and then signals) would end every further
        // wait. Clearing it loses nothing: the worker checks the inbox after this.
        // SAFETY: the worker keeps its eventfd open longer than its driver.
        sys::eventfd_clear(unsafe { BorrowedFd::borrow_raw(self.wake_fd) });
        self.watch_wakes();
    }

    /// A completion of an operation on a stream: `handle` says whether to close it.
    fn on_stream(
        &mut self,
        sockets: &mut Sockets,
        key: Key,
        handle: impl FnOnce(&mut UringEngine, &mut Stream, &mut Vec<Waker>) -> bool,
    ) {
        let Some((stream, wakes)) = sockets.stream(key) else { return };
        let (closes, done) = {
            let stream = &mut *stream.borrow_mut();
            (handle(self, stream, wakes), stream.is_done(self))
        };
        if closes {
            self.abandon(sockets, key);
        } else if done {
            sockets.remove(key);
        }
    }

    /// Cancels everything and waits for the last completion, so that the kernel holds no pointer
    /// into our memory when it is freed. Operations on files may take `patience`: one that waits
    /// for a filesystem that does not answer cannot be cancelled, and remains until the process
    /// ends.
    pub(crate) fn tear_down(&mut self, sockets: &mut Sockets, patience: Duration) {
        if std::mem::replace(&mut self.torn_down, true) {
            return;
        }
        for key in sockets.sources.keys() {
            if let Some((stream, wakes)) = sockets.stream(key) {
                stream.borrow_mut().sending.fail(libc::ECANCELED, wakes);
            }
            self.cancel_all(sockets, key);
        }
        self.cancel_reads(|_| true);
        if self.watches_wakes {
            let cancel = opcode::AsyncCancel::new(Op::WAKE.alone()).build();
            // SAFETY: a cancel names no memory.
            unsafe { self.ring.push_uncounted(cancel) };
        }
        // Each turn makes progress or waits for it.
        let began = Instant::now();
        while !self.is_drained(sockets) {
            let only_files = sockets.sources.is_empty() && !self.watches_wakes;
            let most = if only_files { patience } else { SOCKETS_CANCELLED_WITHIN };
            let left = most.saturating_sub(Instant::now() - began);
            if left.is_zero() {
                break;
            }
            let how = if self.held_up { Enter::Collect } else { Enter::Wait };
            let wait = left.min(Duration::from_millis(10));
            if self.enter_now(sockets, how, Some(wait)).is_err() {
                break;
            }
            self.handle_arrivals(sockets, usize::MAX);
        }
        // Leaking is safer than freeing memory that the kernel may still write to.
        if !self.is_drained(sockets) {
            std::mem::forget(std::mem::take(&mut self.reads));
            std::mem::forget(std::mem::take(&mut sockets.sources));
            std::mem::forget(std::mem::take(&mut self.receives));
            self.groups.leak();
        }
    }

    fn is_drained(&self, sockets: &Sockets) -> bool {
        sockets.sources.is_empty() && !self.watches_wakes && self.reads_in_flight == 0
    }

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
