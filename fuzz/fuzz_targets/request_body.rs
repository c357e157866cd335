//! The body of a request: its end does not depend on how it is split, nor on the data behind it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::Status;
use twinring_services::http::body::Skip;
use twinring_services::http::request::Framing;

/// Longest accepted body, in bytes.
const BODY_BYTES_MAX: u64 = 1000;

/// The end of the body, if it ends, when it arrives in parts of `step` bytes.
fn end(framing: Framing, bytes: &[u8], step: usize) -> Result<Option<usize>, Status> {
    let mut skip = Skip::new(framing, BODY_BYTES_MAX)?;
    let mut taken = 0;
    for part in bytes.chunks(step) {
        let now = skip.take(part)?;
        assert!(now == part.len() || skip.is_done());
        taken += now;
        if skip.is_done() {
            return Ok(Some(taken));
        }
    }
    Ok(skip.is_done().then_some(taken))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let framing = match first {
        0 => Framing::Empty,
        1..128 => Framing::Length(u64::from(*first) * 11),
        _ => Framing::Chunked,
    };
    let whole = end(framing, bytes, bytes.len().max(1));
    for step in [1, 2, 3, 7] {
        assert_eq!(end(framing, bytes, step), whole, "in parts of {step}");
    }
    let Ok(Some(length)) = whole else { return };
    assert!(length <= bytes.len());
    assert_eq!(end(framing, &bytes[..length], 1), Ok(Some(length)), "without what follows");
    if let Some(shorter) = length.checked_sub(1) {
        assert_eq!(end(framing, &bytes[..shorter], 1), Ok(None), "without its last byte");
    }
    match framing {
        Framing::Empty => assert_eq!(length, 0),
        Framing::Length(expected) => assert_eq!(length as u64, expected),
        Framing::Chunked => assert!(bytes[..length].ends_with(b"\r\n\r\n")),
    }
});
