//! Sending datagrams.

use crate::driver::messages::SendMemory;
use crate::driver::sockets::Sockets;
use crate::driver::udp::{Outgoing, Udp, UdpSetup};
use crate::driver::uring::{Op, UringEngine};
use crate::slots::Key;
use crate::sys::datagram::empty_header;
use io_uring::opcode;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;

/// The one send of a socket that the ring may have.
pub(super) struct SendOp {
    /// Empty when the kernel has none.
    pub(super) outgoing: Option<Outgoing>,
    /// It posts no completion when it succeeds.
    pub(super) silent: bool,
    /// Counts the sends of the socket.
    number: u32,
    memory: SendMemory,
    header: libc::msghdr,
}

impl SendOp {
    pub(super) fn new() -> Box<SendOp> {
        let (memory, header) = (SendMemory::new(), empty_header());
        Box::new(SendOp { outgoing: None, silent: false, number: 0, memory, header })
    }

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

impl UringEngine {
    /// Treats the first `taken` silent sends, which the kernel has run, as sent unless they posted
    /// an error: then they are over, and another one may have begun.
    pub(in crate::driver::uring) fn settle_datagrams(
        &mut self,
        sockets: &mut Sockets,
        taken: usize,
    ) {
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
    pub(in crate::driver::uring) fn on_datagram_sent(
        &mut self,
        sockets: &mut Sockets,
        key: Key,
        result: i32,
    ) {
        let Some((udp, wakes)) = sockets.udp(key) else { return };
        let Some(outgoing) = udp.uring.send.outgoing.take() else { return };
        if result < 0 {
            self.counters.eagain.add(u64::from(-result == libc::EAGAIN));
            udp.outbox.refuse(outgoing, -result, &mut udp.stats);
        } else {
            self.counters.sent.add(1);
            udp.stats.sent += outgoing.datagram.datagrams() as u64;
        }
        if udp.uring.abandoned {
            // One that was refused since then was put back.
            udp.outbox.give_up();
        }
        self.submit_datagrams(key, udp);
        if udp.outbox.has_room() {
            udp.outbox.waiters.wake(wakes);
        }
        if udp.is_settled() {
            if udp.outbox.closing && !udp.uring.abandoned {
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
