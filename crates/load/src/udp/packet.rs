//! The content of a packet, and the packet that a reply answers.
//!
//! A packet is an RTP header (RFC 3550) of 12 bytes and a pattern. The SSRC names the stream; the timestamp advances
//! with the clock of 8 kHz, and distinguishes packets that share a 16-bit sequence number.

use crate::pattern::Pattern;

/// Bytes of an RTP header without extensions and contributing sources.
pub(super) const RTP_HEADER_BYTES: usize = 12;

/// Version 2, no padding, no extension, no contributing sources.
const RTP_FIRST_BYTE: u8 = 2 << 6;
/// Payload type 0: PCMU, 8 kHz (RFC 3551).
const RTP_PAYLOAD_TYPE: u8 = 0;
const RTP_CLOCK_HZ: u128 = 8_000;
/// Packets until a sequence number repeats.
const RTP_CYCLE: u64 = 1 << 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    pub(super) bytes: usize,
    seed: u64,
    /// Ticks of the RTP clock between two packets of a stream, << 32.
    ticks: u128,
}

impl Format {
    /// Packets of `bytes`, at `rate` millionths of a packet a second and stream.
    pub(super) fn new(bytes: usize, seed: u64, rate: u64) -> Format {
        let ticks = ((RTP_CLOCK_HZ * 1_000_000) << 32) / u128::from(rate.max(1));
        Format { bytes, seed, ticks }
    }

    pub(super) fn ssrc(&self, stream: u64) -> u32 {
        (self.seed as u32).wrapping_add(stream as u32)
    }

    /// The timestamp of a packet: that of the first differs from stream to stream.
    fn timestamp(&self, ssrc: u32, sequence: u64) -> u32 {
        let elapsed = ((u128::from(sequence) * self.ticks) >> 32) as u32;
        first(ssrc ^ (self.seed >> 32) as u32).wrapping_add(elapsed)
    }

    fn header(&self, stream: u64, sequence: u64) -> [u8; RTP_HEADER_BYTES] {
        let ssrc = self.ssrc(stream);
        let number = first_sequence(ssrc).wrapping_add(sequence as u16);
        let mut header = [0; RTP_HEADER_BYTES];
        header[0] = RTP_FIRST_BYTE;
        header[1] = RTP_PAYLOAD_TYPE;
        header[2..4].copy_from_slice(&number.to_be_bytes());
        header[4..8].copy_from_slice(&self.timestamp(ssrc, sequence).to_be_bytes());
        header[8..12].copy_from_slice(&ssrc.to_be_bytes());
        header
    }

    fn body(&self, stream: u64, sequence: u64) -> &'static [u8] {
        let bytes = self.bytes - RTP_HEADER_BYTES;
        let place = sequence.wrapping_mul(bytes as u64);
        // The stream of bytes repeats, so that any place in it is as good modulo 2^48.
        Pattern::new(stream, 0).slice(place & ((1 << 48) - 1), bytes)
    }

    #[inline]
    pub(super) fn write(&self, stream: u64, sequence: u64, into: &mut [u8]) {
        let (header, body) = into.split_at_mut(RTP_HEADER_BYTES);
        header.copy_from_slice(&self.header(stream, sequence));
        body.copy_from_slice(self.body(stream, sequence));
    }

    #[inline]
    pub(super) fn is(&self, stream: u64, sequence: u64, bytes: &[u8]) -> bool {
        bytes.len() == self.bytes
            && bytes[..RTP_HEADER_BYTES] == self.header(stream, sequence)
            && bytes[RTP_HEADER_BYTES..] == *self.body(stream, sequence)
    }

    /// The stream of a reply; `None` if it cannot be read.
    #[inline]
    pub(super) fn stream_of(&self, bytes: &[u8]) -> Option<u64> {
        let ssrc = u32::from_be_bytes(array(bytes, 8)?);
        Some(ssrc.wrapping_sub(self.seed as u32).into())
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
        let number = u16::from_be_bytes(array(bytes, 2)?);
        let timestamp = u32::from_be_bytes(array(bytes, 4)?);
        let ssrc = self.ssrc(stream);
        let latest = next.checked_sub(1)?;
        let behind = (latest as u16).wrapping_sub(number.wrapping_sub(first_sequence(ssrc))).into();
        let mut sequence = latest.checked_sub(behind)?;
        while self.timestamp(ssrc, sequence) != timestamp {
            sequence = sequence.checked_sub(RTP_CYCLE)?;
            if latest - sequence > remembered {
                return None;
            }
        }
        Some(sequence)
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

/// Where the numbers of a stream begin: RFC 3550 asks for any place that cannot be guessed, and no two streams need
/// the same.
fn first(ssrc: u32) -> u32 {
    ssrc.wrapping_mul(0x9E37_79B9)
}

fn first_sequence(ssrc: u32) -> u16 {
    (first(!ssrc) >> 16) as u16
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(format: &Format, stream: u64, sequence: u64) -> Vec<u8> {
        let mut bytes = vec![0xee; format.bytes];
        format.write(stream, sequence, &mut bytes);
        bytes
    }

    proptest! {
        /// A packet is recognised as long as it is remembered, with any number of later ones.
        #[test]
        fn a_packet_is_recognised(
            bytes in 12usize..2000, seed: u64, stream in 0..1u64 << 18,
            sequence in 0u64..1 << 40, newer in 0u64..1 << 22,
            rate in prop_oneof![1_000u64..1_000_000_000, 1_000_000_000u64..100_000_000_000_000],
        ) {
            let format = Format::new(bytes, seed, rate);
            let sent = packet(&format, stream, sequence);
            prop_assert_eq!(format.stream_of(&sent), Some(stream));
            let found = format.sequence_of(stream, &sent, sequence + 1 + newer, 1 << 22);
            prop_assert_eq!(found, Some(sequence));
            prop_assert!(format.is(stream, sequence, &sent));
            // A packet that was never sent is not.
            if sequence < RTP_CYCLE {
                prop_assert_eq!(format.sequence_of(stream, &sent, sequence, 1 << 22), None);
            }
        }
    }

    /// Read by hand, as any RTP receiver would.
    #[test]
    fn the_header_is_rtp() {
        let format = Format::new(172, 1, 50_000_000);
        let (first, second) = (packet(&format, 0, 70_000), packet(&format, 0, 70_001));
        assert_eq!(first[..2], [0x80, 0]);
        let number = |p: &[u8]| u16::from_be_bytes([p[2], p[3]]);
        assert_eq!(number(&second), number(&first).wrapping_add(1));
        let timestamp = |p: &[u8]| u32::from_be_bytes([p[4], p[5], p[6], p[7]]);
        // 20 ms at 8 kHz.
        assert_eq!(timestamp(&second), timestamp(&first).wrapping_add(160));
        assert_eq!(first[8..12], second[8..12]);
        assert_ne!(first[8..12], packet(&format, 1, 0)[8..12]);
    }
}
