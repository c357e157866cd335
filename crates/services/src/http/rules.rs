//! The rules of a site: what holds for the paths that clients ask for.
//!
//! All rules whose patterns match a path hold, in their order. Protection adds up: headers, passwords, addresses and
//! rates of all of them count, unless a later rule drops the ones above it by name ([`Rule::replace`]). Of everything
//! else, the last rule that says something counts.

use super::Status;
use super::auth::Auth;
use super::redirect::Redirect;
use super::response::Field;
use crate::Networks;
use crate::rate::RateLimit;
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use http::{HeaderName, HeaderValue};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Rules of one site.
pub const RULES_MAX: usize = 2000;

/// The longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 4096;

/// The end of a pattern for all beneath a directory.
pub(super) const REST: &str = "/**";

/// Header fields that the service sets itself; another value would be wrong.
const RESERVED: &str = "accept-ranges allow cache-control connection content-encoding content-length content-range \
                        content-type date etag last-modified transfer-encoding";

/// A pattern of paths. `*` stands for any characters but a slash, `**` for any, `?` for one, `[ab]` for a choice,
/// `{a,b}` for alternatives. A pattern without a slash is one of file names, in any directory.
#[derive(Clone, Debug)]
pub struct PathGlob(Glob);

impl PathGlob {
    fn all() -> Result<PathGlob, String> {
        REST.parse()
    }

    /// True for all beneath directories.
    pub fn is_directory(&self) -> bool {
        self.0.glob().ends_with(REST)
    }

    /// The directory, with its slash, if the pattern is for all beneath one.
    pub(super) fn directory(&self) -> Option<&str> {
        let directory = self.0.glob().strip_suffix("**")?;
        let is_literal = !directory.contains(['*', '?', '[', '{', '\\']);
        (directory.ends_with('/') && is_literal).then_some(directory)
    }
}

impl FromStr for PathGlob {
    type Err = String;

    /// Patterns are compared with clean paths that begin with a slash.
    fn from_str(text: &str) -> Result<PathGlob, String> {
        let wrong = |why: &dyn fmt::Display| format!("the pattern `{text}`: {why}");
        let nothing = |why: &str| Err(format!("the pattern `{text}` matches no path: {why}"));
        if text.len() > PATTERN_BYTES_MAX {
            return Err(wrong(&"it has more than 4096 bytes"));
        }
        let whole = match text {
            "" => return nothing("it is empty"),
            "*" | "**" => Cow::Borrowed(REST),
            // globset takes it for all paths.
            "**/" => Cow::Borrowed("/**/"),
            name if !name.contains('/') => Cow::Owned(format!("**/{name}")),
            path if path.starts_with('/') || path.starts_with("**/") => Cow::Borrowed(path),
            _ => return nothing("all paths begin with a slash, so begin it with `/` or `**/`"),
        };
        let inner = whole.split('/').skip(1);
        if inner.clone().any(|segment| matches!(segment, "." | "..")) || whole.contains("//") {
            return nothing(
                "paths are compared when they have no `.`, no `..` and no double slash any more",
            );
        }
        let glob = GlobBuilder::new(&whole).literal_separator(true).backslash_escape(true).build();
        glob.map(PathGlob).map_err(|error| wrong(error.kind()))
    }
}

impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a later rule can drop of the rules above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Passwords.
    Auth,
    /// Addresses that are allowed or denied.
    Addresses,
    /// Header fields.
    Headers,
    /// Rates of requests.
    Rate,
}

impl FromStr for Protection {
    type Err = String;

    fn from_str(text: &str) -> Result<Protection, String> {
        match text {
            "auth" => Ok(Protection::Auth),
            "allow" | "deny" => Ok(Protection::Addresses),
            "headers" => Ok(Protection::Headers),
            "rate" => Ok(Protection::Rate),
            _ => Err(format!("`{text}`: expected auth, allow, deny, headers or rate")),
        }
    }
}

/// A header field that the operator chooses.
///
/// # Errors
/// When it is none, or one that the service sets itself.
pub fn header_field(name: &str, value: &str) -> Result<Field, String> {
    match RESERVED.split(' ').any(|reserved| reserved.eq_ignore_ascii_case(name)) {
        true => Err(format!("the service itself decides on `{name}`")),
        false => any_field(name, value),
    }
}

/// A field `Cache-Control`.
///
/// # Errors
/// When this cannot be its value.
pub fn cache_control(value: &str) -> Result<Field, String> {
    any_field("Cache-Control", value)
}

fn any_field(name: &str, value: &str) -> Result<Field, String> {
    let value = value.trim();
    let parsed = HeaderValue::from_bytes(value.as_bytes());
    match (HeaderName::from_bytes(name.as_bytes()), parsed) {
        (Ok(_), Ok(parsed)) if !value.is_empty() => Ok((Cow::Owned(name.to_owned()), parsed)),
        _ => Err(format!("`{name}: {value}` is not a header field")),
    }
}

/// The addresses of clients that may, and that may not.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Only these, unless it is empty.
    pub allow: Networks,
    /// Not these.
    pub deny: Networks,
}

impl Addresses {
    /// A client without an address has left.
    fn admit(&self, client: Option<IpAddr>) -> bool {
        client.is_some_and(|client| {
            (self.allow.is_empty() || self.allow.contains(client)) && !self.deny.contains(client)
        })
    }
}

/// Requests per second of one IPv4 address, or of one IPv6 network of 64 bits; over all workers.
#[derive(Debug)]
pub struct RequestRate(Mutex<RateLimit>);

impl RequestRate {
    /// So many per second, and up to `burst` at once.
    pub fn new(per_second: u32, burst: u32) -> RequestRate {
        RequestRate(Mutex::new(RateLimit::with_burst(per_second, burst, Instant::now())))
    }

    fn admits(&self, client: Option<IpAddr>) -> bool {
        let Some(client) = client else { return true };
        let mut limit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        limit.admits(client, 1, Instant::now())
    }
}

/// What holds for paths.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// Without any, it holds for all.
    pub paths: Vec<PathGlob>,
    /// Header fields of all answers. One of the same name in a later rule takes its place.
    pub headers: Vec<Field>,
    /// `Cache-Control` of files.
    pub cache_control: Option<Field>,
    /// Where requests are sent instead.
    pub redirect: Option<Redirect>,
    /// Who is asked for a password.
    pub auth: Option<Arc<Auth>>,
    /// Which clients are served; others get 403.
    pub addresses: Option<Addresses>,
    /// How many requests of a client are answered; others get 429.
    pub rate: Option<Arc<RequestRate>>,
    /// The file (a clean path such as `/index.html`) for paths that do not exist and whose last segment has no dot:
    /// for applications that route in the browser.
    pub fallback: Option<Vec<u8>>,
    /// Whether a directory without an index file is listed.
    pub listing: Option<bool>,
    /// Files (clean paths) with the content of errors, by status.
    pub error_pages: BTreeMap<u16, Vec<u8>>,
    /// What of the rules above does not hold.
    pub replace: Vec<Protection>,
}

impl Rule {
    /// It can answer before a file is looked for.
    fn comes_before_files(&self) -> bool {
        let Rule { redirect, auth, addresses, rate, .. } = self;
        redirect.is_some() || auth.is_some() || addresses.is_some() || rate.is_some()
    }
}

/// The rules of a site, compiled together: a path is compared with all of them at once, in time that does not grow with
/// rules times bytes.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    patterns: GlobSet,
    rule_of: Vec<usize>,
    comes_before_files: bool,
}

impl Rules {
    /// Compiles rules, which keep their order.
    ///
    /// # Errors
    /// When they are too many, or protect something that can be reached around them.
    pub fn new(rules: Vec<Rule>) -> Result<Rules, String> {
        if rules.len() > RULES_MAX {
            return Err(format!("{} rules are more than {RULES_MAX}", rules.len()));
        }
        let (mut patterns, mut rule_of) = (GlobSetBuilder::new(), Vec::new());
        let all = [PathGlob::all()?];
        for (number, rule) in rules.iter().enumerate() {
            let paths = if rule.paths.is_empty() { &all[..] } else { &rule.paths };
            for path in paths {
                patterns.add(path.0.clone());
                rule_of.push(number);
            }
            // A file may be reachable by several paths, such as that of its directory.
            let protects = rule.auth.is_some() || rule.addresses.is_some();
            if let Some(path) = paths.iter().find(|path| protects && !path.is_directory()) {
                return Err(format!(
                    "`{path}`: only directories can be protected; end the pattern with `/**`"
                ));
            }
        }
        let patterns = patterns.build().map_err(|error| format!("too many rules: {error}"))?;
        let comes_before_files = rules.iter().any(Rule::comes_before_files);
        Ok(Rules { rules, patterns, rule_of, comes_before_files })
    }

    /// True if a request may get an answer before any file is looked for.
    pub(super) fn come_before_files(&self) -> bool {
        self.comes_before_files
    }

    /// The numbers of the rules for a clean path, as a client asked for it.
    pub(super) fn matching(&self, path: &Path) -> Vec<usize> {
        let mut numbers = Vec::new();
        if !self.rules.is_empty() {
            let patterns = self.patterns.matches(path);
            numbers.extend(patterns.into_iter().map(|pattern| self.rule_of[pattern]));
            numbers.dedup();
        }
        numbers
    }

    /// What these rules say together.
    pub(super) fn of(&self, numbers: &[usize]) -> Policy<'_> {
        Policy(numbers.iter().map(|number| &self.rules[*number]).collect())
    }

    /// What the rules for a clean path say together.
    pub(super) fn policy(&self, path: &Path) -> Policy<'_> {
        self.of(&self.matching(path))
    }
}

/// The rules that hold for one path, in their order.
#[derive(Clone, Debug)]
pub(super) struct Policy<'a>(Vec<&'a Rule>);

impl<'a> Policy<'a> {
    /// The rules that add up: those since the last one that drops what stands above it.
    fn adding(&self, kind: Protection) -> impl Iterator<Item = &'a Rule> {
        let dropped = self.0.iter().rposition(|rule| rule.replace.contains(&kind));
        self.0[dropped.unwrap_or(0)..].iter().copied()
    }

    /// What the last rule says that says anything.
    fn last<T>(&self, get: impl Fn(&'a Rule) -> Option<T>) -> Option<T> {
        self.0.iter().rev().find_map(|rule| get(rule))
    }

    pub(super) fn headers(&self) -> Vec<&'a Field> {
        let mut fields: Vec<&Field> = Vec::new();
        for rule in self.adding(Protection::Headers) {
            let is_replaced =
                |name: &str| rule.headers.iter().any(|field| field.0.eq_ignore_ascii_case(name));
            fields.retain(|(name, _)| !is_replaced(name));
            fields.extend(&rule.headers);
        }
        fields
    }

    pub(super) fn cache_control(&self) -> Option<&'a Field> {
        self.last(|rule| rule.cache_control.as_ref())
    }

    /// Status and location, if the path is redirected.
    pub(super) fn redirect(&self, path: &[u8], query: Option<&str>) -> Option<(Status, String)> {
        let (rule, redirect) = self.last(|rule| Some((rule, rule.redirect.as_ref()?)))?;
        let directories = rule.paths.iter().filter_map(PathGlob::directory);
        let directory = directories.filter(|directory| path.starts_with(directory.as_bytes()));
        let start = directory.map(str::len).max().unwrap_or(1);
        Some((redirect.status, redirect.location(path.get(start..).unwrap_or_default(), query)))
    }

    pub(super) fn auth(&self) -> Vec<&'a Arc<Auth>> {
        self.adding(Protection::Auth).filter_map(|rule| rule.auth.as_ref()).collect()
    }

    pub(super) fn admits(&self, client: Option<IpAddr>) -> bool {
        let mut rules = self.adding(Protection::Addresses);
        rules.all(|rule| rule.addresses.as_ref().is_none_or(|addresses| addresses.admit(client)))
    }

    pub(super) fn has_rate(&self) -> bool {
        self.adding(Protection::Rate).any(|rule| rule.rate.is_some())
    }

    /// Counts a request of a client; false if it has had enough.
    pub(super) fn is_within_rate(&self, client: Option<IpAddr>) -> bool {
        let mut rules = self.adding(Protection::Rate);
        rules.all(|rule| rule.rate.as_ref().is_none_or(|rate| rate.admits(client)))
    }

    pub(super) fn fallback(&self) -> Option<&'a [u8]> {
        self.last(|rule| rule.fallback.as_deref())
    }

    pub(super) fn listing(&self) -> bool {
        self.last(|rule| rule.listing).unwrap_or(false)
    }

    /// The file with the content of an error.
    pub(super) fn error_page(&self, status: Status) -> Option<&'a [u8]> {
        self.last(|rule| rule.error_pages.get(&status.as_u16()).map(Vec::as_slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(paths: &[&str]) -> Rule {
        let paths = paths.iter().map(|path| path.parse().unwrap()).collect();
        Rule { paths, ..Rule::default() }
    }

    fn header(paths: &[&str], name: &str, value: &str) -> Rule {
        Rule { headers: vec![header_field(name, value).unwrap()], ..rule(paths) }
    }

    fn matches(pattern: &str, path: &str) -> bool {
        let rules = Rules::new(vec![rule(&[pattern])]).unwrap();
        !rules.policy(Path::new(path)).0.is_empty()
    }

    #[test]
    fn patterns_are_those_of_globset_and_paths_begin_with_a_slash() {
        for (pattern, path, expected) in [
            ("**", "/", true),
            ("*", "/a/b", true),
            ("/a", "/a", true),
            ("/a", "/a/", false),
            ("/a/**", "/a/", true),
            ("/a/**", "/a/b/c", true),
            ("/a/**", "/a", false),
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/b/c", false),
            ("*.css", "/a.css", true),
            ("*.{css,js}", "/a/b.js", true),
            ("*.css", "/a.css/b", false),
            ("**/", "/", true),
            ("**/", "/a/b/", true),
            ("**/", "/a", false),
            ("robots.txt", "/robots.txt", true),
            ("/a b/\u{fc}", "/a b/\u{fc}", true),
            ("\\*", "/*", true),
            ("\\*", "/a", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
        let long = format!("/{}", "x".repeat(PATTERN_BYTES_MAX));
        // They were accepted, without effect.
        for wrong in ["", "css/*", "../x", "./*", "/../x", "/a/./b", "/a//b", "[", "{a,/b}", &long]
        {
            assert!(wrong.parse::<PathGlob>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn protection_adds_up_and_of_the_rest_the_last_rule_counts() {
        let rate = || Some(Arc::new(RequestRate::new(1, 2)));
        let rules = Rules::new(vec![
            header(&[], "X-Frame-Options", "DENY"),
            header(&["*.css"], "X-Css", "1"),
            Rule {
                cache_control: cache_control("no-cache").ok(),
                rate: rate(),
                ..header(&["/a/**"], "x-frame-options", "SAMEORIGIN")
            },
            Rule {
                replace: vec![Protection::Headers],
                cache_control: cache_control("max-age=1").ok(),
                ..header(&["/a/b/**"], "X-Own", "2")
            },
            Rule { listing: Some(true), ..rule(&["/l/**"]) },
            Rule { listing: Some(false), ..rule(&["/l/off/**"]) },
        ])
        .unwrap();
        let policy = |path: &str| rules.policy(Path::new(path).to_path_buf().as_path());
        for (path, fields, cache) in [
            ("/x", &[("X-Frame-Options", "DENY")][..], None),
            ("/x.css", &[("X-Frame-Options", "DENY"), ("X-Css", "1")], None),
            ("/a/x.css", &[("X-Css", "1"), ("x-frame-options", "SAMEORIGIN")], Some("no-cache")),
            ("/a/b/x.css", &[("X-Own", "2")], Some("max-age=1")),
        ] {
            let policy = policy(path);
            let text =
                |(name, value): &'_ Field| (name.to_string(), value.to_str().unwrap().to_owned());
            let found: Vec<_> = policy.headers().into_iter().map(text).collect();
            let expected =
                fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            assert_eq!(found, expected.collect::<Vec<_>>(), "{path}");
            let found = policy.cache_control().map(|(_, value)| value.to_str().unwrap());
            assert_eq!(found, cache, "{path}");
        }
        let client = Some(IpAddr::from([192, 0, 2, 1]));
        assert!(!policy("/x").has_rate() && policy("/a/b/c").has_rate(), "headers only");
        let within: Vec<bool> = (0..3).map(|_| policy("/a/x").is_within_rate(client)).collect();
        assert_eq!(within, [true, true, false]);
        let listed = ["/l/", "/l/off/", "/"].map(|path| policy(path).listing());
        assert_eq!(listed, [true, false, false]);
    }

    #[test]
    fn addresses_of_all_rules_must_admit_a_client() {
        let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let addresses = |paths: &[&str], allow: &[&str], deny: &[&str]| {
            let addresses = Addresses { allow: networks(allow), deny: networks(deny) };
            Rule { addresses: Some(addresses), ..rule(paths) }
        };
        let replaced =
            Rule { replace: vec![Protection::Addresses], ..addresses(&["/o/**"], &[], &["::/0"]) };
        let rules = vec![
            addresses(&[], &["10.0.0.0/8"], &["10.1.0.0/16"]),
            addresses(&["/a/**"], &["10.2.0.0/16", "192.0.2.0/24"], &[]),
            replaced,
        ];
        let rules = Rules::new(rules).unwrap();
        for (path, client, expected) in [
            ("/", "10.2.0.1", true),
            ("/", "10.1.0.1", false),
            ("/", "192.0.2.1", false),
            ("/", "::ffff:10.2.0.1", true),
            ("/a/", "10.2.0.1", true),
            ("/a/", "10.3.0.1", false),
            ("/a/", "192.0.2.1", false),
            ("/o/", "192.0.2.1", true),
            ("/o/", "2001:db8::1", false),
        ] {
            let policy = rules.policy(Path::new(path));
            assert_eq!(policy.admits(client.parse().ok()), expected, "{path} {client}");
        }
        assert!(!rules.policy(Path::new("/")).admits(None));
        // A file can be asked for by several paths.
        let error = Rules::new(vec![addresses(&["/secret.html"], &["::1/128"], &[])]).unwrap_err();
        assert!(error.contains("only directories can be protected"), "{error}");
        assert!(Rules::new(vec![Rule::default(); RULES_MAX + 1]).is_err());
    }

    #[test]
    fn fields_are_complete_and_not_those_of_the_service() {
        let field = header_field("X-A", " b c ").unwrap();
        assert_eq!((&*field.0, field.1.as_bytes()), ("X-A", &b"b c"[..]));
        for (name, value) in [
            ("", "b"),
            ("a b", "c"),
            ("A", ""),
            ("A", "b\r\nc: d"),
            ("A", "b\nc"),
            ("A", "\0"),
            ("Date", "x"),
            ("content-length", "5"),
            ("Cache-Control", "x"),
        ] {
            assert!(header_field(name, value).is_err(), "{name:?} {value:?}");
        }
    }
}
