//! UDP sockets on epoll: recvmmsg(2) and sendmmsg(2), or one call per datagram as an option.
//!
//! EPOLLOUT is watched only while a send is blocked. A UDP socket reports it again whenever a
//! packet has left, as long as there is free space: edge-triggered, each send would cost an event.

use super::{Epoll, Shared};
use crate::datagram::Received;
use crate::driver::mmsg::{Reading, Source};
use crate::driver::socket;
use crate::slots::Key;
use crate::sys::poll::Epoll as EpollSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::Waker;

/// The events that a datagram socket is registered for.
pub(super) const INTEREST: i32 = libc::EPOLLIN | libc::EPOLLET;

const READABLE: i32 = libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP;

pub(super) type Udp = socket::Udp<Epoll>;

/// The state of a datagram socket on epoll, beside the common state.
pub(crate) struct Own {
    socket: OwnedFd,
    /// Index of the pool that fits, in [`Shared::datagrams`].
    group: usize,
    reading: Reading,
    /// The send buffer was full: EPOLLOUT reports when it is not.
    blocked: bool,
    /// EPOLLOUT is watched.
    watches_room: bool,
}

impl Own {
    pub(super) fn new(socket: OwnedFd, group: usize) -> Own {
        let reading = Reading::new(true);
        Own { socket, group, reading, blocked: false, watches_room: false }
    }
}

impl Udp {
    pub(super) fn fd(&self) -> RawFd {
        self.own.socket.as_raw_fd()
    }

    pub(super) fn receive_batch(
        &mut self,
        into: &mut Vec<Received>,
        most: usize,
        shared: &mut Shared,
    ) -> Option<io::Result<usize>> {
        let source = Source { fd: self.fd(), setup: &self.setup, stats: &mut self.stats };
        let batch = &mut shared.datagrams[self.own.group];
        self.own.reading.read(batch, source, into, most, &shared.counters)
    }

    /// Sends queued datagrams until the kernel takes no more.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        let fd = self.fd();
        while !self.own.blocked && !self.outbox.is_empty() {
            let (setup, stats) = (&self.setup, &mut self.stats);
            self.own.blocked =
                !shared.sends.send_from(&mut self.outbox, fd, setup, stats, &shared.counters);
        }
    }

    pub(super) fn on_event(&mut self, bits: i32, shared: &mut Shared, wakes: &mut Vec<Waker>) {
        if bits & READABLE != 0 {
            self.own.reading.readable = true;
            self.receive_waiters.wake(wakes);
        }
        if bits & libc::EPOLLOUT != 0 && std::mem::take(&mut self.own.blocked) {
            self.flush(shared);
            if self.outbox.has_room() {
                self.outbox.waiters.wake(wakes);
            }
        }
    }

    /// Watches for free space in the send buffer while a send is blocked.
    pub(super) fn update_interest(
        &mut self,
        epoll: &EpollSet,
        key: Key,
        shared: &Shared,
    ) -> io::Result<()> {
        if self.own.blocked == self.own.watches_room {
            return Ok(());
        }
        self.own.watches_room = self.own.blocked;
        let room = if self.own.blocked { libc::EPOLLOUT } else { 0 };
        shared.counters.syscalls.add(1);
        epoll.modify(self.fd(), INTEREST | room, key.to_bits())
    }
}
