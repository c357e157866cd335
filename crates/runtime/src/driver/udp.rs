//! A datagram socket on either engine: its setup, and the datagrams to send.

use super::ancillary::{NAME_BYTES, RECV_CONTROL_BYTES, decode_address, decode_control};
use super::common::closed;
use super::epoll::EpollUdp;
use super::uring::UringUdp;
use super::{Backend, Driver};
use crate::buf::{RecvBuf, SendBuf};
use crate::datagram::{Datagram, Received, UdpStats};
use crate::net::{Granted, UdpOptions};
use crate::slots::Key;
use crate::task::{WaitQueue, Waiter};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::Poll;

/// Datagrams that one `recv_batch` delivers at most, and one recvmmsg(2) or sendmmsg(2) carries.
pub(crate) const BATCH_MAX: usize = 64;
/// Unsent datagrams of a socket at which `send_batch` waits.
const QUEUED_MAX: usize = 1024;
/// Unsent bytes of a socket at which `send_batch` waits. While there are fewer, one further datagram of
/// any size is accepted.
const QUEUED_BYTES_MAX: usize = 1024 * 1024;

/// Segments the kernel cuts one buffer into at most: UDP_MAX_SEGMENTS, 64 until Linux 6.9.
const SEGMENTS_MAX: usize = 64;
/// Bytes of one buffer the kernel cuts at most: the longest UDP payload on IPv4.
const SEGMENTED_BYTES_MAX: usize = 65_507;

#[derive(Clone, Debug)]
pub(crate) struct UdpSetup {
    pub(crate) local: SocketAddr,
    /// The peer of a connected socket.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) options: UdpOptions,
    pub(crate) granted: Granted,
}

impl UdpSetup {
    fn has_ancillary_data(&self) -> bool {
        self.options.pktinfo || self.granted.gro || self.options.traffic_class
    }

    /// True if a receive needs neither the sender's address nor ancillary data.
    pub(crate) fn is_plain(&self) -> bool {
        self.peer.is_some() && !self.has_ancillary_data()
    }

    /// Longest datagram received whole.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.options.buffer_bytes as usize
    }

    /// Bytes of a socket address and of ancillary data that a receive asks for.
    pub(crate) fn name_and_control_bytes(&self) -> (usize, usize) {
        let name = if self.peer.is_some() { 0 } else { NAME_BYTES };
        (name, if self.has_ancillary_data() { RECV_CONTROL_BYTES } else { 0 })
    }

    /// A datagram as the kernel reports it; `None` if its sender cannot be read.
    pub(crate) fn received(
        &self,
        data: RecvBuf,
        name: &[u8],
        control: &[u8],
        truncated: bool,
    ) -> Option<Received> {
        let from = self.peer.or_else(|| decode_address(name))?;
        let (to, segment_bytes, traffic_class) = (None, None, None);
        let mut received = Received { data, from, to, segment_bytes, traffic_class, truncated };
        decode_control(control, &mut received);
        Some(received)
    }
}

pub(crate) struct Udp {
    /// Empty once it was closed.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) setup: UdpSetup,
    /// The index of the engine's buffers that fit.
    pub(crate) group: usize,
    pub(crate) stats: UdpStats,
    pub(crate) receive_waiters: WaitQueue,
    pub(crate) outbox: Outbox,
    /// What one engine has to remember; that of the other is not used.
    pub(crate) uring: UringUdp,
    pub(crate) epoll: EpollUdp,
}

impl Udp {
    pub(crate) fn new(socket: OwnedFd, setup: UdpSetup, group: usize) -> Box<Udp> {
        Box::new(Udp {
            socket: Some(socket),
            group,
            stats: UdpStats::default(),
            receive_waiters: WaitQueue::default(),
            outbox: Outbox::new(setup.granted.gso),
            uring: UringUdp::new(&setup),
            epoll: EpollUdp::default(),
            setup,
        })
    }

    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// The descriptor, for a call that fails on a closed socket.
    pub(crate) fn any_fd(&self) -> RawFd {
        self.fd().unwrap_or(-1)
    }

    /// True when every datagram is with the kernel, or counted as not sent. A closed socket lingers
    /// until then.
    pub(crate) fn is_settled(&self) -> bool {
        self.outbox.is_empty() && !self.uring.is_sending()
    }
}

impl Driver {
    pub(super) fn udp(&mut self, key: Key) -> io::Result<(&mut Udp, &mut Backend)> {
        Ok((self.sockets.udp(key).ok_or_else(closed)?.0, &mut self.engine))
    }

    pub(crate) fn add_udp(&mut self, socket: OwnedFd, setup: UdpSetup) -> io::Result<Key> {
        match &mut self.engine {
            Backend::Uring(uring) => uring.add_udp(&mut self.sockets, socket, setup),
            Backend::Epoll(epoll) => epoll.add_udp(&mut self.sockets, socket, setup),
        }
    }

    /// Appends at least one and at most `most` received datagrams; returns how many.
    pub(crate) fn poll_recv_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let (udp, engine) = self.udp(key)?;
        udp.receive_waiters.leave(waiter);
        let received = match engine {
            Backend::Uring(uring) => uring.take_datagrams(key, udp, into, most),
            Backend::Epoll(epoll) => udp.receive_batch(into, most, &mut epoll.shared),
        };
        if let Some(received) = received {
            return Poll::Ready(received);
        }
        udp.receive_waiters.add(waiter);
        if let Backend::Uring(uring) = engine {
            uring.arm_datagrams(key, udp);
        }
        Poll::Pending
    }

    /// Takes as many datagrams from the front of `batch` as there is room for; returns how many bytes.
    pub(crate) fn send_batch(&mut self, key: Key, batch: &mut Vec<Datagram>) -> io::Result<usize> {
        let (udp, engine) = self.udp(key)?;
        let mut bytes = 0;
        while let Some(taken) = udp.outbox.take(batch) {
            bytes += taken;
            match engine {
                Backend::Uring(uring) => uring.submit_datagrams(key, udp),
                Backend::Epoll(epoll) => udp.flush(&mut epoll.shared),
            }
        }
        engine.await_datagrams_sent(key, udp).map(|()| bytes)
    }

    /// Ready if `done`; otherwise waits until datagrams are with the kernel or were counted as not sent.
    pub(crate) fn poll_outbox(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        done: impl FnOnce(&Udp) -> bool,
    ) -> Poll<io::Result<()>> {
        let (udp, engine) = self.udp(key)?;
        let done = done(udp);
        if !done {
            udp.outbox.waiters.add(waiter);
        }
        engine.await_datagrams_sent(key, udp)?;
        if done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    pub(crate) fn udp_stats(&mut self, key: Key) -> Option<UdpStats> {
        self.udp(key).ok().map(|(udp, _)| udp.stats)
    }
}

impl Backend {
    /// As [`await_sent`](Backend::await_sent), and after datagrams were sent.
    pub(super) fn await_datagrams_sent(&mut self, key: Key, udp: &mut Udp) -> io::Result<()> {
        match self {
            Backend::Uring(uring) => {
                uring.held_up |= udp.is_held_up();
                Ok(())
            }
            Backend::Epoll(epoll) => udp.update_interest(&epoll.epoll, key, &epoll.shared),
        }
    }
}

/// ICMP errors as connected sockets report them: icmp_err_convert in the kernel. EMSGSIZE is not
/// among them, as it nearly always concerns the datagram being sent.
pub(crate) fn is_icmp_error(errno: i32) -> bool {
    use libc::{ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ENETUNREACH, ENONET, ENOPROTOOPT, EPROTO};
    let icmp = [ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EHOSTDOWN, ENONET, ENOPROTOOPT, EPROTO];
    icmp.contains(&errno)
}

#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) datagram: Datagram,
    /// It was handed to the kernel before, and an ICMP error came in its place.
    retried: bool,
}

/// Datagrams that are not with the kernel.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: VecDeque<Outgoing>,
    bytes: usize,
    segmentation: bool,
    /// The send buffer is full: the next send has to wait for room.
    pub(crate) blocked: bool,
    /// The program has closed the socket, and its datagrams are still being sent.
    pub(crate) closing: bool,
    pub(crate) waiters: WaitQueue,
}

impl Outbox {
    fn new(segmentation: bool) -> Outbox {
        let (queue, waiters) = (VecDeque::new(), WaitQueue::default());
        Outbox { queue, bytes: 0, segmentation, blocked: false, closing: false, waiters }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// True if there is more than one datagram to send: several, or one that the kernel is to cut.
    pub(crate) fn has_several(&self) -> bool {
        let cut = |outgoing: &Outgoing| outgoing.datagram.segment_bytes.is_some();
        self.queue.len() > 1 || self.queue.front().is_some_and(cut)
    }

    pub(crate) fn give_up(&mut self) {
        self.queue.clear();
        self.bytes = 0;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Datagram> {
        self.queue.iter().map(|outgoing| &outgoing.datagram)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < QUEUED_MAX && self.bytes < QUEUED_BYTES_MAX
    }

    /// Takes as many datagrams from the front of `batch` as there is room for, and returns how many bytes.
    pub(crate) fn take(&mut self, batch: &mut Vec<Datagram>) -> Option<usize> {
        let (mut taken, before) = (0, self.bytes);
        while taken < batch.len() && self.has_room() {
            let datagram = std::mem::replace(&mut batch[taken], Datagram::new(""));
            self.accept(datagram);
            taken += 1;
        }
        batch.drain(..taken);
        (taken > 0).then(|| self.bytes - before)
    }

    fn accept(&mut self, mut datagram: Datagram) {
        let bytes = datagram.data.len();
        let segment_bytes = datagram.segment_bytes.map_or(0, usize::from);
        if segment_bytes == 0 || segment_bytes >= bytes {
            datagram.segment_bytes = None;
        }
        let piece_bytes = match datagram.segment_bytes {
            None => bytes,
            Some(_) if !self.segmentation => segment_bytes,
            Some(_) => (SEGMENTED_BYTES_MAX / segment_bytes).clamp(1, SEGMENTS_MAX) * segment_bytes,
        };
        self.bytes += bytes;
        if piece_bytes >= bytes {
            self.queue.push_back(Outgoing { datagram, retried: false });
        } else {
            self.queue.extend(cut(&datagram, piece_bytes));
        }
    }

    /// The next datagram to submit. None may be submitted before the outcome of those before it is
    /// known: one that is refused goes again before all others.
    pub(crate) fn pop(&mut self) -> Option<Outgoing> {
        let outgoing = self.queue.pop_front()?;
        self.bytes -= outgoing.datagram.data.len();
        Some(outgoing)
    }

    fn put_back(&mut self, outgoing: Outgoing) {
        self.bytes += outgoing.datagram.data.len();
        self.queue.push_front(outgoing);
    }

    /// The kernel refused it: it is sent again before all newer ones, or counted as lost.
    pub(crate) fn refuse(&mut self, mut outgoing: Outgoing, errno: i32, stats: &mut UdpStats) {
        // EIO: the device cannot checksum the segments. EINVAL and, since Linux 6.14, EMSGSIZE: the
        // kernel does not cut this one, as when a segment is larger than the path MTU.
        let not_cut = matches!(errno, libc::EIO | libc::EINVAL | libc::EMSGSIZE);
        if let Some(segment_bytes) = outgoing.datagram.segment_bytes.filter(|_| not_cut) {
            stats.gso_fallbacks += 1;
            self.segmentation &= errno != libc::EIO;
            let pieces = cut(&outgoing.datagram, segment_bytes.into());
            pieces.rev().for_each(|piece| self.put_back(piece));
        } else if errno == libc::EAGAIN {
            stats.blocked += 1;
            self.blocked = true;
            self.put_back(outgoing);
        } else if is_icmp_error(errno) && !outgoing.retried {
            stats.icmp_errors += 1;
            stats.retries += 1;
            outgoing.retried = true;
            self.put_back(outgoing);
        } else {
            stats.send_errors.count(errno, outgoing.datagram.datagrams() as u64);
        }
    }
}

/// Cuts a datagram into pieces of `piece_bytes` (not 0), which share one copy of its bytes. Pieces longer
/// than a segment are left to the kernel to cut further.
fn cut(datagram: &Datagram, piece_bytes: usize) -> impl DoubleEndedIterator<Item = Outgoing> {
    let bytes: Rc<[u8]> = Rc::from(datagram.data.as_slice());
    let Datagram { to, from, segment_bytes, ecn, .. } = *datagram;
    (0..bytes.len().div_ceil(piece_bytes)).map(move |number| {
        let start = number * piece_bytes;
        let data = SendBuf::shared(Rc::clone(&bytes), start..start + piece_bytes);
        let segment_bytes = segment_bytes.filter(|segment| usize::from(*segment) < data.len());
        Outgoing { datagram: Datagram { data, to, from, segment_bytes, ecn }, retried: false }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: when the first of two retries was refused again, it was sent behind the second.
    #[test]
    fn what_is_refused_goes_first_and_keeps_its_place() {
        let mut outbox = Outbox::new(true);
        let mut stats = UdpStats::default();
        let cut = |data| Datagram { segment_bytes: Some(1), ..Datagram::new(data) };
        outbox.take(&mut vec![cut(vec![0, 1]), Datagram::new(vec![2])]);
        for errno in [libc::EIO, libc::EAGAIN, libc::EAGAIN, libc::ECONNREFUSED] {
            let outgoing = outbox.pop().unwrap();
            outbox.refuse(outgoing, errno, &mut stats);
            assert_eq!(std::mem::take(&mut outbox.blocked), errno == libc::EAGAIN);
        }
        // Segments that the device cannot checksum are not left to it any more.
        outbox.take(&mut vec![cut(vec![3, 4])]);
        let left: Vec<_> = outbox.iter().map(|datagram| datagram.data.as_slice()[0]).collect();
        assert_eq!(left, [0, 1, 2, 3, 4]);
        assert_eq!((stats.blocked, stats.icmp_errors, stats.retries), (2, 1, 1));
        // The second ICMP error in its place is final.
        let again = outbox.pop().unwrap();
        outbox.refuse(again, libc::ECONNREFUSED, &mut stats);
        assert_eq!((stats.send_errors.refused, stats.send_errors.total()), (1, 1));
    }

    #[test]
    fn what_is_queued_is_bounded() {
        for (bytes, room) in [(1, QUEUED_MAX), (60_000, QUEUED_BYTES_MAX.div_ceil(60_000))] {
            let mut outbox = Outbox::new(true);
            let mut batch: Vec<_> = (0..=room).map(|_| Datagram::new(vec![0; bytes])).collect();
            outbox.take(&mut batch);
            assert_eq!(batch.len(), 1);
            assert!(!outbox.has_room() && outbox.take(&mut batch).is_none());
        }
    }
}
