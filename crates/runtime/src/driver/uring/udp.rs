//! UDP sockets on io_uring.
//!
//! One multishot receive per socket, or on sockets with many datagrams at a time recvmmsg(2), see `calls`;
//! connected sockets that want no ancillary data use `recv`,
//! all others `recvmsg`, which puts a header, the address and the ancillary data before the
//! payload in the buffer. Without multishot, one single-shot receive is armed again and again.
//!
//! As an option many single-shot receives are kept in flight, each with a buffer of its own, as
//! AsyncUdpTests does it. Each datagram then wakes all of them, and they may complete out of order.
//! One that was woken 128 times for nothing the kernel hands to a worker thread (APOLL_MAX_RETRY),
//! which blocks in it until its turn comes.
//!
//! A burst of one socket goes out by sendmmsg(2), which costs less than an operation for each (at
//! 200,000 packets/s of 172 bytes, both CPUs per packet: 4.3 us against 4.8). Fewer, as from
//! thousands of sockets, go out many at a time in one enter, each with MSG_DONTWAIT and without a completion for success, and
//! are settled like those of streams: see the module above. One that finds the send buffer full
//! goes again, waiting, before all others; see `send_budget` for why none can have overtaken it. One that the
//! kernel is to cut into segments, and may refuse to, has nothing behind it in its enter. So sends keep
//! their order, but for one case: an ICMP error, which only a connected socket reports, takes the place
//! of a send, and those that were handed over behind it go out before it is repeated.

mod calls;
mod direct;
mod memory;
mod receive;
mod send;
mod send_budget;

pub(super) use self::direct::Places;
pub(super) use self::memory::{RecvOp, SendOp};

use self::calls::{Reads, reads_of};
use self::direct::Socket;
use self::memory::{Memory, RECVMSG_HEADER_BYTES};
use self::send_budget::SendBudget;
use super::ring::Enter;
use super::{Entry, Op, Uring, UringDriver};
use crate::buf::Pool;
use crate::datagram::Received;
use crate::driver::datagrams::UdpSetup;
use crate::driver::socket;
use crate::slots::Key;
use crate::sys::datagram::empty_header;
use io_uring::opcode;
use io_uring::types::Fd;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Datagrams a socket may hold received and unread before its receive is paused, and never more
/// than half of its buffers. What one turn of the driver delivers comes on top.
const RECEIVED_MAX: usize = 4096;
/// Buffers that one pool can have.
const POOL_COUNT_MAX: u32 = 1 << 15;

/// A destination for the trial of IORING_OP_SEND with an address: nothing is sent to it.
static TRIAL_ADDRESS: [u8; 16] =
    [libc::AF_INET as u8, 0, 0, 9, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];

pub(super) type Udp = socket::Udp<Uring>;

/// The state of a datagram socket on io_uring, beside the common state.
pub(crate) struct Own {
    /// Empty once it was closed.
    pub(super) socket: Option<Socket>,
    /// Completions still to come, those of sends aside: one for each armed receive and each cancel.
    pub(super) expected: u32,
    /// Closed and cancelled: its slot is free after the last completion.
    abandoned: bool,
    /// The program takes the socket out of the runtime: nothing is received any more.
    released: bool,
    memory: Memory,
    multishot: bool,
    reads: Reads,
    /// The lengths that a multishot recvmsg reserves.
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
    /// The driver's turn in which the oldest of them arrived.
    oldest_turn: u32,
    receive_error: Option<i32>,
    /// Sends with the kernel, and those among them that succeed silently.
    in_flight: u32,
    silent: u32,
    send_budget: SendBudget,
    /// The send buffer was full: the next send waits for room.
    blocked: bool,
    /// A send that nothing may follow before it is over: it waits for room, or the kernel may refuse to
    /// cut it.
    alone: Option<Key>,
}

impl Udp {
    /// True when a closed socket has nothing to send any more, and is to be abandoned.
    fn has_lingered(&self) -> bool {
        self.outbox.closing && !self.own.abandoned && !self.must_linger()
    }

    /// As [`Stream::is_held_up`](super::stream::Stream::is_held_up).
    pub(super) fn is_held_up(&self) -> bool {
        let somebody_waits =
            self.outbox.closing || !self.outbox.is_empty() || !self.outbox.waiters.is_empty();
        self.own.silent > 0 && somebody_waits
    }

    /// True when the kernel has nothing of a closed socket any more.
    pub(super) fn is_done(&self) -> bool {
        self.own.abandoned && self.own.expected == 0 && self.own.in_flight == 0
    }

    /// True while no receive may be handed to the kernel.
    fn rests(&self) -> bool {
        let never = self.outbox.closing || self.own.released;
        let not_now = self.own.starved || self.own.paused;
        never || not_now || self.own.receive_error.is_some() || !self.own.reads.by_ring()
    }
}

impl UringDriver {
    pub(crate) fn add_udp(&mut self, socket: OwnedFd, setup: UdpSetup) -> io::Result<Key> {
        let multishot = self.engine.features.multishot && setup.pending == 0;
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
            Memory::Group(self.engine.groups.for_datagrams(
                &self.engine.ring,
                setup.buffer_count,
                bytes,
            )?)
        };
        self.try_send_address();
        let mut template = Box::new(empty_header());
        template.msg_namelen = name_bytes as libc::socklen_t;
        template.msg_controllen = control_bytes as _;
        let send_budget = SendBudget::new(&socket);
        let socket = match self.engine.features.direct {
            true => self.engine.places.register(&self.engine.ring, socket),
            false => Socket::plain(socket),
        };
        let own = Own {
            socket: Some(socket),
            expected: 0,
            abandoned: false,
            released: false,
            reads: reads_of(self.engine.features.udp, multishot, &memory),
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
            oldest_turn: 0,
            receive_error: None,
            in_flight: 0,
            silent: 0,
            send_budget,
            blocked: false,
            alone: None,
        };
        Ok(self.entries.insert(Entry::Udp(Box::new(Udp::new(setup, own)))))
    }

    /// Finds out, once, whether IORING_OP_SEND takes a destination (Linux 6.0); until that is
    /// known IORING_OP_SENDMSG carries it.
    fn try_send_address(&mut self) {
        if self.engine.send_address.is_none() {
            self.engine.send_address = Some(false);
            let entry = opcode::Send::new(Fd(-1), TRIAL_ADDRESS.as_ptr(), 0)
                .dest_addr(TRIAL_ADDRESS.as_ptr().cast())
                .dest_addr_len(TRIAL_ADDRESS.len() as u32)
                .build();
            let nobody = Key::from_bits(0);
            // SAFETY: the address is a constant, and no bytes are sent.
            unsafe { self.engine.ring.push(entry.user_data(Op::SendAddressTrial.tag(nobody))) };
        }
    }

    /// Cancels what is with the kernel and closes the socket, at once where that is possible,
    /// because a bound socket also holds its port: a program may drop one and bind the next before
    /// the driver's turn.
    pub(super) fn abandon_udp(&mut self, key: Key) {
        self.cancel_all_of_udp(key);
        // An operation that was not submitted yet refers to the descriptor: then, as with a
        // submission thread, the slot keeps it until its last completion.
        if self.entries.get(key).is_some()
            && self.engine.ring.enter(Enter::Collect, None).is_ok()
            && self.engine.ring.all_submitted()
            && let Some(Entry::Udp(udp)) = self.entries.get_mut(key)
            && let Some(socket) = udp.own.socket.take()
        {
            self.engine.places.release(&self.engine.ring, socket);
        }
    }

    /// The kernel has nothing of a socket any more.
    pub(super) fn forget_udp(&mut self, udp: Udp) {
        udp.own.singles.iter().for_each(|single| drop(self.engine.receives.remove(*single)));
        if let Some(socket) = udp.own.socket {
            self.engine.places.release(&self.engine.ring, socket);
        }
    }

    pub(super) fn cancel_all_of_udp(&mut self, key: Key) {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        udp.outbox.closing = true;
        udp.own.abandoned = true;
        udp.own.received.clear();
        udp.outbox.give_up();
        let alone = udp.own.alone.map(|send| Op::SendDatagram.tag(send));
        self.engine.cancel_receives(key, udp, alone);
        self.remove_if_done(key);
    }
}

impl Uring {
    /// Cancels the receives of a socket, and `further`.
    fn cancel_receives(&mut self, key: Key, udp: &mut Udp, further: Option<u64>) {
        let mut cancels = Vec::from_iter(further);
        if udp.own.multishot && udp.own.armed > 0 {
            cancels.push(Op::ReceiveDatagrams.tag(key));
        }
        cancels.extend(udp.own.reads.armed().map(|poll| poll.tag(key)));
        let armed = udp
            .own
            .singles
            .iter()
            .filter(|single| self.receives.get(**single).is_some_and(|receive| receive.armed));
        cancels.extend(armed.map(|single| Op::ReceiveDatagram.tag(*single)));
        udp.own.expected += cancels.len() as u32;
        cancels.into_iter().for_each(|operation| self.push_cancel_of(key, operation));
    }

    /// The datagrams that were received and not taken, once the kernel has no operation of the socket.
    pub(super) fn release_udp(&mut self, key: Key, udp: &mut Udp) -> Option<Vec<Received>> {
        if !std::mem::replace(&mut udp.own.released, true) {
            self.cancel_receives(key, udp, None);
        }
        if udp.own.expected > 0 || udp.own.in_flight > 0 {
            return None;
        }
        let socket = udp.own.socket.take();
        udp.own.socket = socket.map(|socket| self.places.unregister(&self.ring, socket));
        Some(udp.own.received.drain(..).collect())
    }
}
