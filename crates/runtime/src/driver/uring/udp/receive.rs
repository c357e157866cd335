//! Receiving datagrams.

use super::memory::{Memory, RecvOp, of_multishot};
use crate::datagram::Received;
use crate::driver::closed;
use crate::driver::datagrams::{count_received, is_icmp_error};
use crate::driver::slots::Key;
use crate::driver::uring::{Entry, Op, UringDriver};
use crate::task::Waiter;
use io_uring::{cqueue, opcode};
use std::io;
use std::task::{Poll, Waker};

impl UringDriver {
    pub(crate) fn poll_recv_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        udp.receive_waiters.leave(waiter);
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
        if let Some(read) = self.read_datagrams(key, into, most) {
            return Poll::Ready(read);
        }
        if let Some(Entry::Udp(udp)) = self.entries.get_mut(key) {
            udp.receive_waiters.add(waiter);
        }
        self.arm_datagrams(key);
        Poll::Pending
    }

    /// Starts receives, or queues for a buffer if others do, as in `arm_receive`.
    pub(super) fn arm_datagrams(&mut self, key: Key) {
        self.begin_with_calls(key);
        if let Some(Entry::Udp(udp)) = self.entries.get_mut(key)
            && let Memory::Group(group) = udp.memory
            && udp.armed == 0
            && !udp.rests()
            && self.groups.is_starved(group)
        {
            udp.starved = true;
            self.groups.get(group).starved.push_back(key);
            return;
        }
        self.start_datagrams(key);
    }

    /// Hands as many receives to the kernel as there should be, unless it must not have any now.
    pub(in crate::driver::uring) fn start_datagrams(&mut self, key: Key) {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        let Some(socket) = udp.socket.as_ref().filter(|_| !udp.rests()) else { return };
        let name = socket.name;
        if udp.multishot {
            if udp.armed == 0
                && let Memory::Group(group) = udp.memory
            {
                let entry = if udp.setup.is_plain() {
                    // MSG_TRUNC makes the kernel tell the whole length of what it cuts.
                    opcode::RecvMulti::new(name.fd, group).flags(libc::MSG_TRUNC).build()
                } else {
                    opcode::RecvMsgMulti::new(name.fd, &*udp.template, group).build()
                };
                udp.armed = 1;
                udp.expected += 1;
                if std::mem::replace(&mut udp.again, true) {
                    self.counters.rearms.add(1);
                }
                let entry = entry.flags(name.flags);
                // SAFETY: the template is boxed in the slot until the last completion; the kernel takes
                // buffers from the group, which outlives the ring.
                unsafe { self.ring.push(entry.user_data(Op::ReceiveDatagrams.tag(key))) };
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
                && let Some(entry) = receive.start(name, &udp.setup, &udp.memory)
            {
                udp.armed += 1;
                udp.expected += 1;
                // SAFETY: the memory of a single receive is boxed in `receives` until its completion.
                unsafe { self.ring.push(entry.user_data(Op::ReceiveDatagram.tag(*single))) };
            }
        }
    }

    /// A completion of a multishot receive.
    pub(in crate::driver::uring) fn on_datagrams(
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
        let received = outcome.is_ok();
        self.deliver_datagram(key, outcome, wakes);
        if received {
            self.note_arrival(key);
        }
        if ended {
            self.after_receive(key);
            self.arm_datagrams(key);
            self.remove_if_done(key);
        }
    }

    /// The completion of a single-shot receive.
    pub(in crate::driver::uring) fn on_single_datagram(
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
            && let Some(entry) = receive.start(socket.name, &udp.setup, &udp.memory)
        {
            udp.armed += 1;
            udp.expected += 1;
            // SAFETY: the memory of a single receive is boxed in `receives` until its completion.
            unsafe { self.ring.push(entry.user_data(Op::ReceiveDatagram.tag(single))) };
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
                if udp.received.is_empty() {
                    udp.oldest_turn = self.turn;
                }
                udp.received.push_back(received);
                udp.receive_waiters.wake(wakes);
                // A large batch that has just come says nothing about the reader.
                let had_a_turn = udp.oldest_turn != self.turn;
                if udp.received.len() >= udp.received_max && had_a_turn && !udp.paused {
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
                    self.groups.get(group).starved.push_back(key);
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
