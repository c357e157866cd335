//! UDP sockets on epoll: recvmmsg(2) and sendmmsg(2), or one call per datagram as an option.
//!
//! EPOLLOUT is watched only while a send is blocked. A UDP socket reports it anew whenever a
//! packet has left, as long as there is room: edge-triggered, each send would cost an event.

use super::Shared;
use crate::datagram::{Datagram, Received, UdpStats};
use crate::driver::Side;
use crate::driver::datagrams::{Outbox, UdpSetup};
use crate::driver::mmsg::{Reading, Source};
use crate::driver::slots::Key;
use crate::sys::poll::Epoll;
use crate::task::{WaitQueue, Waiter};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Poll, Waker};

const READABLE: i32 = libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP;

pub(super) struct Udp {
    socket: OwnedFd,
    setup: UdpSetup,
    /// Index of the pool that fits, in [`Shared::datagrams`].
    group: usize,
    reading: Reading,
    /// Level-triggered only: datagrams arrived that nobody waits for.
    masked: bool,
    /// What epoll watches for.
    interest: i32,
    /// The program has closed its end; what it handed over is still being sent.
    pub(super) closing: bool,
    receive_waiters: WaitQueue,
    pub(super) outbox: Outbox,
    /// The send buffer was full: EPOLLOUT says when it is not.
    blocked: bool,
    pub(super) stats: UdpStats,
}

impl Udp {
    pub(super) fn new(socket: OwnedFd, setup: UdpSetup, group: usize, interest: i32) -> Udp {
        Udp {
            socket,
            group,
            reading: Reading::new(true),
            masked: false,
            interest,
            closing: false,
            receive_waiters: WaitQueue::default(),
            outbox: Outbox::new(setup.segmentation),
            blocked: false,
            stats: UdpStats::default(),
            setup,
        }
    }

    pub(super) fn first_interest(edge_triggered: bool) -> i32 {
        if edge_triggered { libc::EPOLLIN | libc::EPOLLET } else { libc::EPOLLIN }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) fn wait_queue(&mut self, side: Side) -> &mut WaitQueue {
        match side {
            Side::Receive => &mut self.receive_waiters,
            Side::Send => &mut self.outbox.waiters,
        }
    }

    pub(super) fn wake_waiters(&mut self, wakes: &mut Vec<Waker>) {
        self.receive_waiters.wake(wakes);
        self.outbox.waiters.wake(wakes);
    }

    /// True while a closed socket still has datagrams to send.
    pub(super) fn must_linger(&self) -> bool {
        !self.outbox.is_settled()
    }

    pub(super) fn poll_recv_batch(
        &mut self,
        waiter: &mut Waiter<'_>,
        into: &mut Vec<Received>,
        most: usize,
        shared: &mut Shared,
    ) -> Poll<io::Result<usize>> {
        self.receive_waiters.leave(waiter);
        let (fd, setup, stats) = (self.socket.as_raw_fd(), &self.setup, &mut self.stats);
        let batch = &mut shared.datagrams[self.group];
        let source = Source { fd, setup, stats };
        if let Some(read) = self.reading.read(batch, source, into, most, &shared.counters) {
            return Poll::Ready(read);
        }
        self.receive_waiters.add(waiter);
        self.masked = false;
        Poll::Pending
    }

    pub(super) fn poll_send_batch(
        &mut self,
        waiter: &mut Waiter<'_>,
        batch: &mut Vec<Datagram>,
        shared: &mut Shared,
    ) -> Poll<io::Result<()>> {
        while self.outbox.take(batch) {
            self.flush(shared);
        }
        if batch.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.outbox.waiters.add(waiter);
        Poll::Pending
    }

    /// Sends queued datagrams until the kernel takes no more.
    fn flush(&mut self, shared: &mut Shared) {
        let fd = self.socket.as_raw_fd();
        while !self.blocked && !self.outbox.is_empty() {
            let (setup, stats) = (&self.setup, &mut self.stats);
            self.blocked =
                !shared.sends.send_from(&mut self.outbox, fd, setup, stats, &shared.counters);
        }
    }

    pub(super) fn on_event(&mut self, bits: i32, shared: &mut Shared, wakes: &mut Vec<Waker>) {
        if bits & READABLE != 0 {
            self.reading.readable = true;
            self.masked = self.receive_waiters.is_empty();
            self.receive_waiters.wake(wakes);
        }
        if bits & libc::EPOLLOUT != 0 && std::mem::take(&mut self.blocked) {
            self.flush(shared);
            if self.outbox.has_room() {
                self.outbox.waiters.wake(wakes);
            }
        }
    }

    /// Watches for what matters now: rarely a change when edge-triggered.
    pub(super) fn update_interest(
        &mut self,
        epoll: &Epoll,
        key: Key,
        shared: &Shared,
    ) -> io::Result<()> {
        let edge = shared.features.edge_triggered;
        let mut wanted = Udp::first_interest(edge);
        if !edge && (self.masked || self.closing) {
            // An error cannot be masked; edge-triggered it reports only once.
            wanted = libc::EPOLLET;
        }
        if self.blocked {
            wanted |= libc::EPOLLOUT;
        }
        if wanted == self.interest {
            return Ok(());
        }
        self.interest = wanted;
        shared.counters.syscalls.add(1);
        epoll.modify(self.fd(), wanted, key.to_bits())
    }
}
