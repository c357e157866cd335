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
    line: usize,
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
            let in_request_line = self.line == self.begin;
            if in_request_line
                && let Some(first) = window.get(self.begin)
                && !first.is_ascii_alphabetic()
                && (self.begin > 0 || *first != b'\r')
            {
                return Err(Status::BAD_REQUEST);
            }
            let found = memchr(b'\n', &window[self.next..]);
            let end = found.map_or(window.len(), |distance| self.next + distance);
            if in_request_line && end - self.line > line_max {
                return Err(Status::URI_TOO_LONG);
            }
            if found.is_none() {
                self.next = end;
                return match bytes.len() >= limits.head_bytes {
                    true => Err(Status::REQUEST_HEADER_FIELDS_TOO_LARGE),
                    false => Ok(None),
                };
            }
            if end == self.line || window[end - 1] != b'\r' {
                return Err(Status::BAD_REQUEST);
            }
            let is_empty = end == self.line + 1;
            (self.line, self.next) = (end + 1, end + 1);
            match (is_empty, in_request_line) {
                (true, false) => return Ok(Some(end + 1)),
                // RFC 9112 section 2.2 tolerates one empty line; a second one fails above.
                (true, true) => self.begin = self.line,
                (false, _) => {}
            }
        }
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
pub type Storage<'a> = [MaybeUninit<Header<'a>>; HEADERS_MAX];

/// Empty storage.
pub const fn storage<'a>() -> Storage<'a> {
    [const { MaybeUninit::uninit() }; HEADERS_MAX]
}

/// The fields of a request of HTTP/2, for [`Request::from_http2`].
pub fn fields_of(parts: &Parts) -> Vec<Header<'_>> {
    let fields = parts.headers.iter();
    fields.map(|(name, value)| Header { name: name.as_str(), value: value.as_bytes() }).collect()
}

/// A request of either protocol whose head passed all checks, without its body. Names of fields are asked for in lower
/// case.
#[derive(Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// Begins with a slash, and is still percent-encoded; `*` for the server as a whole, and for methods whose
    /// target is not read.
    pub path: &'a str,
    /// The text after the question mark, if there is one.
    pub query: Option<&'a str>,
    /// The host and port that the target names, which then counts instead of the field `Host`.
    pub authority: Option<&'a str>,
    /// HTTP/1.0 instead of a later version.
    pub is_1_0: bool,
    /// The client wants the connection to stay.
    pub keep_alive: bool,
    /// How long the body is.
    pub framing: Framing,
    /// If there is a body, the client waits for `100 Continue` before it sends that.
    pub expects_continue: bool,
    fields: &'a [Header<'a>],
}

impl<'a> Request<'a> {
    /// Reads a complete head of HTTP/1, as [`Scan::find_end`] delimits it.
    ///
    /// # Errors
    /// The status to answer with, before closing the connection.
    pub fn parse<'b: 'a>(
        bytes: &'b [u8],
        storage: &'a mut [MaybeUninit<Header<'b>>],
        limits: HeadLimits,
    ) -> Result<Request<'a>, Status> {
        let mut parsed = httparse::Request::new(&mut []);
        match parsed.parse_with_uninit_headers(bytes, storage) {
            Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Status::REQUEST_HEADER_FIELDS_TOO_LARGE);
            }
            Err(httparse::Error::Version) => match first_line(bytes) {
                [.., b' ', b'H', b'T', b'T', b'P', b'/', b'0' | b'2'..=b'9', b'.', b'0'..=b'9'] => {
                    return Err(Status::HTTP_VERSION_NOT_SUPPORTED);
                }
                _ => return Err(Status::BAD_REQUEST),
            },
            _ => return Err(Status::BAD_REQUEST),
        }
        let httparse::Request { method: Some(method), path: Some(target), version, headers } =
            parsed
        else {
            return Err(Status::BAD_REQUEST);
        };
        let is_1_0 = version == Some(0);
        let request = Request::read(method, target, headers, is_1_0, limits)?;
        if request.has_valid_host() { Ok(request) } else { Err(Status::BAD_REQUEST) }
    }

    /// Reads the head of a request of HTTP/2; `has_body` if more than the head follows. The h2 crate has checked
    /// what HTTP/2 itself requires (RFC 9113 sections 8.2 and 8.3).
    ///
    /// # Errors
    /// The status to answer with.
    pub fn from_http2(
        parts: &'a Parts,
        fields: &'a [Header<'a>],
        has_body: bool,
        limits: HeadLimits,
    ) -> Result<Request<'a>, Status> {
        if fields.len() > HEADERS_MAX {
            return Err(Status::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        let mut request = Request::read(parts.method.as_str(), target, fields, false, limits)?;
        request.authority = parts.uri.authority().map(|authority| authority.as_str());
        let has_valid_host = match request.authority.map(str::as_bytes) {
            // The field `Host` must be the same (RFC 9113 section 8.3.1).
            Some(authority) => {
                let is_same = |host: &[u8]| host.eq_ignore_ascii_case(authority);
                is_host(authority) && request.lines("host").all(is_same)
            }
            None => request.has_valid_host(),
        };
        if !has_valid_host {
            return Err(Status::BAD_REQUEST);
        }
        // The end of the stream ends the body, whatever is announced.
        request.framing = match (has_body, request.framing) {
            (false, _) => Framing::Empty,
            (true, Framing::Empty) => Framing::Chunked,
            (true, announced) => announced,
        };
        Ok(request)
    }

    /// What both protocols have in common.
    #[inline(always)]
    fn read(
        method: &str,
        target: &'a str,
        fields: &'a [Header<'a>],
        is_1_0: bool,
        limits: HeadLimits,
    ) -> Result<Request<'a>, Status> {
        if target.len() > limits.target_bytes {
            return Err(Status::URI_TOO_LONG);
        }
        let method = known_method(method)?;
        let mut request = Request {
            method,
            path: "*",
            query: None,
            authority: None,
            is_1_0,
            keep_alive: !is_1_0,
            framing: Framing::Empty,
            expects_continue: false,
            fields,
        };
        request.framing = request.read_framing()?;
        if request.field("connection").is_some() {
            request.keep_alive = !request.names("connection", b"close")
                && (!is_1_0 || request.names("connection", b"keep-alive"));
        }
        // RFC 9110 section 10.1.1: from HTTP/1.0 it is ignored.
        if !is_1_0 && request.field("expect").is_some() {
            let is_other = |it: &[u8]| !it.eq_ignore_ascii_case(b"100-continue");
            if request.tokens("expect").any(is_other) {
                return Err(Status::EXPECTATION_FAILED);
            }
            request.expects_continue = true;
        }
        if method == Method::Other {
            // The target of CONNECT has another form. The answer does not depend on it.
            let is_plausible = Target::is_plausible(target);
            return if is_plausible { Ok(request) } else { Err(Status::BAD_REQUEST) };
        }
        let Target { authority, path, query } = Target::parse(target, method == Method::Options)?;
        (request.authority, request.path, request.query) = (authority, path, query);
        Ok(request)
    }

    pub(super) fn has_conditions(&self) -> bool {
        let decides = |name: &str| {
            let (begin, rest) = name.as_bytes().split_at(name.len().min(3));
            begin.eq_ignore_ascii_case(b"if-")
                || begin.eq_ignore_ascii_case(b"ran") && rest.eq_ignore_ascii_case(b"ge")
        };
        self.fields.iter().any(|field| decides(field.name))
    }

    /// The value of a field that may occur once; `None` if it occurs twice.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let first = self.field(name)?;
        self.lines(name).nth(1).is_none().then_some(first)
    }

    /// The value of a field; the first of several.
    #[inline]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let field = self.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        field.map(|field| field.value)
    }

    /// The values of all fields of a name, in order.
    #[inline]
    pub fn lines(&self, name: &str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        let lines = self.fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        lines.map(|field| field.value)
    }

    /// The field `Host` is there, once; HTTP/1.0 may have none.
    #[inline]
    fn has_valid_host(&self) -> bool {
        let mut hosts = self.lines("host");
        match (hosts.next(), hosts.next()) {
            (Some(host), None) => is_host(host),
            (None, _) => self.is_1_0,
            _ => false,
        }
    }

    /// The host, with a port if there is one, that the request is for. A host in the target counts, and not the
    /// field (RFC 9112 section 3.2.2).
    pub(super) fn host(&self) -> Option<&[u8]> {
        self.authority.map(str::as_bytes).or_else(|| self.field("host"))
    }

    /// The elements of a field that is a comma-separated list of tokens, over all its lines.
    fn tokens(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let elements = self.lines(name).flat_map(|line| line.split(|byte| *byte == b','));
        elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
    }

    fn names(&self, field: &str, token: &[u8]) -> bool {
        self.tokens(field).any(|found| found.eq_ignore_ascii_case(token))
    }

    fn read_framing(&self) -> Result<Framing, Status> {
        let has = |name| self.field(name).is_some();
        match (has("content-length"), has("transfer-encoding")) {
            (false, false) => Ok(Framing::Empty),
            (true, true) => Err(Status::BAD_REQUEST),
            (true, false) => match self.value("content-length").and_then(decimal) {
                None => Err(Status::BAD_REQUEST),
                Some(0) => Ok(Framing::Empty),
                Some(length) => Ok(Framing::Length(length)),
            },
            // RFC 9112 section 6.1: faulty, even where a recipient understands it.
            (false, true) if self.is_1_0 => Err(Status::BAD_REQUEST),
            (false, true) => self.read_codings(),
        }
    }

    fn read_codings(&self) -> Result<Framing, Status> {
        let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let codings: Vec<&[u8]> = self.tokens("transfer-encoding").collect();
        match codings.as_slice() {
            [only] if is_chunked(only) => Ok(Framing::Chunked),
            [first, .., last] if !is_chunked(first) && is_chunked(last) => {
                Err(Status::NOT_IMPLEMENTED)
            }
            // Without codings, chunked twice, or of an unknown length: the last coding is another.
            _ => Err(Status::BAD_REQUEST),
        }
    }
}

/// The first line of a request, which may be incomplete, without its end.
pub(super) fn first_line(bytes: &[u8]) -> &[u8] {
    let line = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
    let end = memchr(b'\n', line).unwrap_or(line.len());
    line[..end].strip_suffix(b"\r").unwrap_or(&line[..end])
}

/// A head of a later minor version as one of 1.1, as which it is read (RFC 9110 section 2.5).
pub fn as_1_1(head: &[u8]) -> Option<Vec<u8>> {
    let line = first_line(head);
    if !matches!(line, [.., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9']) {
        return None;
    }
    let begin = if head.starts_with(b"\r\n") { 2 } else { 0 };
    let mut known = head.to_vec();
    known[begin + line.len() - 1] = b'1';
    Some(known)
}

fn known_method(name: &str) -> Result<Method, Status> {
    match name {
        "GET" => Ok(Method::Get),
        "HEAD" => Ok(Method::Head),
        "OPTIONS" => Ok(Method::Options),
        "POST" | "PUT" | "DELETE" | "PATCH" | "CONNECT" | "TRACE" => Ok(Method::Other),
        _ => Err(Status::NOT_IMPLEMENTED),
    }
}

/// 1*DIGIT that fits: no sign, no space, no list.
fn decimal(text: &[u8]) -> Option<u64> {
    let is_number = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
pub(super) mod tests;
