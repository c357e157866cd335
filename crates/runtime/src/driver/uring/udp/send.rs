//! Sending datagrams.

use super::memory::SendOp;
use crate::driver::sockets::Sockets;
use crate::driver::udp::Udp;
use crate::driver::uring::{Op, Uring};
use crate::slots::Key;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::task::Waker;

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
        let (key, outgoing) = (op.socket, op.finish());
        if self.spare_sends.len() < SPARE_SENDS_MAX {
            self.spare_sends.push(op);
        }
        let (Some(udp), Some(outgoing)) = (sockets.udp(key), outgoing) else { return };
        udp.uring.sending = None;
        match -result {
            errno if errno <= 0 => {
                self.counters.sent.add(1);
                udp.outbox.sent(&outgoing, &mut udp.stats);
            }
            errno => {
                self.counters.eagain.add(u64::from(errno == libc::EAGAIN));
                udp.uring.blocked |= udp.outbox.refuse(outgoing, errno, &mut udp.stats);
            }
        }
        if udp.uring.abandoned {
            // One that was refused since then was put back.
            udp.outbox.give_up();
        }
        self.submit_datagrams(key, udp);
        if udp.outbox.has_room() {
            udp.outbox.waiters.wake(wakes);
        }
        if udp.outbox.is_empty() && udp.uring.sending.is_none() {
            if udp.has_lingered() {
                self.abandon(sockets, key);
            }
            self.remove_if_done(sockets, key);
        }
    }

    /// Submits what is queued, unless an earlier datagram is still with the ring.
    pub(in crate::driver) fn submit_datagrams(&mut self, key: Key, udp: &mut Udp) {
        while udp.uring.sending.is_none()
            && let Some(fd) = udp.fd()
        {
            // A buffer that is to be cut, too: the kernel may refuse it.
            if !udp.uring.blocked && (udp.outbox.len() > 1 || udp.outbox.next_is_cut()) {
                let (setup, stats) = (&udp.setup, &mut udp.stats);
                udp.uring.blocked =
                    !self.bursts.send_from(&mut udp.outbox, fd, setup, stats, &self.counters);
                continue;
            }
            let Some(outgoing) = udp.outbox.pop() else { break };
            let must_wait = std::mem::take(&mut udp.uring.blocked);
            let flags = libc::MSG_NOSIGNAL | if must_wait { 0 } else { libc::MSG_DONTWAIT };
            let mut send = self.spare_sends.pop().unwrap_or_else(|| SendOp::new(key));
            self.quick_bytes += outgoing.datagram.data.len();
            let mut entry = send.start(Fd(fd), outgoing, &udp.setup, flags);
            send.socket = key;
            let send = self.sends.insert(send);
            udp.uring.sending = Some(send);
            // A submission thread runs the send at an unknown time, so there it has to complete.
            udp.uring.silent = self.features.sqpoll_idle_ms == 0 && !must_wait;
            if udp.uring.silent {
                self.quick_datagrams.push(send);
                entry = entry.flags(Flags::SKIP_SUCCESS);
            }
            // SAFETY: the memory of a send is boxed in `sends` until its completion.
            unsafe { self.ring.push(entry.user_data(Op::SendDatagram.tag(send))) };
        }
        self.held_up |= udp.is_held_up();
    }
}
