//! Sending datagrams.

use super::memory::SendOp;
use crate::driver::sockets::Sockets;
use crate::driver::udp::Udp;
use crate::driver::uring::{Op, Uring};
use crate::slots::Key;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::os::fd::AsRawFd;
use std::task::Waker;

/// From this number on, datagrams of one socket are sent by sendmmsg(2): an operation for each
/// would cost more. Fewer wait for the next enter, which submits those of all sockets.
const BURST_MIN: usize = 8;

/// Memory of finished sends kept for the next ones, by number of datagrams.
const SPARE_SENDS_MAX: usize = 4096;

impl Uring {
    /// Treats the first `taken` silent sends, which the kernel has run, as sent unless they posted
    /// an error: then their operation is gone.
    pub(in crate::driver::uring) fn settle_datagrams(
        &mut self,
        sockets: &mut Sockets,
        taken: usize,
        wakes: &mut Vec<Waker>,
    ) {
        if taken == 0 {
            return;
        }
        let mut quick = std::mem::take(&mut self.quick_datagrams);
        for send in quick.drain(..taken) {
            self.on_datagram_sent(sockets, send, 0, wakes);
        }
        // New sends were queued meanwhile; keep the larger allocation.
        quick.append(&mut self.quick_datagrams);
        self.quick_datagrams = quick;
    }

    /// A send is over: by its completion, or settled.
    pub(in crate::driver::uring) fn on_datagram_sent(
        &mut self,
        sockets: &mut Sockets,
        send: Key,
        result: i32,
        wakes: &mut Vec<Waker>,
    ) {
        let Some(mut op) = self.sends.remove(send) else { return };
        let key = op.socket;
        let outgoing = op.finish();
        if let (Some(udp), Some(outgoing)) = (sockets.udp(key), outgoing) {
            udp.uring.in_flight -= 1;
            udp.uring.silent -= u32::from(op.silent);
            udp.uring.alone = udp.uring.alone.filter(|alone| *alone != send);
            match -result {
                errno if errno <= 0 => {
                    self.counters.sent.add(1);
                    udp.outbox.sent(&outgoing, &mut udp.stats);
                }
                errno => {
                    if errno == libc::EAGAIN {
                        self.counters.eagain.add(1);
                    }
                    udp.uring.blocked |= udp.outbox.refuse(outgoing, errno, &mut udp.stats);
                }
            }
            if udp.uring.in_flight == 0 && self.after_datagrams(key, udp, wakes) {
                if udp.has_lingered() {
                    self.abandon(sockets, key);
                }
                self.remove_if_done(sockets, key);
            }
        }
        if self.spare_sends.len() < SPARE_SENDS_MAX {
            self.spare_sends.push(op);
        }
    }
}

impl Uring {
    /// Submits what is queued, unless earlier datagrams have to go first.
    pub(in crate::driver) fn submit_datagrams(&mut self, key: Key, udp: &mut Udp) {
        // A submission thread runs the send at an unknown time, so there every send has to
        // complete.
        let can_be_silent = self.features.sqpoll_idle_ms == 0;
        let Some(socket) = &udp.socket else { return };
        let fd = Fd(socket.as_raw_fd());
        let (setup, stats) = (&udp.setup, &mut udp.stats);
        // No earlier datagram may be in flight, or they would overtake it.
        let mut at_once =
            setup.batch && setup.pending == 0 && udp.uring.in_flight == 0 && !udp.uring.blocked;
        // A buffer that is to be cut, too: the kernel may refuse it, and sendmmsg(2) stops there.
        while at_once && (udp.outbox.len() >= BURST_MIN || udp.outbox.next_is_cut()) {
            at_once = self.bursts.send_from(&mut udp.outbox, fd.0, setup, stats, &self.counters);
            udp.uring.blocked = !at_once;
        }
        // Refused ones are sent again when all that were submitted with them are complete.
        let held_back = udp.outbox.has_refused() && udp.uring.in_flight > 0;
        while udp.uring.alone.is_none() && !held_back {
            let Some(bytes) = udp.outbox.next_bytes() else { break };
            let is_cut = udp.outbox.next_is_cut();
            if is_cut && udp.uring.in_flight > 0 {
                break;
            }
            if !udp.uring.send_budget.admits(socket, bytes, &self.counters) {
                break;
            }
            let Some(outgoing) = udp.outbox.pop() else { break };
            let must_wait = std::mem::take(&mut udp.uring.blocked);
            let flags = libc::MSG_NOSIGNAL | if must_wait { 0 } else { libc::MSG_DONTWAIT };
            let mut send = self.spare_sends.pop().unwrap_or_else(|| SendOp::new(key));
            self.quick_bytes += outgoing.datagram.data.len();
            let entry = send.start(fd, outgoing, &udp.setup, flags);
            send.socket = key;
            send.silent = can_be_silent && !must_wait;
            let silent = send.silent;
            let send = self.sends.insert(send);
            udp.uring.in_flight += 1;
            let entry = if silent {
                udp.uring.silent += 1;
                self.quick_datagrams.push(send);
                entry.flags(Flags::SKIP_SUCCESS)
            } else {
                entry
            };
            if must_wait || is_cut {
                udp.uring.alone = Some(send);
            }
            // SAFETY: the memory of a send is boxed in `sends` until its completion.
            unsafe { self.ring.push(entry.user_data(Op::SendDatagram.tag(send))) };
        }
        self.held_up |= udp.is_held_up();
    }

    /// All sends in flight are complete: sends the next and wakes waiters. True if there is none.
    fn after_datagrams(&mut self, key: Key, udp: &mut Udp, wakes: &mut Vec<Waker>) -> bool {
        udp.uring.send_budget.reset();
        if udp.uring.abandoned {
            // One that was refused since then was put back.
            udp.outbox.give_up();
        }
        self.submit_datagrams(key, udp);
        if udp.outbox.has_room() {
            udp.outbox.waiters.wake(wakes);
        }
        udp.outbox.is_empty() && udp.uring.in_flight == 0
    }
}
