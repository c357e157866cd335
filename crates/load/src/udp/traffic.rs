//! The packets of one thread: sending the due ones, and receiving replies.
//!
//! This is the hot path. Due packets are sent in groups of a few dozen, each written into memory that
//! the runtime shares and returns. A group has one time stamp, taken directly before the kernel gets
//! it: on io_uring before the enter that submits it, on epoll before its first system call. Replies
//! also have one time stamp for each batch. Packets cost no allocation.

use super::UdpSettings;
use super::packet::Format;
use super::stream::{Reply, StreamState};
use crate::recorder::Durations;
use crate::schedule::Schedule;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use twinring::net::{Granted, UdpStats};
use twinring::{Datagram, Received, SendBuf, UdpSocket, measure::monotonic_ns};
use twinring_wire::load::Cpu;
use twinring_wire::udp::{Packets, UdpErrors};

/// Packets that share a time stamp when they are sent: the kernel needs tens of microseconds for
/// them, so none leaves much later than its stamp. With segmentation, see [`GSO_GROUP`].
const GROUP: usize = 32;
/// The same for packets that the kernel cuts out of large buffers, at a few nanoseconds each.
const GSO_GROUP: usize = 512;
/// Packets sent at once at most, unless a tick has more; then replies have their turn if a tick is
/// due.
const AT_ONCE_MIN: u64 = 1024;
/// Segments that the kernel cuts a buffer into at most (UDP_MAX_SEGMENTS until Linux 6.9).
const SEGMENTS_MAX: usize = 64;
/// Payload of the largest datagram on IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Receives in a row that may fail before a socket is abandoned.
const RECEIVE_ERRORS_MAX: u32 = 16;

#[derive(Default)]
pub(super) struct ThreadCounts {
    pub(super) streams: Vec<StreamState>,
    /// Counted while the load runs: `received`, `mismatched`, `foreign` and `late`; at the end `due`.
    pub(super) packets: Packets,
    /// Packets of the window that the sockets took; the kernel may have refused some later.
    pub(super) handed_over: u64,
    pub(super) errors: UdpErrors,
    /// Buffers that the kernel did not segment.
    pub(super) gso_fallbacks: u64,
    pub(super) kernel_drops: u64,
    /// The kernel does not report those of a socket.
    pub(super) drops_unknown: bool,
    pub(super) round_trip_sum_ns: u64,
    pub(super) round_trip_ns: Durations,
    pub(super) lateness_ns: Durations,
    pub(super) overrun_ns: Durations,
    /// The time and text.
    pub(super) first_error: Option<(u64, String)>,
    /// The smallest buffers that a socket got.
    pub(super) granted: Option<Granted>,
    pub(super) cpu: Cpu,
}

impl ThreadCounts {
    pub(super) fn failed(&mut self, now_ns: u64, what: impl FnOnce() -> String) {
        self.first_error.get_or_insert_with(|| (now_ns, what()));
    }

    fn note_granted(&mut self, other: Granted) {
        let least = self.granted.get_or_insert(other);
        least.recv_buffer_bytes = least.recv_buffer_bytes.min(other.recv_buffer_bytes);
        least.send_buffer_bytes = least.send_buffer_bytes.min(other.send_buffer_bytes);
        least.gro &= other.gro;
        least.gso &= other.gso;
    }

    pub(super) fn merge(&mut self, other: ThreadCounts) {
        self.streams.extend(other.streams);
        self.packets.add(&other.packets);
        self.handed_over += other.handed_over;
        self.errors.add(&other.errors);
        self.gso_fallbacks += other.gso_fallbacks;
        self.kernel_drops += other.kernel_drops;
        self.drops_unknown |= other.drops_unknown;
        self.round_trip_ns.merge(&other.round_trip_ns);
        self.lateness_ns.merge(&other.lateness_ns);
        self.overrun_ns.merge(&other.overrun_ns);
        self.first_error = [self.first_error.take(), other.first_error].into_iter().flatten().min();
        other.granted.into_iter().for_each(|granted| self.note_granted(granted));
        self.cpu.add(&other.cpu);
    }
}

/// A packet of the group that is being sent.
struct Item {
    stream: usize,
    intended_ns: u64,
    /// The socket took it.
    taken: bool,
}

pub(super) struct Traffic {
    settings: Arc<UdpSettings>,
    /// Sends reach the kernel only with `twinring::submit`.
    submits: bool,
    format: Format,
    schedule: Schedule,
    /// One for each stream.
    pub(super) sockets: Vec<UdpSocket>,
    pub(super) counts: ThreadCounts,
    /// The next packet: its stream, its sequence, and when it is due.
    next: (usize, u64),
    due_ns: u64,
    /// The counts of each socket when the window began; from then on, packets that are sent count.
    before: Option<Vec<UdpStats>>,
    group: Vec<Item>,
    memory: Memory,
    /// Empty between sends; like the next field, kept for its allocation.
    batch: Vec<Datagram>,
    received: Vec<Received>,
}

impl Traffic {
    pub(super) fn new(settings: Arc<UdpSettings>, submits: bool) -> Traffic {
        let bytes = settings.size as usize;
        Traffic {
            submits,
            format: Format::new(bytes, settings.seed, settings.pps),
            schedule: settings.schedule(0),
            settings,
            sockets: Vec::new(),
            counts: ThreadCounts::default(),
            next: (0, 0),
            due_ns: u64::MAX,
            before: None,
            group: Vec::new(),
            memory: Memory::default(),
            batch: Vec::new(),
            received: Vec::new(),
        }
    }

    /// Adds a stream with its number among those of all threads; each comes behind those with smaller ones.
    pub(super) fn add_stream(&mut self, number: u64, socket: UdpSocket, granted: Granted) {
        self.sockets.push(socket);
        self.counts.note_granted(granted);
        let stream = StreamState::new(number, self.format.ssrc(number), self.settings.remembered());
        self.counts.streams.push(stream);
    }

    pub(super) fn begin(&mut self, first_ns: u64) {
        self.schedule = self.settings.schedule(first_ns);
        self.due_ns = self.intended_ns(self.next);
    }

    /// When a packet of a stream is due; never, if there is no such stream.
    fn intended_ns(&self, (stream, sequence): (usize, u64)) -> u64 {
        let stream = self.counts.streams.get(stream);
        stream.map_or(u64::MAX, |it| self.schedule.intended_ns(it.counts.stream, sequence))
    }

    /// Sends the packets due by `now_ns`, those before the window first. False if there are more.
    pub(super) fn send(&mut self, now_ns: u64, window: &Range<u64>) -> io::Result<bool> {
        let last_ns = window.end.saturating_sub(1).min(now_ns);
        if self.before.is_none() {
            let before_ns = window.start.saturating_sub(1);
            let all_sent = self.send_until(last_ns.min(before_ns))?;
            if last_ns <= before_ns || !all_sent {
                return Ok(all_sent);
            }
            self.before = Some(self.sockets.iter().map(UdpSocket::counted).collect());
        }
        self.send_until(last_ns)
    }

    /// Sends the packets due until `until_ns`; if they are too many for one call, a part of them.
    fn send_until(&mut self, until_ns: u64) -> io::Result<bool> {
        let in_a_tick = self.settings.packets_per_s() * self.settings.tick.as_secs_f64();
        let mut left = AT_ONCE_MIN.max(2 * in_a_tick as u64);
        while left > 0 && self.due_ns <= until_ns {
            let memory = self.write_group(until_ns);
            let sent_ns = if self.submits {
                self.hand_over(&memory)?;
                let now_ns = monotonic_ns();
                twinring::submit()?;
                now_ns
            } else {
                let now_ns = monotonic_ns();
                self.hand_over(&memory)?;
                now_ns
            };
            self.memory.0.push_back(memory);
            self.note_sent(sent_ns);
            left = left.saturating_sub(self.group.len() as u64);
        }
        Ok(self.due_ns > until_ns)
    }

    /// Writes the next due packets into memory, one after the other.
    fn write_group(&mut self, until_ns: u64) -> Rc<[u8]> {
        let format = self.format;
        let most = if self.settings.gso { GSO_GROUP } else { GROUP };
        let mut memory = self.memory.take(most * format.bytes);
        self.group.clear();
        // This memory is not shared: `take` made sure.
        let bytes = Rc::get_mut(&mut memory).unwrap_or(&mut []);
        for packet in bytes.chunks_exact_mut(format.bytes) {
            if self.due_ns > until_ns {
                break;
            }
            let (stream, sequence) = self.next;
            format.write(self.counts.streams[stream].counts.stream, sequence, packet);
            self.group.push(Item { stream, intended_ns: self.due_ns, taken: true });
            self.next = match stream + 1 < self.counts.streams.len() {
                true => (stream + 1, sequence),
                false => (0, sequence + 1),
            };
            self.due_ns = self.intended_ns(self.next);
        }
        memory
    }

    /// Passes the packets to their sockets. Packets that a socket cannot queue are left out.
    fn hand_over(&mut self, memory: &Rc<[u8]>) -> io::Result<()> {
        let mut start = 0;
        while let Some(Item { stream, .. }) = self.group.get(start) {
            let stream = *stream;
            let of_stream = self.group[start..].iter().take_while(|item| item.stream == stream);
            let end = start + of_stream.count();
            self.describe(start..end, memory);
            self.sockets[stream].try_send_batch(&mut self.batch)?;
            let left: usize = self.batch.drain(..).map(|datagram| datagram.datagrams()).sum();
            self.group[end - left..end].iter_mut().for_each(|item| item.taken = false);
            start = end;
        }
        Ok(())
    }

    /// Describes packets that go through one socket as datagrams.
    fn describe(&mut self, packets: Range<usize>, memory: &Rc<[u8]>) {
        let bytes = self.format.bytes;
        let at_once = match self.settings.gso {
            true => (DATAGRAM_BYTES_MAX / bytes).clamp(1, SEGMENTS_MAX),
            false => 1,
        };
        for first in packets.clone().step_by(at_once) {
            let last = (first + at_once).min(packets.end);
            let data = SendBuf::shared(Rc::clone(memory), first * bytes..last * bytes);
            let segment_bytes = (last - first > 1).then_some(bytes as u16);
            self.batch.push(Datagram { segment_bytes, ..Datagram::new(data) });
        }
    }

    fn note_sent(&mut self, sent_ns: u64) {
        let measured = self.before.is_some();
        for Item { stream, intended_ns, taken } in &self.group {
            let stream = &mut self.counts.streams[*stream];
            if !taken {
                stream.left_out();
                continue;
            }
            let lateness_ns = sent_ns.saturating_sub(*intended_ns);
            stream.sent(sent_ns, lateness_ns, measured);
            if measured {
                self.counts.handed_over += 1;
                // Zero is below the histogram's range.
                self.counts.lateness_ns.saturating_record(lateness_ns.max(1));
            }
        }
    }

    /// Processes everything that socket number `at` has received. Ends only when it has failed.
    pub(super) fn poll_receive(&mut self, at: usize, cx: &mut Context<'_>) -> Poll<()> {
        let mut received = std::mem::take(&mut self.received);
        let mut failures = 0;
        let polled = loop {
            match self.sockets[at].poll_recv_batch(cx, &mut received) {
                Poll::Pending => break Poll::Pending,
                Poll::Ready(Ok(_)) => {
                    // They are here. An older time would make the round trip too short for a reply
                    // that arrived while this thread was delayed.
                    let now_ns = monotonic_ns();
                    for buffer in received.drain(..) {
                        buffer.segments().for_each(|reply| self.take(at, reply, now_ns));
                    }
                    failures = 0;
                }
                Poll::Ready(Err(error)) => {
                    failures += 1;
                    self.counts.errors.receive += 1;
                    self.counts.failed(monotonic_ns(), || format!("receiving: {error}"));
                    if failures == RECEIVE_ERRORS_MAX {
                        break Poll::Ready(());
                    }
                }
            }
        };
        self.received = received;
        polled
    }

    /// Counts a reply that came through socket number `at`.
    fn take(&mut self, at: usize, bytes: &[u8], now_ns: u64) {
        let (format, verify) = (self.format, self.settings.verify);
        let stream = &mut self.counts.streams[at];
        let number = stream.counts.stream;
        if format.stream_of(bytes) != Some(number) {
            self.counts.packets.foreign += 1;
            return;
        }
        let found = format.sequence_of(number, bytes, stream.next, stream.remembered());
        let sequence = match found {
            Some(sequence) if !verify || format.is(number, sequence, bytes) => sequence,
            None if !verify => {
                self.counts.packets.foreign += 1;
                return;
            }
            wrong => {
                self.counts.packets.mismatched += 1;
                self.counts.failed(now_ns, || match wrong {
                    Some(sequence) => format.difference(number, sequence, bytes),
                    None => format!("stream {number}: a reply to a packet that was never sent"),
                });
                return;
            }
        };
        let intended_ns = self.schedule.intended_ns(number, sequence);
        match stream.answered(sequence, now_ns, now_ns as i64 - intended_ns as i64) {
            Reply::First { round_trip_ns, measured: true } => {
                let counts = &mut self.counts;
                counts.packets.received += 1;
                counts.round_trip_sum_ns = counts.round_trip_sum_ns.saturating_add(round_trip_ns);
                counts.round_trip_ns.saturating_record(round_trip_ns.max(1));
            }
            Reply::First { .. } | Reply::Duplicate => {}
            Reply::Late => self.counts.packets.late += 1,
            Reply::Unknown => self.counts.packets.foreign += 1,
        }
    }

    /// Takes the counts of the run, at its end.
    pub(super) fn finish(&mut self, window: &Range<u64>) -> ThreadCounts {
        let mut counts = std::mem::take(&mut self.counts);
        // Without a first packet there was no window.
        if self.due_ns < u64::MAX && window.end > window.start {
            let due = counts.streams.iter();
            let due = due.map(|it| self.schedule.due_within(it.counts.stream, window));
            counts.packets.due = due.sum();
        }
        for (at, (socket, stream)) in self.sockets.iter().zip(&mut counts.streams).enumerate() {
            match socket.stats() {
                Ok(stats) => counts.kernel_drops += stats.kernel_drops,
                Err(_) => counts.drops_unknown = true,
            }
            let Some(before) = self.before.as_ref().and_then(|all| all.get(at)) else { continue };
            let now = socket.counted();
            let refused = now.send_errors.total() - before.send_errors.total();
            stream.counts.sent = stream.counts.sent.saturating_sub(refused);
            counts.errors.send += refused;
            counts.errors.icmp_refused += now.icmp_errors - before.icmp_errors;
            counts.errors.blocked += now.blocked - before.blocked;
            counts.gso_fallbacks += now.gso_fallbacks - before.gso_fallbacks;
        }
        counts
    }
}

/// Blocks of memory into which packets are written, and that the runtime holds until the kernel has
/// taken them. Bounded by the unsent bytes of sockets; normally one block circulates.
#[derive(Default)]
struct Memory(VecDeque<Rc<[u8]>>);

impl Memory {
    /// A block that is not shared; all are of the same length.
    fn take(&mut self, bytes: usize) -> Rc<[u8]> {
        // The least recently used block returns first.
        let is_free = self.0.front().is_some_and(|block| Rc::strong_count(block) == 1);
        let free = if is_free { self.0.pop_front() } else { None };
        free.unwrap_or_else(|| Rc::from(vec![0; bytes]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, Command, FromArgMatches as _};

    #[test]
    fn replies_to_forgotten_packets_are_counted_as_late() {
        let words = UdpSettings::augment_args(Command::new("load")).get_matches_from(["load", ""]);
        let settings = UdpSettings::from_arg_matches(&words).expect("settings");
        let mut traffic = Traffic::new(Arc::new(settings), false);
        let mut packet = vec![0; traffic.format.bytes];
        traffic.format.write(0, 0, &mut packet);
        let mut stream = StreamState::new(0, 0, 64);
        (0..65).for_each(|_| stream.sent(1, 0, true));
        traffic.counts.streams.push(stream);
        traffic.take(0, &packet, 2);
        assert_eq!(traffic.counts.packets, Packets { late: 1, ..Packets::default() });
    }
}
