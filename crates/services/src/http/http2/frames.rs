//! Follows the frames of a client by their headers (RFC 9113 section 4.1), to know whether it is in
//! the middle of something. The h2 crate does not tell that, and the time for it is limited.

/// The client's connection preface, before its first frame.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The frames of a client, as far as they have arrived.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    header: [u8; HEADER_BYTES],
    /// Bytes of `header` that are there.
    header_bytes: usize,
    /// Bytes of the preface or of the payload that are still to come.
    left: usize,
    /// The payload is content of a request.
    is_data: bool,
    /// The fields of a request have begun, and their last frame has not.
    in_fields: bool,
}

impl Frames {
    /// Before the preface.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Frames {
        Frames {
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            left: PREFACE.len(),
            is_data: false,
            in_fields: false,
        }
    }

    /// Notes received bytes.
    pub fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (HEADER_BYTES - self.header_bytes).min(bytes.len());
            let (part, rest) = bytes.split_at(taken);
            self.header[self.header_bytes..self.header_bytes + taken].copy_from_slice(part);
            self.header_bytes += taken;
            bytes = rest;
            if self.header_bytes == HEADER_BYTES {
                self.begin_payload();
            }
        }
    }

    fn begin_payload(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
        self.is_data = kind == DATA;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.in_fields = flags & END_HEADERS == 0;
        }
        self.header_bytes = 0;
    }

    /// True if the preface, the fields of a request, or a frame of another type than DATA has begun
    /// and not ended.
    pub fn is_incomplete(&self) -> bool {
        self.in_fields || self.header_bytes > 0 || (self.left > 0 && !self.is_data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn a_frame_is_incomplete_until_its_last_byte() {
        let mut bytes = PREFACE.to_vec();
        // Complete after each of these.
        let mut ends = vec![bytes.len()];
        for part in [
            frame(4, 0, b"settings"),
            frame(4, 1, b""),
            frame(HEADERS, END_HEADERS, b"fields"),
            [frame(HEADERS, 0, b"fiel"), frame(CONTINUATION, END_HEADERS, b"ds")].concat(),
        ] {
            bytes.extend(part);
            ends.push(bytes.len());
        }
        let mut frames = Frames::new();
        assert!(frames.is_incomplete());
        for (at, byte) in bytes.iter().enumerate() {
            frames.advance(&[*byte]);
            assert_eq!(frames.is_incomplete(), !ends.contains(&(at + 1)), "at {at}");
        }
        let mut at_once = Frames::new();
        at_once.advance(&bytes);
        assert!(!at_once.is_incomplete());
        // Content has a time limit of its own, from its first byte.
        frames.advance(&frame(DATA, 0, b"content")[..HEADER_BYTES + 1]);
        assert!(!frames.is_incomplete());
    }
}
