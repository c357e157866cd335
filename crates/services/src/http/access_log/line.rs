//! The text of a line. A client's text stays within its field: quotes, backslashes, control
//! characters and, in the combined format, all bytes that are not ASCII are escaped.

use super::AccessLog;
use crate::http::Status;
use crate::http::answer::Call;
use crate::http::auth::Credentials;
use crate::http::date::Clock;
use crate::http::request::Request;
use crate::http::response::Reason;
use serde::Deserialize;
use serde_json::Value;
use std::fmt::{self, Display, Write};
use std::net::IpAddr;
use std::time::Duration;

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

/// All that a request says, until its answer is known.
#[derive(Debug, Default)]
pub(in super::super) struct LogLine {
    address: Option<IpAddr>,
    /// 0 if it is unknown.
    port: u16,
    /// `06/Nov/1994:08:49:37 +0000`, or as RFC 3339 writes it, to the millisecond.
    time: String,
    /// The received request line, or its beginning; none if there was none.
    request: Option<Vec<u8>>,
    /// It has three parts, and was understood.
    is_valid: bool,
    host: Option<Vec<u8>>,
    user: Option<Vec<u8>>,
    referer: Option<Vec<u8>>,
    user_agent: Option<Vec<u8>>,
}

/// How an exchange ended: with `bytes` that were handed over, `body_bytes` of them behind the head.
#[derive(Debug)]
pub(in super::super) struct Ended {
    pub(in super::super) status: u16,
    pub(in super::super) bytes: u64,
    pub(in super::super) body_bytes: u64,
    pub(in super::super) worker: usize,
    pub(in super::super) duration: Duration,
    /// All of the answer was handed over.
    pub(in super::super) is_complete: bool,
    /// The connection stays.
    pub(in super::super) stays: bool,
}

impl Ended {
    /// The connection behind the answer, for the combined format and for JSON.
    fn connection(&self) -> (char, &'static str) {
        match (self.is_complete, self.stays) {
            (false, _) => ('X', "broken"),
            (true, true) => ('+', "stays"),
            (true, false) => ('-', "ends"),
        }
    }
}

/// A peer that has already left has no address.
fn client(address: Option<IpAddr>) -> String {
    address.map_or("-".to_owned(), |address| address.to_canonical().to_string())
}

impl LogLine {
    /// Begins the line of a request with this first line, of which more is known if it could be read.
    pub(in super::super) fn begin(
        format: LogFormat,
        clock: &Clock,
        (address, port): (Option<IpAddr>, u16),
        line: &[u8],
        request: Option<&Request<'_>>,
    ) -> LogLine {
        let time = match format {
            LogFormat::Json => timestamp(clock),
            _ => {
                let date = clock.date();
                let part = |at: usize, length| String::from_utf8_lossy(&date[at..at + length]);
                format!("{}/{}/{}:{} +0000", part(5, 2), part(8, 3), part(12, 4), part(17, 8))
            }
        };
        let field = |name| request?.field(name).map(|value| cut(value, FIELD_BYTES_MAX));
        let credentials = request.and_then(|request| request.field("authorization"));
        let credentials = credentials.and_then(Credentials::parse);
        LogLine {
            address,
            port,
            time,
            request: (!line.is_empty()).then(|| cut(line, REQUEST_BYTES_MAX)),
            is_valid: request.is_some(),
            host: request.and_then(Request::host).map(|host| cut(host, FIELD_BYTES_MAX)),
            user: credentials.map(|credentials| cut(credentials.user(), FIELD_BYTES_MAX)),
            referer: field("referer"),
            user_agent: field("user-agent"),
        }
    }

    pub(in super::super) fn end(&self, log: &AccessLog, ended: &Ended) {
        log.add(self.text(log.format, ended).as_bytes());
    }

    /// The line, its LF included.
    fn text(&self, format: LogFormat, ended: &Ended) -> String {
        let mut text = String::with_capacity(512);
        match format {
            LogFormat::Json => self.json(&mut text, ended),
            LogFormat::Combined => self.combined(&mut text, ended),
            LogFormat::VhostCombined => {
                // Writing into memory does not fail; the same holds below.
                let _written = write!(text, "{} ", word(&self.host));
                self.combined(&mut text, ended);
            }
        }
        text.push('\n');
        text
    }

    fn combined(&self, text: &mut String, ended: &Ended) {
        let (secs, us) = (ended.duration.as_secs(), ended.duration.subsec_micros());
        let (connection, _) = ended.connection();
        let _written = write!(
            text,
            "{} - {} [{}] \"{}\" {} {} \"{}\" \"{}\" {secs}.{us:06} {connection}",
            client(self.address),
            word(&self.user),
            self.time,
            quoted(&self.request),
            ended.status,
            ended.body_bytes,
            quoted(&self.referer),
            quoted(&self.user_agent),
        );
    }

    fn json(&self, text: &mut String, ended: &Ended) {
        // Invalid UTF-8 is replaced.
        let value = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes));
        let said = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(value).unwrap_or_default();
        let request = self.request.as_deref();
        let valid = request.filter(|_| self.is_valid).unwrap_or_default();
        let mut parts = valid.splitn(3, |byte| *byte == b' ');
        let mut part = || parts.next().filter(|part| !part.is_empty()).map(value);
        let [method, target, protocol] = [(); 3].map(|()| part().unwrap_or_default());
        let malformed = request.filter(|_| !self.is_valid).map(value).unwrap_or_default();
        let (_, connection) = ended.connection();
        let fields = [
            ("time", Value::from(&*self.time)),
            ("remote_address", client(self.address).into()),
            ("remote_port", self.port.into()),
            ("method", method),
            ("target", target),
            ("protocol", protocol),
            ("malformed", malformed),
            ("host", said(&self.host)),
            ("user", said(&self.user)),
            ("referer", said(&self.referer)),
            ("user_agent", said(&self.user_agent)),
            ("status", ended.status.into()),
            ("bytes", ended.bytes.into()),
            ("body_bytes", ended.body_bytes.into()),
            ("worker", ended.worker.into()),
            ("duration_s", (ended.duration.as_micros() as f64 / 1e6).into()),
            ("complete", ended.is_complete.into()),
            ("connection", connection.into()),
        ];
        for (number, (name, value)) in fields.into_iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            let _written = write!(text, "{before}\"{name}\":");
            for character in value.to_string().chars() {
                match character.is_control() {
                    // JSON does not require it of all of them, but a terminal would execute them.
                    true => drop(write!(text, "\\u{:04x}", u32::from(character))),
                    false => text.push(character),
                }
            }
        }
        text.push('}');
    }
}

/// Why an answer is no success, without an end of line.
pub(in super::super) fn error_line(
    clock: &Clock,
    status: Status,
    reason: Reason,
    call: &Call<'_, '_>,
) -> String {
    let client = client(call.client());
    let host = call.request.host().map(|host| cut(host, FIELD_BYTES_MAX));
    let path = Some(cut(call.request.path.as_bytes(), REQUEST_BYTES_MAX));
    let (time, status) = (timestamp(clock), status.as_u16());
    let (host, path) = (word(&host), quoted(&path));
    format!("{time} {status} {client} {host} \"{path}\": {reason}")
}

/// The time as RFC 3339 writes it, to the millisecond.
fn timestamp(clock: &Clock) -> String {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let date = clock.date();
    let month = MONTHS.chunks(3).position(|month| *month == date[8..11]).unwrap_or(0) + 1;
    let part = |at: usize, length| String::from_utf8_lossy(&date[at..at + length]);
    let (day, year, time) = (part(5, 2), part(12, 4), part(17, 8));
    format!("{year}-{month:02}-{day}T{time}.{:03}Z", clock.millisecond())
}

fn cut(text: &[u8], max: usize) -> Vec<u8> {
    match text.len() > max {
        true => [&text[..max], b"..."].concat(),
        false => text.to_vec(),
    }
}

/// A field of the combined format; `-` for none.
struct Quoted<'a> {
    text: Option<&'a [u8]>,
    /// It is not between quotes: a space would begin another field.
    is_word: bool,
}

fn quoted(text: &Option<Vec<u8>>) -> Quoted<'_> {
    Quoted { text: text.as_deref(), is_word: false }
}

fn word(text: &Option<Vec<u8>>) -> Quoted<'_> {
    Quoted { text: text.as_deref().filter(|text| !text.is_empty()), is_word: true }
}

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(text) = self.text else { return f.write_str("-") };
        for byte in text {
            match byte {
                b'"' | b'\\' => write!(f, "\\x{byte:02X}")?,
                b' ' if self.is_word => f.write_str("\\x20")?,
                b' '..=b'~' => f.write_char(char::from(*byte))?,
                _ => write!(f, "\\x{byte:02X}")?,
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
    fields: [Option<&[u8]>; 3],
    format: LogFormat,
) -> Vec<u8> {
    let [host, referer, user_agent] =
        fields.map(|field| field.map(|value| cut(value, FIELD_BYTES_MAX)));
    let client = ("192.0.2.7".parse().ok(), 4711);
    let line = LogLine::begin(format, &Clock::new(), client, request, None);
    let line = LogLine { is_valid, host, referer, user_agent, ..line };
    let ended = Ended {
        status: 404,
        bytes: 300,
        body_bytes: 36,
        worker: 0,
        duration: Duration::from_micros(1500),
        is_complete: true,
        stays: false,
    };
    line.text(format, &ended).into_bytes()
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
        assert_eq!(word(&Some(b"a b".to_vec())).to_string(), "a\\x20b");
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
