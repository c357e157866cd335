//! The access log: a client's text stays within its field of one line, and a parser that knows only
//! the format finds it there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use twinring_services::http::{LogFormat, log_line};

/// Host, Referer and User-Agent.
type Fields<'a> = [Option<&'a [u8]>; 3];

/// The quoted fields of a line in the combined format, with the escapes resolved.
fn quoted(line: &str) -> Vec<Vec<u8>> {
    let parts: Vec<&str> = line.split('"').collect();
    assert_eq!(parts.len(), 7, "{line}");
    parts.into_iter().skip(1).step_by(2).map(unescaped).collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut parts = text.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.strip_prefix('x').expect("a byte in hexadecimal");
        bytes.push(u8::from_str_radix(&digits[..2], 16).expect("two digits"));
        bytes.extend(digits[2..].bytes());
    }
    bytes
}

fn check_combined(request: &[u8], is_valid: bool, fields: Fields<'_>) {
    let line = log_line(request, is_valid, fields, LogFormat::Combined);
    let line = String::from_utf8(line).expect("ASCII");
    let line = line.strip_suffix('\n').expect("one line");
    assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
    assert!(line.starts_with("192.0.2.7 - - ["), "{line}");
    assert!(line.ends_with(" 0.001500 -"), "{line}");
    let request = Some(request).filter(|request| !request.is_empty());
    let expected = [request, fields[1], fields[2]].map(|field| field.unwrap_or(b"-").to_vec());
    assert_eq!(quoted(line), expected);
}

fn check_json(request: &[u8], is_valid: bool, fields: Fields<'_>) {
    let line = log_line(request, is_valid, fields, LogFormat::Json);
    let line = String::from_utf8(line).expect("UTF-8");
    let line = line.strip_suffix('\n').expect("one line");
    assert!(!line.chars().any(char::is_control), "{line}");
    let value: Value = serde_json::from_str(line).expect("JSON");
    let text = |bytes: &[u8]| Value::from(&*String::from_utf8_lossy(bytes));
    let or_null = |field: Option<&[u8]>| field.map_or(Value::Null, text);
    for (name, field) in ["host", "referer", "user_agent"].into_iter().zip(fields) {
        assert_eq!(value[name], or_null(field), "{name}");
    }
    match is_valid {
        false => {
            assert_eq!(value["malformed"], or_null(Some(request).filter(|it| !it.is_empty())));
            assert!(value["method"].is_null() && value["target"].is_null());
        }
        true => {
            assert!(value["malformed"].is_null());
            let mut parts = request.splitn(3, |byte| *byte == b' ');
            for name in ["method", "target", "protocol"] {
                assert_eq!(value[name], or_null(parts.next().filter(|it| !it.is_empty())));
            }
        }
    }
    assert_eq!(value.as_object().map(|fields| fields.len()), Some(18), "{line}");
}

// The first byte selects the fields; then the fields, each with a line break behind it. Long ones are cut in the log.
fuzz_target!(|bytes: &[u8]| {
    let Some((flags, bytes)) = bytes.split_first().filter(|_| bytes.len() <= 1024) else { return };
    let mut parts = bytes.splitn(4, |byte| *byte == b'\n');
    let mut part = |bit: u8| parts.next().filter(|_| flags >> bit & 1 == 1);
    let (request, fields) = (part(0).unwrap_or_default(), [1, 2, 3].map(&mut part));
    let is_valid = flags >> 4 & 1 == 1;
    check_combined(request, is_valid, fields);
    check_json(request, is_valid, fields);
});
