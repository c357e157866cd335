//! From a request and a resource to an answer: conditions, ranges, codings.

use super::conditional::{Outcome, evaluate, range_applies};
use super::date::Clock;
use super::head::{Head, Method, Name};
use super::index::Listing;
use super::open_file::OpenFile;
use super::range::{Selection, select};
use super::response::{
    Persistence, begin, content_length, field, message, number, required_fields,
};
use super::status::Status;
use super::variant::{Ruled, Variant};
use memchr::memmem;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::ops::Range;
use std::rc::Rc;
use twinring::SendBuf;

/// The content type of multipart answers, without the boundary.
const MULTIPART: &str = "multipart/byteranges; boundary=";

/// An answer: bytes that are there, and perhaps more behind them.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: Status,
    pub(super) message: SendBuf,
    pub(super) rest: Option<Rest>,
    /// Where the head ends in `message`, if that is known already.
    head_end: Option<usize>,
}

/// The content behind the bytes in memory.
#[derive(Debug)]
pub(super) enum Rest {
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

impl Reply {
    /// An answer that is complete in memory.
    pub(super) fn new(status: Status, message: impl Into<SendBuf>) -> Reply {
        Reply { status, message: message.into(), rest: None, head_end: None }
    }

    /// The same with a further field. It copies what is in memory of the answer.
    pub(super) fn with_field(self, name: &str, value: &str) -> Reply {
        let bytes = self.message.as_slice();
        // Behind the status line.
        let end = memmem::find(bytes, b"\r\n").map_or(bytes.len(), |end| end + 2);
        let mut message = bytes[..end].to_vec();
        field(&mut message, name, value);
        message.extend_from_slice(&bytes[end..]);
        let added = message.len() - bytes.len();
        let head_end = self.head_end.map(|end| end + added);
        Reply { message: message.into(), head_end, ..self }
    }

    /// Length of the head, in bytes.
    pub(super) fn head_bytes(&self) -> usize {
        self.head_end.unwrap_or_else(|| {
            let end = memmem::find(self.message.as_slice(), b"\r\n\r\n");
            end.map_or(0, |end| end + 4)
        })
    }

    /// All of it, head and content, in bytes.
    pub(super) fn length(&self) -> u64 {
        let part = |(head, range): &(Vec<u8>, Range<u64>)| {
            head.len() as u64 + range.end.saturating_sub(range.start)
        };
        let rest = match &self.rest {
            None => 0,
            Some(Rest::File(rest)) => {
                rest.parts.iter().map(part).sum::<u64>() + rest.end.len() as u64
            }
            Some(Rest::Listing(listing)) => listing.content.len() as u64,
        };
        self.message.len() as u64 + rest
    }
}

/// The circumstances of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseContext<'a> {
    pub(super) clock: &'a Clock,
    pub(super) persistence: Persistence,
    /// The fields of rules, for a path that is not that of the variant.
    pub(super) ruled: Option<&'a Ruled>,
}

/// Appends fields of the ready message: a range that spans those of rules.
fn append_fields(
    head: &mut Vec<u8>,
    variant: &Variant,
    range: Range<usize>,
    context: ResponseContext<'_>,
) {
    let ready = variant.message(context.clock);
    let Some(ruled) = context.ruled else { return head.extend_from_slice(&ready[range]) };
    let own = variant.ruled_fields();
    head.extend_from_slice(&ready[range.start..own.start]);
    head.extend_from_slice(&ruled.bytes);
    head.extend_from_slice(&ready[own.end..range.end]);
}

/// The answer to GET or HEAD.
pub(super) fn reply(head: &Head<'_, '_>, variant: &Variant, context: ResponseContext<'_>) -> Reply {
    let to_head = head.method == Method::Head;
    let validators = variant.validators();
    match evaluate(head, &validators) {
        Outcome::Proceed => {}
        Outcome::NotModified => return not_modified(variant, context),
        Outcome::Failed => {
            return refused(variant, Status::PRECONDITION_FAILED, &[], to_head, context);
        }
    }
    // RFC 9110 section 14.2: ranges are for GET.
    if !to_head
        && let Some(field) = head.value(Name::Range)
        && range_applies(head, &validators)
    {
        match select(field, variant.version.len) {
            Selection::Whole => {}
            Selection::One(range) => return one_part(variant, range, context),
            Selection::Many(ranges) => return many_parts(variant, &ranges, context),
            Selection::Unsatisfiable => return unsatisfiable(variant, context),
        }
    }
    whole(variant, to_head, context)
}

/// 200, from the message that is ready.
fn whole(variant: &Variant, to_head: bool, context: ResponseContext<'_>) -> Reply {
    let ready = variant.message(context.clock);
    let head_end = variant.head_end();
    let end = if to_head { head_end } else { ready.len() };
    let mut reply = if context.persistence == Persistence::Stays && context.ruled.is_none() {
        let whole = Reply::new(Status::OK, SendBuf::shared(ready, 0..end));
        Reply { head_end: Some(head_end), ..whole }
    } else {
        let mut message = begin(Status::OK, context.clock, context.persistence);
        append_fields(&mut message, variant, variant.repeated_fields().start..end, context);
        Reply::new(Status::OK, message)
    };
    if let (Some(file), false) = (&variant.file, to_head) {
        reply.rest = Some(Rest::File(Box::new(FileParts {
            file: Rc::clone(file),
            parts: vec![(Vec::new(), 0..variant.version.len)],
            end: Vec::new(),
        })));
    }
    reply
}

fn not_modified(variant: &Variant, context: ResponseContext<'_>) -> Reply {
    let mut message = begin(Status::NOT_MODIFIED, context.clock, context.persistence);
    append_fields(&mut message, variant, variant.repeated_fields(), context);
    message.extend_from_slice(b"\r\n");
    Reply::new(Status::NOT_MODIFIED, message)
}

fn unsatisfiable(variant: &Variant, context: ResponseContext<'_>) -> Reply {
    let length = format!("bytes */{}", variant.version.len);
    let fields = [("Content-Range", length.as_str())];
    refused(variant, Status::RANGE_NOT_SATISFIABLE, &fields, false, context)
}

/// A message about a file, with the fields that the operator chose for it.
fn refused(
    variant: &Variant,
    status: Status,
    fields: &[(&str, &str)],
    to_head: bool,
    context: ResponseContext<'_>,
) -> Reply {
    let ready = variant.message(context.clock);
    let chosen = match context.ruled {
        Some(ruled) => &ruled.bytes[ruled.chosen_start..],
        None => &ready[variant.chosen_fields()],
    };
    let message = message(status, fields, context.clock, context.persistence, to_head);
    let end = message.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |end| end + 2);
    let (head, rest) = message.split_at(end);
    Reply::new(status, [head, chosen, rest].concat())
}

/// The part of a 206's head that one range and several have in common.
fn begin_partial(variant: &Variant, context: ResponseContext<'_>) -> Vec<u8> {
    let mut head = begin(Status::PARTIAL_CONTENT, context.clock, context.persistence);
    append_fields(&mut head, variant, variant.content_fields(), context);
    head
}

fn content_range(head: &mut Vec<u8>, range: &Range<u64>, length: u64) {
    head.extend_from_slice(b"Content-Range: bytes ");
    number(head, range.start);
    head.push(b'-');
    number(head, range.end - 1);
    head.push(b'/');
    number(head, length);
    head.extend_from_slice(b"\r\n");
}

fn one_part(variant: &Variant, range: Range<u64>, context: ResponseContext<'_>) -> Reply {
    let mut head = begin_partial(variant, context);
    field(&mut head, "Content-Type", &variant.content_type);
    content_range(&mut head, &range, variant.version.len);
    content_length(&mut head, range.end - range.start);
    head.extend_from_slice(b"\r\n");
    with_parts(variant, head, vec![(Vec::new(), range)], Vec::new(), context)
}

fn many_parts(variant: &Variant, ranges: &[Range<u64>], context: ResponseContext<'_>) -> Reply {
    let boundary = boundary(variant);
    let part = |(index, range): (usize, &Range<u64>)| {
        let mut head = if index == 0 { Vec::new() } else { b"\r\n".to_vec() };
        head.extend_from_slice(b"--");
        head.extend_from_slice(boundary.as_bytes());
        head.extend_from_slice(b"\r\n");
        field(&mut head, "Content-Type", &variant.content_type);
        content_range(&mut head, range, variant.version.len);
        head.extend_from_slice(b"\r\n");
        (head, range.clone())
    };
    let parts: Vec<_> = ranges.iter().enumerate().map(part).collect();
    let end = format!("\r\n--{boundary}--\r\n").into_bytes();
    let lengths = parts.iter().map(|(head, range)| head.len() as u64 + range.end - range.start);
    let length = lengths.sum::<u64>() + end.len() as u64;
    let mut head = begin_partial(variant, context);
    field(&mut head, "Content-Type", &format!("{MULTIPART}{boundary}"));
    content_length(&mut head, length);
    head.extend_from_slice(b"\r\n");
    with_parts(variant, head, parts, end, context)
}

/// The separator of the parts: derived from the entity tag, so it is the same on every server, and
/// different for every version.
fn boundary(variant: &Variant) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(variant.validators().tag);
    let first = hasher.finish();
    hasher.write_u64(first);
    format!("twinring-{first:016x}{:016x}", hasher.finish())
}

/// Appends the parts to the head: at once if the content is in memory.
fn with_parts(
    variant: &Variant,
    mut head: Vec<u8>,
    parts: Vec<(Vec<u8>, Range<u64>)>,
    end: Vec<u8>,
    context: ResponseContext<'_>,
) -> Reply {
    let status = Status::PARTIAL_CONTENT;
    if let Some(file) = &variant.file {
        let rest = Rest::File(Box::new(FileParts { file: Rc::clone(file), parts, end }));
        return Reply { rest: Some(rest), ..Reply::new(status, head) };
    }
    let ready = variant.message(context.clock);
    let content = &ready[variant.head_end()..];
    for (before, range) in parts {
        head.extend_from_slice(&before);
        head.extend_from_slice(&content[range.start as usize..range.end as usize]);
    }
    head.extend_from_slice(&end);
    Reply::new(status, head)
}

/// An error with the content of a file, and further `fields`. It is not a representation of the
/// requested resource, so it has no validators.
pub(super) fn error_page(
    status: Status,
    page: &Variant,
    fields: &[(&str, &str)],
    to_head: bool,
    context: ResponseContext<'_>,
) -> Reply {
    let mut head = begin(status, context.clock, context.persistence);
    required_fields(&mut head, status);
    fields.iter().for_each(|(name, value)| field(&mut head, name, value));
    field(&mut head, "Content-Type", &page.content_type);
    content_length(&mut head, page.version.len);
    head.extend_from_slice(b"\r\n");
    if to_head {
        return Reply::new(status, head);
    }
    let all = vec![(Vec::new(), 0..page.version.len)];
    Reply { status, ..with_parts(page, head, all, Vec::new(), context) }
}
