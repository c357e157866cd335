//! The packets of one stream and their replies: pure bookkeeping, without clock and sockets.
//!
//! A stream stores when its last packets left, in a ring. Whether a packet counts for the measured window is decided
//! when it is sent. Its replies count likewise, however late.

use twinring_wire::udp;

/// Of a remembered packet: it has been answered.
const ANSWERED: u64 = 1;
/// It counts.
const MEASURED: u64 = 2;
/// The other bits are the time at which it left. Three nanoseconds do not matter here.
const TIME: u64 = !(ANSWERED | MEASURED);

#[derive(Clone, Debug)]
pub(super) struct StreamState {
    /// Its counts, without `lost`. Jitter is over all packets so far.
    pub(super) counts: udp::Stream,
    pub(super) next: u64,
    /// One more than the highest sequence answered.
    beyond_highest: u64,
    /// The delay of the last reply against the time of its packet.
    transit_ns: Option<i64>,
    /// When the last packets left, by the low bits of their sequence: a power of two. 0 was not sent.
    left: Box<[u64]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The first to its packet.
    First {
        round_trip_ns: u64,
        measured: bool,
    },
    Duplicate,
    /// To a packet that is forgotten.
    Late,
    /// To a packet that was never sent.
    Unknown,
}

impl StreamState {
    /// A stream that remembers its last `remembered` packets, a power of two.
    pub(super) fn new(number: u64, ssrc: u32, remembered: usize) -> StreamState {
        StreamState {
            counts: udp::Stream { stream: number, ssrc, ..udp::Stream::default() },
            next: 0,
            beyond_highest: 0,
            transit_ns: None,
            left: vec![0; remembered].into(),
        }
    }

    pub(super) fn remembered(&self) -> u64 {
        self.left.len() as u64
    }

    fn place(&self, sequence: u64) -> usize {
        sequence as usize & (self.left.len() - 1)
    }

    /// The next packet left at `left_ns`, so much after its time.
    #[inline]
    pub(super) fn sent(&mut self, left_ns: u64, lateness_ns: u64, measured: bool) {
        let place = self.place(self.next);
        self.left[place] = left_ns & TIME | if measured { MEASURED } else { 0 };
        self.next += 1;
        if measured {
            self.counts.sent += 1;
            let latest = self.counts.lateness_us_max.max(lateness_ns as f64 / 1e3);
            self.counts.lateness_us_max = latest;
        }
    }

    pub(super) fn left_out(&mut self) {
        let place = self.place(self.next);
        self.left[place] = 0;
        self.next += 1;
    }

    /// A reply to packet `sequence` arrived at `now_ns`, `transit_ns` after the time at which the packet was due.
    #[inline]
    pub(super) fn answered(&mut self, sequence: u64, now_ns: u64, transit_ns: i64) -> Reply {
        if sequence >= self.next {
            return Reply::Unknown;
        }
        if self.next - sequence > self.remembered() {
            return Reply::Late;
        }
        let place = self.place(sequence);
        let left = self.left[place];
        if left == 0 {
            return Reply::Unknown;
        }
        let measured = left & MEASURED != 0;
        if left & ANSWERED != 0 {
            self.counts.duplicated += u64::from(measured);
            return Reply::Duplicate;
        }
        self.left[place] = left | ANSWERED;
        // RFC 3550 section 6.4.1: J += (|D| - J) / 16, with D the change of the transit time between replies in the
        // order of their arrival.
        if let Some(before_ns) = self.transit_ns.replace(transit_ns) {
            let changed_us = transit_ns.abs_diff(before_ns) as f64 / 1e3;
            self.counts.jitter_us += (changed_us - self.counts.jitter_us) / 16.0;
        }
        let round_trip_ns = now_ns.saturating_sub(left & TIME);
        let reordered = sequence + 1 < self.beyond_highest;
        self.beyond_highest = self.beyond_highest.max(sequence + 1);
        if measured {
            self.counts.received += 1;
            self.counts.reordered += u64::from(reordered);
            let longest = self.counts.round_trip_us_max.max(round_trip_ns as f64 / 1e3);
            self.counts.round_trip_us_max = longest;
        }
        Reply::First { round_trip_ns, measured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn replies_to_forgotten_packets_are_late_and_those_to_none_are_unknown() {
        let mut stream = StreamState::new(0, 0, 64);
        (0..65).for_each(|_| stream.sent(1000, 0, true));
        stream.left_out();
        assert_eq!(stream.answered(0, 2000, 0), Reply::Late);
        assert_eq!(stream.answered(65, 2000, 0), Reply::Unknown);
        assert_eq!(stream.answered(66, 2000, 0), Reply::Unknown);
        let first = Reply::First { round_trip_ns: 1000, measured: true };
        assert_eq!(stream.answered(2, 2000, 0), first);
        assert_eq!(stream.counts.received, 1);
    }

    proptest! {
        /// Compared with a list of all events, for any loss, duplication and order.
        #[test]
        fn counts_are_those_of_a_plain_list(
            events in proptest::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..400),
            warmup in 0u64..50,
        ) {
            let mut stream = StreamState::new(0, 0, 512);
            let mut answers: HashMap<u64, u64> = HashMap::new();
            let (mut sent, mut now) = (0u64, 1000u64);
            let (mut received, mut duplicated, mut reordered) = (0, 0, 0);
            let mut arrivals: Vec<(u64, i64)> = Vec::new();
            for (what, pick) in events {
                now += 50;
                if what < 2 || sent == 0 {
                    stream.sent(now, 0, sent >= warmup);
                    sent += 1;
                    continue;
                }
                let sequence = pick.index(sent as usize) as u64;
                let transit = (now % 977) as i64;
                stream.answered(sequence, now, transit);
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
            let jitter_ns = arrivals.windows(2).fold(0.0, |jitter, pair| {
                let difference = (pair[1].1 - pair[0].1).abs() as f64;
                jitter + (difference - jitter) / 16.0
            });
            let found = stream.counts;
            prop_assert_eq!(found.sent, sent.saturating_sub(warmup));
            let replies = (found.received, found.duplicated, found.reordered);
            prop_assert_eq!(replies, (received, duplicated, reordered));
            prop_assert!((found.jitter_us * 1e3 - jitter_ns).abs() < 1e-6);
        }
    }
}
