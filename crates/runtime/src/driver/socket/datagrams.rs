//! The operations on datagram sockets.

use super::{Engine, Entry, Sockets, entry};
use crate::buf::SendBuf;
use crate::datagram::{Datagram, Received, UdpStats};
use crate::driver::datagrams::{Outbox, UdpSetup};
use crate::driver::unix_attempt::UnixAttempt;
use crate::slots::Key;
use crate::task::{WaitQueue, Waiter};
use std::io;
use std::rc::Rc;
use std::task::Poll;

/// A datagram socket.
pub(crate) struct Udp<E: Engine> {
    pub(crate) setup: UdpSetup,
    pub(crate) stats: UdpStats,
    pub(crate) receive_waiters: WaitQueue,
    pub(crate) outbox: Outbox,
    pub(crate) own: E::Udp,
}

impl<E: Engine> Udp<E> {
    pub(crate) fn new(setup: UdpSetup, own: E::Udp) -> Udp<E> {
        Udp {
            stats: UdpStats::default(),
            receive_waiters: WaitQueue::default(),
            outbox: Outbox::new(setup.segmentation),
            setup,
            own,
        }
    }

    /// True while a closed socket still has datagrams to send.
    pub(crate) fn must_linger(&self) -> bool {
        !self.outbox.is_settled()
    }
}

impl<E: Engine> Sockets<E> {
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
        let (udp, engine) = entry!(self, key, Udp);
        udp.receive_waiters.leave(waiter);
        if let Some(received) = engine.receive_batch(key, udp, into, most) {
            return Poll::Ready(received);
        }
        udp.receive_waiters.add(waiter);
        engine.await_datagrams(key, udp)?;
        Poll::Pending
    }

    pub(crate) fn poll_send_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        batch: &mut Vec<Datagram>,
    ) -> Poll<io::Result<()>> {
        let (udp, engine) = entry!(self, key, Udp);
        while udp.outbox.take(batch) {
            engine.send_datagrams(key, udp);
        }
        if !batch.is_empty() {
            udp.outbox.waiters.add(waiter);
        }
        engine.await_datagrams_sent(key, udp)?;
        if batch.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    pub(crate) fn poll_attempt(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        data: &mut Option<SendBuf>,
        attempt: &Rc<UnixAttempt>,
    ) -> Poll<io::Result<()>> {
        let (udp, engine) = entry!(self, key, Udp);
        udp.outbox.take_attempt(data, attempt);
        engine.send_datagrams(key, udp);
        if attempt.is_over() {
            return Poll::Ready(Ok(()));
        }
        udp.outbox.waiters.add(waiter);
        engine.await_datagrams_sent(key, udp)?;
        Poll::Pending
    }

    pub(crate) fn poll_datagrams_ready(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        let (udp, engine) = entry!(self, key, Udp);
        if udp.outbox.has_room() {
            return Poll::Ready(Ok(()));
        }
        udp.outbox.waiters.add(waiter);
        engine.await_datagrams_sent(key, udp)?;
        Poll::Pending
    }

    pub(crate) fn poll_datagrams_sent(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        let (udp, engine) = entry!(self, key, Udp);
        let polled = udp.outbox.poll_settled(waiter);
        engine.await_datagrams_sent(key, udp)?;
        polled.map(Ok)
    }
}
