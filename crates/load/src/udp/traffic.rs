//! The packets of one thread: sending the due ones, and receiving replies.
//!
//! This is the hot path. The due packets are a number, see [`Plan`]; they are sent in groups of a
//! few dozen, each written into memory that the runtime shares and returns. A group has one time
//! stamp, taken directly before the kernel gets it: on io_uring before the enter that submits it,
//! on epoll before its first system call. Replies also have one time stamp for each batch. Packets
//! cost no allocation.

use super::ledger::{Ledger, Reply};
use super::packet::Format;
use super::plan::{Due, Plan};
use crate::recorder::histogram;
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use twinring::{Datagram, Received, SendBuf, UdpSocket, measure::monotonic_ns};

/// Packets that share a time stamp when they are sent: the kernel needs tens of microseconds for
/// them, so none leaves much later than its stamp. With segmentation, see [`GSO_GROUP`].
const GROUP: u64 = 32;
/// The same for packets that the kernel cuts out of large buffers, at a few nanoseconds each.
const GSO_GROUP: u64 = 512;
/// Packets sent at once at most, unless a tick has more; then replies have their turn if a tick is
/// due.
pub(super) const AT_ONCE_MIN: u64 = 1024;
/// Segments that the kernel cuts a buffer into at most (UDP_MAX_SEGMENTS until Linux 6.9).
const SEGMENTS_MAX: usize = 64;
/// Payload of the largest datagram on IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Receives in a row that may fail before a socket is abandoned.
const RECEIVE_ERRORS_MAX: u32 = 16;

/// How the thread's streams and sockets belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sockets {
    /// Each stream has the socket of its number.
    Each,
    /// There is one.
    Single,
}

/// The counts of the thread as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    /// Packets inside the window, in all streams.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// The round trips of these replies, added up.
    pub(super) round_trip_ns: u64,
    /// Replies to no packet.
    pub(super) foreign: u64,
    /// Replies to packets that are forgotten.
    pub(super) late: u64,
    pub(super) mismatched: u64,
    pub(super) receive_errors: u64,
    pub(super) first_error: Option<(u64, String)>,
}

impl Totals {
    /// Keeps the first error.
    pub(super) fn failed(&mut self, now_ns: u64, what: impl FnOnce() -> String) {
        if self.first_error.is_none() {
            self.first_error = Some((now_ns, what()));
        }
    }
}

/// A packet of the group that is being sent.
struct Item {
    stream: u32,
    intended_ns: u64,
    /// The socket took it.
    taken: bool,
}

/// The properties of a thread's traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) format: Format,
    pub(super) sockets: Sockets,
    pub(super) verify: bool,
    pub(super) gso: bool,
    /// Sends reach the kernel only with `twinring::submit`.
    pub(super) submits: bool,
    /// Packets sent at once at most.
    pub(super) at_once_max: u64,
}

pub(super) struct Traffic {
    shape: Shape,
    plan: Plan,
    pub(super) ledger: Ledger,
    pub(super) totals: Totals,
    pub(super) round_trip_ns: Histogram<u64>,
    pub(super) lateness_ns: Histogram<u64>,
    /// Packets that were due and sent, or left out.
    done: u64,
    next: Due,
    /// Packets that are sent now count.
    pub(super) measuring: bool,
    group: Vec<Item>,
    memory: Memory,
    /// Empty between sends; like the next field, kept for its allocation.
    batch: Vec<Datagram>,
    received: Vec<Received>,
}

impl Traffic {
    pub(super) fn new(shape: Shape, plan: Plan, ledger: Ledger) -> Traffic {
        Traffic {
            shape,
            plan,
            ledger,
            totals: Totals::default(),
            round_trip_ns: histogram(),
            lateness_ns: histogram(),
            done: 0,
            next: Due { stream: 0, sequence: 0 },
            measuring: false,
            group: Vec::new(),
            memory: Memory::default(),
            batch: Vec::new(),
            received: Vec::new(),
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn format(&self) -> &Format {
        &self.shape.format
    }

    /// Sets the schedule once its start is known. No packet may have been sent before.
    pub(super) fn begin(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// Packets that were due until `until_ns`, that moment included, and are still to be sent.
    pub(super) fn behind(&self, until_ns: u64) -> u64 {
        self.plan.due(until_ns).saturating_sub(self.done)
    }

    /// Sends the packets due until `until_ns`; if they are too many for one call, a part of them.
    ///
    /// # Errors
    /// When the engine has failed as a whole.
    pub(super) fn send_due(&mut self, sockets: &[UdpSocket], until_ns: u64) -> io::Result<()> {
        let mut left = self.behind(until_ns).min(self.shape.at_once_max);
        let most = if self.shape.gso { GSO_GROUP } else { GROUP };
        while left > 0 {
            let packets = left.min(most);
            let memory = self.write_group(packets as usize);
            let sent_ns = if self.shape.submits {
                self.hand_over(sockets, &memory)?;
                let now_ns = monotonic_ns();
                twinring::submit()?;
                now_ns
            } else {
                let now_ns = monotonic_ns();
                self.hand_over(sockets, &memory)?;
                now_ns
            };
            self.memory.put(memory);
            self.note_sent(sent_ns);
            left -= packets;
        }
        Ok(())
    }

    /// Writes the next packets into memory, one after the other.
    fn write_group(&mut self, packets: usize) -> Rc<[u8]> {
        let format = self.shape.format;
        let mut memory = self.memory.take(packets * format.bytes());
        self.group.clear();
        // This memory is not shared: `take` made sure.
        let bytes = Rc::get_mut(&mut memory).unwrap_or(&mut []);
        for packet in bytes.chunks_exact_mut(format.bytes()).take(packets) {
            let Due { stream, sequence } = self.next;
            format.write(self.plan.global(stream), sequence, packet);
            let intended_ns = self.plan.intended_ns(stream, sequence);
            self.group.push(Item { stream, intended_ns, taken: true });
            self.next = self.plan.next(self.next);
        }
        memory
    }

    /// Passes the packets to the sockets. Packets that a socket cannot queue are left out.
    fn hand_over(&mut self, sockets: &[UdpSocket], memory: &Rc<[u8]>) -> io::Result<()> {
        let mut start = 0;
        while let Some(first) = self.group.get(start) {
            let stream = first.stream;
            let run = match self.shape.sockets {
                Sockets::Single => self.group.len() - start,
                Sockets::Each => {
                    self.group[start..].iter().take_while(|item| item.stream == stream).count()
                }
            };
            let socket = match self.shape.sockets {
                Sockets::Single => sockets.first(),
                Sockets::Each => sockets.get(stream as usize),
            };
            self.describe(start, run, memory);
            socket.map_or(Ok(()), |socket| socket.try_send_batch(&mut self.batch))?;
            let left: usize = self.batch.drain(..).map(|datagram| datagram.datagrams()).sum();
            let end = start + run;
            self.group[end - left..end].iter_mut().for_each(|item| item.taken = false);
            start = end;
        }
        Ok(())
    }

    /// Describes packets that go through one socket as datagrams.
    fn describe(&mut self, start: usize, run: usize, memory: &Rc<[u8]>) {
        let bytes = self.shape.format.bytes();
        let packets_per_datagram = match self.shape.gso {
            true => (DATAGRAM_BYTES_MAX / bytes).clamp(1, SEGMENTS_MAX),
            false => 1,
        };
        let end = start + run;
        for first in (start..end).step_by(packets_per_datagram) {
            let last = (first + packets_per_datagram).min(end);
            let data = SendBuf::shared(Rc::clone(memory), first * bytes..last * bytes);
            let segment_bytes = (last - first > 1).then_some(bytes as u16);
            self.batch.push(Datagram { segment_bytes, ..Datagram::new(data) });
        }
    }

    fn note_sent(&mut self, sent_ns: u64) {
        self.done += self.group.len() as u64;
        for item in &self.group {
            if item.taken {
                let lateness_ns = sent_ns.saturating_sub(item.intended_ns);
                self.ledger.sent(item.stream, sent_ns, lateness_ns, self.measuring);
                if self.measuring {
                    self.totals.sent += 1;
                    // Zero is below the histogram's range.
                    self.lateness_ns.saturating_record(lateness_ns.max(1));
                }
            } else {
                self.ledger.left_out(item.stream);
            }
        }
    }

    /// Processes everything that socket number `at` has received. Ends only when it has failed.
    pub(super) fn poll_receive(
        &mut self,
        sockets: &[UdpSocket],
        at: usize,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(socket) = sockets.get(at) else { return Poll::Ready(()) };
        let mut received = std::mem::take(&mut self.received);
        let mut failures = 0;
        let polled = loop {
            match socket.poll_recv_batch(cx, &mut received) {
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
                    self.totals.receive_errors += 1;
                    self.totals.failed(monotonic_ns(), || format!("receiving: {error}"));
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
        let Some(stream) = self.stream_of(at, bytes) else {
            self.totals.foreign += 1;
            return;
        };
        let format = self.shape.format;
        let global = self.plan.global(stream);
        let (next, remembered) = (self.ledger.stream(stream).next, self.ledger.remembered());
        let Some(sequence) = format.sequence_of(global, bytes, next, remembered) else {
            match self.shape.verify {
                true => self.mismatched(stream, now_ns, || {
                    format!("stream {global}: a reply to a packet that was never sent")
                }),
                false => self.totals.foreign += 1,
            }
            return;
        };
        if self.shape.verify && !format.is(global, sequence, bytes) {
            self.mismatched(stream, now_ns, || format.difference(global, sequence, bytes));
            return;
        }
        let intended_ns = self.plan.intended_ns(stream, sequence);
        let transit_ns = now_ns as i64 - intended_ns as i64;
        match self.ledger.answered(stream, sequence, now_ns, transit_ns) {
            Reply::First { round_trip_ns, measured: true } => {
                self.totals.received += 1;
                self.totals.round_trip_ns = self.totals.round_trip_ns.saturating_add(round_trip_ns);
                self.round_trip_ns.saturating_record(round_trip_ns.max(1));
            }
            Reply::First { .. } | Reply::Duplicate { .. } => {}
            Reply::Late => self.totals.late += 1,
            Reply::Unknown => self.totals.foreign += 1,
        }
    }

    /// The stream of ours that a reply belongs to.
    fn stream_of(&self, at: usize, bytes: &[u8]) -> Option<u32> {
        let named = self.plan.local(self.shape.format.stream_of(bytes)?)?;
        let fits = self.shape.sockets == Sockets::Single || named == at as u32;
        fits.then_some(named)
    }

    fn mismatched(&mut self, stream: u32, now_ns: u64, what: impl FnOnce() -> String) {
        self.ledger.stream(stream).mismatched += 1;
        self.totals.mismatched += 1;
        self.totals.failed(now_ns, what);
    }
}

/// Memory into which packets are written, and that the runtime holds until the kernel has taken
/// them. Bounded by the unsent bytes of sockets; normally one block circulates.
#[derive(Default)]
struct Memory {
    chunks: VecDeque<Rc<[u8]>>,
}

impl Memory {
    /// A block of at least `bytes` that is not shared.
    fn take(&mut self, bytes: usize) -> Rc<[u8]> {
        // The least recently used block returns first.
        match self.chunks.pop_front() {
            Some(chunk) if Rc::strong_count(&chunk) == 1 && chunk.len() >= bytes => chunk,
            Some(chunk) => {
                if Rc::strong_count(&chunk) > 1 {
                    self.chunks.push_front(chunk);
                }
                Rc::from(vec![0; bytes])
            }
            None => Rc::from(vec![0; bytes]),
        }
    }

    fn put(&mut self, chunk: Rc<[u8]>) {
        self.chunks.push_back(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_round_unless_it_is_held() {
        let mut memory = Memory::default();
        let first = memory.take(100);
        let (held, address) = (Rc::clone(&first), first.as_ptr());
        memory.put(first);
        let second = memory.take(50);
        assert_ne!(second.as_ptr(), address);
        memory.put(second);
        drop(held);
        assert_eq!(memory.take(80).as_ptr(), address);
        assert_eq!(memory.chunks.len(), 1);
    }
}
