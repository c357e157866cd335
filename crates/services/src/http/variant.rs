//! One representation of a resource: its fields, its content, in memory or in a file, and the answers that are made
//! of it: whole, a part, or none because of a condition.

use super::Status;
use super::conditional::{Selection, Validators, evaluate, range_applies, select};
use super::date::{Clock, format_date};
use super::encoding::Coding;
use super::request::{Method, Request};
use super::resource::OpenFile;
use super::response::{Body, Field, Ready, Response, value};
use super::rules::Policy;
use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;
use twinring::fs::{Metadata, Timestamp};

/// A file that changed this many seconds ago or less may change again without a new time stamp, so
/// its entity tag is weak (RFC 9110 section 8.8.1).
const WEAK_SECONDS: i64 = 1;

/// No rule can set it.
const ACCEPT_RANGES: &str = "Accept-Ranges";

/// It may change again without a new time stamp. The kernel's time of the last change counts: programs
/// set the other one, also to the future.
pub(super) fn is_recent(file: &Metadata, clock: &Clock) -> bool {
    file.changed.seconds.saturating_add(WEAK_SECONDS) >= clock.second()
}

#[derive(Debug)]
pub(super) struct Variant {
    pub(super) coding: Coding,
    /// The metadata of the file when it was read or opened, with the length of this form.
    pub(super) version: Metadata,
    /// The file, if its content is not in memory.
    pub(super) file: Option<Rc<OpenFile>>,
    /// That of which it was compressed on the fly.
    source: Option<Rc<OpenFile>>,
    /// Bytes less than the file, if it was compressed on the fly.
    pub(super) saved: u64,
    tag: String,
    pub(super) weak: bool,
    modified: Option<i64>,
    /// Those that 304 repeats, those of rules, and those of the content; the type is the last.
    pub(super) fields: Vec<Field>,
    of_rules: Range<usize>,
    /// The answer with status 200 as HTTP/1.1 sends it, with the content that is in memory.
    pub(super) ready: Ready,
}

impl Variant {
    /// A file with these fields of rules and this media type; with these bytes, unless its content stays in the file.
    pub(super) fn new(
        (coding, version): (Coding, Metadata),
        (bytes, file): (&[u8], Option<Rc<OpenFile>>),
        policy: &Policy<'_>,
        media_type: &str,
        varies: bool,
        clock: &Clock,
    ) -> Variant {
        let weak = is_recent(&version, clock);
        let tag = tag(&version, coding);
        // A time in the future would be a promise (RFC 9110 section 8.8.2.1).
        let modified = Some(version.modified.seconds).filter(|seconds| *seconds <= clock.second());
        let mut fields = vec![tag_field(&tag, weak)];
        if let Some(date) = modified.and_then(format_date) {
            fields.push(field("Last-Modified", std::str::from_utf8(&date).unwrap_or_default()));
        }
        if varies {
            fields.push(field("Vary", "Accept-Encoding"));
        }
        let begin = fields.len();
        fields.extend(policy.cache_control().cloned());
        fields.extend(policy.headers().into_iter().cloned());
        let of_rules = begin..fields.len();
        fields.push(field(ACCEPT_RANGES, "bytes"));
        if coding != Coding::Identity {
            fields.push(field("Content-Encoding", coding.name()));
        }
        fields.push(field("Content-Type", media_type));
        let ready = Ready::new(fields.iter(), version.len, bytes, clock);
        let (source, saved) = (None, 0);
        Variant {
            coding,
            version,
            file,
            source,
            saved,
            tag,
            weak,
            modified,
            fields,
            of_rules,
            ready,
        }
    }

    /// The same, compressed on the fly to these bytes. Another version of the compressor may make others of the same
    /// file, so its tag is weak and it has no ranges.
    pub(super) fn compressed(&self, coding: Coding, bytes: &[u8], clock: &Clock) -> Variant {
        let (length, tag) = (bytes.len() as u64, tag(&self.version, coding));
        let mut fields = self.fields.clone();
        fields.retain(|(name, _)| name != ACCEPT_RANGES);
        fields[0] = tag_field(&tag, true);
        fields.insert(self.of_rules.end, field("Content-Encoding", coding.name()));
        Variant {
            coding,
            version: Metadata { len: length, ..self.version },
            file: None,
            source: self.file.clone(),
            saved: self.version.len.saturating_sub(length),
            tag,
            weak: true,
            modified: self.modified,
            ready: Ready::new(fields.iter(), length, bytes, clock),
            fields,
            of_rules: self.of_rules.clone(),
        }
    }

    /// The open file that must not have changed when an answer begins.
    pub(super) fn checked_file(&self) -> Option<&Rc<OpenFile>> {
        self.file.as_ref().or(self.source.as_ref())
    }

    /// All of its content; none if the file cannot be read or was changed.
    pub(super) async fn content(&self) -> Option<Vec<u8>> {
        let Some(file) = &self.file else { return Some(self.ready.whole().as_slice().to_vec()) };
        file.read_checked(0, usize::try_from(self.version.len).ok()?).await
    }

    pub(super) fn bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.len());
        let of_fields = fields.sum::<usize>() + self.fields.len() * size_of::<Field>();
        size_of::<Variant>() + self.tag.len() + of_fields + self.ready.len()
    }

    /// The answer to GET or HEAD. As a fallback, it has the rules of the path that was asked for instead of its own.
    pub(super) fn respond(
        self: &Rc<Variant>,
        request: &Request<'_>,
        is_fallback: bool,
    ) -> Response {
        if !request.has_conditions() {
            return self.whole(is_fallback);
        }
        let validators =
            Validators { tag: self.tag.as_bytes(), weak: self.weak, modified: self.modified };
        match evaluate(request, &validators) {
            None => {}
            Some(unchanged @ Status::NOT_MODIFIED) => {
                let fields = self.fields[..self.of_rules.start].to_vec();
                return Response { fields, is_file: true, ..Response::new(unchanged) };
            }
            Some(failed) => return Response::message(failed),
        }
        // RFC 9110 section 14.2: ranges are for GET.
        if request.method == Method::Get
            && let Some(field) = request.value("range")
            && range_applies(request, &validators)
        {
            match select(field, self.version.len) {
                Selection::Whole => {}
                Selection::Part(range) => return self.part(range),
                Selection::Unsatisfiable => {
                    let length = value(&format!("bytes */{}", self.version.len));
                    let refused = Response::message(Status::RANGE_NOT_SATISFIABLE);
                    return refused.with("Content-Range", length);
                }
            }
        }
        self.whole(is_fallback)
    }

    fn whole(self: &Rc<Variant>, is_fallback: bool) -> Response {
        let whole = Response { length: Some(self.version.len), ..Response::new(Status::OK) };
        if is_fallback {
            let fields = self.fields_without_rules();
            return Response { fields, is_file: true, body: self.body_whole(), ..whole };
        }
        let body = if self.file.is_none() { Body::Stored } else { self.body_whole() };
        Response { stored: Some(Rc::clone(self)), body, ..whole }
    }

    fn fields_without_rules(&self) -> Vec<Field> {
        let mut fields = self.fields.clone();
        fields.drain(self.of_rules.clone());
        fields
    }

    fn body_whole(&self) -> Body {
        self.body(0..self.version.len)
    }

    fn body(&self, range: Range<u64>) -> Body {
        match &self.file {
            Some(file) => Body::File(Rc::clone(file), range),
            None => Body::Bytes(self.ready.content(range.start as usize..range.end as usize)),
        }
    }

    /// An error with this content. It is not a representation of the requested resource, so it has no validators.
    pub(super) fn as_content_of(&self, mut error: Response) -> Response {
        error.fields.retain(|(name, _)| name != "Content-Type");
        error.fields.extend(self.fields.last().cloned());
        Response { length: Some(self.version.len), body: self.body_whole(), ..error }
    }

    fn part(&self, range: Range<u64>) -> Response {
        let content_range = format!("bytes {}-{}/{}", range.start, range.end - 1, self.version.len);
        let mut fields = self.fields_without_rules();
        fields.push(field("Content-Range", &content_range));
        let (length, body) = (Some(range.end - range.start), self.body(range));
        let partial = Response::new(Status::PARTIAL_CONTENT);
        Response { fields, is_file: true, length, body, ..partial }
    }
}

fn field(name: &'static str, text: &str) -> Field {
    (Cow::Borrowed(name), value(text))
}

fn tag_field(tag: &str, weak: bool) -> Field {
    field("ETag", &format!("{}{tag}", if weak { "W/" } else { "" }))
}

/// The opaque part of the entity tag: when the file was modified, to the nanosecond, and its
/// length. It is the same on every machine that has the same copy.
///
/// A time in whole seconds that the kernel did not set says nothing: archives, container images and
/// package stores give all their files the same. Then the tag has the number of the file and the time of its
/// last change as well, which a program cannot set.
fn tag(version: &Metadata, coding: Coding) -> String {
    let Timestamp { seconds, nanoseconds } = version.modified;
    let mut tag = format!("\"{seconds:x}.{nanoseconds:x}-{:x}", version.len);
    if nanoseconds == 0 && version.modified != version.changed {
        let Timestamp { seconds, nanoseconds } = version.changed;
        tag.push_str(&format!("-{:x}.{seconds:x}.{nanoseconds:x}", version.inode));
    }
    if coding != Coding::Identity {
        tag.push('-');
        tag.push_str(coding.name());
    }
    tag.push('"');
    tag
}
