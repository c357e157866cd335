//! UDP sockets on io_uring.
//!
//! One multishot receive per socket: connected sockets that want no ancillary data use `recv`,
//! all others `recvmsg`, which puts a header, the address and the ancillary data before the
//! payload in the buffer.
//!
//! As an option, and without multishot, single-shot receives are kept in flight, as AsyncUdpTests does it.
//! Each datagram then wakes all of them, and they may complete out of order. One that was woken 128 times
//! for nothing the kernel hands to a worker thread (APOLL_MAX_RETRY), which takes a buffer and blocks in it
//! until its turn comes.
//!
//! Several datagrams that wait go out by sendmmsg(2), which costs less than an operation for each (at
//! 200,000 packets/s of 172 bytes, both CPUs per packet: 4.3 us against 4.8). A single one goes out with
//! the next enter, together with those of other sockets, with MSG_DONTWAIT and without a completion for
//! success, and is settled like those of streams: see the module above. If it finds the send buffer
//! full it goes again, waiting. Nothing else of its socket is with the kernel meanwhile, so nothing can
//! overtake it.
//!
//! The memory of an operation must stay in place and unchanged while the kernel has the operation, so
//! it is in boxes: that of the send is the socket's, which stays until its last completion, that of
//! receives is in a table.

use super::{Op, UringEngine};
use crate::buf::RecvBuf;
use crate::datagram::Received;
use crate::driver::messages::{RecvMemory, SendMemory};
use crate::driver::sockets::{Sockets, Source};
use crate::driver::udp::{Outgoing, Udp, UdpSetup, is_icmp_error};
use crate::slots::Key;
use crate::sys::datagram::empty_header;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{CancelBuilder, Fd, RecvMsgOut};
use io_uring::{cqueue, opcode};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::task::Waker;

/// Datagrams a socket may hold received and unread before its receive is paused, and never more
/// than half of its buffers. What one turn of the driver delivers comes on top.
const UNREAD_MAX: usize = 4096;
/// The same for the bytes of their buffers, each of which may be in memory for ever after.
const UNREAD_BYTES_MAX: usize = 2 << 20;

/// Bytes that a multishot recvmsg puts before address, ancillary data and payload:
/// `struct io_uring_recvmsg_out`.
const RECVMSG_HEADER_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Receive {
    /// Receives are with the kernel, or will be when a task waits.
    #[default]
    Open,
    /// Enough is unread. Open when all of it was read.
    Paused,
    /// No buffer was left, and no receive is with the kernel. Open when a buffer returns.
    Starved,
    /// With this errno. Open when it was reported.
    Failed(i32),
    /// Closed and cancelled: the slot is free after the last completion.
    Closed,
}

pub(crate) struct UringUdp {
    receive: Receive,
    /// Receives with the kernel, and the operation of the last one.
    armed: u32,
    last: Key,
    /// Cancels of which a completion is still to come.
    pub(super) cancels: u32,
    unread: VecDeque<Received>,
    unread_max: usize,
    /// The driver's turn in which the oldest of them arrived.
    oldest_turn: u32,
    send: Box<SendOp>,
}

pub(super) struct RecvOp {
    socket: Key,
    memory: RecvMemory,
    header: libc::msghdr,
}

/// The one send of a socket that the ring may have.
struct SendOp {
    /// Empty when the kernel has none.
    outgoing: Option<Outgoing>,
    /// It posts no completion when it succeeds.
    silent: bool,
    /// Counts the sends of the socket.
    number: u32,
    memory: SendMemory,
    header: libc::msghdr,
}

impl SendOp {
    /// Takes `outgoing` and describes its send. The entry refers to memory of this box and of the
    /// datagram: both stay unchanged until `outgoing` is taken out.
    fn start(&mut self, fd: Fd, outgoing: Outgoing, setup: &UdpSetup, flags: i32) -> Entry {
        self.number = self.number.wrapping_add(1);
        let datagram = &self.outgoing.insert(outgoing).datagram;
        let header = &mut self.header;
        self.memory.describe(header, datagram, setup);
        if !header.msg_control.is_null() {
            return opcode::SendMsg::new(fd, header).flags(flags as u32).build();
        }
        let bytes = datagram.data.as_slice();
        // A longer one is too long for UDP as well: the kernel refuses it.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let send = opcode::Send::new(fd, bytes.as_ptr(), length).flags(flags);
        send.dest_addr(header.msg_name.cast()).dest_addr_len(header.msg_namelen).build()
    }
}

impl UringUdp {
    pub(in crate::driver) fn new(setup: &UdpSetup) -> UringUdp {
        let (memory, header) = (SendMemory::new(), empty_header());
        UringUdp {
            receive: Receive::Open,
            armed: 0,
            last: Key::from_bits(0),
            cancels: 0,
            unread: VecDeque::new(),
            unread_max: (setup.options.buffer_count as usize / 2)
                .min(UNREAD_MAX)
                .min(UNREAD_BYTES_MAX / setup.buffer_bytes())
                .max(1),
            oldest_turn: 0,
            send: Box::new(SendOp { outgoing: None, silent: false, number: 0, memory, header }),
        }
    }

    pub(in crate::driver) fn is_sending(&self) -> bool {
        self.send.outgoing.is_some()
    }
}

impl Udp {
    /// True if somebody waits for a send whose success wakes nobody: then the enter must not wait.
    pub(in crate::driver) fn is_held_up(&self) -> bool {
        let somebody_waits =
            self.outbox.closing || !self.outbox.is_empty() || !self.outbox.waiters.is_empty();
        self.uring.is_sending() && self.uring.send.silent && somebody_waits
    }

    /// True when the kernel has nothing of a closed socket any more.
    pub(super) fn is_done(&self) -> bool {
        let UringUdp { receive, armed, cancels, .. } = self.uring;
        receive == Receive::Closed && armed == 0 && cancels == 0 && !self.uring.is_sending()
    }

    /// True unless no receive may be handed to the kernel.
    fn may_receive(&self) -> bool {
        self.uring.receive == Receive::Open && !self.outbox.closing
    }

    /// The datagram of `bytes` bytes that a receive has put into a buffer. `None` if its sender cannot be
    /// read.
    fn read(&self, receive: &RecvOp, bytes: usize, mut data: RecvBuf) -> Option<Received> {
        let (setup, RecvOp { memory, header, .. }) = (&self.setup, receive);
        let truncated = bytes > setup.buffer_bytes();
        if setup.options.pending > 0 {
            return memory.received(header, data, truncated, setup);
        }
        if setup.is_plain() {
            return setup.received(data, &[], &[], truncated);
        }
        let message = RecvMsgOut::parse(&data, header).ok()?;
        let (name, control) = (message.name_data(), message.control_data());
        let truncated = message.is_payload_truncated();
        let received = setup.received(RecvBuf::empty(), name, control, truncated)?;
        let payload_bytes = message.payload_data().len();
        data.advance(setup.bytes_before_payload());
        data.truncate(payload_bytes);
        Some(Received { data, ..received })
    }
}

impl UdpSetup {
    /// Bytes of its buffer that a multishot receive does not use for the payload.
    fn bytes_before_payload(&self) -> usize {
        let (name_bytes, control_bytes) = self.name_and_control_bytes();
        if self.is_plain() { 0 } else { RECVMSG_HEADER_BYTES + name_bytes + control_bytes }
    }
}

impl UringEngine {
    pub(in crate::driver) fn add_udp(
        &mut self,
        sockets: &mut Sockets,
        socket: OwnedFd,
        mut setup: UdpSetup,
    ) -> io::Result<Key> {
        let options = &mut setup.options;
        if !self.features.multishot {
            options.pending = options.pending.max(1);
        }
        let (count, pending) = (options.buffer_count, options.pending);
        let before_payload = if pending > 0 { 0 } else { setup.bytes_before_payload() };
        let bytes = before_payload + setup.buffer_bytes();
        let group = self.groups.for_datagrams(&self.ring, count, bytes, pending)?;
        Ok(sockets.sources.insert(Source::Udp(Udp::new(socket, setup, group))))
    }

    /// Drops what the socket holds, and cancels what the kernel has of it.
    pub(super) fn cancel_all_of_udp(&mut self, key: Key, udp: &mut Udp) {
        udp.outbox.closing = true;
        udp.uring.receive = Receive::Closed;
        udp.uring.unread.clear();
        udp.outbox.give_up();
        if udp.uring.is_sending() && !udp.uring.send.silent {
            udp.uring.cancels += 1;
            self.push_cancel(key, Op::SEND_DATAGRAM);
        }
        self.cancel_receives(key, udp);
    }

    fn cancel_receives(&mut self, key: Key, udp: &mut Udp) {
        let Some(fd) = udp.fd().filter(|_| udp.uring.armed > 0) else { return };
        let cancel = match udp.setup.options.pending {
            0 => opcode::AsyncCancel::new(Op::RECEIVE_DATAGRAM.tag(udp.uring.last)).build(),
            // All at once. The kernel goes through all that the ring has for that.
            _ => opcode::AsyncCancel2::new(CancelBuilder::fd(Fd(fd)).all()).build(),
        };
        udp.uring.cancels += 1;
        // SAFETY: a cancel names no memory.
        unsafe { self.ring.push(cancel.user_data(Op::CANCEL.tag(key))) };
    }

    pub(in crate::driver) fn take_datagrams(
        &mut self,
        key: Key,
        udp: &mut Udp,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Option<io::Result<usize>> {
        let UringUdp { unread, receive, .. } = &mut udp.uring;
        if unread.is_empty() {
            let Receive::Failed(errno) = *receive else { return None };
            *receive = Receive::Open;
            return Some(Err(io::Error::from_raw_os_error(errno)));
        }
        let count = unread.len().min(most);
        into.extend(unread.drain(..count));
        if unread.is_empty() && *receive == Receive::Paused {
            *receive = Receive::Open;
            self.arm_datagrams(key, udp);
        }
        Some(Ok(count))
    }

    /// Starts receives, or queues for a buffer if others do, as in `arm_receive`.
    pub(in crate::driver) fn arm_datagrams(&mut self, key: Key, udp: &mut Udp) {
        if udp.uring.armed == 0 && !self.groups.get(udp.group).starved.is_empty() {
            self.wait_for_datagram_buffer(key, udp);
        } else {
            self.start_datagrams(key, udp);
        }
    }

    fn wait_for_datagram_buffer(&mut self, key: Key, udp: &mut Udp) {
        debug_assert_eq!(udp.uring.armed, 0);
        if udp.may_receive() {
            udp.uring.receive = Receive::Starved;
            self.groups.get(udp.group).starved.push(key, false);
        }
    }

    /// Starts receives of a socket that had to wait for a buffer.
    pub(super) fn start_fed_datagrams(&mut self, key: Key, udp: &mut Udp) {
        if udp.uring.receive == Receive::Starved {
            udp.uring.receive = Receive::Open;
            self.start_datagrams(key, udp);
        }
    }

    /// Submits as many receives as there should be, unless there must be none now.
    fn start_datagrams(&mut self, key: Key, udp: &mut Udp) {
        let Some(fd) = udp.fd().filter(|_| udp.may_receive()).map(Fd) else { return };
        let (setup, group) = (&udp.setup, self.groups.get(udp.group).number);
        let pending = setup.options.pending;
        while udp.uring.armed < pending.max(1) {
            let (memory, header) = (RecvMemory::new(), empty_header());
            let mut receive = Box::new(RecvOp { socket: key, memory, header });
            let RecvOp { memory, header, .. } = &mut *receive;
            memory.describe(header, null_mut(), setup);
            if pending == 0 {
                // As much as the buffer has.
                header.msg_iovlen = 0;
            }
            // MSG_TRUNC makes the kernel report the whole length of a datagram that it cuts.
            let entry = if pending > 0 {
                let entry = opcode::RecvMsg::new(fd, header).flags(libc::MSG_TRUNC as u32);
                entry.buf_group(group).build().flags(Flags::BUFFER_SELECT)
            } else if setup.is_plain() {
                opcode::RecvMulti::new(fd, group).flags(libc::MSG_TRUNC).build()
            } else {
                opcode::RecvMsgMulti::new(fd, header, group).build()
            };
            udp.uring.armed += 1;
            udp.uring.last = self.receives.insert(receive);
            let entry = entry.user_data(Op::RECEIVE_DATAGRAM.tag(udp.uring.last));
            // SAFETY: the kernel takes buffers from the group, which outlives the ring; the other memory is
            // boxed in `receives` until the last completion.
            unsafe { self.ring.push(entry) };
        }
    }

    pub(super) fn on_datagram(
        &mut self,
        sockets: &mut Sockets,
        receive: Key,
        (result, flags): (i32, u32),
    ) {
        let Some(op) = self.receives.get(receive) else { return };
        let key = op.socket;
        let Some((udp, wakes)) = sockets.udp(key) else { return };
        let ended = !cqueue::more(flags);
        udp.uring.armed -= u32::from(ended);
        let (group, bytes) = (self.groups.get(udp.group), result.max(0) as usize);
        let filled = bytes.min(group.bytes);
        // First, because a receive that ran in a worker thread takes a buffer even if it fails. An empty
        // datagram may take none.
        let buffer = group.filled(flags, filled);
        let data = buffer.map_or_else(RecvBuf::empty, |id| group.reader(id, filled));
        let received = match result {
            0.. => Ok(udp.read(op, bytes, data)),
            error => Err(-error),
        };
        if ended {
            self.receives.remove(receive);
        }
        match received {
            _ if udp.outbox.closing => {}
            Ok(Some(received)) => self.deliver_datagram(key, udp, received, wakes),
            Ok(None) => udp.stats.receive_errors += 1,
            Err(libc::ENOBUFS) => {
                self.counters.enobufs.add(1);
                // Otherwise the next datagram starts it again: before, it would find no buffer either.
                if udp.uring.armed == 0 {
                    self.wait_for_datagram_buffer(key, udp);
                }
                return;
            }
            // Ours: the receive was paused. (EINTR: one that ran in a worker thread.)
            Err(libc::ECANCELED | libc::EINTR) => {}
            Err(errno) if is_icmp_error(errno) => udp.stats.icmp_errors += 1,
            Err(errno) => {
                udp.stats.receive_errors += 1;
                udp.uring.receive = Receive::Failed(errno);
                udp.receive_waiters.wake(wakes);
            }
        }
        if ended {
            self.arm_datagrams(key, udp);
            self.remove_if_done(sockets, key);
        }
    }

    fn deliver_datagram(
        &mut self,
        key: Key,
        udp: &mut Udp,
        mut received: Received,
        wakes: &mut Vec<Waker>,
    ) {
        self.counters.received.add(1);
        udp.stats.count_received(&received);
        if self.groups.get(udp.group).is_low() {
            self.counters.copied_out.add(1);
            received.data = received.data.detach();
        }
        let uring = &mut udp.uring;
        if uring.unread.is_empty() {
            uring.oldest_turn = self.turn;
        }
        uring.unread.push_back(received);
        udp.receive_waiters.wake(wakes);
        // A large batch that has just arrived does not mean that the reader is slow.
        let had_a_turn = uring.oldest_turn != self.turn;
        let is_full = uring.unread.len() >= uring.unread_max && had_a_turn;
        if is_full && uring.receive == Receive::Open {
            uring.receive = Receive::Paused;
            self.counters.pauses.add(1);
            // Single-shot ones end by themselves; to cancel them all would also cancel a send that waits.
            if udp.setup.options.pending == 0 {
                self.cancel_receives(key, udp);
            }
        }
    }

    /// Treats the first `taken` silent sends, which the kernel has run, as sent unless they posted
    /// an error: then they are over, and another one may have begun.
    pub(super) fn settle_datagrams(&mut self, sockets: &mut Sockets, taken: usize) {
        let mut quick = std::mem::take(&mut self.quick_datagrams);
        for (key, number) in quick.drain(..taken) {
            if sockets.udp(key).is_some_and(|(udp, _)| udp.uring.send.number == number) {
                self.on_datagram_sent(sockets, key, 0);
            }
        }
        // New sends were queued meanwhile; keep the larger allocation.
        quick.append(&mut self.quick_datagrams);
        self.quick_datagrams = quick;
    }

    /// A send is over: by its completion, or settled.
    pub(super) fn on_datagram_sent(&mut self, sockets: &mut Sockets, key: Key, result: i32) {
        let Some((udp, wakes)) = sockets.udp(key) else { return };
        let Some(outgoing) = udp.uring.send.outgoing.take() else { return };
        if result < 0 {
            self.counters.eagain.add(u64::from(-result == libc::EAGAIN));
            udp.outbox.refuse(outgoing, -result, &mut udp.stats);
        } else {
            self.counters.sent.add(1);
            udp.stats.sent += outgoing.datagram.datagrams() as u64;
        }
        let is_closed = udp.uring.receive == Receive::Closed;
        if is_closed {
            // One that was refused since then was put back.
            udp.outbox.give_up();
        }
        self.submit_datagrams(key, udp);
        if udp.outbox.has_room() {
            udp.outbox.waiters.wake(wakes);
        }
        if udp.is_settled() {
            if udp.outbox.closing && !is_closed {
                self.abandon(sockets, key);
            }
            self.remove_if_done(sockets, key);
        }
    }

    /// Submits what is queued, unless an earlier datagram is still with the ring.
    pub(in crate::driver) fn submit_datagrams(&mut self, key: Key, udp: &mut Udp) {
        while !udp.uring.is_sending()
            && let Some(fd) = udp.fd()
        {
            // A buffer that is to be cut, too: the kernel may refuse it.
            if !udp.outbox.blocked && udp.outbox.has_several() {
                self.bursts.send_from(udp, &self.counters);
                continue;
            }
            let Some(outgoing) = udp.outbox.pop() else { break };
            let must_wait = std::mem::take(&mut udp.outbox.blocked);
            let flags = libc::MSG_NOSIGNAL | if must_wait { 0 } else { libc::MSG_DONTWAIT };
            self.quick_bytes += outgoing.datagram.data.len();
            let send = &mut udp.uring.send;
            let mut entry = send.start(Fd(fd), outgoing, &udp.setup, flags);
            // A submission thread runs the send at an unknown time, so there it has to complete.
            send.silent = self.features.sqpoll_idle_ms == 0 && !must_wait;
            if send.silent {
                self.quick_datagrams.push((key, send.number));
                entry = entry.flags(Flags::SKIP_SUCCESS);
            }
            // SAFETY: the memory is boxed in the socket, whose slot stays until the send is over.
            unsafe { self.ring.push(entry.user_data(Op::SEND_DATAGRAM.tag(key))) };
        }
        self.held_up |= udp.is_held_up();
    }
}
