//! Parses answers incrementally: only heads that arrive in several parts are copied.

use crate::requests::Lost;
use std::mem::MaybeUninit;
use twinring_input::chunked::{Chunked, Event, Invalid};

/// Longest chunk extension; longest trailer section, with the extension of the last chunk.
const OVERHEAD_BYTES_MAX: u32 = 16 * 1024;

/// Most interim answers (1xx) before the final one.
const INTERIM_MAX: u32 = 100;

/// A whole answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// All its bytes, interim answers included.
    pub bytes: u64,
    /// Its content.
    pub content_bytes: u64,
    /// When the first byte of the final head arrived.
    pub first_byte_ns: u64,
    /// Another answer may follow on the connection.
    pub keep_alive: bool,
}

/// The part of an answer that comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Head,
    /// This many bytes of content remain.
    Length(u64),
    /// With the bytes of framing since the last content.
    Chunked(Chunked, u32),
    UntilClose,
}

#[derive(Debug, Default)]
pub(super) struct AnswerParser {
    part: Part,
    /// The beginning of an incomplete head.
    partial_head: Vec<u8>,
    answer: Answer,
    interim: u32,
}

impl AnswerParser {
    /// True if a part of an answer has arrived.
    pub(super) fn is_inside(&self) -> bool {
        self.answer.bytes > 0 || !self.partial_head.is_empty()
    }

    /// Parses bytes that arrived at `now_ns`, up to the end of the answer, and passes on the
    /// content. An answer `to_head` has none. Returns how many bytes it consumed, and the answer if it is complete.
    /// After an error the following answers cannot be separated.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        to_head: bool,
        mut content: impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Answer>), Lost> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            let (taken, ended) = match &mut self.part {
                // Empty content ends with its head.
                Part::Length(0) => (0, true),
                _ if rest.is_empty() => return Ok((at, None)),
                Part::Head => {
                    at += self.take_head(rest, now_ns, to_head)?;
                    continue;
                }
                Part::Length(left) => {
                    let taken = (*left).min(rest.len() as u64);
                    *left -= taken;
                    content(&rest[..taken as usize]);
                    self.answer.content_bytes += taken;
                    (taken as usize, *left == 0)
                }
                Part::Chunked(chunked, overhead_bytes) => {
                    let content_bytes = &mut self.answer.content_bytes;
                    let taken = chunked.take(rest, |event| {
                        match event {
                            Event::Chunk(_) => *overhead_bytes = 0,
                            Event::Content(part) => {
                                *content_bytes += part.len() as u64;
                                content(part);
                            }
                            Event::Overhead => *overhead_bytes += 1,
                        }
                        match *overhead_bytes <= OVERHEAD_BYTES_MAX {
                            true => Ok(()),
                            false => too_long("chunk framing", OVERHEAD_BYTES_MAX as usize),
                        }
                    })?;
                    (taken, chunked.is_done())
                }
                Part::UntilClose => {
                    content(rest);
                    self.answer.content_bytes += rest.len() as u64;
                    (rest.len(), false)
                }
            };
            at += taken;
            self.answer.bytes += taken as u64;
            if ended {
                return Ok((at, Some(self.end())));
            }
        }
    }

    /// The connection has ended, which is where some answers do.
    pub(super) fn finish(&mut self) -> Option<Answer> {
        matches!(self.part, Part::UntilClose).then(|| self.end())
    }

    fn end(&mut self) -> Answer {
        std::mem::take(self).answer
    }

    fn take_head(&mut self, bytes: &[u8], now_ns: u64, to_head: bool) -> Result<usize, Lost> {
        let before = self.partial_head.len();
        if before == 0 {
            self.answer.first_byte_ns = now_ns;
            if let Some(head) = parse_head(bytes, to_head)? {
                self.head(head)?;
                return Ok(head.bytes);
            }
        }
        let room = HEAD_BYTES_MAX - before;
        self.partial_head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if before > 0
            && let Some(head) = parse_head(&self.partial_head, to_head)?
        {
            self.partial_head = Vec::new();
            self.head(head)?;
            return Ok(head.bytes - before);
        }
        match bytes.len() < room {
            true => Ok(bytes.len()),
            false => too_long("head", HEAD_BYTES_MAX),
        }
    }

    fn head(&mut self, head: Head) -> Result<(), Lost> {
        self.answer.bytes += head.bytes as u64;
        if head.status < 200 {
            self.interim += 1;
            return match self.interim <= INTERIM_MAX {
                true => Ok(()),
                false => malformed(format!("more than {INTERIM_MAX} interim answers")),
            };
        }
        self.answer.status = head.status;
        self.answer.keep_alive = head.keep_alive;
        self.part = head.content;
        Ok(())
    }
}

fn too_long<T>(what: &str, most: usize) -> Result<T, Lost> {
    malformed(format!("more than {most} bytes of {what}"))
}

impl From<Invalid> for Lost {
    fn from(Invalid { byte, part }: Invalid) -> Lost {
        Lost(|it| &mut it.malformed, format!("byte {byte:#04x} in {part}"))
    }
}

/// Longest head, the status line included.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

const FIELDS_MAX: usize = 128;

/// Bytes that are not an answer.
fn malformed<T>(what: impl Into<String>) -> Result<T, Lost> {
    Err(Lost(|it| &mut it.malformed, what.into()))
}

#[derive(Clone, Copy, Debug)]
struct Head {
    status: u16,
    /// What follows it (RFC 9112 section 6.3).
    content: Part,
    /// Another answer may follow on the connection.
    keep_alive: bool,
    bytes: usize,
}

/// Parses the head at the beginning of `bytes`; `None` if it is incomplete. An answer `to_head` has no content.
fn parse_head(bytes: &[u8], to_head: bool) -> Result<Option<Head>, Lost> {
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
    use crate::http::fuzzing::answers as parse;
    use proptest::prelude::*;

    /// Answers as servers send them, and their content.
    const ANSWERS: [(&str, &str); 5] = [
        ("HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello", "hello"),
        (
            "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
             HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno",
            "no",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10 ; name\t= value;n\r\n\
             0123456789abcdef\r\n1;q=\"a;\\\" b\"\r\n!\r\n0\r\nTrailer: field\r\n\r\n",
            "0123456789abcdef!",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ""),
    ];

    proptest! {
        /// A stream of answers gives the same answers however it is split.
        #[test]
        fn any_cut_gives_the_same_answers(
            kinds in proptest::collection::vec(0..ANSWERS.len(), 1..5),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let sent = || kinds.iter().map(|kind| ANSWERS[*kind]);
            let bytes = sent().map(|(bytes, _)| bytes).collect::<String>().into_bytes();
            let whole = parse([bytes.as_slice()], false, false);
            prop_assert!(!whole.failed && !whole.is_inside);
            let content: String = sent().map(|(_, content)| content).collect();
            prop_assert_eq!(&whole.content, content.as_bytes());
            let expected = sent().map(|(bytes, it)| (bytes.len() as u64, it.len() as u64));
            let found = whole.answers.iter().map(|it| (it.bytes, it.content_bytes));
            prop_assert!(found.eq(expected));
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            prop_assert_eq!(parse(parts, false, false), whole);
        }
    }

    #[test]
    fn heads_and_chunk_extensions_have_a_longest_length() {
        let head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n", "x".repeat(HEAD_BYTES_MAX));
        let extension = format!("5;{}", "x".repeat(20_000));
        let chunk = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{extension}");
        for long in [head, chunk] {
            for parts in [vec![long.as_bytes()], long.as_bytes().chunks(1000).collect()] {
                assert!(parse(parts, false, false).failed);
            }
        }
    }

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
            let head = parse_head(text.as_bytes(), false).unwrap().unwrap();
            assert_eq!((head.content, head.keep_alive), (content, keep_alive), "{text}");
            assert_eq!(head.bytes, text.len());
        }
        let to_head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n", true);
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
            assert!(parse_head(text.as_bytes(), false).is_err(), "{text}");
        }
    }
}
