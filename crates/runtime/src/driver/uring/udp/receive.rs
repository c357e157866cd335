//! Receiving datagrams.

use super::Memory;
use super::memory::{RecvOp, of_multishot};
use crate::datagram::Received;
use crate::driver::datagrams::{count_received, is_icmp_error};
use crate::driver::sockets::Sockets;
use crate::driver::udp::Udp;
use crate::driver::uring::{Op, Uring};
use crate::slots::Key;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::io;
use std::os::fd::AsRawFd;
use std::task::Waker;

impl Uring {
    /// The completion of a single-shot receive.
    pub(in crate::driver::uring) fn on_single_datagram(
        &mut self,
        sockets: &mut Sockets,
        single: Key,
        result: i32,
        wakes: &mut Vec<Waker>,
    ) {
        let Some(receive) = self.receives.get_mut(single) else { return };
        let key = receive.socket;
        let Some(udp) = sockets.udp(key) else { return };
        let Memory::Own(pool) = &udp.uring.memory else { return };
        let outcome = receive.finish(result, &udp.setup, pool);
        udp.uring.armed -= 1;
        udp.uring.expected -= 1;
        self.deliver_datagram(key, udp, outcome, wakes);
        // Only this one: the others are armed, or wait for the program to read.
        if let Some(socket) = udp.socket.as_ref().filter(|_| !udp.rests())
            && let Memory::Own(pool) = &udp.uring.memory
            && let Some(receive) = self.receives.get_mut(single)
            && let Some(entry) = receive.start(Fd(socket.as_raw_fd()), &udp.setup, pool)
        {
            udp.uring.armed += 1;
            udp.uring.expected += 1;
            // SAFETY: the memory of a single receive is boxed in `receives` until its completion.
            unsafe { self.ring.push(entry.user_data(Op::ReceiveDatagram.tag(single))) };
        }
        self.remove_if_done(sockets, key);
    }
}

impl Uring {
    /// Takes datagrams that were received.
    pub(in crate::driver) fn take_datagrams(
        &mut self,
        key: Key,
        udp: &mut Udp,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Option<io::Result<usize>> {
        if !udp.uring.received.is_empty() {
            let count = udp.uring.received.len().min(most);
            into.extend(udp.uring.received.drain(..count));
            if udp.uring.paused && udp.uring.received.is_empty() {
                udp.uring.paused = false;
                self.arm_datagrams(key, udp);
            }
            return Some(Ok(count));
        }
        if let Some(errno) = udp.uring.receive_error.take() {
            return Some(Err(io::Error::from_raw_os_error(errno)));
        }
        None
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
        let Some(socket) = udp.socket.as_ref().filter(|_| !udp.rests()) else { return };
        let fd = Fd(socket.as_raw_fd());
        let pool = match &udp.uring.memory {
            Memory::Own(pool) => pool,
            Memory::Group(_) if udp.uring.armed > 0 => return,
            Memory::Group(group) => {
                let entry = if udp.setup.is_plain() {
                    // MSG_TRUNC makes the kernel report the whole length of a datagram that it
                    // cuts.
                    opcode::RecvMulti::new(fd, *group).flags(libc::MSG_TRUNC).build()
                } else {
                    opcode::RecvMsgMulti::new(fd, &*udp.uring.template, *group).build()
                };
                udp.uring.armed = 1;
                udp.uring.expected += 1;
                if std::mem::replace(&mut udp.uring.again, true) {
                    self.counters.rearms.add(1);
                }
                // SAFETY: the template is boxed in the slot until the last completion; the kernel takes
                // buffers from the group, which outlives the ring.
                return unsafe { self.ring.push(entry.user_data(Op::ReceiveDatagrams.tag(key))) };
            }
        };
        let wanted = udp.setup.pending.max(1);
        if udp.uring.armed == wanted {
            return;
        }
        while (udp.uring.singles.len() as u32) < wanted {
            udp.uring.singles.push(self.receives.insert(RecvOp::new(key)));
        }
        for single in &udp.uring.singles {
            if let Some(receive) = self.receives.get_mut(*single)
                && !receive.armed
                && let Some(entry) = receive.start(fd, &udp.setup, pool)
            {
                udp.uring.armed += 1;
                udp.uring.expected += 1;
                // SAFETY: the memory of a single receive is boxed in `receives` until its completion.
                unsafe { self.ring.push(entry.user_data(Op::ReceiveDatagram.tag(*single))) };
            }
        }
    }

    /// A completion of a multishot receive.
    pub(in crate::driver::uring) fn on_datagrams(
        &mut self,
        key: Key,
        udp: &mut Udp,
        (result, flags): (i32, u32),
        wakes: &mut Vec<Waker>,
    ) {
        let Memory::Group(group) = udp.uring.memory else { return };
        let group = self.groups.get(group);
        let outcome = of_multishot(group, result, flags, &udp.uring.template, &udp.setup);
        let ended = !cqueue::more(flags);
        if ended {
            udp.uring.armed -= 1;
            udp.uring.expected -= 1;
        }
        self.deliver_datagram(key, udp, outcome, wakes);
        if ended {
            self.arm_datagrams(key, udp);
        }
    }

    fn deliver_datagram(
        &mut self,
        key: Key,
        udp: &mut Udp,
        outcome: Result<Received, i32>,
        wakes: &mut Vec<Waker>,
    ) {
        match outcome {
            Ok(_) if udp.outbox.closing => {}
            Ok(mut received) => {
                self.counters.received.add(1);
                count_received(&mut udp.stats, &received);
                let low = match &udp.uring.memory {
                    Memory::Group(group) => self.groups.get(*group).is_low(),
                    Memory::Own(pool) => pool.released() == 0,
                };
                if low {
                    self.counters.copied_out.add(1);
                    received.data = received.data.detach();
                }
                if udp.uring.received.is_empty() {
                    udp.uring.oldest_turn = self.turn;
                }
                udp.uring.received.push_back(received);
                udp.receive_waiters.wake(wakes);
                // A large batch that has just arrived does not mean that the reader is slow.
                let had_a_turn = udp.uring.oldest_turn != self.turn;
                if udp.uring.received.len() >= udp.uring.received_max
                    && had_a_turn
                    && !udp.uring.paused
                {
                    udp.uring.paused = true;
                    self.counters.pauses.add(1);
                    if matches!(udp.uring.memory, Memory::Group(_)) && udp.uring.armed > 0 {
                        udp.uring.expected += 1;
                        self.push_cancel(key, Op::ReceiveDatagrams);
                    }
                }
            }
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
    }
}
