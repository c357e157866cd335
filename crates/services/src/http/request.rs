//! A request: finding the end of its head, and reading it strictly, once. The rest of the service knows it in this
//! form only, from HTTP/1 and from HTTP/2.
//!
//! If two servers in a row disagree about where a request ends, an attacker can hide a request
//! inside another ("smuggling"). So wherever RFC 9112 lets a recipient guess, this parser refuses:
//! lines that end in a bare LF, folded lines, space before a colon, both kinds of body length, two
//! lengths, two hosts. The result never depends on how the bytes were split in transit.

use super::Status;
use super::target::{Target, is_host};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use httparse::Header;
use memchr::memchr;
use std::borrow::Cow;
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
                    true => Err(Status::REQUEST_HEADER_FIELDS_TOO_LARGE),
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

/// Storage for the fields of a head, which a [`Request`] borrows.
pub struct Storage<'a>([MaybeUninit<Header<'a>>; HEADERS_MAX]);

impl Storage<'_> {
    /// Storage for [`HEADERS_MAX`] fields.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Storage([const { MaybeUninit::uninit() }; HEADERS_MAX])
    }
}

impl std::fmt::Debug for Storage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Storage")
    }
}

/// A header field that means something to this service. Each has a bit in a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Name {
    Host,
    Connection,
    AcceptEncoding,
    IfNoneMatch,
    IfModifiedSince,
    Range,
    IfRange,
    IfMatch,
    IfUnmodifiedSince,
    ContentLength,
    TransferEncoding,
    Expect,
}

/// The names of [`Name`], in its order.
const NAMES: [&str; 12] = [
    "host",
    "connection",
    "accept-encoding",
    "if-none-match",
    "if-modified-since",
    "range",
    "if-range",
    "if-match",
    "if-unmodified-since",
    "content-length",
    "transfer-encoding",
    "expect",
];

impl Name {
    const fn bit(self) -> u16 {
        1 << self as u16
    }

    /// The fields that make a GET more than a request for the whole file.
    const CONDITIONS: u16 = Name::IfNoneMatch.bit()
        | Name::IfModifiedSince.bit()
        | Name::IfMatch.bit()
        | Name::IfUnmodifiedSince.bit()
        | Name::Range.bit();
}

/// The fields of a request, as its protocol has them.
#[derive(Debug)]
enum Fields<'a> {
    Lines(&'a [Header<'a>]),
    Map(Box<HeaderMap>),
}

/// A request of either protocol whose head passed all checks, without its body.
#[derive(Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// Begins with a slash, and is still percent-encoded; `*` for the server as a whole, and for methods whose
    /// target is not read.
    pub path: Cow<'a, str>,
    /// The text after the question mark, if there is one.
    pub query: Option<Cow<'a, str>>,
    /// The host and port that the target names, which then counts instead of the field `Host`.
    pub authority: Option<Cow<'a, str>>,
    /// HTTP/1.0 instead of a later version.
    pub is_1_0: bool,
    /// The client wants the connection to stay.
    pub keep_alive: bool,
    /// How long the body is.
    pub framing: Framing,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    fields: Fields<'a>,
    /// A bit for each [`Name`] that occurs.
    seen: u16,
    /// A bit for each field that occurs more than once.
    repeated: u16,
}

impl<'a> Request<'a> {
    /// Reads a complete head of HTTP/1, as [`Scan::find_end`] delimits it.
    ///
    /// # Errors
    /// The status to answer with, before closing the connection.
    pub fn parse<'b: 'a>(
        bytes: &'b [u8],
        storage: &'a mut Storage<'b>,
        limits: HeadLimits,
    ) -> Result<Request<'a>, Status> {
        let mut parsed = httparse::Request::new(&mut []);
        match parsed.parse_with_uninit_headers(bytes, &mut storage.0) {
            Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Status::REQUEST_HEADER_FIELDS_TOO_LARGE);
            }
            Err(httparse::Error::Version) => {
                let known = with_known_version(bytes)?;
                let mut storage = Storage::new();
                return Ok(Request::parse(&known, &mut storage, limits)?.into_owned());
            }
            _ => return Err(Status::BAD_REQUEST),
        }
        let httparse::Request { method: Some(method), path: Some(target), version, headers } =
            parsed
        else {
            return Err(Status::BAD_REQUEST);
        };
        if target.len() > limits.target_bytes {
            return Err(Status::URI_TOO_LONG);
        }
        let headers: &'a [Header<'a>] = headers;
        let mut request = Request::new(method, Fields::Lines(headers));
        request.is_1_0 = version == Some(0);
        let mut host = None;
        for field in headers {
            if request.note(field.name) == Some(Name::Host as usize) {
                host = Some(field.value);
            }
        }
        request.check_host(host)?;
        request.read_framing()?;
        request.read_connection();
        request.read_expectation()?;
        request.read_target(target)?;
        request.authority = match request.path.as_ref() {
            "*" => None,
            _ => Target::authority(target).map(Cow::Borrowed),
        };
        Ok(request)
    }

    /// Reads the head of a request of HTTP/2; `has_body` if more than the head follows. The h2 crate has checked
    /// what HTTP/2 itself requires (RFC 9113 sections 8.2 and 8.3).
    ///
    /// # Errors
    /// The status to answer with.
    pub fn from_http2(
        parts: Parts,
        has_body: bool,
        limits: HeadLimits,
    ) -> Result<Request<'static>, Status> {
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        if target.len() > limits.target_bytes {
            return Err(Status::URI_TOO_LONG);
        }
        if parts.headers.len() > HEADERS_MAX {
            return Err(Status::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        let mut request = Request::new(parts.method.as_str(), Fields::Map(Box::default()));
        for (name, _) in &parts.headers {
            request.note(name.as_str());
        }
        request.fields = Fields::Map(Box::new(parts.headers));
        match parts.uri.authority() {
            Some(authority) => request.check_authority(authority.as_str())?,
            None => request.check_host(request.field("host"))?,
        }
        request.read_framing()?;
        // The end of the stream ends the body, whatever is announced.
        request.framing = match (has_body, request.framing) {
            (false, _) => Framing::Empty,
            (true, Framing::Empty) => Framing::Chunked,
            (true, announced) => announced,
        };
        request.read_expectation()?;
        let mut read = Request::new(parts.method.as_str(), Fields::Lines(&[]));
        read.read_target(target)?;
        (request.path, request.query) = (owned(read.path), read.query.map(owned));
        Ok(request)
    }

    fn new(method: &str, fields: Fields<'a>) -> Request<'a> {
        Request {
            method: known_method(method),
            path: Cow::Borrowed("*"),
            query: None,
            authority: None,
            is_1_0: false,
            keep_alive: true,
            framing: Framing::Empty,
            expects_continue: false,
            fields,
            seen: 0,
            repeated: 0,
        }
    }

    /// The same, without the received bytes.
    pub fn into_owned(self) -> Request<'static> {
        let fields = match self.fields {
            Fields::Map(map) => map,
            Fields::Lines(lines) => {
                let mut map = HeaderMap::with_capacity(lines.len());
                for Header { name, value } in lines {
                    // Both parsers accept the same names and values.
                    if let (Ok(name), Ok(value)) =
                        (HeaderName::try_from(*name), HeaderValue::from_bytes(value))
                    {
                        map.append(name, value);
                    }
                }
                Box::new(map)
            }
        };
        Request {
            method: self.method,
            path: owned(self.path),
            query: self.query.map(owned),
            authority: self.authority.map(owned),
            is_1_0: self.is_1_0,
            keep_alive: self.keep_alive,
            framing: self.framing,
            expects_continue: self.expects_continue,
            fields: Fields::Map(fields),
            seen: self.seen,
            repeated: self.repeated,
        }
    }

    /// Notes that a field occurs, and returns its number among the known ones.
    fn note(&mut self, name: &str) -> Option<usize> {
        let number = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name))?;
        let bit = 1 << number;
        self.repeated |= self.seen & bit;
        self.seen |= bit;
        Some(number)
    }

    /// True when the field occurs.
    pub fn has(&self, name: Name) -> bool {
        self.seen & name.bit() != 0
    }

    /// True when conditions or ranges decide on the answer.
    pub(super) fn has_conditions(&self) -> bool {
        self.seen & Name::CONDITIONS != 0
    }

    /// The values of all fields of that name, in order.
    pub fn values(&self, name: Name) -> impl Iterator<Item = &[u8]> {
        let is_there = self.has(name).then(|| self.lines(NAMES[name as usize]));
        is_there.into_iter().flatten()
    }

    /// The value of a field that may occur once; `None` if it occurs twice.
    pub fn value(&self, name: Name) -> Option<&[u8]> {
        match self.has(name) && self.repeated & name.bit() == 0 {
            true => self.field(NAMES[name as usize]),
            false => None,
        }
    }

    /// The value of any field, by its name in lower case; the first of several.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        match &self.fields {
            Fields::Lines(lines) => {
                let field = lines.iter().find(|field| field.name.eq_ignore_ascii_case(name));
                field.map(|field| field.value)
            }
            Fields::Map(map) => map.get(name).map(HeaderValue::as_bytes),
        }
    }

    /// The values of all fields of a name in lower case, in order.
    pub(super) fn lines(&self, name: &str) -> impl DoubleEndedIterator<Item = &[u8]> {
        let (lines, map) = match &self.fields {
            Fields::Lines(lines) => (*lines, None),
            Fields::Map(map) => (&[][..], Some(map.get_all(name).iter())),
        };
        let lines = lines.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        let in_map = map.into_iter().flatten().map(HeaderValue::as_bytes);
        lines.map(|field| field.value).chain(in_map)
    }

    /// The host, with a port if there is one, that the request is for. A host in the target counts, and not the
    /// field (RFC 9112 section 3.2.2).
    pub(super) fn host(&self) -> Option<&[u8]> {
        match &self.authority {
            Some(authority) => Some(authority.as_bytes()),
            None => self.value(Name::Host),
        }
    }

    /// The elements of a field that is a comma-separated list of tokens, over all its lines.
    fn tokens(&self, name: Name) -> impl Iterator<Item = &[u8]> {
        let elements = self.values(name).flat_map(|line| line.split(|byte| *byte == b','));
        elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
    }

    /// With the value of the field `Host`, if there is one.
    fn check_host(&self, host: Option<&[u8]>) -> Result<(), Status> {
        let valid = match host {
            Some(host) => self.repeated & Name::Host.bit() == 0 && is_host(host),
            None => self.is_1_0,
        };
        if valid { Ok(()) } else { Err(Status::BAD_REQUEST) }
    }

    /// Of HTTP/2, whose authority and field `Host` must be the same (RFC 9113 section 8.3.1).
    fn check_authority(&mut self, authority: &str) -> Result<(), Status> {
        let is_other = |host: &[u8]| !host.eq_ignore_ascii_case(authority.as_bytes());
        if !is_host(authority.as_bytes()) || self.values(Name::Host).any(is_other) {
            return Err(Status::BAD_REQUEST);
        }
        self.authority = Some(Cow::Owned(authority.to_owned()));
        Ok(())
    }

    fn read_target(&mut self, target: &'a str) -> Result<(), Status> {
        match self.method {
            Method::Unknown => return Err(Status::NOT_IMPLEMENTED),
            // The target of CONNECT has another form. The answer does not depend on it.
            Method::Other if Target::is_plausible(target) => {}
            Method::Other => return Err(Status::BAD_REQUEST),
            _ => {
                if let Target::Resource { path, query } =
                    Target::parse(target, self.method == Method::Options)?
                {
                    self.path = Cow::Borrowed(path);
                    self.query = query.map(Cow::Borrowed);
                }
            }
        }
        Ok(())
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

fn owned(text: Cow<'_, str>) -> Cow<'static, str> {
    Cow::Owned(text.into_owned())
}

/// The same head with version 1.1 instead of a later version 1, which is read as 1.1 (RFC 9110 section 2.5).
fn with_known_version(bytes: &[u8]) -> Result<Vec<u8>, Status> {
    let mut bytes = bytes.to_vec();
    let begin = bytes.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(0);
    let end = begin + memchr(b'\r', &bytes[begin..]).ok_or(Status::BAD_REQUEST)?;
    match bytes[begin..end].rsplit(|byte| *byte == b' ').next().unwrap_or_default() {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => {
            bytes[end - 1] = b'1';
            Ok(bytes)
        }
        [b'H', b'T', b'T', b'P', b'/', b'0' | b'2'..=b'9', b'.', b'0'..=b'9'] => {
            Err(Status::HTTP_VERSION_NOT_SUPPORTED)
        }
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
