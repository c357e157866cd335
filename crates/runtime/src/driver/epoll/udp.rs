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

const READABLE: i32 = libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP;

pub(super) type Udp = socket::Udp<Epoll>;

/// The state of a datagram socket on epoll, beside the common state.
pub(crate) struct Own {
    /// Empty once it was leaked, at the end of the runtime.
    socket: Option<OwnedFd>,
    /// Index of the pool that fits, in [`Shared::datagrams`].
    group: usize,
    reading: Reading,
    /// Level-triggered only: datagrams arrived that no task waits for.
    pub(super) masked: bool,
    /// What epoll watches for.
    interest: i32,
    /// The send buffer was full: EPOLLOUT reports when it is not.
    blocked: bool,
}

impl Own {
    pub(super) fn new(socket: OwnedFd, group: usize, interest: i32) -> Own {
        let reading = Reading::new(true);
        Own { socket: Some(socket), group, reading, masked: false, interest, blocked: false }
    }
}

impl Udp {
    pub(super) fn first_interest(edge_triggered: bool) -> i32 {
        if edge_triggered { libc::EPOLLIN | libc::EPOLLET } else { libc::EPOLLIN }
    }

    /// The descriptor, which is open as long as the runtime.
    pub(super) fn fd(&self) -> RawFd {
        self.own.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub(super) fn take_socket(&mut self) -> Option<OwnedFd> {
        self.own.socket.take()
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
            self.own.masked = self.receive_waiters.is_empty();
            self.receive_waiters.wake(wakes);
        }
        if bits & libc::EPOLLOUT != 0 && std::mem::take(&mut self.own.blocked) {
            self.flush(shared);
            if self.outbox.has_room() {
                self.outbox.waiters.wake(wakes);
            }
        }
    }

    /// Watches for the events that are needed now; rarely a change when edge-triggered.
    pub(super) fn update_interest(
        &mut self,
        epoll: &EpollSet,
        key: Key,
        shared: &Shared,
    ) -> io::Result<()> {
        let edge = shared.features.edge_triggered;
        let mut wanted = Udp::first_interest(edge);
        if !edge && (self.own.masked || self.outbox.closing) {
            // An error cannot be masked; edge-triggered it is reported only once.
            wanted = libc::EPOLLET;
        }
        if self.own.blocked {
            wanted |= libc::EPOLLOUT;
        }
        if wanted == self.own.interest {
            return Ok(());
        }
        self.own.interest = wanted;
        shared.counters.syscalls.add(1);
        epoll.modify(self.fd(), wanted, key.to_bits())
    }
}
