//! The content that is sent: each byte depends on the connection and on its position in the stream,
//! so that lost, repeated, swapped and foreign bytes are detected.
//!
//! All connections read from one table of random bytes that repeats with a prime period, each from
//! its own start. Any message is then a slice of the table: sending needs no copy, and verifying is
//! one comparison of slices. Two errors go unnoticed: a displacement by an exact multiple of the
//! period, and single bytes that are equal by chance (1 in 256).

use std::sync::LazyLock;

/// Length of the period in bytes: the largest prime below 2^16, so that no displacement by a
/// buffer, page or message of a round size is a multiple of it.
pub const PERIOD: usize = 65_521;

/// Bytes that [`Pattern::slice`] returns at most.
pub const SLICE_BYTES_MAX: usize = 256 * 1024;

/// Distance between the starting places of neighbouring connections. Coprime to the period, so
/// that the first 65,521 connections all start at different places.
const CONNECTION_STEP: u64 = 40_503;
/// The same for the successive lives of a connection that reconnects.
const LIFE_STEP: u64 = 25_013;

static TABLE: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    // xorshift64: any well-mixed fixed sequence would do.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let period: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
    .take(PERIOD)
    .collect();
    period.iter().copied().cycle().take(PERIOD + SLICE_BYTES_MAX).collect()
});

/// The byte stream of one life of one connection.
#[derive(Clone, Copy)]
pub struct Pattern {
    table: &'static [u8],
    start: u64,
}

impl Pattern {
    /// The pattern of connection number `connection` in its `life`-th life, both from 0.
    pub fn new(connection: u64, life: u64) -> Pattern {
        let start = connection.wrapping_mul(CONNECTION_STEP) % PERIOD as u64
            + life.wrapping_mul(LIFE_STEP) % PERIOD as u64;
        Pattern { table: &TABLE, start }
    }

    /// The bytes from `offset` of the stream: `bytes` of them, or [`SLICE_BYTES_MAX`] if that is
    /// less.
    pub fn slice(&self, offset: u64, bytes: usize) -> &'static [u8] {
        let from = ((self.start + offset) % PERIOD as u64) as usize;
        &self.table[from..from + bytes.min(SLICE_BYTES_MAX)]
    }

    /// Compares received bytes with those sent from `offset`.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn check(&self, offset: u64, received: &[u8]) -> Result<(), String> {
        let (mut at, mut rest) = (offset, received);
        while !rest.is_empty() {
            let expected = self.slice(at, rest.len());
            let (chunk, behind) = rest.split_at(expected.len());
            if chunk != expected {
                return Err(difference(at, expected, chunk));
            }
            at += chunk.len() as u64;
            rest = behind;
        }
        Ok(())
    }
}

/// The first difference between bytes from `offset` on, with at most 8 of each.
fn difference(offset: u64, expected: &[u8], got: &[u8]) -> String {
    let equal = expected.iter().zip(got).take_while(|(sent, came)| sent == came).count();
    let excerpt = |bytes: &[u8]| bytes[equal..].iter().take(8).copied().collect::<Vec<u8>>();
    let (at, sent, back) = (offset + equal as u64, excerpt(expected), excerpt(got));
    format!("byte {at} of the stream differs: sent {sent:02x?}, got back {back:02x?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn the_first_65521_connections_start_at_different_places() {
        let starts: HashSet<u64> =
            (0..PERIOD as u64).map(|c| Pattern::new(c, 3).start % PERIOD as u64).collect();
        assert_eq!(starts.len(), PERIOD);
    }

    proptest! {
        /// A flipped byte is found at its position, also in buffers longer than a slice.
        #[test]
        fn a_changed_byte_is_found(
            offset in 0u64..1 << 40, bytes in 1usize..700_000,
            place in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let pattern = Pattern::new(7, 1);
            let mut received: Vec<u8> = Vec::new();
            while received.len() < bytes {
                let at = offset + received.len() as u64;
                received.extend(pattern.slice(at, bytes - received.len()));
            }
            prop_assert_eq!(pattern.check(offset, &received), Ok(()));
            let place = place.index(bytes);
            received[place] ^= flip;
            let found = pattern.check(offset, &received).unwrap_err();
            let named = format!("byte {} of the stream differs", offset + place as u64);
            prop_assert!(found.starts_with(&named), "{}", found);
        }

        /// Lost bytes shift all that follows: noticed within the eight next ones.
        #[test]
        fn lost_bytes_are_noticed(offset in 0u64..1 << 40, lost in 1u64..PERIOD as u64) {
            let pattern = Pattern::new(3, 0);
            prop_assert!(pattern.check(offset, pattern.slice(offset + lost, 8)).is_err());
        }
    }
}
