//! The head of a request: its end does not depend on how it is split, and an accepted head has
//! exactly one reading.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::Status;
use twinring_services::http::request::{Framing, HeadLimits, Request, Scan, storage as empty};

const LIMITS: HeadLimits = HeadLimits { head_bytes: 512, target_bytes: 64 };

/// The first outcome that is not "more bytes are needed", with chunks of `step` bytes.
fn end(bytes: &[u8], step: usize) -> Result<Option<usize>, Status> {
    let mut scan = Scan::default();
    let mut have = 0;
    while have < bytes.len() {
        have = (have + step).min(bytes.len());
        if let Some(end) = scan.find_end(&bytes[..have], LIMITS)? {
            assert!(end <= have);
            return Ok(Some(end));
        }
    }
    Ok(None)
}

/// The meaning of a head, independent of its bytes.
fn meaning(head: &Request<'_>) -> String {
    let Request { method, path, query, authority, is_1_0, keep_alive, framing, .. } = head;
    let target = (path, query);
    let expects_continue = head.expects_continue;
    let ranges: Vec<&[u8]> = head.lines("range").collect();
    format!(
        "{method:?} {target:?} {authority:?} {is_1_0} {keep_alive} {framing:?} \
         {expects_continue} {ranges:?} {:?}",
        head.value("if-none-match")
    )
}

/// The lines of a head, split only at CR LF.
fn lines(head: &[u8]) -> Vec<&[u8]> {
    let text = head.strip_prefix(b"\r\n").unwrap_or(head);
    let mut lines = Vec::new();
    let mut start = 0;
    for (at, pair) in text.windows(2).enumerate() {
        if pair == b"\r\n" {
            lines.push(&text[start..at]);
            start = at + 2;
        }
    }
    assert_eq!(lines.pop(), Some(&b""[..]), "a head ends with an empty line");
    lines
}

fuzz_target!(|bytes: &[u8]| {
    let whole = end(bytes, bytes.len().max(1));
    for step in [1, 2, 3, 7] {
        assert_eq!(end(bytes, step), whole, "in chunks of {step}");
    }
    let Ok(Some(length)) = whole else { return };
    assert!(length <= LIMITS.head_bytes);
    let bytes = &bytes[..length];
    let mut storage = empty();
    let Ok(head) = Request::parse(bytes, &mut storage, LIMITS) else { return };

    // No byte that another server could take for the end of a line, or of the head.
    let lines = lines(bytes);
    assert!(lines.iter().flat_map(|line| line.iter()).all(|byte| !b"\r\n\0".contains(byte)));
    // The same, read naively: names before the first colon, without space around.
    let fields: Vec<(Vec<u8>, &[u8])> = lines[1..]
        .iter()
        .map(|line| {
            let colon = line.iter().position(|byte| *byte == b':').expect("a colon");
            (line[..colon].to_ascii_lowercase(), line[colon + 1..].trim_ascii())
        })
        .collect();
    let token = |byte: &u8| byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(byte);
    assert!(fields.iter().all(|(name, _)| !name.is_empty() && name.iter().all(token)));
    let values = |wanted: &[u8]| -> Vec<&[u8]> {
        fields.iter().filter(|(name, _)| name == wanted).map(|(_, value)| *value).collect()
    };
    let (hosts, lengths) = (values(b"host"), values(b"content-length"));
    let codings = values(b"transfer-encoding");
    assert!(hosts.len() == 1 || head.is_1_0 && hosts.is_empty());
    match head.framing {
        Framing::Length(length) => {
            assert!(codings.is_empty() && lengths.len() == 1 && length > 0);
            let text = std::str::from_utf8(lengths[0]).expect("digits");
            assert_eq!(text.trim_start_matches('0'), length.to_string());
        }
        Framing::Chunked => {
            assert!(lengths.is_empty() && !head.is_1_0);
            assert!(codings.iter().any(|coding| coding.to_ascii_lowercase().ends_with(b"chunked")
                || coding.trim_ascii_end().ends_with(b",")));
        }
        Framing::Empty => {
            assert!(codings.is_empty() && lengths.len() <= 1);
            assert!(lengths.iter().all(|text| text.iter().all(|digit| *digit == b'0')));
        }
    }

    // Written again, in one style, it has the same meaning.
    let mut again = [lines[0], b"\r\n"].concat();
    for (name, value) in &fields {
        again.extend([name, &b": "[..], value, b"\r\n"].concat());
    }
    again.extend(b"\r\n");
    let roomy = HeadLimits { head_bytes: 4096, ..LIMITS };
    assert_eq!(Scan::default().find_end(&again, roomy), Ok(Some(again.len())));
    let mut storage = empty();
    let same = Request::parse(&again, &mut storage, roomy).expect("it was accepted before");
    assert_eq!(meaning(&head), meaning(&same));
});
