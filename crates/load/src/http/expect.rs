//! The requirements of answers.

use super::answer::Answer;
use super::client::HttpLoad;
use super::settings::HttpSettings;
use crate::requests::Lost;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::OnceLock;

/// The status codes that count as success, such as `200,206` or `200-299,304`.
#[derive(Clone, Debug)]
pub struct Statuses {
    ranges: Vec<RangeInclusive<u16>>,
    pub(super) text: String,
}

impl FromStr for Statuses {
    type Err = String;

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
        let ranges = text.split(',').map(range).collect::<Result<_, _>>()?;
        Ok(Statuses { ranges, text: text.to_owned() })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    bytes: u64,
    crc: u32,
}

/// By URL; unless it is known, that of the first expected answer.
pub(super) fn contents(settings: &HttpSettings) -> Vec<OnceLock<Content>> {
    let content = |it: &Vec<u8>| Content { bytes: it.len() as u64, crc: crc32fast::hash(it) };
    let known = settings.expected.as_ref().map(content);
    settings.targets.iter().map(|_| known.map_or_else(OnceLock::new, OnceLock::from)).collect()
}

impl HttpLoad {
    /// Whether an answer of URL number `target`, with this CRC, is as expected.
    pub(super) fn check(&self, target: u32, answer: &Answer, crc: u32) -> Result<(), Lost> {
        let settings = &self.settings;
        let Answer { status, content_bytes: bytes, .. } = *answer;
        let Statuses { ranges, text } = &settings.expect_status;
        if !ranges.iter().any(|range| range.contains(&status)) {
            let what = format!("status {status}, expected {text}");
            return Err(Lost(|it| &mut it.status, what));
        }
        let length = |expected: u64| match bytes == expected {
            true => Ok(()),
            false => {
                let what = format!("{bytes} bytes of content, expected {expected}");
                Err(Lost(|it| &mut it.length, what))
            }
        };
        if let Some(expected) = settings.expect_length {
            return length(expected);
        }
        if settings.any_length {
            return Ok(());
        }
        let Some(known) = self.contents.get(target as usize) else { return Ok(()) };
        let expected = known.get_or_init(|| Content { bytes, crc });
        length(expected.bytes)?;
        if settings.verify_body.is_some() && crc != expected.crc {
            let wanted = expected.crc;
            let what =
                format!("{bytes} bytes of content with CRC {crc:08x}, expected {wanted:08x}");
            return Err(Lost(|it| &mut it.hash, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_codes_and_ranges() {
        for (text, code, fits) in [("200", 201, false), ("200-299,304", 304, true)] {
            let statuses: Statuses = text.parse().unwrap();
            assert_eq!(statuses.ranges.iter().any(|range| range.contains(&code)), fits, "{text}");
        }
        for wrong in ["", "2xx", "100", "600", "299-200", "200,"] {
            assert!(wrong.parse::<Statuses>().is_err(), "{wrong}");
        }
    }
}
