//! The state of a datagram socket on both engines: its setup, and the datagrams to send.

use super::ancillary::{Control, NAME_BYTES, Wanted, decode_address, encode_address};
use crate::buf::SendBuf;
use crate::datagram::{Datagram, Received, UdpStats};
use crate::task::{WaitQueue, Waiter};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

/// Datagrams that one `recv_batch` delivers at most, and one recvmmsg(2) or sendmmsg(2) carries.
pub(crate) const BATCH_MAX: usize = 64;
/// Unsent datagrams of a socket at which `send_batch` waits.
pub(crate) const HELD_DATAGRAMS_MAX: usize = 1024;
/// Unsent bytes of a socket at which `send_batch` waits. While there are fewer, one further datagram of
/// any size is accepted.
pub(crate) const HELD_BYTES_MAX: usize = 1024 * 1024;

/// Segments the kernel cuts one buffer into at most: UDP_MAX_SEGMENTS, 64 until Linux 6.9.
const SEGMENTS_MAX: usize = 64;
/// Bytes of one buffer the kernel cuts at most: the longest UDP payload on IPv4.
const SEGMENTED_BYTES_MAX: usize = 65_507;

/// The setup of a UDP socket.
#[derive(Clone, Debug)]
pub(crate) struct UdpSetup {
    /// The peer of a connected socket.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) ipv6: bool,
    pub(crate) wanted: Wanted,
    /// Traffic class of datagrams that ask for no ECN codepoint: the DSCP in the upper six bits.
    pub(crate) traffic_class: u8,
    /// Longest datagram received whole.
    pub(crate) buffer_bytes: usize,
    pub(crate) buffer_count: u16,
    /// io_uring: single-shot receives in flight; 0 is one multishot receive.
    pub(crate) pending: u32,
    /// epoll: recvmmsg(2) and sendmmsg(2) instead of one system call per datagram.
    pub(crate) batch: bool,
    /// The kernel knows UDP_SEGMENT.
    pub(crate) segmentation: bool,
}

impl UdpSetup {
    /// True if a receive needs neither the sender's address nor ancillary data.
    pub(crate) fn is_plain(&self) -> bool {
        self.peer.is_some() && self.wanted == Wanted::default()
    }

    /// Bytes of a socket address and of ancillary data that a receive asks for.
    pub(crate) fn name_and_control_bytes(&self) -> (usize, usize) {
        let name = if self.peer.is_some() { 0 } else { NAME_BYTES };
        (name, self.wanted.control_bytes(self.ipv6))
    }

    /// The sender with this address; `None` if it cannot be read.
    pub(crate) fn sender(&self, name: &[u8]) -> Option<SocketAddr> {
        self.peer.or_else(|| decode_address(name))
    }

    /// The ancillary data of a datagram: what the kernel needs beside payload and destination.
    pub(crate) fn control_for(&self, datagram: &Datagram) -> Control {
        Control {
            local: datagram.from,
            segment_bytes: datagram.segment_bytes,
            traffic_class: datagram.ecn.map(|ecn| self.traffic_class | ecn as u8),
        }
    }
}

/// ICMP errors as connected sockets report them: icmp_err_convert in the kernel. EMSGSIZE is not
/// among them, as it nearly always concerns the datagram being sent.
pub(crate) fn is_icmp_error(errno: i32) -> bool {
    [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::ENOPROTOOPT,
        libc::EPROTO,
    ]
    .contains(&errno)
}

/// Counts a received buffer.
pub(crate) fn count_received(stats: &mut UdpStats, received: &Received) {
    stats.received += received.datagrams() as u64;
    stats.truncated += u64::from(received.truncated);
}

/// A datagram the socket holds.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) datagram: Datagram,
    /// It was handed to the kernel before, and an ICMP error came in its place.
    pub(crate) retried: bool,
}

impl Outgoing {
    fn new(datagram: Datagram) -> Outgoing {
        Outgoing { datagram, retried: false }
    }

    /// The address of the destination, in `memory`, and its length. Null and 0 for the peer of a
    /// connected socket.
    pub(crate) fn name(&self, memory: &mut [u8; NAME_BYTES]) -> (*const libc::c_void, usize) {
        match &self.datagram.to {
            Some(to) => {
                let bytes = encode_address(to, memory);
                (memory.as_ptr().cast(), bytes)
            }
            None => (std::ptr::null(), 0),
        }
    }
}

/// Datagrams that the kernel has not accepted yet, or (io_uring) is not yet known to have accepted.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Not with the kernel.
    queue: VecDeque<Outgoing>,
    /// All datagrams and bytes held, including those with the kernel.
    held: usize,
    held_bytes: usize,
    segmentation: bool,
    /// The program has closed the socket, and its datagrams are still being sent.
    pub(crate) closing: bool,
    pub(crate) waiters: WaitQueue,
}

impl Outbox {
    pub(crate) fn new(segmentation: bool) -> Outbox {
        Outbox {
            queue: VecDeque::new(),
            held: 0,
            held_bytes: 0,
            segmentation,
            closing: false,
            waiters: WaitQueue::default(),
        }
    }

    /// True when nothing is held: every datagram was sent, or counted as not sent.
    pub(crate) fn is_settled(&self) -> bool {
        self.held == 0
    }

    /// True when no datagram waits to be submitted.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Datagrams, and buffers to be cut into datagrams, that wait to be submitted.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if the kernel is to cut what `pop` takes next.
    pub(crate) fn next_is_cut(&self) -> bool {
        self.queue.front().is_some_and(|outgoing| outgoing.datagram.segment_bytes.is_some())
    }

    /// Drops the datagrams that wait to be submitted.
    pub(crate) fn give_up(&mut self) {
        for outgoing in std::mem::take(&mut self.queue) {
            self.forget(&outgoing);
        }
    }

    /// The datagrams to submit, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Outgoing> {
        self.queue.iter()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.held < HELD_DATAGRAMS_MAX && self.held_bytes < HELD_BYTES_MAX
    }

    /// Takes as many datagrams from the front of `batch` as there is room for; false if none.
    pub(crate) fn take(&mut self, batch: &mut Vec<Datagram>) -> bool {
        let (mut held, mut held_bytes) = (self.held, self.held_bytes);
        let fits = |datagram: &&Datagram| {
            let room = held < HELD_DATAGRAMS_MAX && held_bytes < HELD_BYTES_MAX;
            held += 1;
            held_bytes += datagram.data.len();
            room
        };
        let count = batch.iter().take_while(fits).count();
        batch.drain(..count).for_each(|datagram| self.push(datagram));
        count > 0
    }

    fn push(&mut self, mut datagram: Datagram) {
        let bytes = datagram.data.len();
        let segment_bytes = datagram.segment_bytes.map_or(0, usize::from);
        if segment_bytes == 0 || segment_bytes >= bytes {
            datagram.segment_bytes = None;
        }
        self.held_bytes += bytes;
        let piece_bytes = match datagram.segment_bytes {
            None => bytes,
            Some(_) if !self.segmentation => segment_bytes,
            Some(_) => (SEGMENTED_BYTES_MAX / segment_bytes).clamp(1, SEGMENTS_MAX) * segment_bytes,
        };
        if piece_bytes >= bytes {
            self.held += 1;
            self.queue.push_back(Outgoing::new(datagram));
        } else {
            for piece in cut(&datagram, piece_bytes) {
                self.held += 1;
                self.queue.push_back(piece);
            }
        }
    }

    /// The next datagram to submit. None may be submitted before the outcome of those before it is
    /// known: one that is refused goes again before all others.
    pub(crate) fn pop(&mut self) -> Option<Outgoing> {
        self.queue.pop_front()
    }

    /// The kernel accepted it.
    pub(crate) fn sent(&mut self, outgoing: &Outgoing, stats: &mut UdpStats) {
        stats.sent += outgoing.datagram.datagrams() as u64;
        self.forget(outgoing);
    }

    fn forget(&mut self, outgoing: &Outgoing) {
        self.held -= 1;
        self.held_bytes -= outgoing.datagram.data.len();
    }

    /// The kernel refused it: it is sent again before all newer ones, or counted as lost. True if the
    /// next one has to wait for room in the send buffer.
    pub(crate) fn refuse(
        &mut self,
        mut outgoing: Outgoing,
        errno: i32,
        stats: &mut UdpStats,
    ) -> bool {
        let segmented = outgoing.datagram.segment_bytes.is_some();
        match errno {
            libc::EAGAIN => {
                stats.blocked += 1;
                self.queue.push_front(outgoing);
            }
            icmp if is_icmp_error(icmp) && !outgoing.retried => {
                stats.icmp_errors += 1;
                stats.retries += 1;
                outgoing.retried = true;
                self.queue.push_front(outgoing);
            }
            // EIO: the device cannot checksum the segments. EINVAL and, since Linux 6.14, EMSGSIZE: the
            // kernel does not cut this one, as when a segment is larger than the path MTU.
            libc::EIO | libc::EINVAL | libc::EMSGSIZE if segmented => {
                stats.gso_fallbacks += 1;
                self.segmentation &= errno != libc::EIO;
                let segment_bytes = outgoing.datagram.segment_bytes.map_or(1, usize::from);
                self.held -= 1;
                for piece in cut(&outgoing.datagram, segment_bytes).rev() {
                    self.held += 1;
                    self.queue.push_front(piece);
                }
            }
            errno => {
                stats.send_errors.count(errno, outgoing.datagram.datagrams() as u64);
                self.forget(&outgoing);
            }
        }
        errno == libc::EAGAIN
    }

    /// Ready once everything is with the kernel or counted as lost.
    pub(crate) fn poll_settled(&mut self, waiter: &mut Waiter<'_>) -> Poll<()> {
        if self.is_settled() {
            return Poll::Ready(());
        }
        self.waiters.add(waiter);
        Poll::Pending
    }
}

/// Cuts a datagram into pieces of `piece_bytes`, which share one copy of its bytes. Pieces longer
/// than a segment are left to the kernel to cut further.
fn cut(datagram: &Datagram, piece_bytes: usize) -> impl DoubleEndedIterator<Item = Outgoing> {
    let bytes: Rc<[u8]> = Rc::from(datagram.data.as_slice());
    let Datagram { to, from, segment_bytes, ecn, .. } = *datagram;
    (0..bytes.len().div_ceil(piece_bytes.max(1))).map(move |number| {
        let start = number * piece_bytes.max(1);
        let end = (start + piece_bytes.max(1)).min(bytes.len());
        let data = SendBuf::shared(Rc::clone(&bytes), start..end);
        let segment_bytes = segment_bytes.filter(|segment| usize::from(*segment) < data.len());
        Outgoing::new(Datagram { data, to, from, segment_bytes, ecn })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    /// Empties the outbox, with every buffer refused by `errno` first, and returns all segments.
    fn segments_sent(outbox: &mut Outbox, refuse_with: Option<i32>) -> Vec<Vec<u8>> {
        let mut stats = UdpStats::default();
        let mut segments = Vec::new();
        while let Some(outgoing) = outbox.pop() {
            let segment_bytes = outgoing.datagram.segment_bytes;
            if let Some(errno) = refuse_with.filter(|_| segment_bytes.is_some()) {
                outbox.refuse(outgoing, errno, &mut stats);
                continue;
            }
            let data = outgoing.datagram.data.as_slice();
            let size = segment_bytes.map_or(data.len().max(1), usize::from);
            assert!(data.len() <= SEGMENTED_BYTES_MAX || segment_bytes.is_none());
            assert!(data.len().div_ceil(size) <= SEGMENTS_MAX);
            segments.extend(data.chunks(size).map(<[u8]>::to_vec));
            outbox.sent(&outgoing, &mut stats);
        }
        assert!(outbox.is_settled());
        assert_eq!(outbox.held_bytes, 0);
        assert_eq!(stats.sent as usize, segments.len());
        segments
    }

    proptest! {
        /// The same segments go out in the same order, regardless of what the kernel cuts and refuses.
        #[test]
        fn segmentation_loses_and_reorders_nothing(
            bytes in 1usize..200_000, segment in 1u16..9000, supported: bool,
            refuse_with in prop_oneof![
                Just(None), Just(Some(libc::EIO)), Just(Some(libc::EINVAL)), Just(Some(libc::EMSGSIZE))
            ],
        ) {
            let bytes = bytes.min(usize::from(segment) * 500);
            let data = pattern(bytes);
            let expected: Vec<_> = data.chunks(segment.into()).map(<[u8]>::to_vec).collect();
            let mut outbox = Outbox::new(supported);
            let segment_bytes = Some(segment);
            let mut batch = vec![Datagram { segment_bytes, ..Datagram::new(data) }];
            prop_assert!(outbox.take(&mut batch));
            prop_assert!(batch.is_empty());
            prop_assert_eq!(segments_sent(&mut outbox, refuse_with), expected);
        }
    }

    #[test]
    fn what_was_refused_goes_first() {
        let mut outbox = Outbox::new(true);
        let mut stats = UdpStats::default();
        outbox.take(&mut (0u8..4).map(|n| Datagram::new(vec![n])).collect());
        for errno in [libc::EAGAIN, libc::ECONNREFUSED] {
            let refused = outbox.pop().unwrap();
            outbox.refuse(refused, errno, &mut stats);
        }
        let left: Vec<_> = outbox.iter().map(|o| o.datagram.data.as_slice()[0]).collect();
        assert_eq!(left, [0, 1, 2, 3]);
        assert_eq!((stats.blocked, stats.icmp_errors, stats.retries), (1, 1, 1));
        // The second ICMP error in its place is final.
        let again = outbox.pop().unwrap();
        outbox.refuse(again, libc::ECONNREFUSED, &mut stats);
        assert_eq!((stats.send_errors.refused, stats.send_errors.total()), (1, 1));
    }

    /// Regression: when the first of two retries was refused again, it was sent behind the second.
    #[test]
    fn what_is_refused_twice_keeps_its_place() {
        let mut outbox = Outbox::new(true);
        let mut stats = UdpStats::default();
        let cut = Datagram { segment_bytes: Some(1), ..Datagram::new(vec![0, 1]) };
        outbox.take(&mut vec![cut, Datagram::new(vec![2])]);
        for errno in [libc::EINVAL, libc::EAGAIN, libc::EAGAIN] {
            let outgoing = outbox.pop().unwrap();
            outbox.refuse(outgoing, errno, &mut stats);
        }
        let left: Vec<_> = outbox.iter().map(|o| o.datagram.data.as_slice()[0]).collect();
        assert_eq!(left, [0, 1, 2]);
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut outbox = Outbox::new(true);
        let mut batch: Vec<_> = (0..5000).map(|_| Datagram::new("x")).collect();
        outbox.take(&mut batch);
        assert_eq!(batch.len(), 5000 - HELD_DATAGRAMS_MAX);
        assert!(!outbox.has_room() && !outbox.take(&mut batch));
        let mut outbox = Outbox::new(true);
        let mut batch: Vec<_> = (0..50).map(|_| Datagram::new(vec![0; 60_000])).collect();
        outbox.take(&mut batch);
        assert_eq!(outbox.held_bytes, HELD_BYTES_MAX.next_multiple_of(60_000));
        assert!(!outbox.has_room());
    }
}
