//! How the service is set up.

use super::forwarders::Forwarders;
use super::head::HeadLimits;
use super::hosts::Sites;
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use httparse::Header;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// How large files are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStrategy {
    /// By sendfile(2), where the filesystem has it.
    Sendfile,
    /// Read and sent: bytes in transit do not change when a file is overwritten in place.
    Read,
}

impl FromStr for SendStrategy {
    type Err = String;

    fn from_str(text: &str) -> Result<SendStrategy, String> {
        match text {
            "sendfile" => Ok(SendStrategy::Sendfile),
            "read" => Ok(SendStrategy::Read),
            other => Err(format!("{other}: expected sendfile or read")),
        }
    }
}

/// The largest file that can be kept in memory whole, in bytes.
pub const SENDFILE_ABOVE_MAX: u64 = 1 << 20;

/// All settings that decide on the answers.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The sites, by host name.
    pub sites: Sites,
    /// Limits of the cache.
    pub cache: CacheLimits,
    /// Files of more bytes (at most [`SENDFILE_ABOVE_MAX`]) are sent by `send`, not from memory.
    pub sendfile_above: u64,
    /// How large files are sent. Over TLS all are read, encrypted and sent.
    pub send: SendStrategy,
    /// Limits of requests.
    pub limits: HttpLimits,
    /// Timeouts of requests and answers.
    pub timeouts: Timeouts,
    /// HTTP/2, beside HTTP/1.1: for clients that begin with it on a connection without TLS, and for
    /// those that agreed on it over TLS.
    pub http2: Option<Http2Limits>,
    /// Answers have the field `Server-Timing`. Off by default: it tells clients what is cached.
    pub server_timing: bool,
    /// Proxies in front of the service. None by default.
    pub forwarders: Forwarders,
}

impl HttpSettings {
    /// The defaults, for these sites.
    pub fn new(sites: Sites) -> HttpSettings {
        HttpSettings {
            sites,
            cache: CacheLimits::default(),
            sendfile_above: 48 * 1024,
            send: SendStrategy::Sendfile,
            limits: HttpLimits::default(),
            timeouts: Timeouts::default(),
            http2: Some(Http2Limits::default()),
            server_timing: false,
            forwarders: Forwarders::default(),
        }
    }
}

/// Limits of a connection that speaks HTTP/2, besides those of all connections.
#[derive(Clone, Copy, Debug)]
pub struct Http2Limits {
    /// Concurrent requests. 100 by default.
    pub streams: u32,
}

impl Default for Http2Limits {
    fn default() -> Http2Limits {
        Http2Limits { streams: 100 }
    }
}

/// Bounds of the cache, over all workers; each has an equal share.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Memory: heads, content of small files, keys, and the overhead of keeping them. 64 MiB by
    /// default.
    pub bytes: usize,
    /// Larger files, which are kept open: at most half of the limit of open descriptors. An unused
    /// one is closed within a minute. 1,024 by default.
    pub files: usize,
    /// How old an answer from the cache may be: a changed file is served within this time. 1 s by
    /// default.
    pub valid: Duration,
}

impl Default for CacheLimits {
    fn default() -> CacheLimits {
        CacheLimits { bytes: 64 << 20, files: 1024, valid: Duration::from_secs(1) }
    }
}

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Concurrent connections, over all workers; further ones are closed immediately.
    pub connections: usize,
    /// Concurrent connections of one IPv4 address, or of one IPv6 network of 64 bits.
    pub connections_per_address: usize,
    /// Limits of the head of a request.
    pub head: HeadLimits,
    /// Longest body of a request, which is read and dropped; a longer one gets 413. 64 KiB by
    /// default.
    pub body_bytes: u64,
    /// Requests on one connection; the last one is answered with `Connection: close`, or in HTTP/2
    /// with GOAWAY.
    pub requests: u64,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            connections: usize::MAX,
            connections_per_address: usize::MAX,
            head: HeadLimits::default(),
            body_bytes: 64 << 10,
            requests: u64::MAX,
        }
    }
}

/// Timeouts. Each is precise to a quarter of its length, and to a second: with 10 s, a connection
/// ends after 10 to 11 s.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The TLS handshake, counted from the accept. 10 s by default.
    pub handshake: Duration,
    /// From the first byte of a request's head to its last. 10 s by default; then 408.
    pub header: Duration,
    /// From the end of the head to the end of the body. 30 s by default; then 408.
    pub body: Duration,
    /// Between two requests, counted from when the peer took the first answer. 60 s by default.
    pub idle: Duration,
    /// Time in which the peer must acknowledge 1 KiB of an answer. 30 s by default.
    pub send: Duration,
    /// How long a shutdown waits for peers to take their answers. 10 s by default.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            send: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

/// The format of a directory listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingFormat {
    /// A page.
    Html,
    /// An array of objects.
    Json,
}

/// Header fields that the service sets itself; another value would be wrong.
const RESERVED: [&str; 12] = [
    "accept-ranges",
    "allow",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "last-modified",
    "transfer-encoding",
];

/// The longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 4096;

/// A header field for the paths that match a pattern. In patterns, `*` stands for any characters,
/// slashes included, `?` for one, `[ab]` for a choice, `{a,b}` for alternatives.
#[derive(Clone, Debug)]
pub struct FieldRule {
    pattern: Glob,
    name: String,
    value: String,
}

/// Rules compiled together: a path is compared with all of them at once, in time that does not grow
/// with rules times bytes.
#[derive(Clone, Debug, Default)]
pub struct FieldRules {
    rules: Vec<FieldRule>,
    patterns: GlobSet,
}

impl FieldRules {
    /// Compiles rules, which keep their order.
    ///
    /// # Errors
    /// When they are too large together.
    pub fn new(rules: Vec<FieldRule>) -> Result<FieldRules, String> {
        let mut patterns = GlobSetBuilder::new();
        for rule in &rules {
            patterns.add(rule.pattern.clone());
        }
        let patterns = patterns.build().map_err(|error| format!("too many rules: {error}"))?;
        Ok(FieldRules { rules, patterns })
    }

    /// The fields for a path, in the order of the rules.
    pub(super) fn matching(&self, path: &Path) -> Vec<(&str, &str)> {
        let mut matching = Vec::new();
        if !self.rules.is_empty() {
            let numbers = self.patterns.matches(path).into_iter();
            matching.extend(numbers.map(|number| self.rules[number].field()));
        }
        matching
    }
}

impl FieldRule {
    /// From `PATTERN=VALUE`: a rule for `Cache-Control`.
    ///
    /// # Errors
    /// The error in the text.
    pub fn cache_control(text: &str) -> Result<FieldRule, String> {
        let (pattern, value) =
            text.split_once('=').ok_or_else(|| format!("`{text}` is not PATTERN=VALUE"))?;
        FieldRule::new(pattern, "Cache-Control", value)
    }

    fn new(pattern: &str, name: &str, value: &str) -> Result<FieldRule, String> {
        let wrong = |why: &dyn std::fmt::Display| format!("the pattern `{pattern}`: {why}");
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(wrong(&"it has more than 4096 bytes"));
        }
        let compiled = GlobBuilder::new(pattern).backslash_escape(true).build();
        let compiled = compiled.map_err(|error| wrong(error.kind()))?;
        if let Some(why) = why_it_matches_nothing(pattern) {
            return Err(format!("the pattern `{pattern}` matches no path: {why}"));
        }
        let value = value.trim();
        let line = format!("{name}:{value}\r\n\r\n");
        match httparse::parse_headers(line.as_bytes(), &mut [httparse::EMPTY_HEADER; 2]) {
            Ok(httparse::Status::Complete((length, [Header { .. }]))) if length == line.len() => {}
            _ => return Err(format!("`{name}: {value}` is not a header field")),
        }
        let (name, value) = (name.to_owned(), value.to_owned());
        Ok(FieldRule { pattern: compiled, name, value })
    }

    fn field(&self) -> (&str, &str) {
        (&self.name, &self.value)
    }
}

impl std::fmt::Display for FieldRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}: {}", self.pattern.glob(), self.name, self.value)
    }
}

/// Why a pattern cannot match. Patterns are compared with clean paths that begin with a slash.
fn why_it_matches_nothing(pattern: &str) -> Option<&'static str> {
    let may_begin = |text: &str| text.starts_with(['/', '*', '?', '[', '{', '\\']);
    let begins = match pattern.strip_prefix('{') {
        // In braces, any of several alternatives may match.
        Some(alternatives) => alternatives.split(['{', ',']).any(may_begin),
        None => may_begin(pattern),
    };
    if !begins {
        return Some("all paths begin with a slash, so begin it with `/` or `*`");
    }
    if pattern.contains(['{', '[', '\\']) {
        return None;
    }
    let inner = pattern.split('/').skip(1);
    let is_odd = |segment: &str| matches!(segment, "." | "..");
    if inner.clone().any(is_odd) || pattern.contains("//") {
        return Some(
            "paths are compared when they have no `.`, no `..` and no double slash any more",
        );
    }
    None
}

impl FromStr for FieldRule {
    type Err = String;

    /// From `PATTERN=NAME:VALUE`.
    fn from_str(text: &str) -> Result<FieldRule, String> {
        let parts = text.split_once('=').and_then(|(pattern, field)| {
            let (name, value) = field.split_once(':')?;
            Some((pattern, name, value))
        });
        let (pattern, name, value) =
            parts.ok_or_else(|| format!("`{text}` is not PATTERN=NAME:VALUE"))?;
        if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(format!("the service itself decides on `{name}`"));
        }
        FieldRule::new(pattern, name, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl FieldRule {
        fn matches(&self, path: &Path) -> bool {
            self.pattern.compile_matcher().is_match(path)
        }
    }

    #[test]
    fn matching_rules_keep_their_order() {
        let rules =
            ["*=X: 1", "/a/*=Y: 2", "*.css=X: 3", "/b=Z: 4"].map(|rule| rule.parse().unwrap());
        let rules = FieldRules::new(rules.into()).unwrap();
        let matching = |path: &str| rules.matching(Path::new(path));
        assert_eq!(matching("/a/x.css"), [("X", "1"), ("Y", "2"), ("X", "3")]);
        assert_eq!(matching("/b"), [("X", "1"), ("Z", "4")]);
        assert_eq!(FieldRules::default().matching(Path::new("/")), []);
    }

    #[test]
    fn rules_name_a_pattern_and_a_field() {
        let rule = FieldRule::cache_control("*.{css,js}=max-age=60, public").unwrap();
        assert_eq!(rule.field(), ("Cache-Control", "max-age=60, public"));
        assert!(rule.matches(Path::new("/a/b.css")) && !rule.matches(Path::new("/a/b.html")));
        let rule: FieldRule = "/a/*=X-Frame-Options: DENY".parse().unwrap();
        assert_eq!(rule.field(), ("X-Frame-Options", "DENY"));
        assert!(rule.matches(Path::new("/a/b/c")) && !rule.matches(Path::new("/b/a/c")));
        for wrong in [
            "",
            "*",
            "*=",
            "*=a",
            "*=a b:c",
            "*=a:b\r\nc: d",
            "[=a:b",
            "*=:b",
            "*=Date: x",
            "*=a:b\nc",
            "*=content-length:5",
            "*=a:\0",
        ] {
            assert!(wrong.parse::<FieldRule>().is_err(), "{wrong:?}");
        }
        assert!(FieldRule::cache_control("*").is_err());
    }

    /// They were accepted, without effect.
    #[test]
    fn patterns_that_match_no_path_are_refused() {
        for wrong in [
            "",
            "css/*",
            "index.html",
            ".css",
            "../x",
            "./*",
            "/../x",
            "/a/./b",
            "/a//b",
            "{a,b}/*",
        ] {
            let error = FieldRule::cache_control(&format!("{wrong}=no-store")).unwrap_err();
            assert!(error.contains("matches no path"), "{wrong:?}: {error}");
        }
        for (sound, path) in [
            ("/", "/"),
            ("?a", "/a"),
            ("[/]a", "/a"),
            ("\\/a", "/a"),
            ("{a,/b}/*", "/b/c"),
            ("{*.css,x}", "/a.css"),
            ("**/a..b", "/x/a..b"),
            ("/...", "/..."),
        ] {
            let rule = FieldRule::cache_control(&format!("{sound}=no-store")).unwrap();
            assert!(rule.matches(Path::new(path)), "{sound:?}");
        }
    }
}
