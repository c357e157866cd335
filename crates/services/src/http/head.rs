//! The head of a request: finding its end, and parsing it strictly.
//!
//! If two servers in a row disagree about where a request ends, an attacker can hide a request
//! inside another ("smuggling"). So wherever RFC 9112 lets a recipient guess, this parser refuses:
//! lines that end in a bare LF, folded lines, space before a colon, both kinds of body length, two
//! lengths, two hosts. The result never depends on how the bytes were split in transit.

mod from_http2;

use super::status::Status;
use super::target::{Target, is_host};
use httparse::Header;
use memchr::memchr;
use std::mem::MaybeUninit;

/// Header fields of one request; more are refused with 431.
pub const HEADERS_MAX: usize = 100;

/// The parts of a request line besides the target: the longest known method, the version, and the
/// spaces between.
const LINE_EXTRA_BYTES: usize = 48;

/// Bounds of a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The whole head, in bytes; beyond it is 431.
    pub head_bytes: usize,
    /// The request target, in bytes; beyond it is 414.
    pub target_bytes: usize,
}

impl Default for HeadLimits {
    fn default() -> HeadLimits {
        HeadLimits { head_bytes: 16 * 1024, target_bytes: 8 * 1024 }
    }
}

/// The search for the end of a head. It continues where it stopped when more bytes arrive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    /// Where the current line begins.
    line: usize,
    /// Where the search continues.
    next: usize,
    /// Where the request line begins: behind an empty line that some clients put before it.
    begin: usize,
}

impl Scan {
    /// Searches for the empty line that ends the head at the beginning of `bytes`. These must begin
    /// with the bytes of the previous call. Returns the length of the head when it is complete.
    ///
    /// # Errors
    /// The status to answer with, found at the first wrong byte.
    pub fn find_end(&mut self, bytes: &[u8], limits: HeadLimits) -> Result<Option<usize>, Status> {
        let window = &bytes[..bytes.len().min(limits.head_bytes)];
        let line_max = limits.target_bytes + LINE_EXTRA_BYTES;
        loop {
            if let Some(first) = window.get(self.begin)
                && !first.is_ascii_alphabetic()
                && (self.begin > 0 || *first != b'\r')
            {
                return Err(Status::BAD_REQUEST);
            }
            let in_request_line = self.line == self.begin;
            let Some(distance) = memchr(b'\n', &window[self.next..]) else {
                self.next = window.len();
                if in_request_line && window.len() - self.line > line_max {
                    return Err(Status::URI_TOO_LONG);
                }
                return match bytes.len() >= limits.head_bytes {
                    true => Err(Status::HEADER_FIELDS_TOO_LARGE),
                    false => Ok(None),
                };
            };
            let end = self.next + distance;
            if in_request_line && end - self.line > line_max {
                return Err(Status::URI_TOO_LONG);
            }
            if end == self.line || window[end - 1] != b'\r' {
                return Err(Status::BAD_REQUEST);
            }
            let empty = end == self.line + 1;
            let before_request_line = empty && in_request_line;
            (self.line, self.next) = (end + 1, end + 1);
            if before_request_line {
                // RFC 9112 section 2.2 tolerates one empty line; a second one fails above.
                self.begin = self.line;
            } else if empty {
                return Ok(Some(end + 1));
            }
        }
    }

    /// True if no byte of a request was seen.
    pub fn is_fresh(&self) -> bool {
        self.next == 0
    }
}

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The representation.
    Get,
    /// Its head only.
    Head,
    /// The known methods.
    Options,
    /// A method of RFC 9110 or RFC 5789 that a file server has no use for: 405.
    Other,
    /// Anything else: 501.
    Unknown,
}

/// How the length of the request's body is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body, or an empty one.
    Empty,
    /// So many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
}

/// Storage for the fields of a head, which a [`Head`] borrows.
pub struct Storage<'a> {
    usual: [MaybeUninit<Header<'a>>; HEADERS_MAX],
    /// The same for versions that httparse does not know; empty for all others.
    unusual: Vec<Header<'a>>,
}

impl Storage<'_> {
    /// Storage for [`HEADERS_MAX`] fields.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let usual = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        Storage { usual, unusual: Vec::new() }
    }
}

impl std::fmt::Debug for Storage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Storage")
    }
}

/// Defines the fields that the server uses, with a bit each.
macro_rules! names {
    ($($name:ident = $bit:literal $text:literal,)*) => {
        /// A header field that means something to this service.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Name { $($name = $bit,)* }

        impl Name {
            /// Finds the field of this name, in any case.
            fn find(text: &str) -> Option<Name> {
                $(if text.len() == $text.len() && text.eq_ignore_ascii_case($text) {
                    return Some(Name::$name);
                })*
                None
            }

            fn text(self) -> &'static str {
                match self { $(Name::$name => $text,)* }
            }
        }
    };
}

names! {
    Host = 0 "host",
    Connection = 1 "connection",
    AcceptEncoding = 2 "accept-encoding",
    IfNoneMatch = 3 "if-none-match",
    IfModifiedSince = 4 "if-modified-since",
    Range = 5 "range",
    IfRange = 6 "if-range",
    IfMatch = 7 "if-match",
    IfUnmodifiedSince = 8 "if-unmodified-since",
    ContentLength = 9 "content-length",
    TransferEncoding = 10 "transfer-encoding",
    Expect = 11 "expect",
}

/// A request head that passed all checks.
#[derive(Debug)]
pub struct Head<'h, 'a> {
    /// The method.
    pub method: Method,
    /// The target.
    pub target: Target<'a>,
    /// The host and port that the target names, which then counts instead of the field `Host`.
    pub authority: Option<&'a str>,
    /// HTTP/1.0 instead of 1.1.
    pub is_1_0: bool,
    /// The client wants the connection to stay.
    pub keep_alive: bool,
    /// How long the body is.
    pub framing: Framing,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    fields: &'h [Header<'a>],
    /// A bit for each [`Name`] that occurs.
    seen: u16,
    /// A bit for each field that occurs more than once.
    repeated: u16,
}

impl<'h, 'a> Head<'h, 'a> {
    /// Reads a complete head, as [`Scan::find_end`] delimits it.
    ///
    /// # Errors
    /// The status to answer with, before closing the connection.
    pub fn parse(
        bytes: &'a [u8],
        storage: &'h mut Storage<'a>,
        limits: HeadLimits,
    ) -> Result<Head<'h, 'a>, Status> {
        let RequestLine { method, target, is_1_0, fields } = read(bytes, storage)?;
        if target.len() > limits.target_bytes {
            return Err(Status::URI_TOO_LONG);
        }
        let method = known_method(method);
        let mut head = Head {
            method,
            target: Target::Asterisk,
            authority: None,
            is_1_0,
            keep_alive: true,
            framing: Framing::Empty,
            expects_continue: false,
            fields,
            seen: 0,
            repeated: 0,
        };
        head.take_note_of_fields();
        head.check_host()?;
        head.read_framing()?;
        head.read_connection();
        head.read_expectation()?;
        match method {
            Method::Unknown => return Err(Status::NOT_IMPLEMENTED),
            // The target of CONNECT has another form. The answer does not depend on it.
            Method::Other if Target::is_plausible(target) => {}
            Method::Other => return Err(Status::BAD_REQUEST),
            _ => {
                head.target = Target::parse(target, method == Method::Options)?;
                head.authority = Target::authority(target);
            }
        }
        Ok(head)
    }

    fn take_note_of_fields(&mut self) {
        for field in self.fields {
            if let Some(name) = Name::find(field.name) {
                let bit = 1 << name as u16;
                self.repeated |= self.seen & bit;
                self.seen |= bit;
            }
        }
    }

    /// True when the field occurs.
    pub fn has(&self, name: Name) -> bool {
        self.seen & 1 << name as u16 != 0
    }

    /// The values of all fields of that name, in order.
    pub fn values(&self, name: Name) -> impl Iterator<Item = &'a [u8]> + use<'h, 'a> {
        let fields = if self.has(name) { self.fields } else { &[] };
        fields
            .iter()
            .filter(move |field| field.name.eq_ignore_ascii_case(name.text()))
            .map(|field| field.value)
    }

    /// The value of a field that may occur once; `None` if it occurs twice.
    pub fn value(&self, name: Name) -> Option<&'a [u8]> {
        match self.repeated & 1 << name as u16 {
            0 => self.values(name).next(),
            _ => None,
        }
    }

    /// The value of any field, by its name in lower case; the first of several. For fields that the
    /// service does not use, but logs.
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        let field = self.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
        Some(field.value)
    }

    /// The values of all fields of a name in lower case, in order.
    pub(super) fn lines(&self, name: &str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        let fields = self.fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        fields.map(|field| field.value)
    }

    /// The elements of a field that is a comma-separated list of tokens, over all its lines.
    fn tokens(&self, name: Name) -> impl Iterator<Item = &'a [u8]> + use<'h, 'a> {
        let lines = self.values(name);
        let elements = lines.flat_map(|line| line.split(|byte| *byte == b','));
        elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
    }

    fn check_host(&self) -> Result<(), Status> {
        let valid = match self.value(Name::Host) {
            Some(host) => is_host(host),
            None => self.is_1_0 && !self.has(Name::Host),
        };
        if valid { Ok(()) } else { Err(Status::BAD_REQUEST) }
    }

    fn read_framing(&mut self) -> Result<(), Status> {
        let lengths = self.has(Name::ContentLength);
        self.framing = match (lengths, self.has(Name::TransferEncoding)) {
            (false, false) => Framing::Empty,
            (true, true) => return Err(Status::BAD_REQUEST),
            (true, false) => {
                let length = self.value(Name::ContentLength).and_then(decimal);
                match length.ok_or(Status::BAD_REQUEST)? {
                    0 => Framing::Empty,
                    length => Framing::Length(length),
                }
            }
            // RFC 9112 section 6.1: faulty, even where a recipient understands it.
            (false, true) if self.is_1_0 => return Err(Status::BAD_REQUEST),
            (false, true) => self.read_codings()?,
        };
        Ok(())
    }

    fn read_codings(&self) -> Result<Framing, Status> {
        let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let mut codings = self.tokens(Name::TransferEncoding);
        match (codings.next(), codings.next()) {
            (Some(only), None) if is_chunked(only) => Ok(Framing::Chunked),
            // Chunked twice, or an empty list, is not a valid framing.
            (None, _) => Err(Status::BAD_REQUEST),
            (Some(first), Some(_)) if is_chunked(first) => Err(Status::BAD_REQUEST),
            (Some(_), Some(last)) if is_chunked(codings.last().unwrap_or(last)) => {
                Err(Status::NOT_IMPLEMENTED)
            }
            // The length of a request is unknown if the last coding is another.
            _ => Err(Status::BAD_REQUEST),
        }
    }

    fn read_connection(&mut self) {
        self.keep_alive = !self.is_1_0;
        if self.has(Name::Connection) {
            let has = |option: &[u8]| {
                self.tokens(Name::Connection).any(|token| token.eq_ignore_ascii_case(option))
            };
            self.keep_alive = !has(b"close") && (self.keep_alive || has(b"keep-alive"));
        }
    }

    fn read_expectation(&mut self) -> Result<(), Status> {
        // RFC 9110 section 10.1.1: from HTTP/1.0 it is ignored.
        if self.is_1_0 || !self.has(Name::Expect) {
            return Ok(());
        }
        let continues = |expectation: &[u8]| expectation.eq_ignore_ascii_case(b"100-continue");
        if !self.tokens(Name::Expect).all(continues) {
            return Err(Status::EXPECTATION_FAILED);
        }
        self.expects_continue = self.framing != Framing::Empty;
        Ok(())
    }
}

/// A head in its unparsed parts.
struct RequestLine<'h, 'a> {
    method: &'a str,
    target: &'a str,
    is_1_0: bool,
    fields: &'h [Header<'a>],
}

fn read<'h, 'a>(
    bytes: &'a [u8],
    storage: &'h mut Storage<'a>,
) -> Result<RequestLine<'h, 'a>, Status> {
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut storage.usual) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Status::HEADER_FIELDS_TOO_LARGE),
        Err(httparse::Error::Version) => return read_unusual(bytes, &mut storage.unusual),
        _ => return Err(Status::BAD_REQUEST),
    }
    match request {
        httparse::Request { method: Some(method), path: Some(target), version, headers } => {
            Ok(RequestLine { method, target, is_1_0: version == Some(0), fields: headers })
        }
        _ => Err(Status::BAD_REQUEST),
    }
}

/// Reads a head that is not of HTTP/1.0 or HTTP/1.1. A later version 1 is treated as 1.1 (RFC 9110
/// section 2.5).
fn read_unusual<'h, 'a>(
    bytes: &'a [u8],
    storage: &'h mut Vec<Header<'a>>,
) -> Result<RequestLine<'h, 'a>, Status> {
    let text = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
    let end = memchr(b'\r', text).ok_or(Status::BAD_REQUEST)?;
    let line = std::str::from_utf8(&text[..end]).map_err(|_| Status::BAD_REQUEST)?;
    let parts: Vec<&str> = line.splitn(4, ' ').collect();
    let [method, target, version] = parts[..] else { return Err(Status::BAD_REQUEST) };
    match version.strip_prefix("HTTP/").map(str::as_bytes) {
        Some([b'1', b'.', minor]) if minor.is_ascii_digit() => {}
        Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() => {
            return Err(Status::VERSION_NOT_SUPPORTED);
        }
        _ => return Err(Status::BAD_REQUEST),
    }
    let fields = text[end..].strip_prefix(b"\r\n").ok_or(Status::BAD_REQUEST)?;
    storage.resize(HEADERS_MAX, httparse::EMPTY_HEADER);
    match httparse::parse_headers(fields, storage) {
        Ok(httparse::Status::Complete((length, parsed))) if length == fields.len() => {
            Ok(RequestLine { method, target, is_1_0: false, fields: parsed })
        }
        Err(httparse::Error::TooManyHeaders) => Err(Status::HEADER_FIELDS_TOO_LARGE),
        _ => Err(Status::BAD_REQUEST),
    }
}

fn known_method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "OPTIONS" => Method::Options,
        "POST" | "PUT" | "DELETE" | "PATCH" | "CONNECT" | "TRACE" => Method::Other,
        _ => Method::Unknown,
    }
}

/// 1*DIGIT that fits: no sign, no space, no list.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
