//! HTTP/2: where frames end, however they are split, and the heads of requests, which must be what
//! HTTP/1.1 could say.
#![no_main]

use http::Request;
use libfuzzer_sys::fuzz_target;
use twinring_services::http::head::{Framing, HEADERS_MAX, Head, HeadLimits, Method, Name};
use twinring_services::http::http2::Frames;
use twinring_services::http::target::{Target, is_host};

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
    let mut request = Request::builder().method(lines.next()?).uri(lines.next()?);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        request = request.header(&line[..colon], &line[colon + 1..]);
    }
    let (parts, ()) = request.body(()).ok()?.into_parts();
    let mut fields = Vec::new();
    let limits = HeadLimits { target_bytes: 200, ..HeadLimits::default() };
    let head = Head::from_http2(&parts, has_body, &mut fields, limits).ok()?;
    let host = head.value(Name::Host).expect("a host, once");
    assert!(is_host(host));
    if let Some(authority) = parts.uri.authority() {
        assert!(authority.as_str().as_bytes().eq_ignore_ascii_case(host));
    }
    assert_eq!(head.framing == Framing::Empty, !has_body);
    assert_ne!(head.method, Method::Unknown);
    if let Target::Resource { path, .. } = head.target {
        assert!(path.starts_with('/') && path.len() <= 200);
    }
    assert!(parts.headers.len() <= HEADERS_MAX);
    Some(())
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    check_frames(rest, usize::from(*first) + 1);
    let _invalid = check_head(rest, *first & 1 == 1);
});
