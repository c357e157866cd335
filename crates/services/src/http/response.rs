//! Heads of answers, and the short bodies of errors.

use super::date::{Clock, DATE_BYTES};
use super::status::Status;

/// The position of the date in the head of a prerendered 200.
pub(super) const DATE_START: usize = OK_START.len();
/// Where the fields begin behind it.
pub(super) const FIELDS_START: usize = DATE_START + DATE_BYTES + 2;
/// The beginning of every answer with status 200.
pub(super) const OK_START: &[u8] = b"HTTP/1.1 200 OK\r\nDate: ";

/// All methods for a file.
const ALLOW: &str = "GET, HEAD, OPTIONS";

/// Seconds after which a client should retry a request that failed for lack of resources.
const RETRY_AFTER_S: &str = "1";

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

/// Begins a head: status, date, and the fate of the connection.
pub(super) fn begin(status: Status, clock: &Clock, persistence: Persistence) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    head.extend_from_slice(b"HTTP/1.1 ");
    number(&mut head, u64::from(status.code()));
    head.push(b' ');
    head.extend_from_slice(status.reason().as_bytes());
    head.extend_from_slice(b"\r\nDate: ");
    head.extend_from_slice(&clock.date());
    head.extend_from_slice(b"\r\n");
    match persistence {
        Persistence::Stays => {}
        Persistence::StaysFor1_0 => field(&mut head, "Connection", "keep-alive"),
        Persistence::Closes | Persistence::ClosesAsAsked => field(&mut head, "Connection", "close"),
    }
    head
}

/// Appends a header field.
pub(super) fn field(head: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, ": ", value, "\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
}

/// Appends `Content-Length`.
pub(super) fn content_length(head: &mut Vec<u8>, length: u64) {
    head.extend_from_slice(b"Content-Length: ");
    number(head, length);
    head.extend_from_slice(b"\r\n");
}

/// Appends a number.
pub(super) fn number(text: &mut Vec<u8>, value: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends the fields that a status needs.
pub(super) fn required_fields(head: &mut Vec<u8>, status: Status) {
    match status {
        Status::METHOD_NOT_ALLOWED | Status::NO_CONTENT => field(head, "Allow", ALLOW),
        Status::UNAVAILABLE | Status::TOO_MANY_REQUESTS => {
            field(head, "Retry-After", RETRY_AFTER_S);
        }
        _ => {}
    }
}

/// A complete answer of which the body is only the status, with further `fields`. An answer to HEAD
/// has the head only.
pub(super) fn message(
    status: Status,
    fields: &[(&str, &str)],
    clock: &Clock,
    persistence: Persistence,
    to_head: bool,
) -> Vec<u8> {
    let mut message = begin(status, clock, persistence);
    required_fields(&mut message, status);
    fields.iter().for_each(|(name, value)| field(&mut message, name, value));
    // RFC 9110 section 8.6: no length with 204.
    if status == Status::NO_CONTENT {
        message.extend_from_slice(b"\r\n");
        return message;
    }
    let reason = status.reason();
    field(&mut message, "Content-Type", "text/plain; charset=utf-8");
    // The code, a space, and LF.
    content_length(&mut message, reason.len() as u64 + 5);
    message.extend_from_slice(b"\r\n");
    if !to_head {
        number(&mut message, u64::from(status.code()));
        message.push(b' ');
        message.extend_from_slice(reason.as_bytes());
        message.push(b'\n');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_announced_length() {
        let clock = Clock::new();
        for status in [Status::NOT_FOUND, Status::METHOD_NOT_ALLOWED, Status::UNAVAILABLE] {
            let text = message(status, &[("X", "y")], &clock, Persistence::Closes, false);
            let text = String::from_utf8(text).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{text}");
            assert!(head.contains("\r\nConnection: close") && head.contains("\r\nX: y"), "{text}");
            assert_eq!(body, format!("{} {}\n", status.code(), status.reason()));
            let head_only = message(status, &[("X", "y")], &clock, Persistence::Closes, true);
            assert_eq!(head_only, format!("{head}\r\n\r\n").into_bytes());
        }
    }

    #[test]
    fn the_date_of_a_200_stands_where_the_constants_say() {
        let clock = Clock::new();
        let head = begin(Status::OK, &clock, Persistence::Stays);
        assert!(head.starts_with(OK_START));
        assert_eq!(head[DATE_START..DATE_START + DATE_BYTES], clock.date());
        assert_eq!(head.len(), FIELDS_START);
    }
}
