//! Sent packets and their replies: the statistics of each stream.
//!
//! Pure bookkeeping, without clock and sockets. Each stream stores when its last packets left, in a
//! ring, and a few numbers.
//!
//! Whether a packet counts for the measured window is decided when it is sent. Its replies count
//! likewise, however late.

/// Of a remembered packet: it has been answered.
const ANSWERED: u64 = 1;
/// It counts.
const MEASURED: u64 = 2;
/// The other bits are the time at which it left. Three nanoseconds do not matter here.
const TIME: u64 = !(ANSWERED | MEASURED);

/// One stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stream {
    /// Sequence of the next packet.
    pub(super) next: u64,
    /// Packets handed over.
    pub(super) sent: u64,
    /// Packets with a reply.
    pub(super) received: u64,
    /// Further replies to the same packets.
    pub(super) duplicated: u64,
    /// First replies that arrived behind one to a later packet (RFC 4737).
    pub(super) reordered: u64,
    /// Replies that differ from the packet.
    pub(super) mismatched: u64,
    pub(super) round_trip_max_ns: u64,
    pub(super) lateness_max_ns: u64,
    /// One more than the highest sequence answered.
    beyond_highest: u64,
    /// The delay of the last reply against the time of its packet.
    transit_ns: Option<i64>,
    jitter_ns: f64,
}

impl Stream {
    /// The interarrival jitter of RFC 3550, section 6.4.1, over all packets so far.
    pub(super) fn jitter_ns(&self) -> f64 {
        self.jitter_ns
    }

    /// J += (|D| - J) / 16, with D the change of the transit time between replies in the order of
    /// their arrival.
    fn arrived(&mut self, transit_ns: i64) {
        if let Some(before_ns) = self.transit_ns.replace(transit_ns) {
            let changed = transit_ns.abs_diff(before_ns) as f64;
            self.jitter_ns += (changed - self.jitter_ns) / 16.0;
        }
    }
}

/// The classification of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The first to its packet.
    First { round_trip_ns: u64, measured: bool },
    /// Not the first.
    Duplicate { measured: bool },
    /// To a packet that is forgotten.
    Late,
    /// To a packet that was never sent.
    Unknown,
}

/// The streams of one thread.
pub(super) struct Ledger {
    streams: Vec<Stream>,
    /// For each stream the last packets, by the low bits of their sequence; 0 was not sent.
    left: Vec<u64>,
    /// Packets of a stream that are remembered: a power of two.
    remembered: u64,
}

impl Ledger {
    /// `streams`, each remembering its last `remembered` packets, a power of two.
    pub(super) fn new(streams: usize, remembered: usize) -> Ledger {
        Ledger {
            streams: vec![Stream::default(); streams],
            left: vec![0; streams * remembered],
            remembered: remembered as u64,
        }
    }

    pub(super) fn streams(&self) -> &[Stream] {
        &self.streams
    }

    pub(super) fn stream(&mut self, stream: u32) -> &mut Stream {
        &mut self.streams[stream as usize]
    }

    /// Packets of a stream that are remembered.
    pub(super) fn remembered(&self) -> u64 {
        self.remembered
    }

    fn place(&self, stream: u32, sequence: u64) -> usize {
        stream as usize * self.remembered as usize + (sequence & (self.remembered - 1)) as usize
    }

    /// The next packet of a stream left at `left_ns`, so much after its time.
    #[inline]
    pub(super) fn sent(&mut self, stream: u32, left_ns: u64, lateness_ns: u64, measured: bool) {
        let place = self.place(stream, self.streams[stream as usize].next);
        self.left[place] = left_ns & TIME | if measured { MEASURED } else { 0 };
        let stream = &mut self.streams[stream as usize];
        stream.next += 1;
        if measured {
            stream.sent += 1;
            stream.lateness_max_ns = stream.lateness_max_ns.max(lateness_ns);
        }
    }

    /// The next packet of a stream was left out.
    pub(super) fn left_out(&mut self, stream: u32) {
        let place = self.place(stream, self.streams[stream as usize].next);
        self.left[place] = 0;
        self.streams[stream as usize].next += 1;
    }

    /// A reply to packet `sequence` arrived at `now_ns`, `transit_ns` after the time at which the
    /// packet was due.
    #[inline]
    pub(super) fn answered(
        &mut self,
        stream: u32,
        sequence: u64,
        now_ns: u64,
        transit_ns: i64,
    ) -> Reply {
        let place = self.place(stream, sequence);
        let stream = &mut self.streams[stream as usize];
        if sequence >= stream.next {
            return Reply::Unknown;
        }
        if stream.next - sequence > self.remembered {
            return Reply::Late;
        }
        let left = self.left[place];
        if left == 0 {
            return Reply::Unknown;
        }
        let measured = left & MEASURED != 0;
        if left & ANSWERED != 0 {
            stream.duplicated += u64::from(measured);
            return Reply::Duplicate { measured };
        }
        self.left[place] = left | ANSWERED;
        stream.arrived(transit_ns);
        let round_trip_ns = now_ns.saturating_sub(left & TIME);
        let reordered = sequence + 1 < stream.beyond_highest;
        stream.beyond_highest = stream.beyond_highest.max(sequence + 1);
        if measured {
            stream.received += 1;
            stream.reordered += u64::from(reordered);
            stream.round_trip_max_ns = stream.round_trip_max_ns.max(round_trip_ns);
        }
        Reply::First { round_trip_ns, measured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const MS: u64 = 1_000_000;

    /// One stream with a packet every 20 ms. Packets take `transits` milliseconds; `None` is a lost
    /// one.
    fn stream_with(transits: &[Option<u64>]) -> Stream {
        let mut ledger = Ledger::new(1, 1024);
        let mut replies: Vec<(u64, u64)> = Vec::new();
        for (sequence, transit) in (0u64..).zip(transits) {
            let at = (1 + 20 * sequence) * MS;
            ledger.sent(0, at, 0, true);
            replies.extend(transit.map(|ms| (at + ms * MS, sequence)));
        }
        replies.sort_unstable();
        for (now, sequence) in replies {
            let transit = now - (1 + 20 * sequence) * MS;
            ledger.answered(0, sequence, now, transit as i64);
        }
        ledger.streams()[0].clone()
    }

    #[test]
    fn an_even_delay_has_no_jitter() {
        let stream = stream_with(&[Some(7); 100]);
        assert_eq!((stream.sent, stream.received), (100, 100));
        assert_eq!((stream.duplicated, stream.reordered), (0, 0));
        assert_eq!(stream.jitter_ns(), 0.0);
        assert_eq!(stream.round_trip_max_ns / MS, 7);
    }

    /// Delays of 5 and 9 ms in turn: D is always 4 ms, and J approaches it by a sixteenth a step.
    #[test]
    fn alternating_delays_have_the_jitter_of_the_formula() {
        let transits: Vec<_> = (0..50).map(|n| Some(if n % 2 == 0 { 5 } else { 9 })).collect();
        let expected = 4e6 * (1.0 - (15f64 / 16.0).powi(49));
        assert!((stream_with(&transits).jitter_ns() - expected).abs() < 1.0);
    }

    #[test]
    fn loss_reordering_and_duplicates_are_distinguished() {
        // The third packet is overtaken by the next two.
        let stream = stream_with(&[Some(1), None, Some(45), Some(1), Some(1), None, Some(1)]);
        assert_eq!((stream.sent, stream.received, stream.reordered), (7, 5, 1));
        let mut ledger = Ledger::new(2, 64);
        (0..3).for_each(|n| ledger.sent(1, 100 + n, n, n > 0));
        ledger.left_out(1);
        let first = Reply::First { round_trip_ns: 100, measured: true };
        assert_eq!(ledger.answered(1, 2, 200, 0), first);
        assert_eq!(ledger.answered(1, 2, 201, 0), Reply::Duplicate { measured: true });
        assert_eq!(
            ledger.answered(1, 0, 202, 0),
            Reply::First { round_trip_ns: 102, measured: false }
        );
        assert_eq!(ledger.answered(1, 3, 203, 0), Reply::Unknown);
        assert_eq!(ledger.answered(1, 4, 203, 0), Reply::Unknown);
        assert_eq!(ledger.answered(0, 0, 203, 0), Reply::Unknown);
        let stream = &ledger.streams()[1];
        assert_eq!((stream.next, stream.sent, stream.received), (4, 2, 1));
        assert_eq!((stream.duplicated, stream.reordered, stream.lateness_max_ns), (1, 0, 2));
    }

    #[test]
    fn replies_to_forgotten_packets_are_late_and_lost() {
        let mut ledger = Ledger::new(1, 64);
        (0..65).for_each(|_| ledger.sent(0, 1000, 0, true));
        assert_eq!(ledger.answered(0, 0, 2000, 0), Reply::Late);
        assert!(matches!(ledger.answered(0, 1, 2000, 0), Reply::First { .. }));
        assert_eq!(ledger.streams()[0].received, 1);
    }

    proptest! {
        /// Compared with a list of all events, for any loss, duplication and order.
        #[test]
        fn counts_are_those_of_a_plain_list(
            events in proptest::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..400),
            warmup in 0u64..50,
        ) {
            let mut ledger = Ledger::new(1, 512);
            let mut answers: HashMap<u64, u64> = HashMap::new();
            let (mut sent, mut now) = (0u64, 1000u64);
            let (mut received, mut duplicated, mut reordered) = (0, 0, 0);
            let mut arrivals: Vec<(u64, i64)> = Vec::new();
            for (what, pick) in events {
                now += 50;
                if what < 2 || sent == 0 {
                    ledger.sent(0, now, 0, sent >= warmup);
                    sent += 1;
                    continue;
                }
                let sequence = pick.index(sent as usize) as u64;
                let transit = (now % 977) as i64;
                ledger.answered(0, sequence, now, transit);
                let before = answers.insert(sequence, now).is_some();
                let counts = u64::from(sequence >= warmup);
                if before {
                    duplicated += counts;
                } else {
                    received += counts;
                    let overtaken = arrivals.iter().any(|(other, _)| *other > sequence);
                    reordered += if overtaken { counts } else { 0 };
                    arrivals.push((sequence, transit));
                }
            }
            // The formula as the RFC writes it, over pairs of arrivals.
            let jitter = arrivals.windows(2).fold(0.0, |jitter, pair| {
                let difference = (pair[1].1 - pair[0].1).abs() as f64;
                jitter + (difference - jitter) / 16.0
            });
            let stream = &ledger.streams()[0];
            prop_assert_eq!(stream.sent, sent.saturating_sub(warmup));
            prop_assert_eq!(stream.received, received);
            prop_assert_eq!(stream.duplicated, duplicated);
            prop_assert_eq!(stream.reordered, reordered);
            prop_assert!((stream.jitter_ns() - jitter).abs() < 1e-6);
        }
    }
}
