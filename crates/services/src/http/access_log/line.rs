//! The text of a line. A client's text stays within its field: quotes, backslashes, control
//! characters and, in the combined format, all bytes that are not ASCII are escaped.

use crate::http::Status;
use crate::http::answer::Call;
use crate::http::date::Clock;
use crate::http::response::Reason;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::{self, Display, Write};
use std::net::IpAddr;

/// Longest part of a request line that is logged, in bytes; longer ones are cut.
const REQUEST_BYTES_MAX: usize = 4096;

const FIELD_BYTES_MAX: usize = 1024;

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// The format that is called so, followed by the seconds that the request took and `+`, `-`
    /// or `X`: the connection stays, ends, or ended before the answer was handed over whole.
    #[default]
    Combined,
    /// The same behind the name of the requested host.
    VhostCombined,
    /// A JSON object.
    Json,
}

/// The parts of a line around what is known when its answer has ended.
#[derive(Debug)]
pub(in super::super) struct LogLine {
    before: String,
    after: String,
}

/// What a request says, as JSON.
#[derive(Serialize)]
struct Asked<'a> {
    time: String,
    remote_address: String,
    /// 0 if it is unknown.
    remote_port: u16,
    method: Option<Cow<'a, str>>,
    target: Option<Cow<'a, str>>,
    protocol: Option<Cow<'a, str>>,
    malformed: Option<Cow<'a, str>>,
    host: Option<Cow<'a, str>>,
    user: Option<Cow<'a, str>>,
    referer: Option<Cow<'a, str>>,
    user_agent: Option<Cow<'a, str>>,
}

/// How an exchange ended: with `bytes` that were handed over, `body_bytes` of them behind the head.
#[derive(Debug, Serialize)]
pub(in super::super) struct Ended {
    pub(in super::super) status: u16,
    pub(in super::super) bytes: u64,
    pub(in super::super) body_bytes: u64,
    pub(in super::super) worker: usize,
    pub(in super::super) duration_s: f64,
    /// All of the answer was handed over.
    pub(in super::super) complete: bool,
    /// It `stays` or `ends` behind the answer, or is `broken`.
    pub(in super::super) connection: &'static str,
}

/// A peer that has already left has no address.
fn client(address: Option<IpAddr>) -> String {
    address.map_or("-".to_owned(), |address| address.to_canonical().to_string())
}

impl LogLine {
    /// Begins the line of a request with this first line, or its beginning, and these values: host, user, Referer and
    /// User-Agent. It is valid if it could be read.
    pub(in super::super) fn begin(
        format: LogFormat,
        clock: &Clock,
        (address, port): (Option<IpAddr>, u16),
        line: &[u8],
        is_valid: bool,
        fields: [Option<&[u8]>; 4],
    ) -> LogLine {
        let line = Some(cut(line, REQUEST_BYTES_MAX)).filter(|line| !line.is_empty());
        let fields = fields.map(|field| field.map(|value| cut(value, FIELD_BYTES_MAX)));
        let (line, fields) = (line.as_deref(), fields.each_ref().map(Option::as_deref));
        let [host, user, referer, user_agent] = fields;
        let client = client(address);
        if format == LogFormat::Json {
            // Invalid UTF-8 is replaced.
            let valid = line.filter(|_| is_valid).unwrap_or_default();
            let parts = valid.splitn(3, |byte| *byte == b' ');
            let mut parts =
                parts.map(|part| (!part.is_empty()).then(|| String::from_utf8_lossy(part)));
            let [host, user, referer, user_agent] =
                fields.map(|field| field.map(String::from_utf8_lossy));
            let asked = Asked {
                time: timestamp(),
                remote_address: client,
                remote_port: port,
                method: parts.next().flatten(),
                target: parts.next().flatten(),
                protocol: parts.next().flatten(),
                malformed: line.filter(|_| !is_valid).map(String::from_utf8_lossy),
                host,
                user,
                referer,
                user_agent,
            };
            // Text and numbers serialise without fail.
            let json = serde_json::to_string(&asked).unwrap_or_default();
            let mut before = String::with_capacity(512);
            for character in json.strip_suffix('}').unwrap_or_default().chars() {
                match character.is_control() {
                    // JSON does not require it of all of them, but a terminal would execute them.
                    true => drop(write!(before, "\\u{:04x}", u32::from(character))),
                    false => before.push(character),
                }
            }
            return LogLine { before, after: String::new() };
        }
        let date = clock.date();
        let part = |at: usize, length| String::from_utf8_lossy(&date[at..at + length]);
        let time = format!("{}/{}/{}:{} +0000", part(5, 2), part(8, 3), part(12, 4), part(17, 8));
        let host = match format {
            LogFormat::VhostCombined => format!("{} ", word(host)),
            _ => String::new(),
        };
        let (user, line) = (word(user), quoted(line));
        let (referer, user_agent) = (quoted(referer), quoted(user_agent));
        LogLine {
            before: format!("{host}{client} - {user} [{time}] \"{line}\""),
            after: format!("\"{referer}\" \"{user_agent}\""),
        }
    }

    pub(in super::super) fn end(self, format: LogFormat, ended: &Ended) -> String {
        let LogLine { before: mut text, after } = self;
        // Writing into memory does not fail.
        let _written = match format {
            LogFormat::Json => {
                let json = serde_json::to_string(ended).unwrap_or_default();
                writeln!(text, ",{}", json.strip_prefix('{').unwrap_or_default())
            }
            LogFormat::Combined | LogFormat::VhostCombined => {
                let Ended { status, body_bytes, duration_s, .. } = ended;
                let mark = match ended.connection {
                    "stays" => '+',
                    "ends" => '-',
                    _ => 'X',
                };
                writeln!(text, " {status} {body_bytes} {after} {duration_s:.6} {mark}")
            }
        };
        text
    }
}

/// Why an answer is no success, without an end of line.
pub(in super::super) fn error_line(status: Status, reason: Reason, call: &Call<'_, '_>) -> String {
    let client = client(call.client());
    let host = call.request.host().map(|host| cut(host, FIELD_BYTES_MAX));
    let path = cut(call.request.path.as_bytes(), REQUEST_BYTES_MAX);
    let (time, status) = (timestamp(), status.as_u16());
    let (host, path) = (word(host.as_deref()), quoted(Some(&path)));
    format!("{time} {status} {client} {host} \"{path}\": {reason}")
}

/// The time as RFC 3339 writes it, to the millisecond.
fn timestamp() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

fn cut(text: &[u8], max: usize) -> Cow<'_, [u8]> {
    match text.len() > max {
        true => [&text[..max], b"..."].concat().into(),
        false => text.into(),
    }
}

/// A field of the combined format; `-` for none.
struct Quoted<'a> {
    text: Option<&'a [u8]>,
    /// It is not between quotes: a space would begin another field.
    is_word: bool,
}

fn quoted(text: Option<&[u8]>) -> Quoted<'_> {
    Quoted { text, is_word: false }
}

fn word(text: Option<&[u8]>) -> Quoted<'_> {
    Quoted { text: text.filter(|text| !text.is_empty()), is_word: true }
}

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(text) = self.text else { return f.write_str("-") };
        for byte in text {
            match byte {
                b' ' if self.is_word => f.write_str("\\x20")?,
                b'"' | b'\\' | ..b' ' | 0x7f.. => write!(f, "\\x{byte:02X}")?,
                _ => f.write_char(char::from(*byte))?,
            }
        }
        Ok(())
    }
}

/// A line, its end included, with these parts that a client controls: the request line, which was understood or not,
/// and the fields Host, Referer and User-Agent. For the fuzz targets of `fuzz/`. The client is 192.0.2.7, and was
/// answered with 404 after 1.5 ms.
pub fn log_line(
    request: &[u8],
    is_valid: bool,
    [host, referer, user_agent]: [Option<&[u8]>; 3],
    format: LogFormat,
) -> Vec<u8> {
    let client = ("192.0.2.7".parse().ok(), 4711);
    let fields = [host, None, referer, user_agent];
    let line = LogLine::begin(format, &Clock::new(), client, request, is_valid, fields);
    let (bytes, body_bytes, duration_s) = (300, 36, 0.0015);
    let (complete, connection) = (true, "ends");
    let ended =
        Ended { status: 404, bytes, body_bytes, worker: 0, duration_s, complete, connection };
    line.end(format, &ended).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &[u8] = "a \"b\\\n\u{9b}ü".as_bytes();

    fn line(request: &[u8], is_valid: bool, format: LogFormat) -> String {
        let fields = [Some(&b"example.org"[..]), None, Some(AGENT)];
        String::from_utf8(log_line(request, is_valid, fields, format)).unwrap()
    }

    #[test]
    fn combined_lines_have_the_fields_that_tools_expect() {
        let text = line(b"GET /a?b HTTP/1.1", true, LogFormat::VhostCombined);
        let (begin, rest) = text.split_once(" [").unwrap();
        let (date, end) = rest.split_once("] ").unwrap();
        assert_eq!(begin, "example.org 192.0.2.7 - -");
        assert_eq!(date.len(), "22/Nov/2026:03:25:01 +0000".len());
        let agent = "a \\x22b\\x5C\\x0A\\xC2\\x9B\\xC3\\xBC";
        assert_eq!(end, format!("\"GET /a?b HTTP/1.1\" 404 36 \"-\" \"{agent}\" 0.001500 -\n"));
        let long = line(&[b'x'; 10_000], true, LogFormat::Combined);
        assert!(long.len() < 5300 && long.contains("x...\" 404"), "{long}");
        assert!(line(b"", false, LogFormat::Combined).contains("] \"-\" 404"));
        assert_eq!(word(Some(b"a b")).to_string(), "a\\x20b");
    }

    #[test]
    fn json_lines_take_the_request_apart() {
        let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let text = line(b"GET /a HTTP/1.0", true, LogFormat::Json);
        assert!(text.contains("a \\\"b\\\\\\n\\u009bü"), "{text}");
        let value = parsed(&text);
        assert_eq!((&value["method"], &value["target"]), (&"GET".into(), &"/a".into()));
        assert_eq!((&value["duration_s"], &value["bytes"]), (&0.0015.into(), &300.into()));
        assert_eq!((&value["connection"], &value["user"]), (&"ends".into(), &().into()));
        let time = value["time"].as_str().unwrap();
        assert_eq!((time.len(), &time[10..11], &time[23..]), (24, "T", "Z"), "{time}");
        let value = parsed(&line(b"nonsense\xff", false, LogFormat::Json));
        assert_eq!(
            (&value["malformed"], &value["method"]),
            (&"nonsense\u{fffd}".into(), &().into())
        );
    }
}
