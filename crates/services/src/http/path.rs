//! From the path of a request to a file name: decoded once, and confined to the root.
//!
//! The kernel would refuse a path out of the root as well (openat2(2) with RESOLVE_BENEATH). Here
//! it is refused by its text, without a call to the file system.

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use std::borrow::Cow;

/// Why a path names no served file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no path: an incomplete percent-encoding, NUL, or more steps up than down. 400.
    Malformed,
    /// No file can have this name, or it is never served. 404.
    NotServed,
}

/// Characters that are encoded in a path: those that RFC 3986 does not allow there.
const ENCODED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The canonical path: decoded, without dot segments, empty segments or files that begin with a
/// dot. It begins with a slash, and ends with one if it names a directory. Borrowed if unchanged,
/// which is nearly always.
///
/// # Errors
/// See [`Refusal`]. An encoded slash does not separate segments: no file name can contain it.
pub fn clean(path: &[u8]) -> Result<Cow<'_, [u8]>, Refusal> {
    let mut after_slash = false;
    for byte in path {
        if *byte == b'%' || after_slash && matches!(byte, b'.' | b'/') {
            return rewrite(path).map(Cow::Owned);
        }
        after_slash = *byte == b'/';
    }
    match path.first() {
        Some(b'/') => Ok(Cow::Borrowed(path)),
        _ => Err(Refusal::Malformed),
    }
}

fn rewrite(path: &[u8]) -> Result<Vec<u8>, Refusal> {
    let Some((b'/', path)) = path.split_first() else { return Err(Refusal::Malformed) };
    let mut clean = Vec::with_capacity(path.len() + 1);
    let mut refusal = None;
    let mut is_directory = true;
    for segment in path.split(|byte| *byte == b'/') {
        let segment = decode(segment)?;
        is_directory = true;
        match segment.as_slice() {
            b"" | b"." => {}
            // Cut off the last segment, and the slash before it.
            b".." => match clean.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => clean.truncate(slash),
                None => return Err(Refusal::Malformed),
            },
            name => {
                // RFC 8615: the only public directory that begins with a dot.
                let is_public = clean.is_empty() && name == b".well-known";
                if name.contains(&b'/') || name.starts_with(b".") && !is_public {
                    refusal = Some(Refusal::NotServed);
                }
                clean.push(b'/');
                // A slash within a name, which is refused, would look like a separator to `..`.
                clean.extend(name.iter().filter(|byte| **byte != b'/'));
                is_directory = false;
            }
        }
    }
    if is_directory {
        clean.push(b'/');
    }
    refusal.map_or(Ok(clean), Err)
}

/// Decodes once: text that still looks encoded is part of the name.
fn decode(segment: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut decoded = Vec::with_capacity(segment.len());
    let mut rest = segment;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        let mut byte = *byte;
        if byte == b'%' {
            let (digits, behind) = rest.split_at_checked(2).ok_or(Refusal::Malformed)?;
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(Refusal::Malformed);
            byte = (digit(digits[0])? * 16 + digit(digits[1])?) as u8;
            rest = behind;
        }
        if byte == 0 {
            return Err(Refusal::Malformed);
        }
        decoded.push(byte);
    }
    Ok(decoded)
}

/// A clean path, encoded for a `Location` or a link.
pub fn encode(path: &[u8]) -> String {
    percent_encode(path, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(path: &str) -> Result<String, Refusal> {
        clean(path.as_bytes()).map(|path| String::from_utf8(path.into_owned()).unwrap())
    }

    #[test]
    fn paths_are_decoded_and_straightened() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b.html", "/a/b.html"),
            ("/a%20b", "/a b"),
            ("/%61", "/a"),
            ("/a//b", "/a/b"),
            ("//evil.example/..", "/"),
            ("///", "/"),
            ("/a/./b/../c", "/a/c"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/b/%2e%2e/", "/a/"),
            ("/a/.", "/a/"),
            ("/%2561", "/%61"),
            ("/a%5cb", "/a\\b"),
            ("/\\evil", "/\\evil"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a..b/c.", "/a..b/c."),
        ] {
            assert_eq!(cleaned(path).as_deref(), Ok(expected), "{path}");
        }
    }

    #[test]
    fn paths_out_of_the_root_and_hidden_files_are_refused() {
        for path in [
            "",
            "a",
            "*",
            "/..",
            "/../etc/passwd",
            "/a/../../b",
            "/%2e%2e/x",
            "/%2E./x",
            "/a/%2e%2e/%2e%2e/%2e%2e/b",
            "/a%00",
            "/%00",
            "/%",
            "/%4",
            "/%zz",
            "/a%2",
            "/..//x",
            "/a%2F/../../x",
            "/%2F/a/../../..",
        ] {
            assert_eq!(cleaned(path), Err(Refusal::Malformed), "{path}");
        }
        for path in [
            "/.git/config",
            "/a/.htpasswd",
            "/%2egit",
            "/..%2f..%2fetc",
            "/...",
            "/a%2fb",
            "/%2e%2e%2fx",
            "/a/.well-known/x",
            "/.well-known/.x",
            "/..%5c..%5cx",
            "/.%2e%2fx",
        ] {
            assert_eq!(cleaned(path), Err(Refusal::NotServed), "{path}");
        }
    }

    #[test]
    fn names_survive_encoding() {
        let name = "/a b%?#\\\"<ü>[1]/";
        let encoded = encode(name.as_bytes());
        assert!(encoded.bytes().all(|byte| byte.is_ascii_graphic()), "{encoded}");
        assert_eq!(cleaned(&encoded).as_deref(), Ok(name));
    }
}
