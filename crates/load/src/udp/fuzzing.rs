//! Entry points for the fuzz targets of `fuzz/`. Not part of the interface.

use super::packet::Format;

/// Parses `input` as a reply. Its first bytes choose the format, and how many packets of the stream
/// have been sent; the rest is the reply.
///
/// # Panics
/// When a reply is assigned to the wrong packet.
pub fn check_reply(input: &[u8]) {
    let Some((&[kind, room, a, b, c, newer], reply)) = input.split_first_chunk() else { return };
    let bytes = 12 + usize::from(room);
    let format = Format::new(bytes, u64::from(kind >> 1) << 27, 50_000_000);
    let sequence = u64::from(u32::from_be_bytes([0, a, b, c]));
    let next = sequence + 1 + u64::from(newer);
    for remembered in [0, 64, 1 << 20] {
        let Some(stream) = format.stream_of(reply) else { continue };
        let Some(found) = format.sequence_of(stream, reply, next, remembered) else { continue };
        assert!(found < next);
        let mut sent = vec![0; bytes];
        format.write(stream, found, &mut sent);
        assert_eq!(format.is(stream, found, reply), sent == reply);
        if sent != reply {
            assert!(!format.difference(stream, found, reply).is_empty());
        }
    }
}
