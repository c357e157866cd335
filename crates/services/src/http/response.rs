//! The answer to a request, as both protocols send it: a status, fields, and content; its head as HTTP/1 has it, and
//! answers of which it is kept ready.

use super::Status;
use super::date::{Clock, DATE_BYTES};
use super::index::Listing;
use super::resource::OpenFile;
use super::variant::Variant;
use http::HeaderValue;
use nix::errno::Errno;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use twinring::SendBuf;

pub(super) type Field = (Cow<'static, str>, HeaderValue);

/// Why an answer is no success, for the log of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    System(Errno),
    Limit(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::System(errno) => write!(f, "{} ({errno:?})", errno.desc()),
            Reason::Limit(text) => f.write_str(text),
        }
    }
}

#[derive(Debug, Default)]
pub(super) enum Body {
    #[default]
    Empty,
    Bytes(SendBuf),
    /// That of the stored variant, which is in memory.
    Stored,
    /// So much of a file.
    File(Rc<OpenFile>, Range<u64>),
    Listing(Listing),
}

#[derive(Debug, Default)]
pub(super) struct Response {
    pub(super) status: Status,
    /// The variant whose fields it has, those of rules too, if it is the whole of it.
    pub(super) stored: Option<Rc<Variant>>,
    /// It is, or is part of, another file, or nothing new about one: `Cache-Control` of rules is for it.
    pub(super) is_file: bool,
    pub(super) fields: Vec<Field>,
    /// Bytes of content, sent or not (HEAD); none for an answer that cannot have content.
    pub(super) length: Option<u64>,
    pub(super) body: Body,
    pub(super) reason: Option<Reason>,
}

impl Response {
    pub(super) fn new(status: Status) -> Response {
        Response { status, ..Response::default() }
    }

    /// An answer whose content is only the status.
    pub(super) fn message(status: Status) -> Response {
        let response = Response::new(status);
        let response = match status {
            Status::METHOD_NOT_ALLOWED | Status::NO_CONTENT => {
                response.with("Allow", value("GET, HEAD, OPTIONS"))
            }
            Status::SERVICE_UNAVAILABLE | Status::TOO_MANY_REQUESTS => {
                response.with("Retry-After", value("1"))
            }
            _ => response,
        };
        // RFC 9110 section 8.6: no length with 204.
        if status == Status::NO_CONTENT {
            return response;
        }
        let text = format!("{} {}\n", status.as_str(), reason_phrase(status));
        response.with_content("text/plain; charset=utf-8", text)
    }

    pub(super) fn redirect(status: Status, location: &str) -> Response {
        Response::message(status).with("Location", value(location))
    }

    pub(super) fn failure(status: Status, reason: Reason) -> Response {
        Response { reason: Some(reason), ..Response::message(status) }
    }

    pub(super) fn with(mut self, name: &'static str, value: HeaderValue) -> Response {
        self.add(name, value);
        self
    }

    pub(super) fn add(&mut self, name: &'static str, value: HeaderValue) {
        self.fields.push((Cow::Borrowed(name), value));
    }

    pub(super) fn with_content(self, media_type: &str, content: impl Into<Vec<u8>>) -> Response {
        let content = content.into();
        let length = Some(content.len() as u64);
        let typed = self.with("Content-Type", value(media_type));
        Response { length, body: Body::Bytes(content.into()), ..typed }
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &Field> {
        let stored = self.stored.as_ref().map(|variant| &variant.fields);
        stored.into_iter().flatten().chain(&self.fields)
    }

    pub(super) fn content_bytes(&self) -> u64 {
        match self.body {
            Body::Empty => 0,
            _ => self.length.unwrap_or(0),
        }
    }

    /// Takes the content that is in memory.
    pub(super) fn content(&mut self) -> SendBuf {
        match (&mut self.body, &self.stored) {
            (Body::Bytes(bytes), _) => std::mem::replace(bytes, SendBuf::from("")),
            (Body::Stored, Some(variant)) => variant.ready.whole(),
            (Body::Listing(listing), _) => Rc::clone(&listing.content).into(),
            _ => SendBuf::from(""),
        }
    }
}

/// A value of text that was checked where it comes from.
pub(super) fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

pub(super) fn reason_phrase(status: Status) -> &'static str {
    match status {
        // Its name since RFC 9110.
        Status::PAYLOAD_TOO_LARGE => "Content Too Large",
        _ => status.canonical_reason().unwrap_or_default(),
    }
}

const OK_START: &[u8] = b"HTTP/1.1 200 OK\r\nDate: ";

/// Whether the connection stays, and how the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    /// It stays, as HTTP/1.1 expects.
    Stays,
    /// It stays, which HTTP/1.0 does not expect.
    StaysFor1_0,
    /// It ends.
    Closes,
    /// It ends, as the client announced with its last request.
    ClosesAsAsked,
}

impl Persistence {
    pub(super) fn stays(self) -> bool {
        !matches!(self, Persistence::Closes | Persistence::ClosesAsAsked)
    }
}

fn write<'a>(
    status: Status,
    fields: impl Iterator<Item = &'a Field>,
    length: Option<u64>,
    clock: &Clock,
    persistence: Persistence,
) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    let mut add = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
    let (code, reason) = (status.as_str().as_bytes(), reason_phrase(status).as_bytes());
    add(&[b"HTTP/1.1 ", code, b" ", reason, b"\r\nDate: ", &clock.date(), b"\r\n"]);
    let connection: &[u8] = match persistence {
        Persistence::Stays => b"",
        Persistence::StaysFor1_0 => b"Connection: keep-alive\r\n",
        Persistence::Closes | Persistence::ClosesAsAsked => b"Connection: close\r\n",
    };
    add(&[connection]);
    for (name, value) in fields {
        add(&[name.as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    if let Some(length) = length {
        add(&[b"Content-Length: ", itoa::Buffer::new().format(length).as_bytes(), b"\r\n"]);
    }
    add(&[b"\r\n"]);
    head
}

/// The answer in bytes, with the content that is in memory, and the length of its head.
pub(super) fn render(
    response: &Response,
    clock: &Clock,
    persistence: Persistence,
) -> (SendBuf, usize) {
    if let (Some(variant), Persistence::Stays) = (&response.stored, persistence)
        && response.fields.is_empty()
    {
        let Ready { head_end, .. } = variant.ready;
        let bytes = variant.ready.bytes(clock);
        let end = if matches!(response.body, Body::Stored) { bytes.len() } else { head_end };
        return (SendBuf::shared(bytes, 0..end), head_end);
    }
    let mut message =
        write(response.status, response.fields(), response.length, clock, persistence);
    let head_end = message.len();
    match (&response.body, &response.stored) {
        (Body::Bytes(bytes), _) => message.extend_from_slice(bytes.as_slice()),
        (Body::Stored, Some(variant)) => {
            message.extend_from_slice(variant.ready.whole().as_slice());
        }
        _ => {}
    }
    (message.into(), head_end)
}

/// An answer with status 200 for a connection that stays, which is the same but for its date.
#[derive(Debug)]
pub(super) struct Ready {
    bytes: RefCell<Rc<[u8]>>,
    dated: Cell<i64>,
    head_end: usize,
}

impl Ready {
    pub(super) fn new<'a>(
        fields: impl Iterator<Item = &'a Field>,
        length: u64,
        content: &[u8],
        clock: &Clock,
    ) -> Ready {
        let mut bytes = write(Status::OK, fields, Some(length), clock, Persistence::Stays);
        let (head_end, dated) = (bytes.len(), Cell::new(clock.second()));
        bytes.extend_from_slice(content);
        Ready { bytes: RefCell::new(bytes.into()), dated, head_end }
    }

    fn bytes(&self, clock: &Clock) -> Rc<[u8]> {
        let mut bytes = self.bytes.borrow_mut();
        if self.dated.get() != clock.second() {
            // Copied if a send still holds the old one, so a sent answer never changes.
            Rc::make_mut(&mut *bytes)[OK_START.len()..OK_START.len() + DATE_BYTES]
                .copy_from_slice(&clock.date());
            self.dated.set(clock.second());
        }
        Rc::clone(&bytes)
    }

    /// A part of the content, within it.
    pub(super) fn content(&self, range: Range<usize>) -> SendBuf {
        let bytes = Rc::clone(&self.bytes.borrow());
        SendBuf::shared(bytes, self.head_end + range.start..self.head_end + range.end)
    }

    pub(super) fn whole(&self) -> SendBuf {
        self.content(0..self.len() - self.head_end)
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.borrow().len()
    }
}
