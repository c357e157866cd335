use super::*;

const LIMITS: HeadLimits = HeadLimits { head_bytes: 1024, target_bytes: 256 };

/// The outcome when the bytes arrive in chunks of `step`: length and target, nothing yet, or a
/// status.
fn outcome(bytes: &[u8], step: usize) -> Result<Option<(usize, String)>, Status> {
    let mut scan = Scan::default();
    let mut there = 0;
    while there < bytes.len() {
        there = (there + step).min(bytes.len());
        if let Some(length) = scan.find_end(&bytes[..there], LIMITS)? {
            let mut storage = storage();
            let known = as_1_1(&bytes[..length]);
            let head = known.as_deref().unwrap_or(&bytes[..length]);
            let head = Request::parse(head, &mut storage, LIMITS)?;
            let fields: Vec<_> = head.lines("range").collect();
            let Request { method, path, query, is_1_0, keep_alive, framing, .. } = &head;
            let told = (method, path, query, is_1_0, keep_alive, framing, head.expects_continue);
            return Ok(Some((length, format!("{told:?} {fields:?}"))));
        }
    }
    Ok(None)
}

fn status(text: &str) -> Result<(), Status> {
    let whole = outcome(text.as_bytes(), text.len());
    for step in 1..text.len() {
        assert_eq!(outcome(text.as_bytes(), step), whole, "{text:?} by {step}");
    }
    assert_ne!(whole, Ok(None), "incomplete: {text:?}");
    whole.map(|_| ())
}

/// A request of this text, for the tests of other modules too.
pub(in crate::http) fn with_head<R>(text: &str, look: impl FnOnce(&Request<'_>) -> R) -> R {
    let mut storage = storage();
    look(&Request::parse(text.as_bytes(), &mut storage, LIMITS).expect("a head"))
}

#[test]
fn sound_requests_pass() {
    for text in [
        "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET http://h/x HTTP/1.1\r\nHost: other\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\t h \t\r\nX:\r\nY: \u{e4}\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n",
    ] {
        assert_eq!(status(text), Ok(()), "{text:?}");
    }
}

/// Where the search for its end and its reading do not agree, a request could hide.
#[test]
fn a_head_ends_where_its_bytes_end() {
    let two = "GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(2);
    let read = Request::parse(two.as_bytes(), &mut storage(), LIMITS).map(|_| ());
    assert_eq!(read, Err(Status::BAD_REQUEST));
}

#[test]
fn ambiguous_requests_are_refused() {
    let lines = "GET  / HTTP/1.1|GET / HTTP/1.1 | GET / HTTP/1.1|GET / http/1.1|GET /a b HTTP/1.1|\
        GET /\u{e4} HTTP/1.1|CONNECT \u{e4}:80 HTTP/1.1|GET / HTTP/1.|GET / HTTP/1.10|GET / HTTP/1.x|\
        GET / HTTP/x.1|GET / HTTP/1.2 |GET / HTTP/1.2\rX|GET x HTTP/1.1|GET * HTTP/1.1|\x16\x03\x01 / HTTP/1.1";
    let lines = lines.split('|').map(|line| format!("{line}\r\nHost: h\r\n\r\n"));
    let fields = "\x20folded|X: a\rb|X: a\0b|Content-Length : 5|: x|no colon|X\0: y|Host: h|\
        Content-Length: 5\r\nTransfer-Encoding: chunked|Content-Length: 5\r\nContent-Length: 6|\
        Content-Length: 5, 5|Content-Length: +5|Content-Length: -5|Content-Length: 0x5|Content-Length: 5 5|\
        Content-Length:|Content-Length: 18446744073709551616|Transfer-Encoding:|\
        Transfer-Encoding: chunked, chunked|Transfer-Encoding: chunked, identity|\
        Transfer-Encoding: chunked;q=1|Transfer-Encoding: \x0bchunked|\
        Transfer-Encoding: chunked\r\nTransfer-Encoding: x";
    let with_field = |field| format!("GET / HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n");
    let fields = fields.split('|').map(with_field);
    let others = [
        "GET / HTTP/1.1\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n\n",
        "GET / HTTP/1.1\r\n Host: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : h\r\n\r\n",
        "GET / HTTP/1.2\r\nHost : h\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: h\r\nhost: i\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h/i\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h i\r\n\r\n",
        "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    for text in lines.chain(fields).chain(others.map(str::to_owned)) {
        assert_eq!(status(&text), Err(Status::BAD_REQUEST), "{text:?}");
    }
}

/// It was 505: by RFC 9110 section 2.5 a recipient treats it as the highest version that it
/// supports.
#[test]
fn a_later_minor_version_is_read_as_1_1() {
    for minor in 2..=9 {
        let head = |minor: u8| {
            format!(
                "\r\nGET /a?b HTTP/1.{minor}\r\nHost: h\r\nRange: bytes=0-\r\n\
                 Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
        };
        let (later, known) = (head(minor), head(1));
        assert_eq!(status(&later), Ok(()));
        assert_eq!(outcome(later.as_bytes(), 7), outcome(known.as_bytes(), 7));
    }
}

/// (Further ones are in `tests/serve`.)
#[test]
fn other_refusals_have_their_own_status() {
    let long_target = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "x".repeat(256));
    let many_fields = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X:\r\n".repeat(100));
    for (text, expected) in [
        ("GET / HTTP/2.0\r\nHost: h\r\n\r\n", Status::HTTP_VERSION_NOT_SUPPORTED),
        ("GET / HTTP/3.1\r\nHost: h\r\n\r\n", Status::HTTP_VERSION_NOT_SUPPORTED),
        ("GET / HTTP/0.9\r\n\r\n", Status::HTTP_VERSION_NOT_SUPPORTED),
        ("get / HTTP/1.1\r\nHost: h\r\n\r\n", Status::NOT_IMPLEMENTED),
        (&long_target, Status::URI_TOO_LONG),
        (&many_fields, Status::REQUEST_HEADER_FIELDS_TOO_LARGE),
    ] {
        assert_eq!(status(text), Err(expected), "{text:?}");
    }
}

#[test]
fn connections_stay_or_close_as_version_and_options_say() {
    for (version, options, keep_alive) in [
        ("1.1", "connection: foo, CLOSE\r\n", false),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ("1.1", "Connection: keep-alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ] {
        let text = format!("GET / HTTP/{version}\r\nHost: h\r\n{options}\r\n");
        assert_eq!(with_head(&text, |head| head.keep_alive), keep_alive, "{text}");
    }
}

#[test]
fn expectations_count_from_http_1_1() {
    for (version, fields, expects) in [
        ("1.1", "Expect: 100-continue\r\nContent-Length: 5\r\n", true),
        ("1.1", "Expect: 100-Continue\r\nTransfer-Encoding: chunked\r\n", true),
        ("1.0", "Expect: 100-continue\r\nContent-Length: 5\r\n", false),
        ("1.0", "Expect: a-miracle\r\n", false),
    ] {
        let text = format!("GET / HTTP/{version}\r\nHost: h\r\n{fields}\r\n");
        assert_eq!(with_head(&text, |head| head.expects_continue), expects, "{text}");
    }
}
