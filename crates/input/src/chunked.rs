//! Chunked content (RFC 9112 section 7.1), parsed incrementally. Limits are the caller's task.

/// A byte that cannot be where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The byte.
    pub byte: u8,
    /// Where it is, in words.
    pub part: &'static str,
}

/// A parsed event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A chunk of this many bytes begins.
    Chunk(u64),
    /// A part of its content.
    Content(&'a [u8]),
    /// A byte of an extension or of the trailer section.
    Overhead,
}

/// Digits of a chunk size: as many as fit into 64 bits.
const SIZE_DIGITS_MAX: u8 = 16;

/// Where the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The digits of a chunk size: their number, and the value.
    Size(u8, u64),
    /// Behind the size, in an extension.
    Extension(u64, Extension),
    /// The LF behind the size.
    SizeEnd(u64),
    /// The number of bytes left of the chunk.
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

/// The place of the next byte in the extensions of a chunk. RFC 9112 section 7.1.1: `*( BWS ";" BWS
/// name [ BWS "=" BWS ( token / quoted-string ) ] )`. BWS is white space that a recipient has to
/// accept there, so `5 ;a` is a size line; `5 ` and `5;` are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extension {
    /// White space; a semicolon must follow.
    Gap,
    /// Behind the semicolon, before the name.
    NameStart,
    Name,
    /// White space behind the name; an equals sign or a semicolon must follow.
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
    /// The place after `byte`; `None` if it is not allowed here.
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

/// Where in chunked content the last bytes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunked(Place);

impl Default for Chunked {
    /// At the beginning.
    fn default() -> Chunked {
        Chunked(Place::Size(0, 0))
    }
}

impl Chunked {
    /// True behind the empty line at the end.
    pub fn is_done(self) -> bool {
        self.0 == Place::Done
    }

    /// Parses the next bytes, up to the end of the content, and returns how many that are. Passes
    /// events to `on`, whose error ends it.
    ///
    /// # Errors
    /// [`Invalid`], and those of `on`.
    pub fn take<E: From<Invalid>>(
        &mut self,
        bytes: &[u8],
        mut on: impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut taken = 0;
        while taken < bytes.len() && !self.is_done() {
            if let Place::Data(left) = self.0 {
                let now = left.min((bytes.len() - taken) as u64);
                let content = &bytes[taken..taken + now as usize];
                on(Event::Content(content))?;
                taken += content.len();
                self.0 = if now < left { Place::Data(left - now) } else { Place::DataEnd };
                continue;
            }
            self.0 = self.after(bytes[taken])?;
            taken += 1;
            match self.0 {
                Place::Data(size) => on(Event::Chunk(size))?,
                Place::Extension(..) | Place::TrailerName | Place::Trailer => {
                    on(Event::Overhead)?;
                }
                _ => {}
            }
        }
        Ok(taken)
    }

    /// The place of the byte behind `byte`, which is not part of the content.
    fn after(self, byte: u8) -> Result<Place, Invalid> {
        let hex = char::from(byte).to_digit(16);
        let extension = |size, at: Extension| {
            let next = at.after(byte).ok_or(Invalid { byte, part: "the extensions of a chunk" });
            next.map(|next| Place::Extension(size, next))
        };
        Ok(match (self.0, byte) {
            (Place::Size(digits, size), _) if hex.is_some() && digits < SIZE_DIGITS_MAX => {
                Place::Size(digits + 1, size << 4 | u64::from(hex.unwrap_or(0)))
            }
            (Place::Size(1.., size), b'\r') => Place::SizeEnd(size),
            (Place::Size(1.., size), b';' | b' ' | b'\t') => extension(size, Extension::Gap)?,
            (Place::Size(..), _) => return Err(Invalid { byte, part: "the size of a chunk" }),
            (Place::Extension(size, at), b'\r') if at.is_complete() => Place::SizeEnd(size),
            (Place::Extension(size, at), _) => extension(size, at)?,
            (Place::SizeEnd(0), b'\n') => Place::TrailerStart,
            (Place::SizeEnd(size), b'\n') => Place::Data(size),
            (Place::DataEnd, b'\r') => Place::DataEndLf,
            (Place::DataEndLf, b'\n') => Place::Size(0, 0),
            (Place::TrailerStart, b'\r') => Place::EndLf,
            (Place::TrailerName, b':') => Place::Trailer,
            (Place::TrailerStart | Place::TrailerName, _) if is_token(byte) => Place::TrailerName,
            (Place::Trailer, b'\r') => Place::TrailerLf,
            (Place::Trailer, _) if is_text(byte) => Place::Trailer,
            (Place::TrailerLf, b'\n') => Place::TrailerStart,
            (Place::EndLf, b'\n') => Place::Done,
            _ => return Err(Invalid { byte, part: "the framing of a chunk" }),
        })
    }
}

/// Anything but control characters: no NUL, no bare LF.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

/// The characters of names: `tchar`, RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
