//! One representation of a resource: its header fields, and its content, in memory or in a file.

use super::conditional::Validators;
use super::date::{Clock, DATE_BYTES, format_date};
use super::encoding::Coding;
use super::hosts::Site;
use super::open_file::OpenFile;
use super::response::{DATE_START, FIELDS_START, OK_START, content_length, field};
use super::rules::Policy;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use twinring::fs::{Metadata, Timestamp};

/// A file that changed this many seconds ago or less may change again without a new time stamp, so
/// its entity tag is weak (RFC 9110 section 8.8.1).
const WEAK_SECONDS: i64 = 1;

/// It may change again without a new time stamp. The kernel's time of the last change counts: programs
/// set the other one, also to the future.
pub(super) fn is_recent(file: &Metadata, clock: &Clock) -> bool {
    file.changed.seconds.saturating_add(WEAK_SECONDS) >= clock.second()
}

/// The content of a file, or the reason to keep it open instead.
pub(super) enum Content {
    Bytes(Vec<u8>),
    /// Compressed on the fly.
    Compressed(Vec<u8>),
    File(Rc<OpenFile>),
}

/// The inputs of a variant's header fields.
pub(super) struct Fields<'a> {
    pub(super) site: &'a Site,
    /// Of the file.
    pub(super) path: &'a Path,
    /// That was asked for.
    pub(super) asked: &'a Path,
    pub(super) coding: Coding,
    pub(super) varies: bool,
    pub(super) clock: &'a Clock,
}

/// One representation of a resource.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) coding: Coding,
    /// The metadata of the file when it was read or opened, with the length of this form.
    pub(super) version: Metadata,
    /// The file, if its content is not part of `message`.
    pub(super) file: Option<Rc<OpenFile>>,
    /// The open file that this was compressed from.
    source: Option<Rc<OpenFile>>,
    /// Bytes less than the file, if it was compressed on the fly.
    pub(super) saved: u64,
    pub(super) content_type: Cow<'static, str>,
    tag: Vec<u8>,
    pub(super) weak: bool,
    modified: Option<i64>,
    /// A complete answer with status 200 for a connection that stays, or its head. The fields that
    /// 304 repeats come first, then those that 206 adds, then those of 200 only.
    message: RefCell<Rc<[u8]>>,
    /// The second of its date.
    dated: Cell<i64>,
    /// Where the fields of rules begin, and those of them that all answers have.
    ruled_start: usize,
    chosen_start: usize,
    repeated_end: usize,
    content_end: usize,
    head_end: usize,
}

impl Variant {
    pub(super) fn new(fields: &Fields<'_>, content: Content, mut version: Metadata) -> Variant {
        let clock = fields.clock;
        // Another version of the compressor may make other bytes of the same file.
        let is_compressed = matches!(content, Content::Compressed(_));
        let weak = is_compressed || is_recent(&version, clock);
        let tag = tag(&version, fields.coding);
        // A time in the future would be a promise (RFC 9110 section 8.8.2.1).
        let modified = Some(version.modified.seconds).filter(|seconds| *seconds <= clock.second());
        let content_type = fields.site.types.of(fields.path);
        let mut message = OK_START.to_vec();
        message.extend_from_slice(&clock.date());
        message.extend_from_slice(b"\r\n");
        message.extend_from_slice(if weak { b"ETag: W/" } else { b"ETag: " });
        message.extend_from_slice(&tag);
        message.extend_from_slice(b"\r\n");
        if let Some(date) = modified.and_then(format_date) {
            field(&mut message, "Last-Modified", std::str::from_utf8(&date).unwrap_or_default());
        }
        if fields.varies {
            field(&mut message, "Vary", "Accept-Encoding");
        }
        let ruled_start = message.len();
        let Ruled { bytes, chosen_start } = Ruled::of(&fields.site.rules.policy(fields.asked));
        message.extend_from_slice(&bytes);
        let repeated_end = message.len();
        if let Content::Compressed(bytes) = &content {
            version.len = bytes.len() as u64;
        } else {
            field(&mut message, "Accept-Ranges", "bytes");
        }
        if fields.coding != Coding::Identity {
            field(&mut message, "Content-Encoding", fields.coding.name());
        }
        let content_end = message.len();
        field(&mut message, "Content-Type", &content_type);
        content_length(&mut message, version.len);
        message.extend_from_slice(b"\r\n");
        let head_end = message.len();
        let file = match content {
            Content::File(file) => Some(file),
            Content::Bytes(bytes) | Content::Compressed(bytes) => {
                message.extend_from_slice(&bytes);
                None
            }
        };
        Variant {
            coding: fields.coding,
            version,
            file,
            source: None,
            saved: 0,
            content_type,
            tag,
            weak,
            modified,
            message: RefCell::new(message.into()),
            dated: Cell::new(clock.second()),
            ruled_start,
            chosen_start: ruled_start + chosen_start,
            repeated_end,
            content_end,
            head_end,
        }
    }

    /// It was compressed from this one.
    pub(super) fn made_from(self, identity: &Variant) -> Variant {
        let saved = identity.version.len.saturating_sub(self.version.len);
        Variant { saved, source: identity.file.clone(), ..self }
    }

    /// The validators for conditions.
    pub(super) fn validators(&self) -> Validators<'_> {
        Validators { tag: &self.tag, weak: self.weak, modified: self.modified }
    }

    /// The answer with status 200 for a connection that stays, dated today: head, and content if
    /// it is in memory.
    pub(super) fn message(&self, clock: &Clock) -> Rc<[u8]> {
        let mut message = self.message.borrow_mut();
        if self.dated.get() != clock.second() {
            // Copied if a send still holds the old one, so a sent answer never changes.
            Rc::make_mut(&mut *message)[DATE_START..DATE_START + DATE_BYTES]
                .copy_from_slice(&clock.date());
            self.dated.set(clock.second());
        }
        Rc::clone(&message)
    }

    /// Where the head ends in [`message`](Variant::message).
    pub(super) fn head_end(&self) -> usize {
        self.head_end
    }

    /// Where in the message the fields of rules are.
    pub(super) fn ruled_fields(&self) -> Range<usize> {
        self.ruled_start..self.repeated_end
    }

    /// Those of them that all answers have, errors included.
    pub(super) fn chosen_fields(&self) -> Range<usize> {
        self.chosen_start..self.repeated_end
    }

    /// Where in the message the fields are that 304 repeats.
    pub(super) fn repeated_fields(&self) -> Range<usize> {
        FIELDS_START..self.repeated_end
    }

    /// Where the fields are that 206 repeats, but for the type.
    pub(super) fn content_fields(&self) -> Range<usize> {
        FIELDS_START..self.content_end
    }

    /// The open file that must not have changed when an answer begins.
    pub(super) fn checked_file(&self) -> Option<&Rc<OpenFile>> {
        self.file.as_ref().or(self.source.as_ref())
    }

    /// All of its content; none if the file cannot be read or was changed.
    pub(super) async fn content(&self, clock: &Clock) -> Option<Vec<u8>> {
        let Some(file) = &self.file else {
            return Some(self.message(clock)[self.head_end..].to_vec());
        };
        let length = usize::try_from(self.version.len).ok()?;
        let bytes = file.file.read_at(0, length).await.ok()?;
        (bytes.len() == length && file.is_sound().await.ok()?).then_some(bytes)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Variant>() + self.tag.len() + self.message.borrow().len()
    }
}

/// The fields of the rules for a path, as text.
#[derive(Debug)]
pub(super) struct Ruled {
    pub(super) bytes: Vec<u8>,
    /// Where those begin that all answers have, errors included.
    pub(super) chosen_start: usize,
}

impl Ruled {
    pub(super) fn of(policy: &Policy<'_>) -> Ruled {
        let mut bytes = Vec::new();
        if let Some((name, value)) = policy.cache_control() {
            field(&mut bytes, name, value);
        }
        let chosen_start = bytes.len();
        policy.headers().iter().for_each(|(name, value)| field(&mut bytes, name, value));
        Ruled { bytes, chosen_start }
    }
}

/// The opaque part of the entity tag: when the file was modified, to the nanosecond, and its
/// length. It is the same on every machine that has the same copy.
///
/// A time in whole seconds that the kernel did not set says nothing: archives, container images and
/// package stores give all their files the same. Then the tag has the number of the file and the time of its
/// last change as well, which a program cannot set.
fn tag(version: &Metadata, coding: Coding) -> Vec<u8> {
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
    tag.into_bytes()
}
