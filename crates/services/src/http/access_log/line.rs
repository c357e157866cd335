//! The text of a line. A client's text stays within its field: quotes, backslashes, control
//! characters and, in the combined format, all bytes that are not ASCII are escaped.

use super::{LogFormat, WorkerLog};
use crate::http::Status;
use crate::http::answer::Call;
use crate::http::auth::Credentials;
use crate::http::date::Clock;
use crate::http::request::Request;
use crate::http::response::Reason;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

/// Longest part of a request line that is logged, in bytes; longer ones are cut.
const REQUEST_BYTES_MAX: usize = 4096;

/// The same for each of the header fields.
const FIELD_BYTES_MAX: usize = 1024;

/// The state of the connection after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Outcome {
    /// It stays.
    Stays,
    /// It ends behind this answer.
    Ends,
    /// It ended before all of the answer was handed over.
    Broken,
}

/// Who sent a request; a port of 0 is unknown.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Client {
    pub(in super::super) address: Option<IpAddr>,
    pub(in super::super) port: u16,
}

/// The text of a line so far: all that a request says. What is known of its answer comes between `text` and `rest`.
#[derive(Debug)]
pub(in super::super) struct LogLine {
    text: Vec<u8>,
    rest: Vec<u8>,
}

/// What a request says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said<'a> {
    /// The received request line, or its beginning; empty if there was none.
    pub(super) request: &'a [u8],
    /// It has three parts, and was understood.
    pub(super) is_valid: bool,
    pub(super) host: Option<&'a [u8]>,
    pub(super) user: Option<&'a [u8]>,
    pub(super) referer: Option<&'a [u8]>,
    pub(super) user_agent: Option<&'a [u8]>,
}

impl LogLine {
    /// Begins the line of a request with this first line, of which more is known if it could be read.
    pub(in super::super) fn begin(
        log: &WorkerLog,
        clock: &Clock,
        client: Client,
        line: &[u8],
        request: Option<&Request<'_>>,
    ) -> LogLine {
        let field = |name| request?.field(name);
        let credentials = field("authorization").and_then(Credentials::parse);
        let said = Said {
            request: line,
            is_valid: request.is_some(),
            host: request.and_then(Request::host),
            user: credentials.as_ref().map(Credentials::user),
            referer: field("referer"),
            user_agent: field("user-agent"),
        };
        LogLine::new(log.format(), clock, client, said)
    }

    pub(super) fn new(format: LogFormat, clock: &Clock, client: Client, said: Said<'_>) -> LogLine {
        let (mut text, mut rest) = (Vec::with_capacity(512), Vec::new());
        match format {
            LogFormat::Json => json(&mut text, clock, client, said),
            LogFormat::Combined => combined(&mut text, &mut rest, clock, client, said),
            LogFormat::VhostCombined => {
                quote(&mut text, said.host.filter(|host| !host.is_empty()), FIELD_BYTES_MAX);
                text.push(b' ');
                combined(&mut text, &mut rest, clock, client, said);
            }
        }
        LogLine { text, rest }
    }

    /// Adds the line to the log: with `bytes` that were handed over, `body_bytes` of them behind the head.
    pub(in super::super) fn end(
        self,
        log: &WorkerLog,
        status: u16,
        bytes: u64,
        body_bytes: u64,
        duration: Duration,
        outcome: Outcome,
    ) {
        let ended = Ended { status, bytes, body_bytes, duration, outcome, worker: log.worker };
        log.add(|text| self.write(log.format(), &ended, text));
    }

    pub(super) fn write(&self, format: LogFormat, ended: &Ended, text: &mut Vec<u8>) {
        let Ended { status, bytes, body_bytes, duration, outcome, worker } = ended;
        text.extend_from_slice(&self.text);
        let (secs, us) = (duration.as_secs(), duration.subsec_micros());
        // Writing into memory does not fail; the same holds below.
        let _written = match format {
            LogFormat::Json => {
                let outcome = match outcome {
                    Outcome::Stays => r#"true,"connection":"stays""#,
                    Outcome::Ends => r#"true,"connection":"ends""#,
                    Outcome::Broken => r#"false,"connection":"broken""#,
                };
                write!(
                    text,
                    "\"status\":{status},\"bytes\":{bytes},\"body_bytes\":{body_bytes},\
                     \"worker\":{worker},\"duration_s\":{secs}.{us:06},\"complete\":{outcome}}}"
                )
            }
            LogFormat::Combined | LogFormat::VhostCombined => {
                let _status = write!(text, "{status} {body_bytes}");
                text.extend_from_slice(&self.rest);
                let outcome = match outcome {
                    Outcome::Stays => '+',
                    Outcome::Ends => '-',
                    Outcome::Broken => 'X',
                };
                write!(text, "{secs}.{us:06} {outcome}")
            }
        };
        text.push(b'\n');
    }
}

/// How an exchange ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) body_bytes: u64,
    pub(super) duration: Duration,
    pub(super) outcome: Outcome,
    pub(super) worker: usize,
}

fn address(text: &mut Vec<u8>, client: Client) {
    let _written = match client.address {
        Some(address) => write!(text, "{}", address.to_canonical()),
        // A peer that has already left has none.
        None => write!(text, "-"),
    };
}

fn combined(text: &mut Vec<u8>, rest: &mut Vec<u8>, clock: &Clock, client: Client, said: Said<'_>) {
    address(text, client);
    text.extend_from_slice(b" - ");
    // A space would begin another field.
    quote_but(text, said.user.filter(|user| !user.is_empty()), FIELD_BYTES_MAX, |byte| {
        is_plain(byte) && byte != b' '
    });
    text.extend_from_slice(b" [");
    // From `Sun, 06 Nov 1994 08:49:37 GMT` to `06/Nov/1994:08:49:37 +0000`.
    let date = clock.date();
    for (part, separator) in [(5..7, b'/'), (8..11, b'/'), (12..16, b':'), (17..25, b' ')] {
        text.extend_from_slice(&date[part]);
        text.push(separator);
    }
    text.extend_from_slice(b"+0000] \"");
    quote(text, Some(said.request).filter(|request| !request.is_empty()), REQUEST_BYTES_MAX);
    text.extend_from_slice(b"\" ");
    rest.extend_from_slice(b" \"");
    quote(rest, said.referer, FIELD_BYTES_MAX);
    rest.extend_from_slice(b"\" \"");
    quote(rest, said.user_agent, FIELD_BYTES_MAX);
    rest.extend_from_slice(b"\" ");
}

fn json(text: &mut Vec<u8>, clock: &Clock, client: Client, said: Said<'_>) {
    text.extend_from_slice(b"{\"time\":\"");
    timestamp(text, clock);
    text.extend_from_slice(b"\",\"remote_address\":\"");
    address(text, client);
    let _written = write!(text, "\",\"remote_port\":{},", client.port);
    let (valid, malformed): (&[u8], &[u8]) = match said.is_valid {
        true => (said.request, b""),
        false => (b"", said.request),
    };
    let mut parts = valid.splitn(3, |byte| *byte == b' ');
    let mut part = || parts.next().filter(|part| !part.is_empty());
    for (name, value, max) in [
        ("method", part(), REQUEST_BYTES_MAX),
        ("target", part(), REQUEST_BYTES_MAX),
        ("protocol", part(), REQUEST_BYTES_MAX),
        ("malformed", Some(malformed).filter(|line| !line.is_empty()), REQUEST_BYTES_MAX),
        ("host", said.host, FIELD_BYTES_MAX),
        ("user", said.user, FIELD_BYTES_MAX),
        ("referer", said.referer, FIELD_BYTES_MAX),
        ("user_agent", said.user_agent, FIELD_BYTES_MAX),
    ] {
        let _written = write!(text, "\"{name}\":");
        json_string(text, value, max);
        text.push(b',');
    }
}

/// Why an answer is no success, without an end of line.
pub(super) fn error_line(
    clock: &Clock,
    status: Status,
    reason: Reason,
    call: &Call<'_, '_>,
) -> String {
    let mut text = Vec::new();
    timestamp(&mut text, clock);
    let _status = write!(text, " {} ", status.as_u16());
    address(&mut text, Client { address: call.client(), port: 0 });
    text.push(b' ');
    quote(&mut text, call.request.host().filter(|host| !host.is_empty()), FIELD_BYTES_MAX);
    text.extend_from_slice(b" \"");
    quote(&mut text, Some(call.request.path.as_bytes()), REQUEST_BYTES_MAX);
    let _reason = write!(text, "\": {reason}");
    // It is ASCII.
    String::from_utf8_lossy(&text).into_owned()
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

/// Appends a quoted field of the combined format, cut to `max` bytes; `-` for `None`.
fn quote(text: &mut Vec<u8>, value: Option<&[u8]>, max: usize) {
    quote_but(text, value, max, is_plain);
}

fn quote_but(text: &mut Vec<u8>, value: Option<&[u8]>, max: usize, is_plain: fn(u8) -> bool) {
    let Some(value) = value else { return text.push(b'-') };
    let mut rest = &value[..value.len().min(max)];
    while let Some(end) = rest.iter().position(|byte| !is_plain(*byte)) {
        text.extend_from_slice(&rest[..end]);
        let _written = write!(text, "\\x{:02X}", rest[end]);
        rest = &rest[end + 1..];
    }
    text.extend_from_slice(rest);
    text.extend_from_slice(if value.len() > max { b"..." } else { b"" });
}

/// Appends a JSON string, cut to `max` bytes, or `null`. Invalid UTF-8 is replaced. Control characters beyond those
/// that JSON requires are escaped as well: a terminal would execute them.
fn json_string(text: &mut Vec<u8>, value: Option<&[u8]>, max: usize) {
    let Some(value) = value else { return text.extend_from_slice(b"null") };
    let cut = &value[..value.len().min(max)];
    text.push(b'"');
    if cut.iter().all(|byte| is_plain(*byte)) {
        text.extend_from_slice(cut);
    } else {
        for character in String::from_utf8_lossy(cut).chars() {
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
    text.extend_from_slice(if value.len() > max { b"...\"" } else { b"\"" });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(said: Said<'_>, format: LogFormat, outcome: Outcome) -> String {
        let client = Client { address: "192.0.2.7".parse().ok(), port: 4711 };
        let duration = Duration::from_micros(1_000_042);
        let ended = Ended { status: 200, bytes: 300, body_bytes: 36, duration, outcome, worker: 1 };
        let mut text = Vec::new();
        LogLine::new(format, &Clock::new(), client, said).write(format, &ended, &mut text);
        String::from_utf8(text).unwrap()
    }

    fn said<'a>(request: &'a [u8], user_agent: &'a [u8]) -> Said<'a> {
        let host = Some(&b"example.org"[..]);
        Said { request, is_valid: true, host, user_agent: Some(user_agent), ..Said::default() }
    }

    #[test]
    fn combined_lines_have_the_fields_that_tools_expect() {
        let get = Said { user: Some(b"a b"), ..said(b"GET /a?b HTTP/1.1", b"curl/8") };
        let text = written(get, LogFormat::Combined, Outcome::Stays);
        let (begin, rest) = text.split_once(" [").unwrap();
        let (date, end) = rest.split_once("] ").unwrap();
        assert_eq!(begin, "192.0.2.7 - a\\x20b");
        assert_eq!(date.len(), "22/Nov/2026:03:25:01 +0000".len());
        assert_eq!(end, "\"GET /a?b HTTP/1.1\" 200 36 \"-\" \"curl/8\" 1.000042 +\n");
        let with_host = written(get, LogFormat::VhostCombined, Outcome::Stays);
        assert!(with_host.starts_with("example.org 192.0.2.7 - a"), "{with_host}");
        let text = written(said(b"", b""), LogFormat::Combined, Outcome::Broken);
        assert!(text.ends_with("] \"-\" 200 36 \"-\" \"\" 1.000042 X\n"), "{text}");
        let long = vec![b'x'; 10_000];
        let text = written(said(&long, &long), LogFormat::Combined, Outcome::Ends);
        assert!(text.len() < 5300 && text.contains("x...\" 200") && text.ends_with(" -\n"));
    }

    #[test]
    fn json_lines_take_the_request_apart() {
        let text = |said| written(said, LogFormat::Json, Outcome::Stays);
        let line = text(said(b"GET /a HTTP/1.0", "ü\u{9b}\"\\".as_bytes()));
        assert!(line.contains("\\u009b\\\"\\\\"), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["method"], "GET");
        assert_eq!((&value["target"], &value["protocol"]), (&"/a".into(), &"HTTP/1.0".into()));
        assert_eq!(
            (&value["user_agent"], &value["malformed"]),
            (&"ü\u{9b}\"\\".into(), &().into())
        );
        assert_eq!((&value["duration_s"], &value["bytes"]), (&1.000042.into(), &300.into()));
        assert_eq!((&value["connection"], &value["user"]), (&"stays".into(), &().into()));
        let time = value["time"].as_str().unwrap();
        assert_eq!((time.len(), &time[10..11], &time[23..]), (24, "T", "Z"), "{time}");
        let malformed = Said { is_valid: false, ..said(b"nonsense", b"") };
        let value: serde_json::Value = serde_json::from_str(&text(malformed)).unwrap();
        assert_eq!((&value["malformed"], &value["method"]), (&"nonsense".into(), &().into()));
    }

    proptest! {
        /// No client can inject a second line, end its field, or break the JSON.
        #[test]
        fn fields_cannot_be_broken_out_of(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let all = Said {
                referer: Some(&bytes), user: Some(&bytes), host: Some(&bytes), ..said(&bytes, &bytes)
            };
            let text = written(all, LogFormat::VhostCombined, Outcome::Stays);
            prop_assert!(text[..text.len() - 1].bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            prop_assert_eq!(text.matches('"').count(), 6);
            let text = written(all, LogFormat::Json, Outcome::Stays);
            prop_assert!(!text[..text.len() - 1].chars().any(char::is_control));
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let expected = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(value["user_agent"].as_str(), Some(&*expected));
        }
    }
}
