//! The target of a request's first line, its host, and the way from its path to a file name: decoded once, and confined
//! to the root. The kernel would refuse a path out of the root as well (openat2(2) with RESOLVE_BENEATH). Here it is
//! refused by its text, without a call to the file system.

use super::Status;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, percent_encode};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Which bytes are in a set.
type Bytes = [bool; 256];

const fn with(mut set: Bytes, more: &[u8]) -> Bytes {
    let mut at = 0;
    while at < more.len() {
        set[more[at] as usize] = true;
        at += 1;
    }
    set
}

/// Unreserved characters, sub-delimiters, and the percent sign, of RFC 3986.
const IN_HOST: Bytes = with(
    [false; 256],
    b"!$%&'()*+,-.0123456789;=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz~",
);

/// `pchar` and the slash of RFC 3986, section 3.3.
const ALLOWED: Bytes = with(IN_HOST, b"/:@");

/// RFC 3986 does not allow the further ones, but browsers send them unencoded: the URL Standard has them in no
/// percent-encode set for paths. Otherwise a file `a[1].txt` could not be requested.
const IN_PATH: Bytes = with(ALLOWED, b"[]|");

/// The same for queries, which may also have question marks.
const IN_QUERY: Bytes = with(IN_PATH, b"?\\^`{}");

fn consists_of(set: &Bytes, text: &[u8]) -> bool {
    text.iter().all(|byte| set[usize::from(*byte)])
}

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The host, with its port, of a target in absolute form.
    pub authority: Option<&'a str>,
    /// Begins with a slash, and is still percent-encoded; or `*`, for OPTIONS only: the server as a whole.
    pub path: &'a str,
    /// The text after the question mark, if there is one.
    pub query: Option<&'a str>,
}

impl<'a> Target<'a> {
    /// Parses a target in origin form or, as RFC 9112 section 3.2.2 requires, in absolute form.
    ///
    /// # Errors
    /// 400 for all other forms, and for bytes that are not allowed in a target.
    pub fn parse(target: &'a str, asterisk_allowed: bool) -> Result<Target<'a>, Status> {
        if target == "*" && asterisk_allowed {
            return Ok(Target { authority: None, path: "*", query: None });
        }
        let (authority, origin) = match target.starts_with('/') {
            true => (None, target),
            false => split_authority(target).ok_or(Status::BAD_REQUEST)?,
        };
        let (path, query) = match origin.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (origin, None),
        };
        let in_query = |query: &str| consists_of(&IN_QUERY, query.as_bytes());
        if !consists_of(&IN_PATH, path.as_bytes()) || !query.is_none_or(in_query) {
            return Err(Status::BAD_REQUEST);
        }
        Ok(Target { authority, path: if path.is_empty() { "/" } else { path }, query })
    }

    /// True if `target` could be one, in any form: for methods whose target is not parsed.
    pub(super) fn is_plausible(target: &str) -> bool {
        consists_of(&IN_QUERY, target.as_bytes())
    }
}

/// The authority of `http://authority/path?query`, and path and query; empty if there is none.
fn split_authority(target: &str) -> Option<(Option<&str>, &str)> {
    let (scheme, rest) = target.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, origin) = rest.split_at(end);
    let is_host = !authority.is_empty() && is_host(authority.as_bytes());
    is_host.then_some((Some(authority), origin))
}

/// True for `uri-host [ ":" port ]` of RFC 9110 section 7.2, which may be empty. User information
/// is not part of it.
pub fn is_host(value: &[u8]) -> bool {
    let (host_is_valid, port) = match value.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let address = std::str::from_utf8(&rest[..end]).unwrap_or("");
            (address.parse::<std::net::Ipv6Addr>().is_ok(), &rest[end + 1..])
        }
        None => {
            let end = value.iter().position(|byte| *byte == b':').unwrap_or(value.len());
            (consists_of(&IN_HOST, &value[..end]), &value[end..])
        }
    };
    let port_is_valid = match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    host_is_valid && port_is_valid
}

/// Why a path names no served file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no path: an incomplete percent-encoding, NUL, or more steps up than down. 400.
    Malformed,
    /// No file can have this name, or it is never served. 404.
    NotServed,
}

/// Characters that are encoded in a path: those that RFC 3986 does not allow there.
const ENCODED: &AsciiSet = &{
    let (mut encoded, mut byte) = (CONTROLS.add(b'%'), b' ');
    while byte < 0x7f {
        if !ALLOWED[byte as usize] {
            encoded = encoded.add(byte);
        }
        byte += 1;
    }
    encoded
};

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
    let is_complete = |rest: &[u8]| match rest {
        [high, low, ..] => high.is_ascii_hexdigit() && low.is_ascii_hexdigit(),
        _ => false,
    };
    let mut encodings = segment.split(|byte| *byte == b'%').skip(1);
    let decoded: Vec<u8> = percent_decode(segment).collect();
    match encodings.all(is_complete) && !decoded.contains(&0) {
        true => Ok(decoded),
        false => Err(Refusal::Malformed),
    }
}

pub(super) fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// A clean path, encoded for a `Location` or a link.
pub fn encode(path: &[u8]) -> String {
    percent_encode(path, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_come_in_origin_and_in_absolute_form() {
        let resource = |path, query| Ok(Target { authority: None, path, query });
        let of = |host, path, query| Ok(Target { authority: Some(host), path, query });
        for (text, expected) in [
            ("/", resource("/", None)),
            ("/a/b?x=1?y", resource("/a/b", Some("x=1?y"))),
            ("/?", resource("/", Some(""))),
            ("http://example.org", of("example.org", "/", None)),
            ("HTTPS://[::1]:80/x", of("[::1]:80", "/x", None)),
            ("http://h?http://i", of("h", "/", Some("http://i"))),
            ("http://h/a:b@c", of("h", "/a:b@c", None)),
            ("/http://h", resource("/http://h", None)),
            ("/a[1]|b?c[]={d}^`\\|", resource("/a[1]|b", Some("c[]={d}^`\\|"))),
            ("/!$&'()*+,;=:@-._~%41?/?:@", resource("/!$&'()*+,;=:@-._~%41", Some("/?:@"))),
        ] {
            assert_eq!(Target::parse(text, false), expected, "{text}");
        }
        assert_eq!(Target::parse("*", true), resource("*", None));
        let wrong = "* index.html http:///x http://user@h/x ftp://h/x /a#b /a?b#c http://h/\u{e4}";
        for text in wrong.split(' ') {
            assert_eq!(Target::parse(text, false), Err(Status::BAD_REQUEST), "{text}");
        }
    }

    /// Bytes from 0x80 and others that no URI has were accepted.
    #[test]
    fn targets_have_no_bytes_that_a_uri_cannot_have() {
        for byte in (0..=0x20).chain([b'"', b'<', b'>', b'#', 0x7f]) {
            let byte = char::from(byte);
            for target in [format!("/a{byte}b"), format!("/a?b{byte}c")] {
                assert_eq!(Target::parse(&target, false), Err(Status::BAD_REQUEST), "{target:?}");
                assert!(!Target::is_plausible(&target), "{target:?}");
            }
        }
        for target in ["/\u{e4}", "/?\u{e4}", "/\u{20ac}", "/a\\b", "/a^b", "/a`b", "/{b}"] {
            assert_eq!(Target::parse(target, false), Err(Status::BAD_REQUEST), "{target:?}");
        }
    }

    #[test]
    fn hosts_are_names_or_addresses_with_or_without_a_port() {
        for valid in ["", "a", "example.org:8080", "127.0.0.1", "[::1]", "[fe80::1]:1", "a:", "a_b"]
        {
            assert!(is_host(valid.as_bytes()), "{valid}");
        }
        for wrong in ["a b", "a/b", "u@h", "[::1", "[x]", "a:b", "a:123456", "a,b:1:2", "\u{e4}"] {
            assert!(!is_host(wrong.as_bytes()), "{wrong}");
        }
    }

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
        let malformed = " a * /.. /../etc/passwd /a/../../b /%2e%2e/x /%2E./x /a/%2e%2e/%2e%2e/%2e%2e/b /a%00 /%00 /% \
                         /%4 /%zz /a%2 /..//x /a%2F/../../x /%2F/a/../../..";
        let not_served = "/.git/config /a/.htpasswd /%2egit /..%2f..%2fetc /... /a%2fb /%2e%2e%2fx \
                          /a/.well-known/x /.well-known/.x /..%5c..%5cx /.%2e%2fx";
        for (paths, refusal) in [(malformed, Refusal::Malformed), (not_served, Refusal::NotServed)]
        {
            for path in paths.split(' ') {
                assert_eq!(cleaned(path), Err(refusal), "{path}");
            }
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
