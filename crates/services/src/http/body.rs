//! The body of a request: it is not used, so it is counted and skipped.

use super::Status;
use super::request::Framing;
use twinring_input::chunked::{Chunked, Event, Invalid};

/// Chunk extensions and trailer fields of one body, together, in bytes.
const EXTRAS_MAX: usize = 4096;

#[derive(Clone, Debug)]
enum Rest {
    /// So many bytes.
    Plain(u64),
    Chunked(Chunked),
}

/// Skips a body as it arrives.
#[derive(Clone, Debug)]
pub struct Skip {
    rest: Rest,
    /// How many bytes of data may still arrive.
    allowance: u64,
    extras: usize,
}

impl Skip {
    /// For a body of at most `most` bytes, without framing.
    pub fn new(framing: Framing, most: u64) -> Result<Skip, Status> {
        let rest = match framing {
            Framing::Empty => Rest::Plain(0),
            Framing::Length(length) if length > most => return Err(Status::PAYLOAD_TOO_LARGE),
            Framing::Length(length) => Rest::Plain(length),
            Framing::Chunked => Rest::Chunked(Chunked::default()),
        };
        Ok(Skip { rest, allowance: most, extras: 0 })
    }

    /// True when the body is over.
    pub fn is_done(&self) -> bool {
        match self.rest {
            Rest::Plain(left) => left == 0,
            Rest::Chunked(chunked) => chunked.is_done(),
        }
    }

    /// Takes the next bytes and returns how many of them belong to the body.
    ///
    /// # Errors
    /// 413 if the body is too long, 431 if extensions and trailers are, 400 if the chunks are
    /// malformed. The start of the next request is unknown then.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Status> {
        let Skip { rest, allowance, extras } = self;
        match rest {
            Rest::Plain(left) => {
                let taken = (*left).min(bytes.len() as u64);
                *left -= taken;
                Ok(taken as usize)
            }
            Rest::Chunked(chunked) => {
                let taken = chunked.take(bytes, |event| {
                    match event {
                        Event::Chunk(size) => {
                            let left = allowance.checked_sub(size);
                            *allowance = left.ok_or(InvalidBody(Status::PAYLOAD_TOO_LARGE))?;
                        }
                        Event::Overhead if *extras == EXTRAS_MAX => {
                            return Err(InvalidBody(Status::REQUEST_HEADER_FIELDS_TOO_LARGE));
                        }
                        Event::Overhead => *extras += 1,
                        Event::Content(_) => {}
                    }
                    Ok(())
                });
                taken.map_err(|InvalidBody(status)| status)
            }
        }
    }
}

struct InvalidBody(Status);

impl From<Invalid> for InvalidBody {
    fn from(_: Invalid) -> InvalidBody {
        InvalidBody(Status::BAD_REQUEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Skips `bytes` in chunks of `step`: how much belonged to the body, if it ended.
    fn skipped(framing: Framing, bytes: &[u8], step: usize) -> Result<Option<usize>, Status> {
        let mut skip = Skip::new(framing, 100)?;
        let mut taken = 0;
        for part in bytes.chunks(step) {
            taken += skip.take(part)?;
        }
        Ok(skip.is_done().then_some(taken))
    }

    #[test]
    fn bodies_end_by_their_framing_however_they_are_split() {
        for (body, rest) in [
            ("0\r\n\r\n", "GET"),
            ("5\r\nhello\r\n0\r\n\r\n", "x"),
            ("5;a=b;c=\"d\"\r\nhello\r\n00\r\nTrailer: x\r\nOther: y\r\n\r\n", "\r\n"),
            ("A\r\n0123456789\r\n1\t ;a\r\nx\r\n0\r\n\r\n", ""),
            ("1 ; a = b ;c\t=\t\"d;\\\"=\u{e4}\" ; e;f\r\nx\r\n0;g=\"\"\r\n\r\n", ""),
        ] {
            let wire = format!("{body}{rest}");
            for step in 1..=wire.len() {
                let end = skipped(Framing::Chunked, wire.as_bytes(), step);
                assert_eq!(end, Ok(Some(body.len())), "{wire:?} by {step}");
            }
        }
        assert_eq!(skipped(Framing::Length(3), b"abcGET", 2), Ok(Some(3)));
        assert_eq!(skipped(Framing::Length(3), b"ab", 2), Ok(None));
        assert_eq!(skipped(Framing::Empty, b"GET", 1), Ok(Some(0)));
    }

    #[test]
    fn malformed_chunks_are_refused() {
        let wires = "\r\n|5\nhello|5\r\nhello0\r\n\r\n|5\r\nhello\n|5\rhello|0\r\n\n|0\r\n folded\r\n|\
            0\r\na: b\n\r\n|5\r\nhello\r\n\r\n|0\r\n: x\r\n|0\r\nno field\r\n|0\r\nnone\r\n|00000000000000001\r\n";
        let size_lines = "x|-1|0x5| 5|5;a\0|5;a\nb|5 |5\t|5;|5; |5;;a|5;a;|5;a |5;a=b |5;a=|5;=b|5;a=b=c|5;a b|\
            5;a@b|5;a=b c|5;a=\u{e4}|5;a=\"b|5;a=\"b\"c|5;a=\"b\\|5;a=b\"c\"|5,a|5 junk|5 6";
        let with_chunk = |line| format!("{line}\r\nhello\r\n0\r\n\r\n");
        let lines = size_lines.split('|').map(with_chunk);
        for wire in wires.split('|').map(str::to_owned).chain(lines) {
            for step in [1, 3, 100] {
                let end = skipped(Framing::Chunked, wire.as_bytes(), step);
                assert_eq!(end, Err(Status::BAD_REQUEST), "{wire:?}");
            }
        }
    }

    #[test]
    fn bodies_beyond_the_bound_are_refused() {
        let too_large = Err(Status::PAYLOAD_TOO_LARGE);
        assert_eq!(skipped(Framing::Length(101), b"", 1), too_large);
        assert_eq!(skipped(Framing::Chunked, b"65\r\n", 1), too_large);
        assert_eq!(skipped(Framing::Chunked, b"FFFFFFFFFFFFFFFF\r\n", 1), too_large);
        let twice = [&b"40\r\n"[..], &[b'x'; 64], b"\r\n40\r\n"].concat();
        assert_eq!(skipped(Framing::Chunked, &twice, 7), too_large);
        let long = format!("0\r\nTrailer: {}", "x".repeat(EXTRAS_MAX));
        let end = skipped(Framing::Chunked, long.as_bytes(), 100);
        assert_eq!(end, Err(Status::REQUEST_HEADER_FIELDS_TOO_LARGE));
    }
}
