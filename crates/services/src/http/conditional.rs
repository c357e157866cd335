//! Conditional requests: RFC 9110 section 13, in the order of its section 13.2.2.

use super::date::parse_date;
use super::request::{Name, Request};

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

/// The outcome of a request's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answer it.
    Proceed,
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

/// Evaluates the conditions of a GET or HEAD request for a representation that exists.
pub fn evaluate(request: &Request<'_>, current: &Validators<'_>) -> Outcome {
    let date = |name| request.value(name).and_then(parse_date);
    if request.has(Name::IfMatch) {
        if !request.values(Name::IfMatch).any(|list| matches(list, current, true)) {
            return Outcome::Failed;
        }
    } else if let (Some(limit), Some(modified)) = (date(Name::IfUnmodifiedSince), current.modified)
        && modified > limit
    {
        return Outcome::Failed;
    }
    let unchanged = if request.has(Name::IfNoneMatch) {
        request.values(Name::IfNoneMatch).any(|list| matches(list, current, false))
    } else {
        match (date(Name::IfModifiedSince), current.modified) {
            (Some(since), Some(modified)) => modified <= since,
            _ => false,
        }
    };
    if unchanged { Outcome::NotModified } else { Outcome::Proceed }
}

/// True when a range may be answered: without If-Range, or when it names this very version.
pub fn range_applies(request: &Request<'_>, current: &Validators<'_>) -> bool {
    if !request.has(Name::IfRange) {
        return true;
    }
    let Some(condition) = request.value(Name::IfRange) else { return false };
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

#[cfg(test)]
mod tests {
    use super::super::request::{HeadLimits, Storage};
    use super::*;

    const CURRENT: Validators<'_> =
        Validators { tag: b"\"v1\"", weak: false, modified: Some(784_111_777) };
    const WEAK: Validators<'_> = Validators { weak: true, ..CURRENT };
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn with_head<R>(fields: &str, look: impl FnOnce(&Request<'_>) -> R) -> R {
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let mut storage = Storage::new();
        look(&Request::parse(text.as_bytes(), &mut storage, HeadLimits::default()).unwrap())
    }

    fn outcome(fields: &str, current: &Validators<'_>) -> Outcome {
        with_head(fields, |head| evaluate(head, current))
    }

    #[test]
    fn each_condition_decides_as_it_should() {
        use Outcome::{Failed, NotModified, Proceed};
        for (fields, expected) in [
            (String::new(), Proceed),
            ("If-None-Match: \"v1\"\r\n".into(), NotModified),
            ("If-None-Match: W/\"v1\"\r\n".into(), NotModified),
            ("If-None-Match: \"a,\" , \"b\",\"v1\"\r\n".into(), NotModified),
            ("If-None-Match: \"a\"\r\nIf-None-Match: \"v1\"\r\n".into(), NotModified),
            ("If-None-Match: *\r\n".into(), NotModified),
            ("If-None-Match: \"v2\"\r\n".into(), Proceed),
            ("If-None-Match: v1\r\n".into(), Proceed),
            ("If-None-Match: \"v1\r\n".into(), Proceed),
            ("If-None-Match:\r\n".into(), Proceed),
            ("If-Match: \"v1\"\r\n".into(), Proceed),
            ("If-Match: *\r\n".into(), Proceed),
            ("If-Match: W/\"v1\"\r\n".into(), Failed),
            ("If-Match: \"v2\", \"v3\"\r\n".into(), Failed),
            ("If-Match:\r\n".into(), Failed),
            (format!("If-Modified-Since: {SAME}\r\n"), NotModified),
            (format!("If-Modified-Since: {AFTER}\r\n"), NotModified),
            (format!("If-Modified-Since: {BEFORE}\r\n"), Proceed),
            ("If-Modified-Since: yesterday\r\n".into(), Proceed),
            (format!("If-Modified-Since: {SAME}\r\nIf-Modified-Since: {SAME}\r\n"), Proceed),
            (format!("If-Unmodified-Since: {SAME}\r\n"), Proceed),
            (format!("If-Unmodified-Since: {BEFORE}\r\n"), Failed),
            ("If-Unmodified-Since: 0\r\n".into(), Proceed),
        ] {
            assert_eq!(outcome(&fields, &CURRENT), expected, "{fields}");
        }
    }

    #[test]
    fn tags_come_before_dates_and_preconditions_before_caches() {
        use Outcome::{Failed, NotModified, Proceed};
        for (fields, expected) in [
            (format!("If-None-Match: \"v2\"\r\nIf-Modified-Since: {AFTER}\r\n"), Proceed),
            (format!("If-None-Match: \"v1\"\r\nIf-Modified-Since: {BEFORE}\r\n"), NotModified),
            (format!("If-Match: \"v1\"\r\nIf-Unmodified-Since: {BEFORE}\r\n"), Proceed),
            ("If-Match: \"v2\"\r\nIf-None-Match: \"v1\"\r\n".into(), Failed),
            ("If-Match: \"v1\"\r\nIf-None-Match: \"v1\"\r\n".into(), NotModified),
        ] {
            assert_eq!(outcome(&fields, &CURRENT), expected, "{fields}");
        }
        assert_eq!(outcome("If-Match: \"v1\"\r\n", &WEAK), Failed);
        assert_eq!(outcome("If-Match: *\r\n", &WEAK), Proceed);
        assert_eq!(outcome("If-None-Match: \"v1\"\r\n", &WEAK), NotModified);
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
}
