//! UDP sockets on io_uring.
//!
//! One multishot receive per socket: connected sockets that want no ancillary data use `recv`,
//! all others `recvmsg`, which puts a header, the address and the ancillary data before the
//! payload in the buffer.
//!
//! As an option, and without multishot, single-shot receives are kept in flight, each with a buffer
//! of its own, as AsyncUdpTests does it. Each datagram then wakes all of them, and they may complete
//! out of order. One that was woken 128 times for nothing the kernel hands to a worker thread
//! (APOLL_MAX_RETRY), which blocks in it until its turn comes.
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
//! single-shot receives is in a table.

mod receive;
mod send;

pub(super) use self::receive::RecvOp;

use self::receive::RECVMSG_HEADER_BYTES;
use self::send::SendOp;
use super::{Op, UringEngine};
use crate::buf::BufPool;
use crate::datagram::Received;
use crate::driver::epoll::EpollUdp;
use crate::driver::sockets::{Sockets, Source};
use crate::driver::udp::{Udp, UdpSetup};
use crate::slots::Key;
use crate::sys::datagram::empty_header;
use io_uring::opcode;
use io_uring::types::{CancelBuilder, Fd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Datagrams a socket may hold received and unread before its receive is paused, and never more
/// than half of its buffers. What one turn of the driver delivers comes on top.
const RECEIVED_MAX: usize = 4096;
/// The same for the bytes of their buffers, each of which may be in memory for ever after.
const RECEIVED_BYTES_MAX: usize = 2 << 20;
/// Buffers that one pool can have.
const POOL_COUNT_MAX: u32 = 1 << 15;

/// Where the buffers of a socket come from.
pub(crate) enum DatagramMemory {
    /// Of a multishot receive: the kernel picks one of a group when a datagram arrives.
    Group(u16),
    /// Each single-shot receive has one, from a pool of the socket.
    Own(Rc<BufPool>),
}

pub(crate) struct UringUdp {
    /// Completions still to come, those of sends aside: one for each armed receive and each cancel.
    pub(super) expected: u32,
    /// Closed and cancelled: its slot is free after the last completion.
    abandoned: bool,
    memory: DatagramMemory,
    /// The lengths that a multishot recvmsg reserves.
    template: Box<libc::msghdr>,
    /// Single-shot receives that the kernel does not have.
    #[expect(clippy::vec_box, reason = "they move to the table of receives without being copied")]
    idle: Vec<Box<RecvOp>>,
    /// Receives with the kernel.
    armed: u32,
    /// No buffer was left; armed again when one returns.
    pub(super) starved: bool,
    /// Enough is unread; armed again when the program has read it.
    paused: bool,
    received: VecDeque<Received>,
    received_max: usize,
    /// The driver's turn in which the oldest of them arrived.
    oldest_turn: u32,
    receive_error: Option<i32>,
    send: Box<SendOp>,
}

impl UringUdp {
    pub(in crate::driver) fn new(memory: DatagramMemory, setup: &UdpSetup) -> UringUdp {
        let (name_bytes, control_bytes) = setup.name_and_control_bytes();
        let mut template = Box::new(empty_header());
        template.msg_namelen = name_bytes as libc::socklen_t;
        template.msg_controllen = control_bytes as _;
        UringUdp {
            expected: 0,
            abandoned: false,
            memory,
            template,
            idle: Vec::new(),
            armed: 0,
            starved: false,
            paused: false,
            received: VecDeque::new(),
            received_max: (usize::from(setup.buffer_count) / 2)
                .min(RECEIVED_MAX)
                .min(RECEIVED_BYTES_MAX / setup.buffer_bytes)
                .max(1),
            oldest_turn: 0,
            receive_error: None,
            send: SendOp::new(),
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
        self.uring.abandoned && self.uring.expected == 0 && !self.uring.is_sending()
    }

    /// True while no receive may be handed to the kernel.
    fn rests(&self) -> bool {
        let not_now = self.uring.starved || self.uring.paused;
        self.outbox.closing || not_now || self.uring.receive_error.is_some()
    }
}

impl UringEngine {
    pub(in crate::driver) fn add_udp(
        &mut self,
        sockets: &mut Sockets,
        socket: OwnedFd,
        setup: UdpSetup,
    ) -> io::Result<Key> {
        let memory = if self.features.multishot && setup.pending == 0 {
            let (name_bytes, control_bytes) = setup.name_and_control_bytes();
            let header_bytes = match setup.is_plain() {
                true => 0,
                false => RECVMSG_HEADER_BYTES + name_bytes + control_bytes,
            };
            let bytes = header_bytes + setup.buffer_bytes;
            let group = self.groups.for_datagrams(&self.ring, setup.buffer_count, bytes)?;
            DatagramMemory::Group(group)
        } else {
            // Beside those in flight as many as others may be read.
            let count = setup.pending.max(1) + u32::from(setup.buffer_count);
            let bytes = setup.buffer_bytes.next_multiple_of(64);
            DatagramMemory::Own(Rc::new(BufPool::new(count.min(POOL_COUNT_MAX) as u16, bytes)?))
        };
        let udp = Udp::new(socket, setup, memory, EpollUdp::new(0));
        Ok(sockets.sources.insert(Source::Udp(udp)))
    }

    /// Drops what the socket holds, and cancels what the kernel has of it.
    pub(super) fn cancel_all_of_udp(&mut self, key: Key, udp: &mut Udp) {
        udp.outbox.closing = true;
        udp.uring.abandoned = true;
        udp.uring.received.clear();
        udp.outbox.give_up();
        if udp.uring.is_sending() && !udp.uring.send.silent {
            udp.uring.expected += 1;
            self.push_cancel(key, Op::SEND_DATAGRAM);
        }
        if udp.uring.armed == 0 {
            return;
        }
        if let DatagramMemory::Group(_) = udp.uring.memory {
            udp.uring.expected += 1;
            self.push_cancel(key, Op::RECEIVE_DATAGRAMS);
        } else if let Some(fd) = udp.fd() {
            // All at once. The kernel goes through all that the ring has for that.
            udp.uring.expected += 1;
            let cancel = opcode::AsyncCancel2::new(CancelBuilder::fd(Fd(fd)).all()).build();
            // SAFETY: a cancel names no memory.
            unsafe { self.ring.push(cancel.user_data(Op::CANCEL.tag(key))) };
        }
    }
}
