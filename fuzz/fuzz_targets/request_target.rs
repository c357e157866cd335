//! The target of a request and its file: never outside of the root, never hidden, and equal to the
//! result of a second implementation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use twinring_services::http::target::{Refusal, clean, encode};
use twinring_services::http::target::{Target, is_host};

/// A path decoded segment by segment; `None` if an encoding is malformed or NUL.
fn decoded(path: &[u8]) -> Option<Vec<Vec<u8>>> {
    let decode = |segment: &[u8]| {
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < segment.len() {
            if segment[at] == b'%' {
                let digits = segment.get(at + 1..at + 3)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                at += 3;
            } else {
                bytes.push(segment[at]);
                at += 1;
            }
        }
        (!bytes.contains(&0)).then_some(bytes)
    };
    path.split(|byte| *byte == b'/').map(decode).collect()
}

/// The names after resolving dots; `None` if they lead out.
fn straightened(segments: &[Vec<u8>]) -> Option<Vec<&[u8]>> {
    let mut names: Vec<&[u8]> = Vec::new();
    for segment in segments {
        match segment.as_slice() {
            b"" | b"." => {}
            b".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names)
}

fn check_path(path: &[u8]) {
    let outcome = clean(path);
    let segments = path.strip_prefix(b"/").and_then(decoded);
    let Some(names) = segments.as_deref().and_then(straightened) else {
        // NUL that needs no decoding never gets here: no head holds it.
        assert!(outcome == Err(Refusal::Malformed) || path.contains(&0), "{outcome:?}");
        return;
    };
    let Ok(clean_path) = outcome else {
        let all = segments.iter().flatten();
        let mut refused = all.filter(|name| name.starts_with(b".") || name.contains(&b'/'));
        assert!(refused.any(|name| name != b"." && name != b".."), "{outcome:?}");
        return;
    };
    let inner = clean_path.strip_prefix(b"/").expect("it begins with a slash");
    let relative = Path::new(OsStr::from_bytes(inner));
    assert!(relative.components().all(|part| matches!(part, Component::Normal(_))));
    let found: Vec<&[u8]> =
        inner.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    assert_eq!(found, names);
    for (depth, name) in found.iter().enumerate() {
        assert!(!name.starts_with(b".") || depth == 0 && name == b".well-known");
    }
    let encoded = encode(&clean_path);
    assert!(encoded.bytes().all(|byte| byte.is_ascii_graphic()));
    assert_eq!(clean(encoded.as_bytes()).as_deref(), Ok(&*clean_path));
    assert_eq!(clean(&percent_encoded(&clean_path)).as_deref(), Ok(&*clean_path));
}

/// A clean path in which only the percent signs are encoded.
fn percent_encoded(path: &[u8]) -> Vec<u8> {
    let encode = |byte: &u8| if *byte == b'%' { b"%25".to_vec() } else { vec![*byte] };
    path.iter().flat_map(encode).collect()
}

fuzz_target!(|bytes: &[u8]| {
    if !bytes.contains(&0) {
        check_path(bytes);
    }
    let host = is_host(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        assert!(!host);
        return;
    };
    for asterisk_allowed in [false, true] {
        let parsed = Target::parse(text, asterisk_allowed);
        let Ok(Target { authority, path, query }) = parsed else { continue };
        if asterisk_allowed && path == "*" {
            continue;
        }
        assert!(path.starts_with('/') && !path.contains(['?', '#']));
        assert!(query.is_none_or(|query| !query.contains('#')));
        if let Some(authority) = authority {
            assert!(!authority.is_empty() && is_host(authority.as_bytes()));
        } else {
            // The absolute form of the same names the same.
            let absolute = format!("http://h{text}");
            let same = Target { authority: Some("h"), path, query };
            assert_eq!(Target::parse(&absolute, false), Ok(same));
        }
    }
});
