//! Conditional requests and dates: the order of precedence holds for any fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::Status;
use twinring_services::http::conditional::{Validators, evaluate, range_applies};
use twinring_services::http::date::{format_date, parse_date};
use twinring_services::http::request::{HeadLimits, Request, storage};

const NAMES: [&str; 5] =
    ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range"];
const LATER: &str = "Mon, 07 Nov 2094 08:49:37 GMT";

/// The outcome of a request with these fields, and whether a range would be answered.
fn outcome(fields: &[(&str, &[u8])], current: &Validators<'_>) -> Option<(Option<Status>, bool)> {
    let mut text = b"GET / HTTP/1.1\r\nHost: h\r\n".to_vec();
    for (name, value) in fields {
        text.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    text.extend(b"\r\n");
    let mut storage = storage();
    let head = Request::parse(&text, &mut storage, HeadLimits::default()).ok()?;
    Some((evaluate(&head, current), range_applies(&head, current)))
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(second) = parse_date(bytes) {
        let date = format_date(second).expect("years have four digits");
        assert_eq!(parse_date(&date), Some(second));
    }
    // A line for each field: its first byte chooses the name, the first line the version.
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let kind = lines.next().and_then(|line| line.first().copied()).unwrap_or(0);
    let modified = (kind & 2 == 0).then_some(784_111_777);
    let current = Validators { tag: b"\"v1\"", weak: kind & 1 == 1, modified };
    let mut fields: Vec<(&str, &[u8])> = lines
        .take(20)
        .filter_map(|line| line.split_first())
        .map(|(first, value)| (NAMES[usize::from(*first) % NAMES.len()], value))
        .collect();
    let Some((found, applies)) = outcome(&fields, &current) else { return };
    let has = |wanted: &str| fields.iter().any(|(name, _)| *name == wanted);
    let (if_match, if_none_match) = (has("If-Match"), has("If-None-Match"));
    match found {
        Some(Status::PRECONDITION_FAILED) => assert!(if_match || has("If-Unmodified-Since")),
        Some(_) => assert!(if_none_match || has("If-Modified-Since")),
        None => {}
    }
    assert!(applies || has("If-Range"));
    assert!(!(applies && has("If-Range") && current.weak), "ranges need a strong version");

    // Tags take precedence over dates, and If-Range does not affect the conditions.
    let changed = fields.clone().into_iter().filter(|(name, _)| {
        *name != "If-Range"
            && !(if_none_match && *name == "If-Modified-Since")
            && !(if_match && *name == "If-Unmodified-Since")
    });
    let changed: Vec<(&str, &[u8])> = changed.collect();
    assert_eq!(outcome(&changed, &current).map(|(outcome, _)| outcome), Some(found));
    // Conditions on any version hold for this one.
    if !if_match && !has("If-Unmodified-Since") {
        fields.push(("If-Match", b"*"));
        fields.push(("If-Unmodified-Since", LATER.as_bytes()));
        assert_eq!(outcome(&fields, &current).map(|(outcome, _)| outcome), Some(found));
    }
});
