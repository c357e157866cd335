//! The head of an answer: its status, and the length of its content.

use super::answer::Part;
use crate::requests::Lost;
use std::mem::MaybeUninit;
use twinring_input::chunked::Chunked;

/// Longest head, the status line included.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

const FIELDS_MAX: usize = 128;

/// Bytes that are not an answer.
pub(super) fn malformed<T>(what: impl Into<String>) -> Result<T, Lost> {
    Err(Lost(|it| &mut it.malformed, what.into()))
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    /// What follows it (RFC 9112 section 6.3).
    pub(super) content: Part,
    /// Another answer may follow on the connection.
    pub(super) keep_alive: bool,
    pub(super) bytes: usize,
}

/// Parses the head at the beginning of `bytes`; `None` if it is incomplete. An answer `to_head` has no content.
pub(super) fn parse(bytes: &[u8], to_head: bool) -> Result<Option<Head>, Lost> {
    let mut fields = [MaybeUninit::uninit(); FIELDS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut response, bytes, &mut fields) {
        Ok(httparse::Status::Complete(length)) => of_response(&response, length, to_head).map(Some),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => malformed(format!("not a head of HTTP/1.x: {error}")),
    }
}

fn of_response(
    response: &httparse::Response<'_, '_>,
    bytes: usize,
    to_head: bool,
) -> Result<Head, Lost> {
    let (status, is_1_0) = (response.code.unwrap_or(0), response.version == Some(0));
    let (mut length, mut close, mut keep_alive) = (None, false, false);
    // The last transfer coding is `chunked`; `None` without Transfer-Encoding.
    let mut chunked = None;
    for field in response.headers.iter() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let stated = number(field.value)?;
            if length.is_some_and(|other| other != stated) {
                return malformed("two different Content-Length");
            }
            length = Some(stated);
        } else if is("transfer-encoding") {
            chunked = tokens(field.value).last().map(|last| last == b"chunked");
        } else if is("connection") {
            close |= tokens(field.value).any(|token| token == b"close");
            keep_alive |= tokens(field.value).any(|token| token == b"keep-alive");
        }
    }
    match status {
        101 => return malformed("101 Switching Protocols, which was not requested"),
        100..=999 => {}
        _ => return malformed(format!("status {status:03}")),
    }
    if chunked.is_some() && (length.is_some() || is_1_0) {
        // Recipients that read one field and those that read the other would see different answers.
        let beside = if is_1_0 { "in HTTP/1.0" } else { "beside Content-Length" };
        return malformed(format!("Transfer-Encoding {beside}"));
    }
    let content = match (chunked, length) {
        _ if to_head || status < 200 || status == 204 || status == 304 => Part::Length(0),
        (Some(true), _) => Part::Chunked(Chunked::default(), 0),
        (Some(false), _) | (None, None) => Part::UntilClose,
        (None, Some(length)) => Part::Length(length),
    };
    let stays = !close && (!is_1_0 || keep_alive);
    Ok(Head { status, keep_alive: stays && content != Part::UntilClose, content, bytes })
}

/// The members of a list, without case.
fn tokens(value: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    value.split(|byte| *byte == b',').map(|token| token.trim_ascii().to_ascii_lowercase())
}

fn number(value: &[u8]) -> Result<u64, Lost> {
    let digits = value.trim_ascii();
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(digits).ok().filter(|_| is_number);
    match number.and_then(|text| text.parse().ok()) {
        Some(number) => Ok(number),
        None => malformed(format!("Content-Length {:?}", String::from_utf8_lossy(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framing_follows_rfc_9112() {
        use Part::{Length, UntilClose};
        let chunked = Part::Chunked(Chunked::default(), 0);
        let cases = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n", Length(12), true),
            (
                "HTTP/1.1 200 OK\r\ncontent-length:12 \r\nConnection: Close\r\n\r\n",
                Length(12),
                false,
            ),
            ("HTTP/1.1 200\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", Length(5), true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n", chunked, true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", UntilClose, false),
            ("HTTP/1.1 200 OK\r\n\r\n", UntilClose, false),
            ("HTTP/1.1 204 No Content\r\n\r\n", Length(0), true),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", Length(0), true),
            ("HTTP/1.1 100 Continue\r\n\r\n", Length(0), true),
            ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", Length(1), false),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\n",
                Length(1),
                true,
            ),
        ];
        for (text, content, keep_alive) in cases {
            let head = parse(text.as_bytes(), false).unwrap().unwrap();
            assert_eq!((head.content, head.keep_alive), (content, keep_alive), "{text}");
            assert_eq!(head.bytes, text.len());
        }
        let to_head = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n", true);
        assert_eq!(to_head.unwrap().unwrap().content, Length(0));
    }

    #[test]
    fn heads_that_can_be_read_in_two_ways_are_refused() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "HTTP/1.1 099 Odd\r\n\r\n",
            "HTTP/2 200\r\n\r\n",
            "220 smtp.example ESMTP\r\n\r\n",
        ] {
            assert!(parse(text.as_bytes(), false).is_err(), "{text}");
        }
    }
}
