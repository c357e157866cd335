//! The content of a packet, and the assignment of replies to packets.
//!
//! - RTP (RFC 3550): a header of 12 bytes, then a pattern. The SSRC identifies the stream; the
//!   timestamp advances with the clock of 8 kHz, and distinguishes packets that share a 16-bit
//!   sequence number.
//! - Raw: a number of 8 bytes that identifies stream and sequence, then a pattern.

use crate::pattern::Pattern;

/// Bytes of an RTP header without extensions and contributing sources.
pub const RTP_HEADER_BYTES: usize = 12;
/// Bytes that name a raw packet.
const TAG_BYTES: usize = 8;
/// The bits of it that are the sequence; the others identify the stream.
const TAG_SEQUENCE_BITS: u32 = 42;
/// Streams that an RTP header and a tag can distinguish.
pub(super) const STREAMS_MAX: u64 = 1 << 18;

/// Version 2, no padding, no extension, no contributing sources.
const RTP_FIRST_BYTE: u8 = 2 << 6;
/// Payload type 0: PCMU, 8 kHz (RFC 3551).
const RTP_PAYLOAD_TYPE: u8 = 0;
const RTP_CLOCK_HZ: u128 = 8_000;
/// Packets until a sequence number repeats.
const RTP_CYCLE: u64 = 1 << 16;

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// An RTP header and a pattern.
    Rtp,
    /// A private header.
    Raw,
}

/// The format of all packets of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    kind: Payload,
    bytes: usize,
    seed: u64,
    /// Ticks of the RTP clock between two packets of a stream, << 32.
    ticks: u128,
}

impl Payload {
    /// Bytes that every packet begins with.
    pub(super) fn header_bytes(self) -> usize {
        match self {
            Payload::Rtp => RTP_HEADER_BYTES,
            Payload::Raw => TAG_BYTES,
        }
    }
}

impl Format {
    /// Packets of `bytes`, at `rate` millionths of a packet a second and stream.
    pub(super) fn new(payload: Payload, bytes: usize, seed: u64, rate: u64) -> Format {
        let ticks = ((RTP_CLOCK_HZ * 1_000_000) << 32) / u128::from(rate.max(1));
        Format { kind: payload, bytes, seed, ticks }
    }

    /// Bytes of a packet.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The SSRC of a stream: random, and different for each.
    pub(super) fn ssrc(&self, stream: u64) -> u32 {
        scramble((stream as u32).wrapping_add(self.seed as u32))
    }

    /// The timestamp of a packet: random at first, as RFC 3550 wants it.
    fn timestamp(&self, ssrc: u32, sequence: u64) -> u32 {
        let elapsed = ((u128::from(sequence) * self.ticks) >> 32) as u32;
        scramble(ssrc ^ (self.seed >> 32) as u32).wrapping_add(elapsed)
    }

    fn first_sequence(&self, ssrc: u32) -> u16 {
        (scramble(!ssrc) >> 16) as u16
    }

    fn rtp_header(&self, stream: u64, sequence: u64) -> [u8; RTP_HEADER_BYTES] {
        let ssrc = self.ssrc(stream);
        let number = self.first_sequence(ssrc).wrapping_add(sequence as u16);
        let mut header = [0; RTP_HEADER_BYTES];
        header[0] = RTP_FIRST_BYTE;
        header[1] = RTP_PAYLOAD_TYPE;
        header[2..4].copy_from_slice(&number.to_be_bytes());
        header[4..8].copy_from_slice(&self.timestamp(ssrc, sequence).to_be_bytes());
        header[8..12].copy_from_slice(&ssrc.to_be_bytes());
        header
    }

    fn tag(&self, stream: u64, sequence: u64) -> [u8; TAG_BYTES] {
        let sequence = sequence & ((1 << TAG_SEQUENCE_BITS) - 1);
        ((stream << TAG_SEQUENCE_BITS | sequence) ^ self.seed).to_be_bytes()
    }

    /// Writes a packet; `into` has its length.
    #[inline]
    pub(super) fn write(&self, stream: u64, sequence: u64, into: &mut [u8]) {
        match self.kind {
            Payload::Rtp => {
                into[..RTP_HEADER_BYTES].copy_from_slice(&self.rtp_header(stream, sequence));
            }
            Payload::Raw => into[..TAG_BYTES].copy_from_slice(&self.tag(stream, sequence)),
        }
        let body = &mut into[self.kind.header_bytes()..];
        body.copy_from_slice(self.body(stream, sequence));
    }

    /// True if `bytes` are the content of this packet.
    #[inline]
    pub(super) fn is(&self, stream: u64, sequence: u64, bytes: &[u8]) -> bool {
        if bytes.len() != self.bytes {
            return false;
        }
        let (header, body) = bytes.split_at(self.kind.header_bytes());
        let same_header = match self.kind {
            Payload::Rtp => *header == self.rtp_header(stream, sequence),
            Payload::Raw => *header == self.tag(stream, sequence),
        };
        same_header && body == self.body(stream, sequence)
    }

    fn body(&self, stream: u64, sequence: u64) -> &'static [u8] {
        let bytes = self.bytes - self.kind.header_bytes();
        let place = sequence.wrapping_mul(bytes as u64);
        // The stream of bytes repeats, so that any place in it is as good modulo 2^48.
        Pattern::new(stream, 0).slice(place & ((1 << 48) - 1), bytes)
    }

    /// The stream of a reply; `None` if it cannot be read.
    #[inline]
    pub(super) fn stream_of(&self, bytes: &[u8]) -> Option<u64> {
        match self.kind {
            Payload::Rtp => {
                let ssrc = u32::from_be_bytes(array(bytes, 8)?);
                Some(unscramble(ssrc).wrapping_sub(self.seed as u32).into())
            }
            Payload::Raw => {
                let tag = u64::from_be_bytes(array(bytes, 0)?) ^ self.seed;
                Some(tag >> TAG_SEQUENCE_BITS)
            }
        }
    }

    /// The sequence of the packet that a reply answers, when `next` have been sent and the last
    /// `remembered` are candidates; `None` if it answers none of them.
    ///
    /// The 16 bits of RTP are extended to the latest packet that has been sent, because a reply
    /// cannot answer a later one. If the timestamp is that of an earlier cycle, that cycle is used.
    #[inline]
    pub(super) fn sequence_of(
        &self,
        stream: u64,
        bytes: &[u8],
        next: u64,
        remembered: u64,
    ) -> Option<u64> {
        match self.kind {
            Payload::Raw => {
                let tag = u64::from_be_bytes(array(bytes, 0)?) ^ self.seed;
                let sequence = tag & ((1 << TAG_SEQUENCE_BITS) - 1);
                Some(sequence).filter(|sequence| *sequence < next)
            }
            Payload::Rtp => {
                let number = u16::from_be_bytes(array(bytes, 2)?);
                let timestamp = u32::from_be_bytes(array(bytes, 4)?);
                let ssrc = self.ssrc(stream);
                let latest = next.checked_sub(1)?;
                let behind = (latest as u16)
                    .wrapping_sub(number.wrapping_sub(self.first_sequence(ssrc)))
                    .into();
                let mut sequence = latest.checked_sub(behind)?;
                while self.timestamp(ssrc, sequence) != timestamp {
                    sequence = sequence.checked_sub(RTP_CYCLE)?;
                    if latest - sequence > remembered {
                        return None;
                    }
                }
                Some(sequence)
            }
        }
    }

    /// How a reply differs from this packet, for people.
    pub(super) fn difference(&self, stream: u64, sequence: u64, bytes: &[u8]) -> String {
        let place = format!("stream {stream}, packet {sequence}");
        if bytes.len() != self.bytes {
            return format!("{place}: sent {} bytes, got back {}", self.bytes, bytes.len());
        }
        let mut sent = vec![0; self.bytes];
        self.write(stream, sequence, &mut sent);
        let differing = sent.iter().zip(bytes).enumerate().find(|(_, (sent, came))| sent != came);
        match differing {
            Some((at, (sent, came))) => {
                format!("{place}: byte {at} differs: sent {sent:#04x}, got back {came:#04x}")
            }
            None => format!("{place}: the reply differs"),
        }
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

const FACTORS: [u32; 2] = [0x21F0_AAAD, 0x735A_2D97];
const INVERSES: [u32; 2] = [inverse(FACTORS[0]), inverse(FACTORS[1])];

/// The multiplicative inverse of an odd number modulo 2^32, by Newton's iteration.
const fn inverse(odd: u32) -> u32 {
    let mut inverse = odd;
    // Each round doubles the bits that are right, from 3 on.
    let mut round = 0;
    while round < 4 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

/// A permutation of all 32-bit numbers in which neighbours have nothing in common, so that each
/// stream has its own SSRC, and the stream follows from it without a table.
fn scramble(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(FACTORS[0]);
    x ^= x >> 16;
    x = x.wrapping_mul(FACTORS[1]);
    x ^ x >> 16
}

fn unscramble(mut x: u32) -> u32 {
    // x ^ x >> 16 is its own inverse.
    x ^= x >> 16;
    x = x.wrapping_mul(INVERSES[1]);
    x ^= x >> 16;
    x = x.wrapping_mul(INVERSES[0]);
    x ^ x >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(format: &Format, stream: u64, sequence: u64) -> Vec<u8> {
        let mut bytes = vec![0xee; format.bytes()];
        format.write(stream, sequence, &mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn scrambling_can_be_undone(x: u32) {
            prop_assert_eq!(unscramble(scramble(x)), x);
        }

        /// A packet is recognised as long as it is remembered, with any number of later ones.
        #[test]
        fn a_packet_is_recognised(
            rtp: bool, bytes in 12usize..2000, seed: u64, stream in 0..STREAMS_MAX,
            sequence in 0u64..1 << 40, newer in 0u64..1 << 22,
            rate in prop_oneof![1_000u64..1_000_000_000, 1_000_000_000u64..100_000_000_000_000],
        ) {
            let payload = if rtp { Payload::Rtp } else { Payload::Raw };
            let format = Format::new(payload, bytes, seed, rate);
            let sent = packet(&format, stream, sequence);
            prop_assert_eq!(format.stream_of(&sent), Some(stream));
            let found = format.sequence_of(stream, &sent, sequence + 1 + newer, 1 << 22);
            prop_assert_eq!(found, Some(sequence));
            prop_assert!(format.is(stream, sequence, &sent));
            // A packet that was never sent is not.
            if !rtp || sequence < RTP_CYCLE {
                prop_assert_eq!(format.sequence_of(stream, &sent, sequence, 1 << 22), None);
            }
        }

        /// One changed byte, and one byte more or less, is detected.
        #[test]
        fn a_changed_packet_is_noticed(
            payload in prop_oneof![Just(Payload::Rtp), Just(Payload::Raw)], bytes in 12usize..600,
            sequence in 0u64..1 << 40, place in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let format = Format::new(payload, bytes, 99, 50_000_000);
            let mut sent = packet(&format, 5, sequence);
            let at = place.index(bytes);
            sent[at] ^= flip;
            prop_assert!(!format.is(5, sequence, &sent));
            let named = format!("byte {at} differs");
            prop_assert!(format.difference(5, sequence, &sent).contains(&named));
            sent[at] ^= flip;
            sent.push(0);
            prop_assert!(!format.is(5, sequence, &sent));
            prop_assert!(!format.is(5, sequence, &sent[..bytes - 1]));
        }

        /// No reply causes a panic.
        #[test]
        fn any_reply_is_survived(
            bytes in proptest::collection::vec(any::<u8>(), 0..40), next: u64, raw: bool,
        ) {
            let payload = if raw { Payload::Raw } else { Payload::Rtp };
            let format = Format::new(payload, 172, 3, 50_000_000);
            format.stream_of(&bytes);
            if let Some(sequence) = format.sequence_of(1, &bytes, next, 64) {
                prop_assert!(sequence < next);
                format.is(1, sequence, &bytes);
            }
        }
    }

    /// Read by hand, as any RTP receiver would.
    #[test]
    fn the_header_is_rtp() {
        let format = Format::new(Payload::Rtp, 172, 1, 50_000_000);
        let (first, second) = (packet(&format, 0, 70_000), packet(&format, 0, 70_001));
        assert_eq!(first[0], 0x80);
        assert_eq!(first[1], 0);
        let number = |p: &[u8]| u16::from_be_bytes([p[2], p[3]]);
        assert_eq!(number(&second), number(&first).wrapping_add(1));
        let timestamp = |p: &[u8]| u32::from_be_bytes([p[4], p[5], p[6], p[7]]);
        // 20 ms at 8 kHz.
        assert_eq!(timestamp(&second), timestamp(&first).wrapping_add(160));
        assert_eq!(first[8..12], second[8..12]);
        assert_ne!(first[8..12], packet(&format, 1, 0)[8..12]);
    }
}
