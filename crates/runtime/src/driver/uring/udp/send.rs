//! Sending datagrams.

use super::memory::SendOp;
use crate::datagram::Datagram;
use crate::driver::closed;
use crate::driver::slots::Key;
use crate::driver::uring::{Entry, Op, UringDriver};
use crate::task::Waiter;
use io_uring::squeue::Flags;
use std::io;
use std::os::fd::AsRawFd;
use std::task::{Poll, Waker};

/// So many datagrams of one socket go by sendmmsg(2): there the ring has no batch to offer that the
/// call has not, and an operation for each costs more. Fewer wait for the next enter, which takes
/// those of all sockets.
const BURST_MIN: usize = 8;

/// Memory of finished sends kept for the next ones, by number of datagrams.
const SPARE_SENDS_MAX: usize = 4096;

impl UringDriver {
    pub(crate) fn poll_send_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        batch: &mut Vec<Datagram>,
    ) -> Poll<io::Result<()>> {
        loop {
            let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else {
                return Poll::Ready(Err(closed()));
            };
            udp.outbox.take(batch);
            self.send_datagrams(key);
            if batch.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { continue };
            // With room there was a burst, and the next one follows.
            if !udp.outbox.has_room() {
                udp.outbox.waiters.add(waiter);
                self.held_up |= udp.is_held_up();
                return Poll::Pending;
            }
        }
    }

    pub(crate) fn poll_datagrams_sent(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        let polled = udp.outbox.poll_settled(waiter);
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
        let name = socket.name;
        let (setup, stats) = (&udp.setup, &mut udp.stats);
        // Nothing may be under way that they would overtake.
        let mut at_once = setup.batch && setup.pending == 0 && udp.in_flight == 0 && !udp.blocked;
        // What is to be cut, too: the kernel may refuse to, and sendmmsg(2) stops there.
        while at_once && (udp.outbox.len() >= BURST_MIN || udp.outbox.next_is_cut()) {
            let fd = socket.owned.as_raw_fd();
            at_once = self.bursts.send_from(&mut udp.outbox, fd, setup, stats, &self.counters);
            udp.blocked = !at_once;
        }
        // Those that were refused go when all that were with them are over.
        let held_back = udp.outbox.has_refused() && udp.in_flight > 0;
        while udp.alone.is_none() && !held_back {
            let Some(bytes) = udp.outbox.next_bytes() else { break };
            let is_cut = udp.outbox.next_is_cut();
            if is_cut && udp.in_flight > 0 {
                break;
            }
            if !udp.room.admits(&socket.owned, bytes, &self.counters) {
                break;
            }
            let Some(outgoing) = udp.outbox.pop() else { break };
            let must_wait = std::mem::take(&mut udp.blocked);
            let flags = libc::MSG_NOSIGNAL | if must_wait { 0 } else { libc::MSG_DONTWAIT };
            let mut send = self.spare_sends.pop().unwrap_or_else(|| SendOp::new(key));
            self.quick_bytes += outgoing.datagram.data.len();
            let entry = send.start(name, outgoing, &udp.setup, send_address, flags);
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
            if must_wait || is_cut {
                udp.alone = Some(send);
            }
            // SAFETY: the memory of a send is boxed in `sends` until its completion.
            unsafe { self.ring.push(entry.user_data(Op::SendDatagram.tag(send))) };
        }
        self.held_up |= udp.is_held_up();
    }

    /// Treats the first `taken` silent sends, which the kernel has run, as sent unless they
    /// complained: then their operation is gone.
    pub(in crate::driver::uring) fn settle_datagrams(
        &mut self,
        taken: usize,
        wakes: &mut Vec<Waker>,
    ) {
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
    pub(in crate::driver::uring) fn on_datagram_sent(
        &mut self,
        send: Key,
        result: i32,
        wakes: &mut Vec<Waker>,
    ) {
        let Some(mut op) = self.sends.remove(send) else { return };
        let key = op.socket;
        let outgoing = op.finish();
        if let (Some(Entry::Udp(udp)), Some(outgoing)) = (self.entries.get_mut(key), outgoing) {
            udp.in_flight -= 1;
            udp.silent -= u32::from(op.silent);
            udp.alone = udp.alone.filter(|alone| *alone != send);
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
                udp.room.reset();
                self.after_datagrams(key, wakes);
            }
        }
        if self.spare_sends.len() < SPARE_SENDS_MAX {
            self.spare_sends.push(op);
        }
    }

    /// All sends in flight are over: the next, or the close, and whoever waits.
    fn after_datagrams(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        if let Some(Entry::Udp(udp)) = self.entries.get_mut(key)
            && udp.abandoned
        {
            // One that was refused since then has come back.
            udp.outbox.give_up();
        }
        self.send_datagrams(key);
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        if udp.outbox.has_room() {
            udp.outbox.waiters.wake(wakes);
        }
        if udp.outbox.is_empty() && udp.in_flight == 0 {
            self.close_if_flushed(key);
            self.remove_if_done(key);
        }
    }
}
