//! From an answer of HTTP/1.1 to one of HTTP/2.

use crate::http::reply::Reply;
use bytes::Buf;
use http::{HeaderName, HeaderValue, Response, StatusCode, Version};
use std::ops::Range;
use std::rc::Rc;
use twinring::SendBuf;

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

/// The head of an answer: its status and its fields, but for those about the connection (RFC 9113
/// section 8.2.2).
pub(super) fn head_of(reply: &Reply) -> Response<()> {
    let head = &reply.message.as_slice()[..reply.head_bytes()];
    let mut response = Response::new(());
    *response.version_mut() = Version::HTTP_2;
    // All statuses of this service are valid ones.
    *response.status_mut() = StatusCode::from_u16(reply.status.code()).unwrap_or_default();
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"connection") {
            continue;
        }
        // Names and values were checked where they come from, so none is invalid.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            response.headers_mut().append(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::status::Status;

    #[test]
    fn an_answer_keeps_its_fields_but_for_those_of_the_connection() {
        let message = "HTTP/1.1 404 Not Found\r\nDate: x\r\nConnection: close\r\nX-Y: a: b\r\n\
                       x-y:\r\n\r\nbody: not a field\r\n";
        let response = head_of(&Reply::new(Status::NOT_FOUND, message));
        assert_eq!(response.status(), 404);
        let fields: Vec<_> = response.headers().iter().collect();
        let fields: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.as_bytes())).collect();
        assert_eq!(fields, [("date", &b"x"[..]), ("x-y", b"a: b"), ("x-y", b"")]);
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
