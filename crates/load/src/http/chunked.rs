//! Content in chunks (RFC 9112 section 7.1), taken as it comes.

use super::head::Malformed;

/// Longest chunk extension, and longest trailer section.
const OVERHEAD_BYTES_MAX: u32 = 16 * 1024;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Size,
    /// Behind the size; what it says means nothing to us.
    Extension(Extension),
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// A line of the trailer section, or the empty line at the end.
    Trailer,
    TrailerRest,
    TrailerLf,
    EndLf,
}

/// A part of the extensions of a chunk:
/// `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`, where BWS is white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extension {
    /// White space before a semicolon.
    Gap,
    /// Behind the semicolon, before the name.
    NameStart,
    Name,
    /// White space behind the name.
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
        let is_token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let is_text = byte == b'\t' || !byte.is_ascii_control();
        Some(match (self, byte) {
            (Self::Gap | Self::Value | Self::QuoteEnd, b' ' | b'\t') => Self::Gap,
            (Self::Name | Self::NameEnd, b' ' | b'\t') => Self::NameEnd,
            (Self::NameStart | Self::ValueStart, b' ' | b'\t') => self,
            (Self::NameStart | Self::Name, _) if is_token => Self::Name,
            (Self::ValueStart | Self::Value, _) if is_token => Self::Value,
            (Self::ValueStart, b'"') => Self::Quoted,
            (Self::Quoted, b'"') => Self::QuoteEnd,
            (Self::Quoted, b'\\') => Self::Escaped,
            (Self::Quoted | Self::Escaped, _) if is_text => Self::Quoted,
            (Self::Name | Self::NameEnd, b'=') => Self::ValueStart,
            (Self::NameStart | Self::ValueStart | Self::Quoted | Self::Escaped, _) => return None,
            (_, b';') => Self::NameStart,
            _ => return None,
        })
    }
}

/// Where in chunked content the last bytes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    next: Next,
    /// Of the size line, what was read; of a chunk, what is to come.
    left: u64,
    digits: u32,
    overhead_bytes: u32,
}

impl Chunks {
    pub(super) fn new() -> Chunks {
        Chunks { next: Next::Size, left: 0, digits: 0, overhead_bytes: 0 }
    }

    /// Takes bytes and hands on those that are content. Returns how many it took, and whether the
    /// last of them was the end.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        mut content: impl FnMut(&[u8]),
    ) -> Result<(usize, bool), Malformed> {
        let mut at = 0;
        while at < bytes.len() {
            if self.next == Next::Data {
                let piece = (self.left).min((bytes.len() - at) as u64) as usize;
                content(&bytes[at..at + piece]);
                at += piece;
                self.left -= piece as u64;
                if self.left == 0 {
                    self.next = Next::DataCr;
                }
                continue;
            }
            at += 1;
            if self.step(bytes[at - 1])? {
                return Ok((at, true));
            }
        }
        Ok((at, false))
    }

    /// Takes a byte that is no content. True at the end.
    fn step(&mut self, byte: u8) -> Result<bool, Malformed> {
        self.next = match (self.next, byte) {
            (Next::Size, b'\r') if self.digits > 0 => Next::SizeLf,
            (Next::Size, b';' | b' ' | b'\t') if self.digits > 0 => {
                self.extension(Extension::Gap, byte)?
            }
            (Next::Size, byte) => self.size_digit(byte)?,
            (Next::Extension(Extension::Name | Extension::Value | Extension::QuoteEnd), b'\r') => {
                Next::SizeLf
            }
            (Next::Extension(at), _) => self.extension(at, byte)?,
            (Next::SizeLf, b'\n') if self.left == 0 => Next::Trailer,
            (Next::SizeLf, b'\n') => Next::Data,
            (Next::DataCr, b'\r') => Next::DataLf,
            (Next::DataLf, b'\n') => {
                *self = Chunks::new();
                Next::Size
            }
            (Next::Trailer, b'\r') => Next::EndLf,
            (Next::TrailerRest, b'\r') => Next::TrailerLf,
            (Next::TrailerLf, b'\n') => Next::Trailer,
            (Next::EndLf, b'\n') => return Ok(true),
            (Next::Trailer | Next::TrailerRest, byte) if byte != b'\n' => {
                self.overhead(Next::TrailerRest)?
            }
            (_, byte) => {
                return Err(Malformed(format!("byte {byte:#04x} in the framing of a chunk")));
            }
        };
        Ok(false)
    }

    fn size_digit(&mut self, byte: u8) -> Result<Next, Malformed> {
        let digit = char::from(byte).to_digit(16);
        let Some(digit) = digit.filter(|_| self.digits < 16) else {
            return Err(Malformed(format!("byte {byte:#04x} in the size of a chunk")));
        };
        self.left = self.left << 4 | u64::from(digit);
        self.digits += 1;
        Ok(Next::Size)
    }

    fn extension(&mut self, at: Extension, byte: u8) -> Result<Next, Malformed> {
        let wrong = || Malformed(format!("byte {byte:#04x} in the extensions of a chunk"));
        self.overhead(Next::Extension(at.after(byte).ok_or_else(wrong)?))
    }

    fn overhead(&mut self, next: Next) -> Result<Next, Malformed> {
        self.overhead_bytes += 1;
        match self.overhead_bytes <= OVERHEAD_BYTES_MAX {
            true => Ok(next),
            false => Err(Malformed(format!("{OVERHEAD_BYTES_MAX} bytes of chunk framing"))),
        }
    }
}
