//! HTTP/2: the heads of requests, which must be what HTTP/1.1 could say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::request::{Framing, HEADERS_MAX, HeadLimits, Request, fields_of};
use twinring_services::http::target::is_host;

/// A line for the method, one for the target, one for each field.
fn check_head(bytes: &[u8], has_body: bool) -> Option<()> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let mut request = http::Request::builder().method(lines.next()?).uri(lines.next()?);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        request = request.header(&line[..colon], &line[colon + 1..]);
    }
    let (parts, ()) = request.body(()).ok()?.into_parts();
    let limits = HeadLimits { target_bytes: 200, ..HeadLimits::default() };
    let fields = fields_of(&parts);
    let request = Request::from_http2(&parts, &fields, has_body, limits).ok()?;
    match parts.uri.authority() {
        Some(authority) => {
            let is_same = |host: &[u8]| host.eq_ignore_ascii_case(authority.as_str().as_bytes());
            assert!(request.lines("host").all(is_same));
            assert_eq!(request.authority, Some(authority.as_str()));
            assert!(is_host(authority.as_str().as_bytes()));
        }
        None => assert!(is_host(request.value("host").expect("a host, once"))),
    }
    assert_eq!(request.framing == Framing::Empty, !has_body);
    assert!(request.path == "*" || request.path.starts_with('/') && request.path.len() <= 200);
    assert!(parts.headers.len() <= HEADERS_MAX);
    Some(())
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let _invalid = check_head(rest, *first & 1 == 1);
});
