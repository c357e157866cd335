//! UDP sockets on io_uring.
//!
//! One multishot receive per socket; connected sockets that want no ancillary data use `recv`,
//! all others `recvmsg`, which puts a header, the address and the ancillary data before the
//! payload in the buffer. Without multishot, one single-shot receive is armed again and again.
//!
//! As an option many single-shot receives are kept in flight, each with a buffer of its own, as
//! AsyncUdpTests does it. Each datagram then wakes all of them, and they may complete out of order.
//! One that was woken 128 times for nothing the kernel hands to a worker thread (APOLL_MAX_RETRY),
//! which blocks in it until its turn comes.
//!
//! Sends go out many at a time, each with MSG_DONTWAIT and without a completion for success, and
//! are settled like those of streams: see the module above. The kernel runs the sends of one
//! enter in order. One that finds the send buffer full goes again, waiting, before everything that
//! was not yet with the kernel; but those submitted behind it in the same enter may have got
//! through. Only then are datagrams of one socket reordered.

use super::datagrams::{Memory, RECVMSG_HEADER_BYTES, RecvOp, SendOp, of_multishot};
use super::{Entry, Op, UringDriver};
use crate::buf::Pool;
use crate::datagram::{Datagram, Received, UdpStats};
use crate::driver::closed;
use crate::driver::datagrams::{Outbox, UdpSetup, count_received, is_icmp_error};
use crate::driver::queues::Waiters;
use crate::driver::slots::Key;
use crate::sys::datagram::empty_header;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Datagrams a socket may hold received and unread before its receive is paused, and never more
/// than half of its buffers.
const RECEIVED_MAX: usize = 4096;
/// Buffers that one pool can have.
const POOL_COUNT_MAX: u32 = 1 << 15;
/// Memory of finished sends kept for the next ones, by number of datagrams.
const SPARE_SENDS_MAX: usize = 4096;

/// A destination for the trial of IORING_OP_SEND with an address: nothing is sent to it.
static TRIAL_ADDRESS: [u8; 16] =
    [libc::AF_INET as u8, 0, 0, 9, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];

pub(super) struct Udp {
    /// Empty once the close was submitted.
    pub(super) socket: Option<OwnedFd>,
    setup: UdpSetup,
    /// Completions still to come, those of sends aside: one for each armed receive, each cancel,
    /// and a close that reports.
    pub(super) expected: u32,
    /// The program has closed its end; what it handed over is still being sent.
    pub(super) closing: bool,
    memory: Memory,
    multishot: bool,
    /// What a multishot recvmsg is told: the lengths to reserve.
    template: Box<libc::msghdr>,
    /// Single-shot receives: their memory.
    singles: Vec<Key>,
    /// Receives with the kernel.
    armed: u32,
    again: bool,
    /// No buffer was left; armed again when one returns.
    pub(super) starved: bool,
    /// Enough is unread; armed again when the program has read it.
    paused: bool,
    received: VecDeque<Received>,
    received_max: usize,
    receive_error: Option<i32>,
    receive_waiters: Waiters,
    pub(super) outbox: Outbox,
    /// Sends with the kernel, and those among them that succeed silently.
    in_flight: u32,
    silent: u32,
    /// The send buffer was full: the next send waits for room.
    blocked: bool,
    /// The send that waits for room.
    waiting: Option<Key>,
    stats: UdpStats,
}

impl Udp {
    pub(super) fn wake_waiters(&mut self, wakes: &mut Vec<Waker>) {
        self.receive_waiters.wake(wakes);
        self.outbox.waiters.wake(wakes);
    }

    /// True while a closed socket still has datagrams to send.
    pub(super) fn must_linger(&self) -> bool {
        !self.outbox.is_settled()
    }

    /// As [`Stream::is_held_up`](super::stream::Stream::is_held_up).
    pub(super) fn is_held_up(&self) -> bool {
        let somebody_waits =
            self.closing || !self.outbox.is_empty() || !self.outbox.waiters.is_empty();
        self.silent > 0 && somebody_waits
    }

    /// True when the kernel has nothing of a closed socket any more.
    pub(super) fn is_done(&self, torn_down: bool) -> bool {
        let closed = self.socket.is_none() || torn_down;
        self.closing && closed && self.expected == 0 && self.in_flight == 0
    }

    pub(super) fn single_receives(&self) -> &[Key] {
        &self.singles
    }

    /// True while no receive may be handed to the kernel.
    fn rests(&self) -> bool {
        self.closing || self.starved || self.paused || self.receive_error.is_some()
    }
}

impl UringDriver {
    pub(crate) fn add_udp(&mut self, socket: OwnedFd, setup: UdpSetup) -> io::Result<Key> {
        let multishot = self.features.multishot && setup.pending == 0;
        let (name_bytes, control_bytes) = setup.name_and_control_bytes();
        let memory = if setup.pending > 0 {
            // Beside those in flight as many as others may be read.
            let count = (setup.pending + u32::from(setup.buffer_count)).min(POOL_COUNT_MAX);
            let bytes = setup.buffer_bytes.next_multiple_of(64);
            Memory::Own(Rc::new(Pool::new(count as u16, bytes)?))
        } else {
            let header_bytes = match multishot && !setup.is_plain() {
                true => RECVMSG_HEADER_BYTES + name_bytes + control_bytes,
                false => 0,
            };
            let bytes = header_bytes + setup.buffer_bytes;
            Memory::Group(self.groups.for_datagrams(&self.ring, setup.buffer_count, bytes)?)
        };
        self.try_send_address();
        let mut template = Box::new(empty_header());
        template.msg_namelen = name_bytes as libc::socklen_t;
        template.msg_controllen = control_bytes as _;
        let udp = Box::new(Udp {
            socket: Some(socket),
            expected: 0,
            closing: false,
            memory,
            multishot,
            template,
            singles: Vec::new(),
            armed: 0,
            again: false,
            starved: false,
            paused: false,
            received: VecDeque::new(),
            received_max: RECEIVED_MAX.min(usize::from(setup.buffer_count) / 2).max(1),
            receive_error: None,
            receive_waiters: Waiters::default(),
            outbox: Outbox::new(setup.segmentation),
            in_flight: 0,
            silent: 0,
            blocked: false,
            waiting: None,
            stats: UdpStats::default(),
            setup,
        });
        Ok(self.entries.insert(Entry::Udp(udp)))
    }

    /// Finds out, once, whether IORING_OP_SEND takes a destination (Linux 6.0); until that is
    /// known IORING_OP_SENDMSG carries it.
    fn try_send_address(&mut self) {
        if self.send_address.is_none() {
            self.send_address = Some(false);
            let entry = opcode::Send::new(Fd(-1), TRIAL_ADDRESS.as_ptr(), 0)
                .dest_addr(TRIAL_ADDRESS.as_ptr().cast())
                .dest_addr_len(TRIAL_ADDRESS.len() as u32)
                .build();
            let nobody = Key::from_bits(0);
            self.ring.push(entry.user_data(Op::SendAddressTrial.tag(nobody)));
        }
    }

    pub(crate) fn udp_stats(&self, key: Key) -> Option<UdpStats> {
        match self.entries.get(key)? {
            Entry::Udp(udp) => Some(udp.stats),
            _ => None,
        }
    }
}

/// Receiving.
impl UringDriver {
    pub(crate) fn poll_recv_batch(
        &mut self,
        key: Key,
        cx: &mut Context<'_>,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        if !udp.received.is_empty() {
            let count = udp.received.len().min(most);
            into.extend(udp.received.drain(..count));
            if udp.paused && udp.received.is_empty() {
                udp.paused = false;
                self.arm_datagrams(key);
            }
            return Poll::Ready(Ok(count));
        }
        if let Some(errno) = udp.receive_error.take() {
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
        }
        udp.receive_waiters.add(cx.waker());
        self.arm_datagrams(key);
        Poll::Pending
    }

    /// Hands as many receives to the kernel as there should be, unless it must not have any now.
    pub(super) fn arm_datagrams(&mut self, key: Key) {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        let Some(socket) = udp.socket.as_ref().filter(|_| !udp.rests()) else { return };
        let fd = Fd(socket.as_raw_fd());
        if udp.multishot {
            if udp.armed == 0
                && let Memory::Group(group) = udp.memory
            {
                let entry = if udp.setup.is_plain() {
                    // MSG_TRUNC makes the kernel tell the whole length of what it cuts.
                    opcode::RecvMulti::new(fd, group).flags(libc::MSG_TRUNC).build()
                } else {
                    opcode::RecvMsgMulti::new(fd, &*udp.template, group).build()
                };
                udp.armed = 1;
                udp.expected += 1;
                if std::mem::replace(&mut udp.again, true) {
                    self.counters.rearms.add(1);
                }
                self.ring.push(entry.user_data(Op::ReceiveDatagrams.tag(key)));
            }
            return;
        }
        let wanted = udp.setup.pending.max(1);
        if udp.armed == wanted {
            return;
        }
        while (udp.singles.len() as u32) < wanted {
            udp.singles.push(self.receives.insert(RecvOp::new(key)));
        }
        for single in &udp.singles {
            if let Some(receive) = self.receives.get_mut(*single)
                && !receive.armed
                && let Some(entry) = receive.start(fd, &udp.setup, &udp.memory)
            {
                udp.armed += 1;
                udp.expected += 1;
                self.ring.push(entry.user_data(Op::ReceiveDatagram.tag(*single)));
            }
        }
    }

    /// A completion of a multishot receive.
    pub(super) fn on_datagrams(
        &mut self,
        key: Key,
        result: i32,
        flags: u32,
        wakes: &mut Vec<Waker>,
    ) {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        let Memory::Group(group) = udp.memory else { return };
        let group = self.groups.get(group);
        let outcome = of_multishot(group, result, flags, &udp.template, &udp.setup);
        let ended = !cqueue::more(flags);
        if ended {
            udp.armed -= 1;
            udp.expected -= 1;
        }
        self.deliver_datagram(key, outcome, wakes);
        if ended {
            self.arm_datagrams(key);
            self.remove_if_done(key);
        }
    }

    /// The completion of a single-shot receive.
    pub(super) fn on_single_datagram(
        &mut self,
        single: Key,
        result: i32,
        flags: u32,
        wakes: &mut Vec<Waker>,
    ) {
        let Some(receive) = self.receives.get_mut(single) else { return };
        let key = receive.socket;
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        let groups = &mut self.groups;
        let outcome = receive.finish(result, flags, &udp.setup, &udp.memory, groups);
        udp.armed -= 1;
        udp.expected -= 1;
        self.deliver_datagram(key, outcome, wakes);
        // Only this one: the others are armed, or wait for the program to read.
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        if let Some(socket) = udp.socket.as_ref().filter(|_| !udp.rests())
            && let Some(receive) = self.receives.get_mut(single)
            && let Some(entry) = receive.start(Fd(socket.as_raw_fd()), &udp.setup, &udp.memory)
        {
            udp.armed += 1;
            udp.expected += 1;
            self.ring.push(entry.user_data(Op::ReceiveDatagram.tag(single)));
        }
        self.remove_if_done(key);
    }

    fn deliver_datagram(
        &mut self,
        key: Key,
        outcome: Result<Received, i32>,
        wakes: &mut Vec<Waker>,
    ) {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        match outcome {
            Ok(_) if udp.closing => {}
            Ok(mut received) => {
                self.counters.received.add(1);
                count_received(&mut udp.stats, &received);
                let low = match &udp.memory {
                    Memory::Group(group) => self.groups.get(*group).is_low(),
                    Memory::Own(pool) => pool.released() == 0,
                };
                if low {
                    self.counters.copied_out.add(1);
                    received.data = received.data.detach();
                }
                udp.received.push_back(received);
                udp.receive_waiters.wake(wakes);
                if udp.received.len() >= udp.received_max && !udp.paused {
                    udp.paused = true;
                    self.counters.pauses.add(1);
                    if udp.multishot && udp.armed > 0 {
                        udp.expected += 1;
                        self.push_cancel(key, Op::ReceiveDatagrams);
                    }
                }
            }
            Err(libc::ENOBUFS) => {
                self.counters.enobufs.add(1);
                if let Memory::Group(group) = udp.memory
                    && !udp.closing
                    && !std::mem::replace(&mut udp.starved, true)
                {
                    self.groups.get(group).starved.push(key);
                }
            }
            // Ours: the receive was paused, or the socket is closing. (EINTR: one that had got
            // into a worker thread.)
            Err(libc::ECANCELED | libc::EINTR) => {}
            Err(errno) if is_icmp_error(errno) => udp.stats.icmp_errors += 1,
            Err(errno) => {
                udp.stats.receive_errors += 1;
                udp.receive_error = Some(errno);
                udp.receive_waiters.wake(wakes);
            }
        }
    }
}

/// Sending.
impl UringDriver {
    pub(crate) fn poll_send_batch(
        &mut self,
        key: Key,
        cx: &mut Context<'_>,
        batch: &mut Vec<Datagram>,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        udp.outbox.take(batch);
        let waits = !batch.is_empty();
        if waits {
            udp.outbox.waiters.add(cx.waker());
        }
        self.send_datagrams(key);
        if waits { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    pub(crate) fn poll_datagrams_sent(
        &mut self,
        key: Key,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        let polled = udp.outbox.poll_settled(cx);
        self.held_up |= udp.is_held_up();
        polled.map(Ok)
    }

    /// Submits what is queued, unless earlier datagrams have to go first.
    fn send_datagrams(&mut self, key: Key) {
        // A submission thread would run the send at a time we do not learn, so there every send
        // has to complete.
        let can_be_silent = self.features.skip_success && self.features.sqpoll_idle_ms == 0;
        let send_address = self.send_address == Some(true);
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        let Some(socket) = &udp.socket else { return };
        let fd = Fd(socket.as_raw_fd());
        while udp.waiting.is_none() && (udp.in_flight == 0 || !udp.outbox.has_refused()) {
            let Some(outgoing) = udp.outbox.pop() else { break };
            let must_wait = std::mem::take(&mut udp.blocked);
            let flags = libc::MSG_NOSIGNAL | if must_wait { 0 } else { libc::MSG_DONTWAIT };
            let mut send = self.spare_sends.pop().unwrap_or_else(|| SendOp::new(key));
            self.quick_bytes += outgoing.datagram.data.len();
            let entry = send.start(fd, outgoing, &udp.setup, send_address, flags);
            send.socket = key;
            send.silent = can_be_silent && !must_wait;
            let silent = send.silent;
            let send = self.sends.insert(send);
            udp.in_flight += 1;
            let entry = if silent {
                udp.silent += 1;
                self.quick_datagrams.push(send);
                entry.flags(Flags::SKIP_SUCCESS)
            } else {
                entry
            };
            if must_wait {
                udp.waiting = Some(send);
            }
            self.ring.push(entry.user_data(Op::SendDatagram.tag(send)));
        }
        self.held_up |= udp.is_held_up();
    }

    /// Treats the first `taken` silent sends, which the kernel has run, as sent unless they
    /// complained: then their operation is gone.
    pub(super) fn settle_datagrams(&mut self, taken: usize, wakes: &mut Vec<Waker>) {
        if taken == 0 {
            return;
        }
        let mut quick = std::mem::take(&mut self.quick_datagrams);
        for send in quick.drain(..taken) {
            self.on_datagram_sent(send, 0, wakes);
        }
        // New sends were queued meanwhile; keep the larger allocation.
        quick.append(&mut self.quick_datagrams);
        self.quick_datagrams = quick;
    }

    /// A send is over: by its completion, or settled.
    pub(super) fn on_datagram_sent(&mut self, send: Key, result: i32, wakes: &mut Vec<Waker>) {
        let Some(mut op) = self.sends.remove(send) else { return };
        let key = op.socket;
        let outgoing = op.finish();
        if let (Some(Entry::Udp(udp)), Some(outgoing)) = (self.entries.get_mut(key), outgoing) {
            udp.in_flight -= 1;
            udp.silent -= u32::from(op.silent);
            udp.waiting = udp.waiting.filter(|waiting| *waiting != send);
            match -result {
                errno if errno <= 0 => {
                    self.counters.sent.add(1);
                    udp.outbox.sent(&outgoing, &mut udp.stats);
                }
                // Before Linux 5.12 the address was ignored.
                libc::EDESTADDRREQ if op.addressed => {
                    self.send_address = Some(false);
                    udp.outbox.requeue(outgoing);
                }
                errno => {
                    if errno == libc::EAGAIN {
                        self.counters.eagain.add(1);
                        udp.blocked = true;
                    }
                    udp.outbox.refuse(outgoing, errno, &mut udp.stats);
                }
            }
            if udp.in_flight == 0 {
                self.after_datagrams(key, wakes);
            }
        }
        if self.spare_sends.len() < SPARE_SENDS_MAX {
            self.spare_sends.push(op);
        }
    }

    /// All sends in flight are over: the next, or the close, and whoever waits.
    fn after_datagrams(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        if udp.outbox.has_room() {
            udp.outbox.waiters.wake(wakes);
        }
        if udp.outbox.is_empty() {
            self.close_if_flushed(key);
            self.remove_if_done(key);
        } else {
            self.send_datagrams(key);
        }
    }

    pub(super) fn cancel_all_of_udp(&mut self, key: Key) {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        udp.closing = true;
        udp.received.clear();
        udp.outbox.give_up();
        let mut cancels = Vec::new();
        if udp.multishot && udp.armed > 0 {
            cancels.push(Op::ReceiveDatagrams.tag(key));
        }
        let armed = udp
            .singles
            .iter()
            .filter(|single| self.receives.get(**single).is_some_and(|receive| receive.armed));
        cancels.extend(armed.map(|single| Op::ReceiveDatagram.tag(*single)));
        cancels.extend(udp.waiting.map(|send| Op::SendDatagram.tag(send)));
        udp.expected += cancels.len() as u32;
        cancels.into_iter().for_each(|operation| self.push_cancel_of(key, operation));
        self.remove_if_done(key);
    }
}
