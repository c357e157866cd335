//! HTTP/2: where frames end, however they are split, and the heads of requests, which must be what
//! HTTP/1.1 could say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::http2::Frames;
use twinring_services::http::request::{Framing, HEADERS_MAX, HeadLimits, Method, Name, Request};
use twinring_services::http::target::is_host;

fn check_frames(bytes: &[u8], split: usize) {
    let (mut whole, mut parts) = (Frames::new(), Frames::new());
    whole.advance(bytes);
    for part in bytes.chunks(split) {
        parts.advance(part);
    }
    assert_eq!(format!("{whole:?}"), format!("{parts:?}"));
}

/// A line for the method, one for the target, one for each field.
fn check_head(bytes: &[u8], has_body: bool) -> Option<()> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let mut request = http::Request::builder().method(lines.next()?).uri(lines.next()?);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        request = request.header(&line[..colon], &line[colon + 1..]);
    }
    let (parts, ()) = request.body(()).ok()?.into_parts();
    let (authority, fields) = (parts.uri.authority().cloned(), parts.headers.len());
    let limits = HeadLimits { target_bytes: 200, ..HeadLimits::default() };
    let request = Request::from_http2(parts, has_body, limits).ok()?;
    match authority {
        Some(authority) => {
            let is_same = |host: &[u8]| host.eq_ignore_ascii_case(authority.as_str().as_bytes());
            assert!(request.values(Name::Host).all(is_same));
            assert_eq!(request.authority.as_deref(), Some(authority.as_str()));
            assert!(is_host(authority.as_str().as_bytes()));
        }
        None => assert!(is_host(request.value(Name::Host).expect("a host, once"))),
    }
    assert_eq!(request.framing == Framing::Empty, !has_body);
    assert_ne!(request.method, Method::Unknown);
    assert!(request.path == "*" || request.path.starts_with('/') && request.path.len() <= 200);
    assert!(fields <= HEADERS_MAX);
    Some(())
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    check_frames(rest, usize::from(*first) + 1);
    let _invalid = check_head(rest, *first & 1 == 1);
});
