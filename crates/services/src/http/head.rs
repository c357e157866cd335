//! The head of an answer as HTTP/1 has it, and answers of which it is kept ready.

use super::Status;
use super::date::{Clock, DATE_BYTES};
use super::response::{Body, Field, Response, reason_phrase};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use twinring::SendBuf;

/// The beginning of every answer with status 200.
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

/// A head.
fn write<'a>(
    status: Status,
    fields: impl Iterator<Item = &'a Field>,
    length: Option<u64>,
    clock: &Clock,
    persistence: Persistence,
) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    for part in [b"HTTP/1.1 ", status.as_str().as_bytes(), b" ", reason_phrase(status).as_bytes()] {
        head.extend_from_slice(part);
    }
    head.extend_from_slice(b"\r\nDate: ");
    head.extend_from_slice(&clock.date());
    head.extend_from_slice(b"\r\n");
    let connection: &[u8] = match persistence {
        Persistence::Stays => b"",
        Persistence::StaysFor1_0 => b"Connection: keep-alive\r\n",
        Persistence::Closes | Persistence::ClosesAsAsked => b"Connection: close\r\n",
    };
    head.extend_from_slice(connection);
    for (name, value) in fields {
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    if let Some(length) = length {
        head.extend_from_slice(b"Content-Length: ");
        head.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
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
        (Body::Bytes(bytes), _) => message.extend_from_slice(bytes),
        (Body::Of(variant), _) | (Body::Stored, Some(variant)) => {
            message.extend_from_slice(variant.ready.content().as_slice());
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
    /// With the part of its content that is in memory.
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

    /// All of it, dated today.
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

    pub(super) fn content(&self) -> SendBuf {
        let bytes = Rc::clone(&self.bytes.borrow());
        let range = self.head_end..bytes.len();
        SendBuf::shared(bytes, range)
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_answer_gets_the_present_date() {
        let clock = Clock::new();
        let ready = Ready::new([].iter(), 2, b"ab", &clock);
        let sent = ready.bytes(&clock);
        assert!(sent.starts_with(OK_START) && sent.ends_with(b"\r\n\r\nab"));
        assert_eq!(sent[OK_START.len()..][..DATE_BYTES], clock.date());
        ready.dated.set(0);
        // The one before is being sent.
        assert_eq!(ready.bytes(&clock), sent);
        assert_eq!((ready.content().as_slice(), ready.dated.get()), (&b"ab"[..], clock.second()));
    }
}
