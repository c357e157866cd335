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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Status;

    #[test]
    fn an_answer_keeps_its_fields_in_lower_case() {
        let response = Response::message(Status::METHOD_NOT_ALLOWED)
            .with("X-Y", HeaderValue::from_static("a: b"))
            .with("x-y", HeaderValue::from_static(""));
        let head = head_of(&response, &Clock::new());
        assert_eq!(head.status(), 405);
        let fields: Vec<_> =
            head.headers().iter().map(|(n, v)| (n.as_str(), v.as_bytes())).collect();
        assert_eq!(fields[0].0, "date");
        let expected = [
            ("allow", &b"GET, HEAD, OPTIONS"[..]),
            ("content-type", b"text/plain; charset=utf-8"),
            ("x-y", b"a: b"),
            ("x-y", b""),
            ("content-length", b"23"),
        ];
        assert_eq!(fields[1..], expected);
    }

    #[test]
    fn a_chunk_is_read_in_parts() {
        let bytes = Rc::new(SendBuf::from("0123456789"));
        let mut chunk = Chunk::new(&bytes, 2..8);
        assert_eq!((chunk.remaining(), chunk.chunk()), (6, &b"234567"[..]));
        chunk.advance(4);
        assert_eq!(chunk.chunk(), b"67");
        chunk.advance(9);
        assert!(!chunk.has_remaining());
    }
}
