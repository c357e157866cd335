//! The head of an answer: its status, and the length of its content.
//!
//! A server's heads differ from one answer to the next only in the date. So the last head of a URL
//! is cached, and a head that equals it, byte by byte except for the date, has the same meaning:
//! comparing takes a tenth of the time of parsing.

use std::ops::Range;

/// Longest head, the status line included.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Most fields in a head.
const FIELDS_MAX: usize = 128;

/// Bytes that are not an answer, as a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

fn malformed<T>(what: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(what.into()))
}

/// How the content of an answer ends (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// After this many bytes.
    Length(u64),
    Chunked,
    /// With the connection.
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) framing: Framing,
    /// Another answer may follow on the connection.
    pub(super) keep_alive: bool,
    /// Length of the head itself.
    pub(super) bytes: usize,
}

impl Head {
    /// Another head follows for the same request.
    pub(super) fn is_interim(&self) -> bool {
        self.status < 200
    }
}

/// A head, and where its date is.
#[derive(Debug)]
struct Memory {
    bytes: Vec<u8>,
    date: Range<usize>,
    head: Head,
    to_head: bool,
}

/// Parses heads, and caches the last one.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    /// The next answer is to a HEAD request, and has no content.
    pub(super) to_head: bool,
    memory: Option<Memory>,
}

impl HeadReader {
    /// For answers to HEAD requests, or to others.
    pub(super) fn of(to_head: bool) -> HeadReader {
        HeadReader { to_head, memory: None }
    }

    /// Parses the head at the beginning of `bytes`; `None` if it is incomplete.
    ///
    /// # Errors
    /// When it is not a head of HTTP/1.x, or contradicts itself about its content.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<Head>, Malformed> {
        let memory = self.memory.as_ref().filter(|memory| memory.to_head == self.to_head);
        if let Some(head) = memory.and_then(|memory| memory.recognise(bytes)) {
            return Ok(Some(head));
        }
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let length = match response.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return malformed(format!("not a head of HTTP/1.x: {error}")),
        };
        let said = Said::of(&response)?;
        let head = said.head(length, self.to_head)?;
        // An interim head would only replace the cached one.
        if let Some(date) = said.date
            && !head.is_interim()
        {
            let start = date.as_ptr() as usize - bytes.as_ptr() as usize;
            let memory = self.memory.get_or_insert_with(|| Memory {
                bytes: Vec::new(),
                date: 0..0,
                head,
                to_head: false,
            });
            memory.to_head = self.to_head;
            memory.bytes.clear();
            memory.bytes.extend_from_slice(&bytes[..length]);
            (memory.date, memory.head) = (start..start + date.len(), head);
        }
        Ok(Some(head))
    }
}

impl Memory {
    /// The meaning of the head at the beginning of `bytes`, if it is the cached one with any date.
    fn recognise(&self, bytes: &[u8]) -> Option<Head> {
        let candidate = bytes.get(..self.bytes.len())?;
        let Range { start, end } = self.date;
        let equal = candidate[..start] == self.bytes[..start]
            && candidate[end..] == self.bytes[end..]
            // A line that ended here would make it a different head. Without an early exit from the
            // loop this takes a few vector instructions.
            && candidate[start..end].iter().fold(true, |all, byte| {
                all & (b' '..=b'~').contains(byte)
            });
        equal.then_some(self.head)
    }
}

/// The framing fields of a head.
struct Said<'a> {
    status: u16,
    is_1_0: bool,
    length: Option<u64>,
    /// The last transfer coding is `chunked`; `None` without Transfer-Encoding.
    chunked: Option<bool>,
    close: bool,
    keep_alive: bool,
    date: Option<&'a [u8]>,
}

impl<'a> Said<'a> {
    fn of(response: &httparse::Response<'_, 'a>) -> Result<Said<'a>, Malformed> {
        let mut said = Said {
            status: response.code.unwrap_or(0),
            is_1_0: response.version == Some(0),
            length: None,
            chunked: None,
            close: false,
            keep_alive: false,
            date: None,
        };
        for field in response.headers.iter() {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            if is("content-length") {
                let length = number(field.value)?;
                if said.length.is_some_and(|other| other != length) {
                    return malformed("two different Content-Length");
                }
                said.length = Some(length);
            } else if is("transfer-encoding") {
                said.chunked = tokens(field.value).last().map(|last| last == b"chunked");
            } else if is("connection") {
                said.close |= tokens(field.value).any(|token| token == b"close");
                said.keep_alive |= tokens(field.value).any(|token| token == b"keep-alive");
            } else if is("date") {
                said.date = Some(field.value);
            }
        }
        Ok(said)
    }

    fn head(&self, bytes: usize, to_head: bool) -> Result<Head, Malformed> {
        let Said { status, .. } = *self;
        match status {
            101 => return malformed("101 Switching Protocols, which was not requested"),
            100..=999 => {}
            _ => return malformed(format!("status {status:03}")),
        }
        if self.chunked.is_some() && (self.length.is_some() || self.is_1_0) {
            // Recipients that read one field and those that read the other would see different
            // answers.
            let beside = if self.is_1_0 { "in HTTP/1.0" } else { "beside Content-Length" };
            return malformed(format!("Transfer-Encoding {beside}"));
        }
        let framing = match (self.chunked, self.length) {
            _ if to_head || status < 200 || status == 204 || status == 304 => Framing::Length(0),
            (Some(true), _) => Framing::Chunked,
            (Some(false), _) | (None, None) => Framing::UntilClose,
            (None, Some(length)) => Framing::Length(length),
        };
        let stays = !self.close && (!self.is_1_0 || self.keep_alive);
        Ok(Head { status, framing, keep_alive: stays && framing != Framing::UntilClose, bytes })
    }
}

/// The members of a list, without case.
fn tokens(value: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    value.split(|byte| *byte == b',').map(|token| token.trim_ascii().to_ascii_lowercase())
}

fn number(value: &[u8]) -> Result<u64, Malformed> {
    let digits = value.trim_ascii();
    let wrong = || Malformed(format!("Content-Length {:?}", String::from_utf8_lossy(value)));
    if digits.is_empty() {
        return Err(wrong());
    }
    digits.iter().try_fold(0_u64, |number, byte| match byte {
        b'0'..=b'9' => number
            .checked_mul(10)
            .and_then(|number| number.checked_add(u64::from(byte - b'0')))
            .ok_or_else(wrong),
        _ => Err(wrong()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Head>, Malformed> {
        HeadReader::default().read(text.as_bytes())
    }

    fn head(text: &str) -> Head {
        read(text).unwrap().unwrap()
    }

    #[test]
    fn framing_follows_rfc_9112() {
        use Framing::{Chunked, Length, UntilClose};
        let cases = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n", Length(12), true),
            (
                "HTTP/1.1 200 OK\r\ncontent-length:12 \r\nConnection: Close\r\n\r\n",
                Length(12),
                false,
            ),
            ("HTTP/1.1 200\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", Length(5), true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n", Chunked, true),
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
        for (text, framing, keep_alive) in cases {
            let head = head(text);
            assert_eq!((head.framing, head.keep_alive), (framing, keep_alive), "{text}");
            assert_eq!(head.bytes, text.len());
        }
        // The same head means something else to another method.
        let dated = "HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 12\r\n\r\n";
        let mut reader = HeadReader::default();
        for (to_head, framing) in [(false, Length(12)), (true, Length(0)), (false, Length(12))] {
            reader.to_head = to_head;
            assert_eq!(reader.read(dated.as_bytes()).unwrap().unwrap().framing, framing);
        }
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
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_remembered_head_is_known_on_another_date_and_nothing_else_is() {
        let text = |date: &str, length: &str| {
            format!("HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {length}\r\n\r\n")
        };
        let (first, second) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Mon, 07 Nov 1994 08:49:37 GMT");
        let mut reader = HeadReader::default();
        let known = reader.read(text(first, "12").as_bytes()).unwrap();
        let memory = reader.memory.as_ref().unwrap();
        assert_eq!(memory.recognise(text(second, "12").as_bytes()), known);
        // With content behind it, too.
        assert_eq!(memory.recognise((text(second, "12") + "content").as_bytes()), known);
        for other in [text(second, "13"), text("Mon, 07 Nov\r\nContent-Length: 7\r\n", "12")] {
            assert_eq!(memory.recognise(other.as_bytes()), None, "{other}");
        }
        let whole = text(second, "12");
        for cut in 0..whole.len() {
            assert_eq!(memory.recognise(&whole.as_bytes()[..cut]), None);
        }
        let other = reader.read(text(second, "13").as_bytes()).unwrap().unwrap();
        assert_eq!(other.framing, Framing::Length(13));
    }
}
