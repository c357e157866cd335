//! UDP sockets on epoll: recvmmsg(2) and sendmmsg(2), or one call per datagram as an option.
//!
//! A receive that brought fewer datagrams than it had room for has emptied the socket. (It may
//! also have met an error behind the last datagram; then that error came during the call, and its
//! event is still to come.) A single recvmsg(2) says so only by EAGAIN.
//!
//! EPOLLOUT is watched only while a send is blocked. A UDP socket reports it anew whenever a
//! packet has left, as long as there is room: edge-triggered, each send would cost an event.

use super::Shared;
use crate::buf::RecvBuf;
use crate::datagram::{Datagram, Received, UdpStats};
use crate::driver::datagrams::{BATCH_MAX, Outbox, UdpSetup, count_received, is_icmp_error};
use crate::driver::mmsg::RecvBatch;
use crate::driver::slots::Key;
use crate::driver::{Side, errno};
use crate::sys::poll::Epoll;
use crate::task::{WaitQueue, Waiter};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Poll, Waker};

/// Datagrams asked for at least. Each costs a header to prepare, so a socket on which few arrive
/// asks for few; one more than come shows that the socket is empty.
const ASKED_MIN: usize = 4;

const READABLE: i32 = libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP;

pub(super) struct Udp {
    socket: OwnedFd,
    setup: UdpSetup,
    /// Index of the pool that fits, in [`Shared::datagrams`].
    group: usize,
    /// Set by an event, cleared by a receive that emptied the socket. Starts out set.
    readable: bool,
    /// Datagrams that the next receive asks for.
    asked: usize,
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
            readable: true,
            asked: ASKED_MIN,
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
        while self.readable {
            shared.counters.syscalls.add(1);
            let group: &mut RecvBatch = &mut shared.datagrams[self.group];
            let before = into.len();
            let (most, calls) = (most.min(self.asked), &shared.counters.calls);
            match group.receive(self.socket.as_raw_fd(), &self.setup, most, into, calls) {
                Ok((came, asked)) => {
                    let single = !self.setup.batch || asked == 1;
                    self.readable = single || came == asked;
                    // Grown at once, as each further call costs more than headers do.
                    let next = if came == asked { 4 * asked } else { (asked / 2).max(2 * came) };
                    self.asked = next.clamp(ASKED_MIN, BATCH_MAX);
                    shared.counters.received.add(came as u64);
                    let short = group.is_short();
                    for received in &mut into[before..] {
                        count_received(&mut self.stats, received);
                        if short {
                            shared.counters.copied_out.add(1);
                            let data = std::mem::replace(&mut received.data, RecvBuf::empty());
                            received.data = data.detach();
                        }
                    }
                    self.stats.receive_errors += (before + came - into.len()) as u64;
                    let delivered = into.len() - before;
                    if delivered > 0 {
                        return Poll::Ready(Ok(delivered));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    shared.counters.eagain.add(1);
                    self.readable = false;
                }
                Err(error) if is_icmp_error(errno(&error)) => self.stats.icmp_errors += 1,
                Err(error) => {
                    self.stats.receive_errors += 1;
                    return Poll::Ready(Err(error));
                }
            }
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
            self.readable = true;
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
