//! The answer to a request, as both protocols send it: a status, fields, and content. What is said about the
//! connection, and the date, is added where it is sent.

use super::Status;
use super::index::Listing;
use super::open_file::OpenFile;
use super::variant::Variant;
use http::HeaderValue;
use nix::errno::Errno;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// All methods for a file.
const ALLOW: HeaderValue = HeaderValue::from_static("GET, HEAD, OPTIONS");

/// Seconds after which a client should retry a request that failed for lack of resources.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

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

/// The content of an answer.
#[derive(Debug)]
pub(super) enum Body {
    Empty,
    Bytes(Vec<u8>),
    /// That of the stored variant, which is in memory.
    Stored,
    /// That of another one.
    Of(Rc<Variant>),
    File(Box<FileParts>),
    Listing(Listing),
}

/// Parts of an open file, each with the bytes before it.
#[derive(Debug)]
pub(super) struct FileParts {
    pub(super) file: Rc<OpenFile>,
    pub(super) parts: Vec<(Vec<u8>, Range<u64>)>,
    pub(super) end: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: Status,
    /// The variant whose fields it has, if it is the whole of it.
    pub(super) stored: Option<Rc<Variant>>,
    pub(super) fields: Vec<Field>,
    /// Bytes of content, sent or not (HEAD); none for an answer that cannot have content.
    pub(super) length: Option<u64>,
    pub(super) body: Body,
    pub(super) reason: Option<Reason>,
}

impl Response {
    /// An answer without fields and content.
    pub(super) fn new(status: Status) -> Response {
        let fields = Vec::new();
        Response { status, stored: None, fields, length: None, body: Body::Empty, reason: None }
    }

    /// An answer whose content is only the status.
    pub(super) fn message(status: Status) -> Response {
        let response = Response::new(status);
        let response = match status {
            Status::METHOD_NOT_ALLOWED | Status::NO_CONTENT => response.with("Allow", ALLOW),
            Status::SERVICE_UNAVAILABLE | Status::TOO_MANY_REQUESTS => {
                response.with("Retry-After", RETRY_AFTER_S)
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
        Response { length, body: Body::Bytes(content), ..typed }
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
