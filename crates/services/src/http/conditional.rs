//! Requests for less than a whole file: conditions, RFC 9110 section 13, in the order of its section 13.2.2, and ranges,
//! section 14.

use super::Status;
use super::date::parse_date;
use super::request::Request;
use std::ops::Range;

/// Identifies a version of a representation.
#[derive(Clone, Copy, Debug)]
pub struct Validators<'a> {
    /// The opaque part of the entity tag, in its quotes.
    pub tag: &'a [u8],
    /// The entity tag is weak: the file might have changed again within the same second.
    pub weak: bool,
    /// Seconds since 1970 of the last change, if known.
    pub modified: Option<i64>,
}

/// Evaluates the conditions of a GET or HEAD request for a representation that exists: 304, 412, or none to answer it.
pub fn evaluate(request: &Request<'_>, current: &Validators<'_>) -> Option<Status> {
    let date = |name| request.value(name).and_then(parse_date);
    if request.field("if-match").is_some() {
        if !request.lines("if-match").any(|list| matches(list, current, true)) {
            return Some(Status::PRECONDITION_FAILED);
        }
    } else if let (Some(limit), Some(modified)) = (date("if-unmodified-since"), current.modified)
        && modified > limit
    {
        return Some(Status::PRECONDITION_FAILED);
    }
    let unchanged = if request.field("if-none-match").is_some() {
        request.lines("if-none-match").any(|list| matches(list, current, false))
    } else {
        match (date("if-modified-since"), current.modified) {
            (Some(since), Some(modified)) => modified <= since,
            _ => false,
        }
    };
    unchanged.then_some(Status::NOT_MODIFIED)
}

/// True when a range may be answered: without If-Range, or when it names this very version.
pub fn range_applies(request: &Request<'_>, current: &Validators<'_>) -> bool {
    if request.field("if-range").is_none() {
        return true;
    }
    let Some(condition) = request.value("if-range") else { return false };
    match split_tag(condition) {
        Some((weak, tag, [])) => !weak && !current.weak && tag == current.tag,
        Some(_) => false,
        // A date is as strong as the tag: both follow from the time of the last change.
        None => {
            !current.weak && current.modified.is_some() && parse_date(condition) == current.modified
        }
    }
}

/// True if a list of entity tags, or `*`, contains the current one.
fn matches(list: &[u8], current: &Validators<'_>, strongly: bool) -> bool {
    let mut rest = list.trim_ascii();
    if rest == b"*" {
        return true;
    }
    loop {
        let start = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b','));
        let Some(start) = start else { return false };
        // The tags behind a malformed one cannot be separated.
        let Some((weak, tag, behind)) = split_tag(&rest[start..]) else { return false };
        if tag == current.tag && !(strongly && (weak || current.weak)) {
            return true;
        }
        rest = behind;
    }
}

/// Splits the first entity tag off: whether it is weak, its opaque part in quotes, and the rest.
fn split_tag(text: &[u8]) -> Option<(bool, &[u8], &[u8])> {
    let (weak, text) = match text.strip_prefix(b"W/") {
        Some(opaque) => (true, opaque),
        None => (false, text),
    };
    let inner = text.strip_prefix(b"\"")?;
    let length = inner.iter().position(|byte| *byte == b'"')?;
    let (tag, rest) = text.split_at(length + 2);
    let legal = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    inner[..length].iter().all(legal).then_some((weak, tag, rest))
}

/// What a `Range` field requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole file: the field is malformed, of another unit, or requests several parts, of which a server need
    /// not take notice.
    Whole,
    /// One part, which exists.
    Part(Range<u64>),
    /// The requested part does not exist: 416.
    Unsatisfiable,
}

/// The part of `length` bytes that `field` selects.
pub fn select(field: &[u8], length: u64) -> Selection {
    let Some((unit, specs)) = field.split_at_checked(6) else { return Selection::Whole };
    let mut specs = specs.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let mut next = || specs.find(|spec| !spec.is_empty());
    let (Some(spec), None) = (next(), next()) else { return Selection::Whole };
    match resolve(spec, length).filter(|_| unit.eq_ignore_ascii_case(b"bytes=")) {
        None => Selection::Whole,
        Some(range) if range.is_empty() => Selection::Unsatisfiable,
        Some(range) => Selection::Part(range),
    }
}

/// One `first-last`, `first-` or `-length`, limited to the file, which may leave it empty; `None`
/// if malformed.
fn resolve(spec: &[u8], length: u64) -> Option<Range<u64>> {
    let dash = spec.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    if first.is_empty() {
        return Some(length.saturating_sub(number(last)?)..length);
    }
    let first = number(first)?;
    let last = if last.is_empty() { u64::MAX } else { number(last)? };
    let end = last.saturating_add(1).min(length);
    (first <= last).then(|| first.min(end)..end)
}

/// 1*DIGIT; a number that does not fit counts as the largest one.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| is_number)?;
    Some(text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::request::tests;
    use super::*;

    const CURRENT: Validators<'_> =
        Validators { tag: b"\"v1\"", weak: false, modified: Some(784_111_777) };
    const WEAK: Validators<'_> = Validators { weak: true, ..CURRENT };
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn with_head<R>(fields: &str, look: impl FnOnce(&Request<'_>) -> R) -> R {
        tests::with_head(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"), look)
    }

    const PROCEED: Option<Status> = None;
    const NOT_MODIFIED: Option<Status> = Some(Status::NOT_MODIFIED);
    const FAILED: Option<Status> = Some(Status::PRECONDITION_FAILED);

    fn outcome(fields: &str, current: &Validators<'_>) -> Option<Status> {
        with_head(fields, |head| evaluate(head, current))
    }

    #[test]
    fn each_condition_decides_as_it_should() {
        for (fields, expected) in [
            (String::new(), PROCEED),
            ("If-None-Match: \"v1\"\r\n".into(), NOT_MODIFIED),
            ("If-None-Match: W/\"v1\"\r\n".into(), NOT_MODIFIED),
            ("If-None-Match: \"a,\" , \"b\",\"v1\"\r\n".into(), NOT_MODIFIED),
            ("If-None-Match: \"a\"\r\nIf-None-Match: \"v1\"\r\n".into(), NOT_MODIFIED),
            ("If-None-Match: *\r\n".into(), NOT_MODIFIED),
            ("If-None-Match: \"v2\"\r\n".into(), PROCEED),
            ("If-None-Match: v1\r\n".into(), PROCEED),
            ("If-None-Match: \"v1\r\n".into(), PROCEED),
            ("If-None-Match:\r\n".into(), PROCEED),
            ("If-Match: \"v1\"\r\n".into(), PROCEED),
            ("If-Match: *\r\n".into(), PROCEED),
            ("If-Match: W/\"v1\"\r\n".into(), FAILED),
            ("If-Match: \"v2\", \"v3\"\r\n".into(), FAILED),
            ("If-Match:\r\n".into(), FAILED),
            (format!("If-Modified-Since: {SAME}\r\n"), NOT_MODIFIED),
            (format!("If-Modified-Since: {AFTER}\r\n"), NOT_MODIFIED),
            (format!("If-Modified-Since: {BEFORE}\r\n"), PROCEED),
            ("If-Modified-Since: yesterday\r\n".into(), PROCEED),
            (format!("If-Modified-Since: {SAME}\r\nIf-Modified-Since: {SAME}\r\n"), PROCEED),
            (format!("If-Unmodified-Since: {SAME}\r\n"), PROCEED),
            (format!("If-Unmodified-Since: {BEFORE}\r\n"), FAILED),
            ("If-Unmodified-Since: 0\r\n".into(), PROCEED),
        ] {
            assert_eq!(outcome(&fields, &CURRENT), expected, "{fields}");
        }
    }

    #[test]
    fn tags_come_before_dates_and_preconditions_before_caches() {
        for (fields, expected) in [
            (format!("If-None-Match: \"v2\"\r\nIf-Modified-Since: {AFTER}\r\n"), PROCEED),
            (format!("If-None-Match: \"v1\"\r\nIf-Modified-Since: {BEFORE}\r\n"), NOT_MODIFIED),
            (format!("If-Match: \"v1\"\r\nIf-Unmodified-Since: {BEFORE}\r\n"), PROCEED),
            ("If-Match: \"v2\"\r\nIf-None-Match: \"v1\"\r\n".into(), FAILED),
            ("If-Match: \"v1\"\r\nIf-None-Match: \"v1\"\r\n".into(), NOT_MODIFIED),
        ] {
            assert_eq!(outcome(&fields, &CURRENT), expected, "{fields}");
        }
        assert_eq!(outcome("If-Match: \"v1\"\r\n", &WEAK), FAILED);
        assert_eq!(outcome("If-Match: *\r\n", &WEAK), PROCEED);
        assert_eq!(outcome("If-None-Match: \"v1\"\r\n", &WEAK), NOT_MODIFIED);
    }

    #[test]
    fn a_range_needs_the_very_version_that_if_range_names() {
        let applies = |value: &str, current: &Validators<'_>| {
            with_head(&format!("If-Range: {value}\r\n"), |head| range_applies(head, current))
        };
        assert!(applies("\"v1\"", &CURRENT));
        assert!(applies(SAME, &CURRENT));
        for wrong in ["\"v2\"", "W/\"v1\"", BEFORE, AFTER, "", "v1", "\"v1\", \"v2\""] {
            assert!(!applies(wrong, &CURRENT), "{wrong}");
        }
        assert!(!applies("\"v1\"", &WEAK) && !applies(SAME, &WEAK));
        assert!(with_head("", |head| range_applies(head, &CURRENT)));
    }

    #[test]
    fn ranges_are_limited_to_the_file() {
        for (field, expected) in [
            ("bytes=0-0", Selection::Part(0..1)),
            ("bytes=0-", Selection::Part(0..100)),
            ("bytes=10-19", Selection::Part(10..20)),
            ("Bytes=10-1000", Selection::Part(10..100)),
            ("bytes=99-99999999999999999999999", Selection::Part(99..100)),
            ("bytes=-5", Selection::Part(95..100)),
            ("bytes=-500", Selection::Part(0..100)),
            ("bytes= 1-2 ,", Selection::Part(1..3)),
            ("bytes=100-", Selection::Unsatisfiable),
            ("bytes=99999999999999999999999-", Selection::Unsatisfiable),
            ("bytes=-0", Selection::Unsatisfiable),
        ] {
            assert_eq!(select(field.as_bytes(), 100), expected, "{field}");
        }
        let wrong = "bytes=5-4|bytes=|bytes=,|bytes=-|bytes=a-b|bytes=1|bytes=--1|bytes=1-2-3|bytes=+1-2|items=0-1|bytes=0-9,-10|bytes=0-9,200-|";
        for field in wrong.split('|') {
            assert_eq!(select(field.as_bytes(), 100), Selection::Whole, "{field}");
        }
        assert_eq!(select(b"bytes=0-", 0), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=-1", 0), Selection::Unsatisfiable);
    }
}
