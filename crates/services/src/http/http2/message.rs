//! Heads and content of answers as the h2 crate takes them.

use crate::http::date::Clock;
use crate::http::response::Response;
use bytes::Buf;
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderName, HeaderValue, Version};
use std::ops::Range;
use std::rc::Rc;
use twinring::SendBuf;

const EMPTY: HeaderValue = HeaderValue::from_static("");

/// A part of bytes that several frames share.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Rc<SendBuf>,
    range: Range<usize>,
}

impl Chunk {
    pub(super) fn new(bytes: &Rc<SendBuf>, range: Range<usize>) -> Chunk {
        Chunk { bytes: Rc::clone(bytes), range }
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.range.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes.as_slice()[self.range.clone()]
    }

    fn advance(&mut self, bytes: usize) {
        self.range.start = (self.range.start + bytes).min(self.range.end);
    }
}

/// The head of an answer, with the fields that all have.
pub(super) fn head_of(response: &Response, clock: &Clock) -> http::Response<()> {
    let mut head = http::Response::new(());
    *head.version_mut() = Version::HTTP_2;
    *head.status_mut() = response.status;
    let fields = head.headers_mut();
    fields.insert(DATE, HeaderValue::from_bytes(&clock.date()).unwrap_or(EMPTY));
    for (name, value) in response.fields() {
        // Names were checked where they come from, so none is invalid.
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            fields.append(name, value.clone());
        }
    }
    if let Some(length) = response.length {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    head
}

/// The bytes of these fields as HTTP/1.1 has them, by which logs of both protocols can be compared.
pub(super) fn head_bytes(head: &http::Response<()>) -> usize {
    let fields = head.headers().iter();
    fields.map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + 2
}
