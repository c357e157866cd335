//! Entry points for the fuzz targets of `fuzz/`. Not part of the interface.

use super::answer::{Answer, AnswerParser};
use super::chunked::Chunks;
use super::head::HeadReader;
use super::target::{Request, Target};

/// An answer that was whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its status.
    pub status: u16,
    /// All its bytes.
    pub bytes: u64,
    /// Its content.
    pub content_bytes: u64,
    /// Another may follow.
    pub keep_alive: bool,
}

/// The result of parsing some bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The answers that were whole.
    pub answers: Vec<Seen>,
    /// The content of all answers, including an incomplete last one.
    pub content: Vec<u8>,
    /// The bytes were no answers.
    pub failed: bool,
    /// The bytes ended within an answer.
    pub is_inside: bool,
}

/// Parses `bytes` in chunks of `step` bytes; with `ends`, the connection ends behind them.
pub fn answers(bytes: &[u8], step: usize, to_head: bool, ends: bool) -> Outcome {
    let mut parser = AnswerParser::new();
    let mut heads = HeadReader::of(to_head);
    let mut outcome = Outcome::default();
    for mut part in bytes.chunks(step.max(1)) {
        while !part.is_empty() {
            let content = &mut outcome.content;
            match parser.take(part, 1, &mut heads, |bytes| content.extend_from_slice(bytes)) {
                Ok((taken, answer)) => {
                    part = &part[taken..];
                    outcome.answers.extend(answer.map(seen));
                }
                Err(_) => {
                    outcome.failed = true;
                    return outcome;
                }
            }
        }
    }
    if ends {
        outcome.answers.extend(parser.finish().map(seen));
    }
    outcome.is_inside = parser.is_inside();
    outcome
}

fn seen(answer: Answer) -> Seen {
    let Answer { status, bytes, content_bytes, keep_alive, .. } = answer;
    Seen { status, bytes, content_bytes, keep_alive }
}

/// The end of chunked content, if it ends, and the content; `None` if it is malformed.
pub fn chunked(bytes: &[u8]) -> Option<(Option<usize>, Vec<u8>)> {
    let mut content = Vec::new();
    let (taken, ended) =
        Chunks::default().take(bytes, |part| content.extend_from_slice(part)).ok()?;
    Some((ended.then_some(taken), content))
}

/// The bytes that are sent for a URL.
pub fn request_bytes(request: &Request, target: &Target, keepalive: bool) -> Vec<u8> {
    target.clone().asking(request.clone()).bytes(keepalive)
}
