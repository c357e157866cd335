//! Entry points for the fuzz targets of `fuzz/`, and for tests. Not part of the interface.

pub use super::answer::Answer;

use super::answer::AnswerParser;

/// The result of parsing some bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The answers that were whole.
    pub answers: Vec<Answer>,
    /// The content of all answers, including an incomplete last one.
    pub content: Vec<u8>,
    /// The bytes were no answers.
    pub failed: bool,
    /// The bytes ended within an answer.
    pub is_inside: bool,
}

/// Parses bytes in these parts; with `ends`, the connection ends behind them.
pub fn answers<'a>(
    parts: impl IntoIterator<Item = &'a [u8]>,
    to_head: bool,
    ends: bool,
) -> Outcome {
    let (mut parser, mut outcome) = (AnswerParser::default(), Outcome::default());
    for mut part in parts {
        while !part.is_empty() {
            let content = &mut outcome.content;
            match parser.take(part, 1, to_head, |bytes| content.extend_from_slice(bytes)) {
                Ok((taken, answer)) => {
                    part = &part[taken..];
                    outcome.answers.extend(answer);
                }
                Err(_) => {
                    outcome.failed = true;
                    return outcome;
                }
            }
        }
    }
    if ends {
        outcome.answers.extend(parser.finish());
    }
    outcome.is_inside = parser.is_inside();
    outcome
}
