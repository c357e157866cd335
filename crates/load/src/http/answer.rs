//! Parses answers incrementally: only heads that arrive in several parts are copied.

use super::head::{self, Framing, HEAD_BYTES_MAX, Head, Malformed};
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

#[derive(Debug, Default)]
enum State {
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
    state: State,
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
    ) -> Result<(usize, Option<Answer>), Malformed> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            let (taken, ended) = match &mut self.state {
                // Empty content ends with its head.
                State::Length(0) => (0, true),
                _ if rest.is_empty() => return Ok((at, None)),
                State::Head => {
                    at += self.take_head(rest, now_ns, to_head)?;
                    continue;
                }
                State::Length(left) => {
                    let taken = (*left).min(rest.len() as u64);
                    *left -= taken;
                    content(&rest[..taken as usize]);
                    self.answer.content_bytes += taken;
                    (taken as usize, *left == 0)
                }
                State::Chunked(chunked, overhead_bytes) => {
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
                            false => Err(too_long("chunk framing", OVERHEAD_BYTES_MAX as usize)),
                        }
                    })?;
                    (taken, chunked.is_done())
                }
                State::UntilClose => {
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
        matches!(self.state, State::UntilClose).then(|| self.end())
    }

    fn end(&mut self) -> Answer {
        std::mem::take(self).answer
    }

    fn take_head(&mut self, bytes: &[u8], now_ns: u64, to_head: bool) -> Result<usize, Malformed> {
        let before = self.partial_head.len();
        if before == 0 {
            self.answer.first_byte_ns = now_ns;
            if let Some(head) = head::parse(bytes, to_head)? {
                self.head(head)?;
                return Ok(head.bytes);
            }
        }
        let room = HEAD_BYTES_MAX - before;
        self.partial_head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if before > 0
            && let Some(head) = head::parse(&self.partial_head, to_head)?
        {
            self.partial_head = Vec::new();
            self.head(head)?;
            return Ok(head.bytes - before);
        }
        match bytes.len() < room {
            true => Ok(bytes.len()),
            false => Err(too_long("head", HEAD_BYTES_MAX)),
        }
    }

    fn head(&mut self, head: Head) -> Result<(), Malformed> {
        self.answer.bytes += head.bytes as u64;
        if head.is_interim() {
            self.interim += 1;
            return match self.interim <= INTERIM_MAX {
                true => Ok(()),
                false => Err(Malformed(format!("more than {INTERIM_MAX} interim answers"))),
            };
        }
        self.answer.status = head.status;
        self.answer.keep_alive = head.keep_alive;
        self.state = match head.framing {
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunked::default(), 0),
            Framing::UntilClose => State::UntilClose,
        };
        Ok(())
    }
}

fn too_long(what: &str, most: usize) -> Malformed {
    Malformed(format!("more than {most} bytes of {what}"))
}

impl From<Invalid> for Malformed {
    fn from(Invalid { byte, part }: Invalid) -> Malformed {
        Malformed(format!("byte {byte:#04x} in {part}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fuzzing::answers as parse;
    use proptest::prelude::*;

    fn body(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + length) as u8).collect()
    }

    /// An answer in a server's format, and its content.
    fn answer() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let chunk = (1usize..300, 0usize..3);
        let interim = proptest::collection::vec(prop_oneof![Just(100u16), Just(103)], 0..3);
        let fields = prop_oneof![Just(""), Just("Server: x\r\nETag: \"1\"\r\n")];
        let shape = prop_oneof![
            (0usize..2000).prop_map(|length| (Some(length), Vec::new())),
            proptest::collection::vec(chunk, 0..6).prop_map(|chunks| (None, chunks)),
        ];
        (interim, fields, shape).prop_map(|(interim, fields, (length, chunks))| {
            let mut bytes = Vec::new();
            for status in interim {
                bytes.extend(format!("HTTP/1.1 {status} Interim\r\nLink: </x>\r\n\r\n").bytes());
            }
            let mut content = Vec::new();
            match length {
                Some(length) => {
                    content = body(length);
                    let head =
                        format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n");
                    bytes.extend(head.bytes());
                    bytes.extend(&content);
                }
                None => {
                    let head =
                        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{fields}\r\n");
                    bytes.extend(head.bytes());
                    for (length, kind) in chunks {
                        let extension = ["", " ; name\t= value;n", ";q=\"a;\\\" b\""][kind];
                        bytes.extend(format!("{length:x}{extension}\r\n").bytes());
                        bytes.extend(body(length));
                        bytes.extend(b"\r\n");
                        content.extend(body(length));
                    }
                    bytes.extend(b"0\r\nTrailer: field\r\n\r\n");
                }
            }
            (bytes, content)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// A stream of answers gives the same answers however it is split.
        #[test]
        fn any_cut_gives_the_same_answers(
            answers in proptest::collection::vec(answer(), 1..5),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bytes: Vec<u8> = answers.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
            let content: Vec<u8> = answers.iter().flat_map(|(_, content)| content.clone()).collect();
            let whole = parse([bytes.as_slice()], false, false);
            prop_assert!(!whole.failed && !whole.is_inside);
            prop_assert_eq!(&whole.content, &content);
            let expected: Vec<(u64, u64)> =
                answers.iter().map(|(b, c)| (b.len() as u64, c.len() as u64)).collect();
            let found: Vec<(u64, u64)> =
                whole.answers.iter().map(|a| (a.bytes, a.content_bytes)).collect();
            prop_assert_eq!(found, expected);
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
}
