//! The body of a request: nobody wants it here, so it is counted and passed over.

use super::head::Framing;
use super::status::Status;

/// Chunk extensions and trailer fields of one body, together, in bytes.
const EXTRAS_MAX: usize = 4096;

/// Digits of a chunk size: as many as fit into 64 bits.
const SIZE_DIGITS_MAX: u8 = 16;

/// Where in a body the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// So many bytes, and it is over.
    Plain(u64),
    /// The digits of a chunk size: how many there were, and what they say.
    Size(u8, u64),
    /// Behind the size, in an extension.
    Extension(u64, Extension),
    /// The LF behind the size.
    SizeEnd(u64),
    /// So many bytes are left of the chunk.
    Data(u64),
    /// CR and LF behind the chunk.
    DataEnd,
    DataEndLf,
    /// The first byte of a trailer field, or of the empty line at the end.
    TrailerStart,
    TrailerName,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

/// Where in the extensions of a chunk the next byte belongs. RFC 9112 section 7.1.1:
/// `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`. BWS is white space that a
/// recipient has to accept there, so `5 ;a` is a size line; `5 ` and `5;` are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extension {
    /// White space; a semicolon has to follow.
    Gap,
    /// Behind the semicolon, before the name.
    NameStart,
    Name,
    /// White space behind the name; an equals sign or a semicolon has to follow.
    NameEnd,
    /// Behind the equals sign, before the value.
    ValueStart,
    Value,
    Quoted,
    /// Behind a backslash.
    Escaped,
    QuoteEnd,
}

impl Extension {
    /// What follows `byte`; `None` if it may not be here.
    fn after(self, byte: u8) -> Option<Extension> {
        use Extension::{
            Escaped, Gap, Name, NameEnd, NameStart, QuoteEnd, Quoted, Value, ValueStart,
        };
        Some(match (self, byte) {
            (Gap | Value | QuoteEnd, b' ' | b'\t') => Gap,
            (Name | NameEnd, b' ' | b'\t') => NameEnd,
            (NameStart | ValueStart, b' ' | b'\t') => self,
            (Gap | Name | NameEnd | Value | QuoteEnd, b';') => NameStart,
            (Name | NameEnd, b'=') => ValueStart,
            (ValueStart, b'"') => Quoted,
            (Quoted, b'"') => QuoteEnd,
            (Quoted, b'\\') => Escaped,
            (Quoted | Escaped, _) if is_text(byte) => Quoted,
            (NameStart | Name, _) if is_token(byte) => Name,
            (ValueStart | Value, _) if is_token(byte) => Value,
            _ => return None,
        })
    }

    /// True where the line may end.
    fn is_complete(self) -> bool {
        matches!(self, Extension::Name | Extension::Value | Extension::QuoteEnd)
    }
}

/// Passes over a body as it comes in.
#[derive(Clone, Debug)]
pub struct Skip {
    place: Place,
    /// How many bytes of data may still come.
    allowance: u64,
    extras: usize,
}

impl Skip {
    /// For a body of at most `most` bytes, framing not counted.
    ///
    /// # Errors
    /// 413 when the request says beforehand that it is longer.
    pub fn new(framing: Framing, most: u64) -> Result<Skip, Status> {
        let place = match framing {
            Framing::Empty => Place::Done,
            Framing::Length(length) if length > most => return Err(Status::CONTENT_TOO_LARGE),
            Framing::Length(length) => Place::Plain(length),
            Framing::Chunked => Place::Size(0, 0),
        };
        Ok(Skip { place, allowance: most, extras: 0 })
    }

    /// True when the body is over.
    pub fn is_done(&self) -> bool {
        self.place == Place::Done
    }

    /// Takes the next bytes and returns how many of them belong to the body.
    ///
    /// # Errors
    /// 413 when the body is too long, 400 when its chunks are malformed. Where the next request
    /// would begin is not known then.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Status> {
        let mut taken = 0;
        while taken < bytes.len() && !self.is_done() {
            let left = bytes.len() - taken;
            match &mut self.place {
                Place::Plain(length) | Place::Data(length) => {
                    let now = (*length).min(left as u64);
                    *length -= now;
                    taken += now as usize;
                    self.place = match self.place {
                        Place::Plain(0) => Place::Done,
                        Place::Data(0) => Place::DataEnd,
                        unfinished => unfinished,
                    };
                }
                _ => {
                    self.place = self.step(bytes[taken])?;
                    taken += 1;
                }
            }
        }
        Ok(taken)
    }

    /// One byte of framing.
    fn step(&mut self, byte: u8) -> Result<Place, Status> {
        let hex = char::from(byte).to_digit(16);
        Ok(match (self.place, byte) {
            (Place::Size(digits, value), _) if hex.is_some() && digits < SIZE_DIGITS_MAX => {
                Place::Size(digits + 1, value << 4 | u64::from(hex.unwrap_or(0)))
            }
            (Place::Size(1.., value), b'\r') => Place::SizeEnd(value),
            (Place::Size(1.., size), _) => self.extension(size, Extension::Gap, byte)?,
            (Place::Extension(size, at), b'\r') if at.is_complete() => Place::SizeEnd(size),
            (Place::Extension(size, at), _) => self.extension(size, at, byte)?,
            (Place::SizeEnd(0), b'\n') => Place::TrailerStart,
            (Place::SizeEnd(size), b'\n') => {
                let left = self.allowance.checked_sub(size);
                self.allowance = left.ok_or(Status::CONTENT_TOO_LARGE)?;
                Place::Data(size)
            }
            (Place::DataEnd, b'\r') => Place::DataEndLf,
            (Place::DataEndLf, b'\n') => Place::Size(0, 0),
            (Place::TrailerStart, b'\r') => Place::EndLf,
            (Place::TrailerName, b':') => Place::Trailer,
            (Place::TrailerStart | Place::TrailerName, _) if is_token(byte) => {
                self.extra(Place::TrailerName)?
            }
            (Place::Trailer, b'\r') => Place::TrailerLf,
            (Place::Trailer, _) if is_text(byte) => self.extra(Place::Trailer)?,
            (Place::TrailerLf, b'\n') => Place::TrailerStart,
            (Place::EndLf, b'\n') => Place::Done,
            _ => return Err(Status::BAD_REQUEST),
        })
    }

    fn extension(&mut self, size: u64, at: Extension, byte: u8) -> Result<Place, Status> {
        let next = at.after(byte).ok_or(Status::BAD_REQUEST)?;
        self.extra(Place::Extension(size, next))
    }

    fn extra(&mut self, place: Place) -> Result<Place, Status> {
        self.extras += 1;
        if self.extras > EXTRAS_MAX {
            return Err(Status::HEADER_FIELDS_TOO_LARGE);
        }
        Ok(place)
    }
}

/// Anything but control characters: no NUL, no bare LF.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

/// What names are made of: `tchar`, RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Passes over `bytes` in pieces of `step`: how much belonged to the body, when it was over.
    fn skipped(framing: Framing, bytes: &[u8], step: usize) -> Result<Option<usize>, Status> {
        let mut skip = Skip::new(framing, 100)?;
        let mut taken = 0;
        for piece in bytes.chunks(step) {
            taken += skip.take(piece)?;
        }
        Ok(skip.is_done().then_some(taken))
    }

    #[test]
    fn bodies_end_where_their_framing_says_however_they_are_cut() {
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
        for wire in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "0x5\r\nhello",
            "5\nhello",
            "5\r\nhello0\r\n\r\n",
            " 5\r\n",
            "5\r\nhello\n",
            "5\rhello",
            "00000000000000001\r\n",
            "0\r\n\n",
            "0\r\n folded\r\n",
            "0\r\na: b\n\r\n",
            "5;a\0\r\n",
            "5\r\nhello\r\n\r\n",
            "0\r\n: x\r\n",
            "5;a\nb\r\n",
            // Size lines that are almost right.
            "5 \r\nhello\r\n0\r\n\r\n",
            "5\t\r\nhello\r\n0\r\n\r\n",
            "5;\r\nhello\r\n0\r\n\r\n",
            "5; \r\nhello",
            "5;;a\r\nhello",
            "5;a;\r\nhello",
            "5;a \r\nhello",
            "5;a=b \r\nhello",
            "5;a=\r\nhello",
            "5;=b\r\nhello",
            "5;a=b=c\r\nhello",
            "5;a b\r\nhello",
            "5;a@b\r\nhello",
            "5;a=b c\r\nhello",
            "5;a=\u{e4}\r\nhello",
            "5;a=\"b\r\nhello",
            "5;a=\"b\"c\r\nhello",
            "5;a=\"b\\\r\nhello",
            "5;a=b\"c\"\r\nhello",
            "5,a\r\nhello",
            "5 junk\r\n",
            "5 6\r\n",
            "0\r\nno field\r\n",
            "0\r\nnone\r\n",
        ] {
            for step in [1, 3, 100] {
                let end = skipped(Framing::Chunked, wire.as_bytes(), step);
                assert_eq!(end, Err(Status::BAD_REQUEST), "{wire:?}");
            }
        }
    }

    #[test]
    fn bodies_beyond_the_bound_are_refused() {
        let too_large = Err(Status::CONTENT_TOO_LARGE);
        assert_eq!(skipped(Framing::Length(101), b"", 1), too_large);
        assert_eq!(skipped(Framing::Chunked, b"65\r\n", 1), too_large);
        assert_eq!(skipped(Framing::Chunked, b"FFFFFFFFFFFFFFFF\r\n", 1), too_large);
        let twice = [&b"40\r\n"[..], &[b'x'; 64], b"\r\n40\r\n"].concat();
        assert_eq!(skipped(Framing::Chunked, &twice, 7), too_large);
        let long = format!("0\r\nTrailer: {}", "x".repeat(EXTRAS_MAX));
        let end = skipped(Framing::Chunked, long.as_bytes(), 100);
        assert_eq!(end, Err(Status::HEADER_FIELDS_TOO_LARGE));
    }

    proptest! {
        #[test]
        fn cutting_never_matters(wire in "[0-3a;=\"\r\n:x ]{0,40}", step in 1usize..8) {
            let whole = skipped(Framing::Chunked, wire.as_bytes(), 100);
            prop_assert_eq!(skipped(Framing::Chunked, wire.as_bytes(), step), whole);
        }
    }
}
