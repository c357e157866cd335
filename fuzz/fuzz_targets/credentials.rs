//! `Authorization`, and files of users: no input causes a panic, and what is taken can be sent again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::{Auth, Credentials};

fuzz_target!(|bytes: &[u8]| {
    let alone = Credentials::parse(bytes);
    // White space behind it is none of its value.
    let padded = [bytes, b" \t"].concat();
    if alone.is_some() {
        assert!(Credentials::parse(&padded).is_some() || padded.len() > 1024);
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Err((line, error)) = Auth::parse(text)
    {
        assert!(line <= text.lines().count(), "{line}");
        // The error shows no hash.
        assert!(error.len() < 100, "{error}");
    }
});
