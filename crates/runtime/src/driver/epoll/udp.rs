//! UDP sockets on epoll: recvmmsg(2) and sendmmsg(2).
//!
//! EPOLLOUT is watched only while a send is blocked. A UDP socket reports it again whenever a
//! packet has left, as long as there is free space: edge-triggered, each send would cost an event.

use super::EpollShared;
use crate::buf::RecvBuf;
use crate::datagram::Received;
use crate::driver::common::errno;
use crate::driver::udp::{BATCH_MAX, Udp, is_icmp_error};
use crate::slots::Key;
use crate::sys::poll::EpollSet;
use std::io;
use std::task::Waker;

pub(super) const INTEREST: i32 = libc::EPOLLIN | libc::EPOLLET;

const READABLE: i32 = libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP;

/// The minimum number of datagrams that a receive requests. Each costs a header to prepare, so a socket
/// on which few arrive requests few. Requesting one more than there are shows that the socket is empty.
const ASKED_MIN: usize = 4;

pub(crate) struct EpollUdp {
    /// Set by an event, cleared by a receive that emptied the socket: one that returned fewer datagrams
    /// than it had room for. (It may also have found an error behind the last datagram. That error
    /// occurred during the call, so its event is still to come.)
    readable: bool,
    asked: usize,
    /// EPOLLOUT is watched, which reports that the send buffer is not full any more.
    watches_room: bool,
}

impl Default for EpollUdp {
    fn default() -> EpollUdp {
        EpollUdp { readable: true, asked: ASKED_MIN, watches_room: false }
    }
}

impl Udp {
    /// Appends at most `most` datagrams to `into` and returns how many; `None` if there are none. ICMP
    /// errors are counted and skipped.
    pub(in crate::driver) fn receive_batch(
        &mut self,
        into: &mut Vec<Received>,
        most: usize,
        shared: &mut EpollShared,
    ) -> Option<io::Result<usize>> {
        let (counters, fd) = (&shared.counters, self.any_fd());
        let batch = &mut shared.datagrams[self.group];
        while self.epoll.readable {
            counters.syscalls.add(1);
            let (before, most) = (into.len(), most.min(self.epoll.asked));
            match batch.receive(fd, &self.setup, most, into) {
                Ok((came, asked)) => {
                    self.epoll.readable = came == asked;
                    // Grown immediately, as a further call costs more than headers do.
                    let next = if came == asked { 4 * asked } else { (asked / 2).max(2 * came) };
                    self.epoll.asked = next.clamp(ASKED_MIN, BATCH_MAX);
                    counters.received.add(came as u64);
                    let short = batch.pool.is_short(0);
                    for received in &mut into[before..] {
                        self.stats.count_received(received);
                        if short {
                            counters.copied_out.add(1);
                            let data = std::mem::replace(&mut received.data, RecvBuf::empty());
                            received.data = data.detach();
                        }
                    }
                    self.stats.receive_errors += (before + came - into.len()) as u64;
                    if into.len() > before {
                        return Some(Ok(into.len() - before));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    counters.eagain.add(1);
                    self.epoll.readable = false;
                }
                Err(error) if is_icmp_error(errno(&error)) => self.stats.icmp_errors += 1,
                Err(error) => {
                    self.stats.receive_errors += 1;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    pub(in crate::driver) fn flush(&mut self, shared: &mut EpollShared) {
        while !self.outbox.blocked && !self.outbox.is_empty() {
            shared.sends.send_from(self, &shared.counters);
        }
    }

    pub(super) fn on_event(&mut self, bits: i32, shared: &mut EpollShared, wakes: &mut Vec<Waker>) {
        if bits & READABLE != 0 {
            self.epoll.readable = true;
            self.receive_waiters.wake(wakes);
        }
        if bits & libc::EPOLLOUT != 0 && std::mem::take(&mut self.outbox.blocked) {
            self.flush(shared);
            if self.outbox.has_room() {
                self.outbox.waiters.wake(wakes);
            }
        }
    }

    /// Watches for free space in the send buffer while a send is blocked.
    pub(in crate::driver) fn update_interest(
        &mut self,
        epoll: &EpollSet,
        key: Key,
        shared: &EpollShared,
    ) -> io::Result<()> {
        if self.outbox.blocked == self.epoll.watches_room {
            return Ok(());
        }
        self.epoll.watches_room = self.outbox.blocked;
        let room = if self.outbox.blocked { libc::EPOLLOUT } else { 0 };
        shared.counters.syscalls.add(1);
        epoll.modify(self.any_fd(), INTEREST | room, key.to_bits())
    }
}
