//! Receiving datagrams.

use super::DatagramMemory as Memory;
use crate::buf::{BufPool, RecvBuf};
use crate::datagram::Received;
use crate::driver::messages::RecvMemory;
use crate::driver::sockets::Sockets;
use crate::driver::udp::{Udp, UdpSetup, is_icmp_error};
use crate::driver::uring::provided::Provided;
use crate::driver::uring::{Op, UringEngine};
use crate::slots::Key;
use crate::sys::datagram::empty_header;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, RecvMsgOut};
use io_uring::{cqueue, opcode};
use std::io;
use std::rc::Rc;
use std::task::Waker;

/// Bytes that a multishot recvmsg puts before address, ancillary data and payload:
/// `struct io_uring_recvmsg_out`.
pub(super) const RECVMSG_HEADER_BYTES: usize = 16;

/// One single-shot receive of a datagram.
pub(in crate::driver::uring) struct RecvOp {
    socket: Key,
    buffer: u16,
    memory: RecvMemory,
    header: libc::msghdr,
}

impl RecvOp {
    fn new(socket: Key) -> Box<RecvOp> {
        let (memory, header) = (RecvMemory::new(), empty_header());
        Box::new(RecvOp { socket, buffer: 0, memory, header })
    }

    /// Describes the receive into a buffer. The entry refers to memory of this box and of the pool.
    fn start(&mut self, fd: Fd, buffer: u16, setup: &UdpSetup, pool: &BufPool) -> Entry {
        self.buffer = buffer;
        let address = pool.address(buffer);
        // MSG_TRUNC makes the kernel report the whole length of a datagram that it cuts.
        if setup.is_plain() {
            let receive = opcode::Recv::new(fd, address, setup.buffer_bytes as u32);
            return receive.flags(libc::MSG_TRUNC).build();
        }
        self.memory.describe(&mut self.header, address, setup);
        opcode::RecvMsg::new(fd, &mut self.header).flags(libc::MSG_TRUNC as u32).build()
    }

    /// The kernel is done with it: the datagram, or its errno.
    fn finish(&self, result: i32, setup: &UdpSetup, pool: &Rc<BufPool>) -> Result<Received, i32> {
        let bytes = result.max(0) as usize;
        let data = RecvBuf::from_pool(pool, self.buffer, bytes.min(setup.buffer_bytes));
        if result < 0 {
            return Err(-result);
        }
        let truncated = bytes > setup.buffer_bytes;
        self.memory.received(&self.header, data, truncated, setup).ok_or(libc::EBADMSG)
    }
}

/// The datagram of one completion of a multishot receive, or its errno.
fn of_multishot(
    group: &mut Provided,
    (result, flags): (i32, u32),
    template: &libc::msghdr,
    setup: &UdpSetup,
) -> Result<Received, i32> {
    let bytes = result.max(0) as usize;
    let data = group.take(flags, bytes.min(group.bytes));
    if result < 0 {
        return Err(-result);
    }
    // An empty datagram takes no buffer.
    let mut data = data.unwrap_or_else(RecvBuf::empty);
    if setup.is_plain() {
        return setup.received(data, &[], &[], bytes > group.bytes).ok_or(libc::EBADMSG);
    }
    let message = RecvMsgOut::parse(&data, template).map_err(|()| libc::EBADMSG)?;
    let (name, control) = (message.name_data(), message.control_data());
    let received = setup.received(RecvBuf::empty(), name, control, message.is_payload_truncated());
    let payload_bytes = message.payload_data().len();
    let (name_bytes, control_bytes) = setup.name_and_control_bytes();
    data.advance(RECVMSG_HEADER_BYTES + name_bytes + control_bytes);
    data.truncate(payload_bytes);
    received.map(|received| Received { data, ..received }).ok_or(libc::EBADMSG)
}

impl UringEngine {
    pub(in crate::driver) fn take_datagrams(
        &mut self,
        key: Key,
        udp: &mut Udp,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Option<io::Result<usize>> {
        if udp.uring.received.is_empty() {
            let errno = udp.uring.receive_error.take()?;
            return Some(Err(io::Error::from_raw_os_error(errno)));
        }
        let count = udp.uring.received.len().min(most);
        into.extend(udp.uring.received.drain(..count));
        if udp.uring.received.is_empty() && std::mem::take(&mut udp.uring.paused) {
            self.arm_datagrams(key, udp);
        }
        Some(Ok(count))
    }

    /// Starts receives, or queues for a buffer if others do, as in `arm_receive`.
    pub(in crate::driver) fn arm_datagrams(&mut self, key: Key, udp: &mut Udp) {
        if let Memory::Group(group) = udp.uring.memory
            && udp.uring.armed == 0
            && !udp.rests()
            && !self.groups.get(group).starved.is_empty()
        {
            udp.uring.starved = true;
            self.groups.get(group).starved.push(key, false);
            return;
        }
        self.start_datagrams(key, udp);
    }

    /// Submits as many receives as there should be, unless there must be none now.
    pub(in crate::driver::uring) fn start_datagrams(&mut self, key: Key, udp: &mut Udp) {
        let Some(fd) = udp.fd().filter(|_| !udp.rests()).map(Fd) else { return };
        let setup = &udp.setup;
        let most = setup.pending.max(1);
        while udp.uring.armed < most {
            let entry = match &udp.uring.memory {
                Memory::Group(group) => {
                    let entry = match setup.is_plain() {
                        // MSG_TRUNC as above.
                        true => opcode::RecvMulti::new(fd, *group).flags(libc::MSG_TRUNC).build(),
                        false => {
                            opcode::RecvMsgMulti::new(fd, &*udp.uring.template, *group).build()
                        }
                    };
                    entry.user_data(Op::RECEIVE_DATAGRAMS.tag(key))
                }
                Memory::Own(pool) => {
                    let Some(buffer) = pool.take() else { break };
                    let mut receive = udp.uring.idle.pop().unwrap_or_else(|| RecvOp::new(key));
                    let entry = receive.start(fd, buffer, setup, pool);
                    entry.user_data(Op::RECEIVE_DATAGRAM.tag(self.receives.insert(receive)))
                }
            };
            udp.uring.armed += 1;
            udp.uring.expected += 1;
            // SAFETY: the template is boxed in the slot until the last completion, and the kernel takes
            // buffers from the group, which outlives the ring; the memory of a single receive is boxed
            // in `receives` until its completion.
            unsafe { self.ring.push(entry) };
        }
    }

    pub(in crate::driver::uring) fn on_single_datagram(
        &mut self,
        sockets: &mut Sockets,
        single: Key,
        result: i32,
    ) {
        let Some(receive) = self.receives.remove(single) else { return };
        let key = receive.socket;
        let Some((udp, _)) = sockets.udp(key) else { return };
        let Memory::Own(pool) = &udp.uring.memory else { return };
        let outcome = receive.finish(result, &udp.setup, pool);
        udp.uring.idle.push(receive);
        self.on_received(sockets, key, outcome, true);
    }

    pub(in crate::driver::uring) fn on_datagrams(
        &mut self,
        sockets: &mut Sockets,
        key: Key,
        completion: (i32, u32),
    ) {
        let Some((udp, _)) = sockets.udp(key) else { return };
        let Memory::Group(group) = udp.uring.memory else { return };
        let group = self.groups.get(group);
        let outcome = of_multishot(group, completion, &udp.uring.template, &udp.setup);
        self.on_received(sockets, key, outcome, !cqueue::more(completion.1));
    }

    fn on_received(
        &mut self,
        sockets: &mut Sockets,
        key: Key,
        outcome: Result<Received, i32>,
        ended: bool,
    ) {
        let Some((udp, wakes)) = sockets.udp(key) else { return };
        udp.uring.armed -= u32::from(ended);
        udp.uring.expected -= u32::from(ended);
        match outcome {
            Ok(_) if udp.outbox.closing => {}
            Ok(received) => self.deliver_datagram(key, udp, received, wakes),
            Err(libc::ENOBUFS) => {
                self.counters.enobufs.add(1);
                if let Memory::Group(group) = udp.uring.memory
                    && !udp.outbox.closing
                    && !std::mem::replace(&mut udp.uring.starved, true)
                {
                    self.groups.get(group).starved.push(key, false);
                }
            }
            // Ours: the receive was paused, or the socket is closing. (EINTR: one that ran in a
            // worker thread.)
            Err(libc::ECANCELED | libc::EINTR) => {}
            Err(errno) if is_icmp_error(errno) => udp.stats.icmp_errors += 1,
            Err(errno) => {
                udp.stats.receive_errors += 1;
                udp.uring.receive_error = Some(errno);
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
        let low = match &udp.uring.memory {
            Memory::Group(group) => self.groups.get(*group).is_low(),
            Memory::Own(pool) => pool.released() == 0,
        };
        if low {
            self.counters.copied_out.add(1);
            received.data = received.data.detach();
        }
        let uring = &mut udp.uring;
        if uring.received.is_empty() {
            uring.oldest_turn = self.turn;
        }
        uring.received.push_back(received);
        udp.receive_waiters.wake(wakes);
        // A large batch that has just arrived does not mean that the reader is slow.
        let had_a_turn = uring.oldest_turn != self.turn;
        if uring.received.len() >= uring.received_max && had_a_turn && !uring.paused {
            uring.paused = true;
            self.counters.pauses.add(1);
            if matches!(uring.memory, Memory::Group(_)) && uring.armed > 0 {
                uring.expected += 1;
                self.push_cancel(key, Op::RECEIVE_DATAGRAMS);
            }
        }
    }
}
