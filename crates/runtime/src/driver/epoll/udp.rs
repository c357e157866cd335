//! UDP sockets on epoll: recvmmsg(2) and sendmmsg(2), or one call per datagram as an option.
//!
//! EPOLLOUT is watched only while a send is blocked. A UDP socket reports it again whenever a
//! packet has left, as long as there is free space: edge-triggered, each send would cost an event.

use super::Shared;
use crate::datagram::Received;
use crate::driver::mmsg::{Reading, Source};
use crate::driver::udp::Udp;
use crate::slots::Key;
use crate::sys::poll::Epoll as EpollSet;
use std::io;
use std::os::fd::RawFd;
use std::task::Waker;

/// The events that a datagram socket is registered for.
pub(super) const INTEREST: i32 = libc::EPOLLIN | libc::EPOLLET;

const READABLE: i32 = libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP;

/// What epoll has to remember of a datagram socket.
pub(crate) struct EpollUdp {
    /// Index of the pool that fits, in [`Shared::datagrams`].
    group: usize,
    reading: Reading,
    /// The send buffer was full: EPOLLOUT reports when it is not.
    blocked: bool,
    /// EPOLLOUT is watched.
    watches_room: bool,
}

impl Default for EpollUdp {
    fn default() -> EpollUdp {
        EpollUdp::new(0)
    }
}

impl EpollUdp {
    pub(super) fn new(group: usize) -> EpollUdp {
        EpollUdp { group, reading: Reading::new(true), blocked: false, watches_room: false }
    }
}

impl Udp {
    /// The descriptor, which is open as long as the entry exists.
    fn open_fd(&self) -> RawFd {
        self.fd().unwrap_or(-1)
    }

    pub(in crate::driver) fn receive_batch(
        &mut self,
        into: &mut Vec<Received>,
        most: usize,
        shared: &mut Shared,
    ) -> Option<io::Result<usize>> {
        let source = Source { fd: self.open_fd(), setup: &self.setup, stats: &mut self.stats };
        let batch = &mut shared.datagrams[self.epoll.group];
        self.epoll.reading.read(batch, source, into, most, &shared.counters)
    }

    /// Sends queued datagrams until the kernel takes no more.
    pub(in crate::driver) fn flush(&mut self, shared: &mut Shared) {
        let fd = self.open_fd();
        while !self.epoll.blocked && !self.outbox.is_empty() {
            let (setup, stats) = (&self.setup, &mut self.stats);
            self.epoll.blocked =
                !shared.sends.send_from(&mut self.outbox, fd, setup, stats, &shared.counters);
        }
    }

    pub(super) fn on_event(&mut self, bits: i32, shared: &mut Shared, wakes: &mut Vec<Waker>) {
        if bits & READABLE != 0 {
            self.epoll.reading.readable = true;
            self.receive_waiters.wake(wakes);
        }
        if bits & libc::EPOLLOUT != 0 && std::mem::take(&mut self.epoll.blocked) {
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
        shared: &Shared,
    ) -> io::Result<()> {
        if self.epoll.blocked == self.epoll.watches_room {
            return Ok(());
        }
        self.epoll.watches_room = self.epoll.blocked;
        let room = if self.epoll.blocked { libc::EPOLLOUT } else { 0 };
        shared.counters.syscalls.add(1);
        epoll.modify(self.open_fd(), INTEREST | room, key.to_bits())
    }
}
