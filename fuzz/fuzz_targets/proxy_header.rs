//! The header of the PROXY protocol: it does not depend on how it was split, and has a bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twinring_services::http::ProxyHeader;

fuzz_target!(|bytes: &[u8]| {
    let parsed = ProxyHeader::parse(bytes);
    match parsed {
        Ok(Some(header)) => {
            assert!((1..=4096).contains(&header.length) && header.length <= bytes.len());
            for end in 0..header.length {
                assert_eq!(ProxyHeader::parse(&bytes[..end]), Ok(None));
            }
            assert_eq!(ProxyHeader::parse(&bytes[..header.length]), parsed);
        }
        Ok(None) => assert!(bytes.len() < 4096),
        Err(_) => assert_eq!(ProxyHeader::parse(&[bytes, b"x"].concat()), parsed),
    }
});
