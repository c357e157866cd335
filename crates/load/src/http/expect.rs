//! The requirements of answers.

use super::answer::Answer;
use super::settings::Settings;
use crate::recorder::Trouble;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::OnceLock;

/// The status codes that count as success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(Vec<RangeInclusive<u16>>);

impl Default for Statuses {
    /// The statuses from 200 to 299.
    fn default() -> Statuses {
        Statuses(vec![200..=299])
    }
}

impl FromStr for Statuses {
    type Err = String;

    /// Codes and ranges with commas, such as `200,206` or `200-299,304`.
    fn from_str(text: &str) -> Result<Statuses, String> {
        let code = |text: &str| text.trim().parse().ok().filter(|code| (200..=599).contains(code));
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (code(first), code(last)) {
                (Some(first), Some(last)) if first <= last => Ok(first..=last),
                _ => {
                    Err(format!("`{part}` is neither a status from 200 to 599 nor a range of them"))
                }
            }
        };
        text.split(',').map(range).collect::<Result<_, _>>().map(Statuses)
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match range.start() == range.end() {
                true => write!(f, "{comma}{}", range.start())?,
                false => write!(f, "{comma}{}-{}", range.start(), range.end())?,
            }
        }
        Ok(())
    }
}

/// The expected length of an answer's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpectedLength {
    /// The first expected answer of the same URL.
    #[default]
    First,
    /// This many bytes.
    Bytes(u64),
    /// Any length.
    Any,
}

/// The expected content of an answer, by length and CRC-32.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExpectedBody {
    /// Any content.
    #[default]
    Any,
    /// The first expected answer of the same URL.
    First,
    /// These bytes.
    Bytes(Vec<u8>),
}

/// The known properties of an answer's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    bytes: u64,
    crc: u32,
}

/// The requirements of answers, shared by all threads.
#[derive(Debug)]
pub(super) struct Expectation {
    statuses: Statuses,
    length: ExpectedLength,
    /// Compare the content, not only its length.
    pub(super) verify_body: bool,
    /// By URL.
    content: Vec<OnceLock<Content>>,
}

impl Expectation {
    pub(super) fn new(settings: &Settings) -> Expectation {
        let known = match &settings.body {
            ExpectedBody::Bytes(bytes) => {
                Some(Content { bytes: bytes.len() as u64, crc: crc32fast::hash(bytes) })
            }
            _ => None,
        };
        let lock = |_| known.map_or_else(OnceLock::new, OnceLock::from);
        Expectation {
            statuses: settings.statuses.clone(),
            length: settings.length,
            verify_body: settings.body != ExpectedBody::Any,
            content: settings.targets.iter().map(lock).collect(),
        }
    }

    /// Whether an answer of URL number `target`, with this CRC, is as expected.
    pub(super) fn check(
        &self,
        target: u32,
        answer: &Answer,
        crc: u32,
    ) -> Result<(), (Trouble, String)> {
        let Answer { status, content_bytes: bytes, .. } = *answer;
        if !self.statuses.0.iter().any(|range| range.contains(&status)) {
            let what = format!("status {status}, expected {}", self.statuses);
            return Err((Trouble::Status, what));
        }
        let length = |expected: u64| match bytes == expected {
            true => Ok(()),
            false => {
                let what = format!("{bytes} bytes of content, expected {expected}");
                Err((Trouble::Length, what))
            }
        };
        if let ExpectedLength::Bytes(expected) = self.length {
            length(expected)?;
        }
        if self.length != ExpectedLength::First && !self.verify_body {
            return Ok(());
        }
        let Some(known) = self.content.get(target as usize) else { return Ok(()) };
        let expected = known.get_or_init(|| Content { bytes, crc });
        length(expected.bytes)?;
        if self.verify_body && crc != expected.crc {
            let wanted = expected.crc;
            let what =
                format!("{bytes} bytes of content with CRC {crc:08x}, expected {wanted:08x}");
            return Err((Trouble::Hash, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_written_as_they_are_read() {
        for text in ["200", "200-299", "200,206", "200-299,304,404-410"] {
            assert_eq!(text.parse::<Statuses>().unwrap().to_string(), text);
        }
        for wrong in ["", "2xx", "100", "600", "299-200", "200,"] {
            assert!(wrong.parse::<Statuses>().is_err(), "{wrong}");
        }
    }
}
