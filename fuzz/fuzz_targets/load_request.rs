//! The requests of `load http` for any accepted URL and header fields: our own server parses each
//! as one request, for that path and host.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_load::http::fuzzing::request_bytes;
use twinring_load::http::{Request, Target};
use twinring_services::http::request::{
    Framing, HeadLimits, Method, Request as Received, Scan, storage,
};

const LIMITS: HeadLimits = HeadLimits { head_bytes: 1 << 20, target_bytes: 1 << 19 };

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let Some(Ok(url)) = lines.next().map(|url| Target::parse(url, 1)) else { return };
    let headers: Vec<_> = lines.filter_map(|line| Request::field(line).ok()).take(20).collect();
    let names_host = headers.iter().any(|(name, _)| name == "host");
    let names_expect = headers.iter().any(|(name, _)| name == "expect");
    if names_host || names_expect {
        return;
    }
    let content = b"content".to_vec();
    for (keepalive, body) in [(true, Vec::new()), (false, content)] {
        let request = Request { headers: headers.clone(), body: body.into(), ..Request::default() };
        let bytes = request_bytes(&request, &url, keepalive);
        let end = Scan::default().find_end(&bytes, LIMITS);
        assert_eq!(end, Ok(Some(bytes.len() - request.body.len())), "{url:?}");
        let head_bytes = &bytes[..bytes.len() - request.body.len()];
        let mut storage = storage();
        let Ok(head) = Received::parse(head_bytes, &mut storage, LIMITS) else {
            // The URL is sent unchanged, and not every path or host is legal.
            continue;
        };
        assert_eq!(head.method, Method::Get);
        assert!(head.path.starts_with('/'));
        assert_eq!(head.lines("host").count(), 1);
        assert_eq!(head.keep_alive, keepalive);
        match head.framing {
            Framing::Empty => assert!(request.body.is_empty()),
            Framing::Length(length) => assert_eq!(length, request.body.len() as u64),
            Framing::Chunked => panic!("it sends no chunks"),
        }
    }
});
