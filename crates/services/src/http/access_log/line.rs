//! The text of a line. A client's text stays within its field: quotes, backslashes, control
//! characters and, in the combined format, all bytes that are not ASCII are escaped.

use super::LogFormat;
use crate::http::date::Clock;
use crate::http::response::number;
use std::io::Write;
use std::time::Duration;

/// The state of the connection after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It stays.
    Stays,
    /// It ends behind this answer.
    Ends,
    /// It ended before all of the answer was handed over.
    Broken,
}

/// The content of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    /// Address and port of the client.
    pub(super) peer: &'a str,
    pub(super) port: u16,
    /// The received request line, or its beginning; empty if there was none.
    pub(super) request: &'a [u8],
    /// It has three parts, and was understood.
    pub(super) is_valid: bool,
    pub(super) host: Option<&'a [u8]>,
    pub(super) referer: Option<&'a [u8]>,
    pub(super) user_agent: Option<&'a [u8]>,
    pub(super) status: u16,
    /// Handed over for sending, the head included.
    pub(super) bytes: u64,
    /// Bytes behind the head.
    pub(super) body_bytes: u64,
    pub(super) duration: Duration,
    pub(super) outcome: Outcome,
    pub(super) worker: usize,
}

impl Line<'_> {
    /// Appends the line, LF included. It is dated now.
    pub(super) fn write(&self, format: LogFormat, clock: &Clock, text: &mut Vec<u8>) {
        match format {
            LogFormat::Combined => self.write_combined(clock, text),
            LogFormat::Json => self.write_json(clock, text),
        }
        text.push(b'\n');
    }

    fn write_combined(&self, clock: &Clock, text: &mut Vec<u8>) {
        text.extend_from_slice(self.peer.as_bytes());
        text.extend_from_slice(b" - - [");
        // From `Sun, 06 Nov 1994 08:49:37 GMT` to `06/Nov/1994:08:49:37 +0000`.
        let date = clock.date();
        for (part, separator) in [(5..7, b'/'), (8..11, b'/'), (12..16, b':'), (17..25, b' ')] {
            text.extend_from_slice(&date[part]);
            text.push(separator);
        }
        text.extend_from_slice(b"+0000] \"");
        quote(text, Some(self.request).filter(|request| !request.is_empty()));
        text.extend_from_slice(b"\" ");
        number(text, u64::from(self.status));
        text.push(b' ');
        number(text, self.body_bytes);
        text.extend_from_slice(b" \"");
        quote(text, self.referer);
        text.extend_from_slice(b"\" \"");
        quote(text, self.user_agent);
        text.extend_from_slice(b"\" ");
        seconds(text, self.duration);
        text.extend_from_slice(match self.outcome {
            Outcome::Stays => b" +",
            Outcome::Ends => b" -",
            Outcome::Broken => b" X",
        });
    }

    fn write_json(&self, clock: &Clock, text: &mut Vec<u8>) {
        text.extend_from_slice(b"{\"time\":\"");
        timestamp(text, clock);
        text.extend_from_slice(b"\",\"remote_address\":\"");
        text.extend_from_slice(self.peer.as_bytes());
        text.extend_from_slice(b"\",\"remote_port\":");
        number(text, u64::from(self.port));
        let (valid, malformed): (&[u8], &[u8]) = match self.is_valid {
            true => (self.request, b""),
            false => (b"", self.request),
        };
        let mut parts = valid.splitn(3, |byte| *byte == b' ');
        let mut part = || parts.next().filter(|part| !part.is_empty());
        for (name, value) in [
            ("method", part()),
            ("target", part()),
            ("protocol", part()),
            ("malformed", Some(malformed).filter(|line| !line.is_empty())),
            ("host", self.host),
            ("referer", self.referer),
            ("user_agent", self.user_agent),
        ] {
            text.extend_from_slice(b",\"");
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b"\":");
            json_string(text, value);
        }
        for (name, value) in [
            ("status", u64::from(self.status)),
            ("bytes", self.bytes),
            ("body_bytes", self.body_bytes),
            ("worker", self.worker as u64),
        ] {
            text.extend_from_slice(b",\"");
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b"\":");
            number(text, value);
        }
        text.extend_from_slice(b",\"duration_s\":");
        seconds(text, self.duration);
        text.extend_from_slice(match self.outcome {
            Outcome::Stays => b",\"complete\":true,\"connection\":\"stays\"}",
            Outcome::Ends => b",\"complete\":true,\"connection\":\"ends\"}",
            Outcome::Broken => b",\"complete\":false,\"connection\":\"broken\"}",
        });
    }
}

/// Seconds with six decimals.
fn seconds(text: &mut Vec<u8>, duration: Duration) {
    number(text, duration.as_secs());
    text.push(b'.');
    text.extend_from_slice(&digits::<6>(duration.subsec_micros()));
}

/// The last `N` digits of a number, with zeros in front.
fn digits<const N: usize>(mut value: u32) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit += (value % 10) as u8;
        value /= 10;
    }
    digits
}

/// The time as RFC 3339 writes it, to the millisecond.
fn timestamp(text: &mut Vec<u8>, clock: &Clock) {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let date = clock.date();
    let month = MONTHS.chunks(3).position(|month| *month == date[8..11]).unwrap_or(0) + 1;
    text.extend_from_slice(&date[12..16]);
    text.push(b'-');
    text.extend_from_slice(&digits::<2>(month as u32));
    text.push(b'-');
    text.extend_from_slice(&date[5..7]);
    text.push(b'T');
    text.extend_from_slice(&date[17..25]);
    text.push(b'.');
    text.extend_from_slice(&digits::<3>(clock.millisecond()));
    text.push(b'Z');
}

/// True for bytes that need no escape in either format.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')
}

/// Appends a quoted field of the combined format; `-` for `None`.
fn quote(text: &mut Vec<u8>, value: Option<&[u8]>) {
    let Some(mut value) = value else { return text.push(b'-') };
    while let Some(end) = value.iter().position(|byte| !is_plain(*byte)) {
        text.extend_from_slice(&value[..end]);
        // Writing into memory does not fail.
        let _written = write!(text, "\\x{:02X}", value[end]);
        value = &value[end + 1..];
    }
    text.extend_from_slice(value);
}

/// Appends a JSON string, or `null`. Invalid UTF-8 is replaced. Control characters beyond those
/// that JSON requires are escaped as well: a terminal would execute them.
fn json_string(text: &mut Vec<u8>, value: Option<&[u8]>) {
    let Some(value) = value else { return text.extend_from_slice(b"null") };
    text.push(b'"');
    if value.iter().all(|byte| is_plain(*byte)) {
        text.extend_from_slice(value);
    } else {
        for character in String::from_utf8_lossy(value).chars() {
            match character {
                '"' | '\\' => text.extend_from_slice(&[b'\\', character as u8]),
                // All of them are below U+00A0.
                _ if character.is_control() => {
                    let _written = write!(text, "\\u{:04x}", u32::from(character));
                }
                _ => {
                    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
        }
    }
    text.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line<'a>(request: &'a [u8], user_agent: &'a [u8]) -> Line<'a> {
        Line {
            peer: "192.0.2.7",
            port: 4711,
            request,
            is_valid: true,
            host: Some(b"example.org"),
            referer: None,
            user_agent: Some(user_agent),
            status: 200,
            bytes: 300,
            body_bytes: 36,
            duration: Duration::from_micros(1_000_042),
            outcome: Outcome::Stays,
            worker: 1,
        }
    }

    fn written(line: Line<'_>, format: LogFormat) -> String {
        let mut text = Vec::new();
        line.write(format, &Clock::new(), &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn combined_lines_have_the_fields_that_tools_expect() {
        let text = written(line(b"GET /a?b HTTP/1.1", b"curl/8"), LogFormat::Combined);
        let (begin, rest) = text.split_once(" [").unwrap();
        let (date, end) = rest.split_once("] ").unwrap();
        assert_eq!(begin, "192.0.2.7 - -");
        assert_eq!(date.len(), "22/Nov/2026:03:25:01 +0000".len());
        assert_eq!(end, "\"GET /a?b HTTP/1.1\" 200 36 \"-\" \"curl/8\" 1.000042 +\n");
        let broken = Line { request: b"", outcome: Outcome::Broken, ..line(b"", b"") };
        let text = written(broken, LogFormat::Combined);
        assert!(text.ends_with("] \"-\" 200 36 \"-\" \"\" 1.000042 X\n"), "{text}");
    }

    #[test]
    fn json_lines_take_the_request_apart() {
        let text = written(line(b"GET /a HTTP/1.0", "ü\u{9b}\"\\".as_bytes()), LogFormat::Json);
        assert!(text.contains("\\u009b\\\"\\\\"), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["method"], "GET");
        assert_eq!((&value["target"], &value["protocol"]), (&"/a".into(), &"HTTP/1.0".into()));
        assert_eq!(
            (&value["user_agent"], &value["malformed"]),
            (&"ü\u{9b}\"\\".into(), &().into())
        );
        assert_eq!((&value["duration_s"], &value["bytes"]), (&1.000042.into(), &300.into()));
        let time = value["time"].as_str().unwrap();
        assert_eq!((time.len(), &time[10..11], &time[23..]), (24, "T", "Z"), "{time}");
        let malformed = Line { is_valid: false, ..line(b"nonsense", b"") };
        let value: serde_json::Value =
            serde_json::from_str(&written(malformed, LogFormat::Json)).unwrap();
        assert_eq!((&value["malformed"], &value["method"]), (&"nonsense".into(), &().into()));
    }

    proptest! {
        /// No client can inject a second line, end its field, or break the JSON.
        #[test]
        fn fields_cannot_be_broken_out_of(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let line = Line { referer: Some(&bytes), ..line(&bytes, &bytes) };
            let text = written(line, LogFormat::Combined);
            prop_assert!(text[..text.len() - 1].bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            prop_assert_eq!(text.matches('"').count(), 6);
            let text = written(line, LogFormat::Json);
            prop_assert!(!text[..text.len() - 1].chars().any(char::is_control));
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let expected = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(value["user_agent"].as_str(), Some(&*expected));
        }
    }
}
