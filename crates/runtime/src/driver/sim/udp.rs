//! Datagram sockets on the simulated engine.

use super::datagram::Outbound;
use super::kernel::{Completion, Op};
use super::{Entry, SimDriver, world};
use crate::buf::{Pool, RecvBuf};
use crate::datagram::{Datagram, Received, UdpStats};
use crate::driver::ancillary::RecvControl;
use crate::driver::datagrams::{
    HELD_DATAGRAMS_MAX, Outbox, UdpSetup, count_received, is_icmp_error,
};
use crate::driver::slots::Key;
use crate::driver::{Side, closed, errno};
use crate::task::{WaitQueue, Waiter};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Datagrams a socket holds unread before it stops receiving.
const RECEIVED_MAX: usize = 256;

pub(super) struct Datagrams {
    socket: OwnedFd,
    setup: UdpSetup,
    pool: Rc<Pool>,
    receiving: bool,
    received: VecDeque<Received>,
    receive_error: Option<i32>,
    receive_waiters: WaitQueue,
    outbox: Outbox,
    /// The send buffer was full, and the kernel tells when it is not.
    blocked: bool,
    pub(super) closing: bool,
    stats: UdpStats,
}

impl Datagrams {
    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) fn must_linger(&self) -> bool {
        !self.outbox.is_settled()
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

    pub(super) fn check(&self, resting: bool) -> Result<(), &'static str> {
        if self.received.len() > RECEIVED_MAX {
            return Err("more datagrams are unread than may be");
        }
        if self.outbox.len() > HELD_DATAGRAMS_MAX + usize::from(u16::MAX) {
            return Err("more datagrams are held than may be");
        }
        let something = !self.received.is_empty() || self.receive_error.is_some();
        if resting && something && !self.receive_waiters.is_empty() {
            return Err("a task waits for datagrams that are there");
        }
        if resting && self.outbox.is_settled() && !self.outbox.waiters.is_empty() {
            return Err("a task waits to send although all was sent");
        }
        Ok(())
    }
}

impl SimDriver {
    fn udp(&mut self, key: Key) -> Option<&mut Datagrams> {
        match self.entries.get_mut(key) {
            Some(Entry::Udp(udp)) => Some(udp),
            _ => None,
        }
    }

    pub(crate) fn add_udp(&mut self, socket: OwnedFd, setup: UdpSetup) -> io::Result<Key> {
        let (count, bytes) = (usize::from(setup.buffer_count), setup.buffer_bytes);
        let fits = |pool: &&Rc<Pool>| (pool.count(), pool.buffer_bytes()) == (count, bytes);
        let pool = match self.datagram_pools.iter().find(fits) {
            Some(pool) => Rc::clone(pool),
            None => {
                let pool = Rc::new(Pool::new(setup.buffer_count, bytes)?);
                world::keep_account_of(&pool);
                self.datagram_pools.push(Rc::clone(&pool));
                pool
            }
        };
        let fd = socket.as_raw_fd();
        let udp = Datagrams {
            socket,
            pool,
            receiving: false,
            received: VecDeque::new(),
            receive_error: None,
            receive_waiters: WaitQueue::default(),
            outbox: Outbox::new(setup.segmentation),
            blocked: false,
            closing: false,
            stats: UdpStats::default(),
            setup,
        };
        Ok(self.insert(fd, Entry::Udp(Box::new(udp))))
    }

    pub(crate) fn udp_stats(&self, key: Key) -> Option<UdpStats> {
        match self.entries.get(key)? {
            Entry::Udp(udp) => Some(udp.stats),
            _ => None,
        }
    }

    pub(crate) fn poll_recv_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let Some(udp) = self.udp(key) else { return Poll::Ready(Err(closed())) };
        let count = udp.received.len().min(most);
        if count > 0 {
            into.extend(udp.received.drain(..count));
            return Poll::Ready(Ok(count));
        }
        if let Some(errno) = udp.receive_error.take() {
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
        }
        udp.receive_waiters.add(waiter);
        self.arm_datagrams(key);
        Poll::Pending
    }

    pub(super) fn arm_datagrams(&mut self, key: Key) {
        let Some(udp) = self.udp(key).filter(|udp| !udp.receiving && !udp.closing) else { return };
        udp.receiving = true;
        let fd = udp.fd();
        self.kernel().arm(fd, Op::Receive);
    }

    pub(super) fn on_udp(&mut self, key: Key, completion: Completion, wakes: &mut Vec<Waker>) {
        match completion.op {
            Op::Receive => self.on_datagram(key, completion, wakes),
            Op::Send => {
                let Some(udp) = self.udp(key) else { return };
                udp.blocked = false;
                self.flush(key);
                let Some(udp) = self.udp(key) else { return };
                if udp.outbox.has_room() {
                    udp.outbox.waiters.wake(wakes);
                }
                if udp.closing && !udp.must_linger() {
                    self.remove(key);
                }
            }
            Op::Accept | Op::Connect | Op::File => {}
        }
    }

    fn on_datagram(&mut self, key: Key, completion: Completion, wakes: &mut Vec<Waker>) {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        udp.receiving &= completion.more;
        // A report that was on its way when receiving was paused is none to follow.
        let has_room = udp.received.len() < RECEIVED_MAX;
        if completion.refused.is_none() && !udp.closing && has_room {
            let mut kernel = self.machine.kernel.borrow_mut();
            match kernel.recv_datagram(udp.fd()) {
                Ok(packet) => {
                    let drops = packet.drops;
                    let told = RecvControl {
                        to: udp.setup.wanted.pktinfo.then_some(packet.to),
                        segment_bytes: None,
                        traffic_class: (udp.setup.wanted.traffic_class)
                            .then_some(packet.traffic_class),
                        received_ns: udp.setup.wanted.timestamps.then_some(packet.arrived_ns),
                        kernel_drops: (udp.setup.wanted.drop_marks && drops > 0).then_some(drops),
                    };
                    let bytes = packet.payload.len().min(udp.pool.buffer_bytes());
                    let data = receive_into(&udp.pool, &packet.payload[..bytes]);
                    let truncated = bytes < packet.payload.len();
                    let received = Received::told(data, packet.from, told, truncated);
                    count_received(&mut udp.stats, &received);
                    self.counters.received.add(1);
                    udp.received.push_back(received);
                    udp.receive_waiters.wake(wakes);
                    if udp.received.len() >= RECEIVED_MAX && udp.receiving {
                        udp.receiving = false;
                        kernel.disarm(udp.fd(), Op::Receive);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if is_icmp_error(errno(&error)) => udp.stats.icmp_errors += 1,
                Err(error) => {
                    udp.stats.receive_errors += 1;
                    udp.receive_error = Some(errno(&error));
                    udp.receive_waiters.wake(wakes);
                }
            }
        }
        if self.udp(key).is_some_and(|udp| !udp.receive_waiters.is_empty()) {
            self.arm_datagrams(key);
        }
    }

    pub(crate) fn poll_send_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        batch: &mut Vec<Datagram>,
    ) -> Poll<io::Result<()>> {
        loop {
            let Some(udp) = self.udp(key) else { return Poll::Ready(Err(closed())) };
            if !udp.outbox.take(batch) {
                break;
            }
            self.flush(key);
        }
        if batch.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if let Some(udp) = self.udp(key) {
            udp.outbox.waiters.add(waiter);
        }
        Poll::Pending
    }

    /// Sends what is held until the kernel takes no more.
    fn flush(&mut self, key: Key) {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else { return };
        let mut kernel = self.machine.kernel.borrow_mut();
        while !udp.blocked
            && let Some(outgoing) = udp.outbox.pop()
        {
            let datagram = &outgoing.datagram;
            let control = udp.setup.control_for(datagram);
            let out = Outbound {
                to: datagram.to,
                from: control.from,
                segment_bytes: control.segment_bytes,
                traffic_class: control.traffic_class.unwrap_or(udp.setup.traffic_class),
                payload: datagram.data.as_slice(),
            };
            match kernel.may_refuse().and_then(|()| kernel.send_datagram(udp.fd(), &out)) {
                Ok(()) => {
                    self.counters.sent.add(1);
                    udp.outbox.sent(&outgoing, &mut udp.stats);
                }
                Err(error) => {
                    udp.blocked = error.kind() == io::ErrorKind::WouldBlock;
                    udp.outbox.refuse(outgoing, errno(&error), &mut udp.stats);
                }
            }
        }
        if udp.blocked {
            kernel.arm(udp.fd(), Op::Send);
        }
    }

    pub(crate) fn poll_datagrams_sent(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        match self.udp(key) {
            Some(udp) => udp.outbox.poll_settled(waiter).map(Ok),
            None => Poll::Ready(Err(closed())),
        }
    }
}

/// The payload in a buffer of the pool; one that is short of buffers gets it back at once.
fn receive_into(pool: &Rc<Pool>, payload: &[u8]) -> RecvBuf {
    // As elsewhere, pieces are copied out before the pool is empty, so there is always one.
    let Some(id) = pool.take() else { return RecvBuf::empty() };
    pool.with_writable(id, |memory| {
        for (to, from) in memory.iter_mut().zip(payload) {
            to.write(*from);
        }
    });
    let data = RecvBuf::from_pool(pool, id, 0, payload.len());
    if pool.available() * 4 < pool.count() { data.detach() } else { data }
}
