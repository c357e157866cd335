//! The rules of a site: what holds for the paths that clients ask for.
//!
//! All rules whose patterns match a path hold, in their order. Protection adds up: headers, passwords, addresses and
//! rates of all of them count, unless a later rule drops the ones above it by name (`replace`). Of everything
//! else, the last rule that says something counts.

use super::Status;
use super::auth::Auth;
use super::pattern::PathGlob;
use super::redirect::Redirect;
use super::response::Field;
use super::text::{cache_control, header_fields, optional, read, several};
use crate::rate::RateLimit;
use crate::server::contain;
use crate::{Network, lock};
use globset::{GlobSet, GlobSetBuilder};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use twinring_input::quantity::{Count, PerSecond};

const RULES_MAX: usize = 2000;

/// What a later rule can drop of the rules above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    Auth,
    Addresses,
    Headers,
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

/// Whether directories are listed.
pub fn listing(text: &str) -> Result<bool, String> {
    match text {
        "html" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}`: expected html or off")),
    }
}

fn error_pages<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u16, PathBuf>, D::Error> {
    const WITH_PAGES: [u16; 6] = [401, 403, 404, 429, 500, 503];
    let pages = BTreeMap::<String, PathBuf>::deserialize(from)?.into_iter().map(|(key, file)| {
        let status = key.parse().ok().filter(|status| WITH_PAGES.contains(status));
        let wrong = || Error::custom(format!("`{key}`: expected one of {WITH_PAGES:?}"));
        Ok((status.ok_or_else(wrong)?, file))
    });
    pages.collect()
}

const MOVED: u16 = 301;

/// What holds for paths: a `[[site.rule]]` of a configuration, each field one of its keys.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// Without any, it holds for all.
    #[serde(rename = "match", deserialize_with = "several")]
    paths: Vec<PathGlob>,
    /// Header fields of all answers. One of the same name in a later rule takes its place.
    #[serde(deserialize_with = "header_fields")]
    headers: Vec<Field>,
    /// `Cache-Control` of files.
    #[serde(deserialize_with = "cache_control")]
    cache_control: Option<Field>,
    /// Where requests are sent instead: a path or a URL. `**` at its end stands for what `**` matches.
    pub redirect: Option<String>,
    /// The status of the redirect.
    #[serde(deserialize_with = "optional")]
    pub status: Option<u16>,
    /// The file of the users that are asked for a password.
    pub auth: Option<PathBuf>,
    /// What clients show when they ask for it.
    pub realm: Option<String>,
    /// Only these clients are served, unless it is empty; others get 403.
    #[serde(deserialize_with = "several")]
    pub allow: Vec<Network>,
    /// These clients are not served.
    #[serde(deserialize_with = "several")]
    pub deny: Vec<Network>,
    /// How many requests of a client are answered each second, over all workers; others get 429.
    #[serde(deserialize_with = "optional")]
    pub rate: Option<PerSecond<1_000_000>>,
    /// How many of them at once.
    #[serde(deserialize_with = "optional")]
    pub burst: Option<Count<1, 1_000_000>>,
    /// The file for paths that do not exist and whose last segment has no dot: for applications that route in the
    /// browser.
    pub fallback: Option<PathBuf>,
    /// Whether a directory without an index file is listed.
    #[serde(deserialize_with = "is_listed")]
    pub listing: Option<bool>,
    /// Files with the content of errors, by status.
    #[serde(deserialize_with = "error_pages")]
    pub error_pages: BTreeMap<u16, PathBuf>,
    /// What of the rules above does not hold.
    #[serde(deserialize_with = "several")]
    replace: Vec<Protection>,
    #[serde(skip)]
    target: Option<Redirect>,
    #[serde(skip)]
    users: Option<Arc<Auth>>,
    /// Copies of a rule count together.
    #[serde(skip)]
    counted: Arc<OnceLock<Mutex<RateLimit>>>,
}

fn is_listed<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    read(from, listing).map(Some)
}

impl Rule {
    /// Checks what its keys say together.
    pub fn check(&mut self) -> Result<(), String> {
        for (is_there, key, needed, needs) in [
            (self.status.is_some(), "status", self.redirect.is_some(), "redirect"),
            (self.burst.is_some(), "burst", self.rate.is_some(), "rate"),
            (self.realm.is_some(), "realm", self.auth.is_some(), "auth"),
        ] {
            if is_there && !needed {
                return Err(format!("{key} needs {needs} in the same rule"));
            }
        }
        // A file may be reachable by several paths, such as that of its directory.
        let protects = self.auth.is_some() || self.limits_addresses();
        if let Some(path) = self.paths.iter().find(|path| protects && !path.is_directory()) {
            return Err(format!(
                "`{path}`: only directories can be protected; end the pattern with `/**`"
            ));
        }
        if let Some(to) = &self.redirect {
            let target = Redirect::new(to, self.status.unwrap_or(MOVED), &self.paths);
            self.target = Some(target.map_err(|why| format!("redirect: {why}"))?);
        }
        Ok(())
    }

    /// Checks it, and reads the files that it names; those of content are beneath `root`.
    pub(super) fn prepare(&mut self, root: Option<&Path>) -> Result<(), String> {
        self.check()?;
        if let Some(file) = &self.auth {
            let realm = self.realm.as_deref().unwrap_or("Restricted");
            self.users = Some(Arc::new(Auth::read(realm, file)?));
        }
        let Some(root) = root else { return Ok(()) };
        let pages = self.error_pages.iter_mut();
        let pages = pages.map(|(status, file)| (format!("error-pages.{status}"), file));
        let fallback = self.fallback.iter_mut().map(|file| ("fallback".to_owned(), file));
        for (key, file) in fallback.chain(pages) {
            *file = beneath_root(root, &key, file)?;
        }
        Ok(())
    }

    fn limits_addresses(&self) -> bool {
        !self.allow.is_empty() || !self.deny.is_empty()
    }

    /// A client without an address has left.
    fn admits(&self, client: Option<IpAddr>) -> bool {
        !self.limits_addresses()
            || client.is_some_and(|client| {
                (self.allow.is_empty() || contain(&self.allow, client))
                    && !contain(&self.deny, client)
            })
    }

    /// Counts a request of a client.
    fn is_within_rate(&self, client: Option<IpAddr>) -> bool {
        let (Some(PerSecond(rate)), Some(client)) = (self.rate, client) else { return true };
        let burst = self.burst.map_or(rate, |burst| burst.get() as u32);
        let begin = || Mutex::new(RateLimit::new(rate, burst, Instant::now()));
        lock(self.counted.get_or_init(begin)).admits(client, 1, Instant::now())
    }

    /// It can answer before a file is looked for.
    fn comes_before_files(&self) -> bool {
        let Rule { redirect, auth, rate, .. } = self;
        redirect.is_some() || auth.is_some() || rate.is_some() || self.limits_addresses()
    }
}

/// The path of a file in requests. The file must exist.
fn beneath_root(root: &Path, key: &str, file: &Path) -> Result<PathBuf, String> {
    let wrong = |why: &str| format!("cannot use {key} {}: {why}", file.display());
    let relative = file.strip_prefix("/").unwrap_or(file);
    let metadata = std::fs::metadata(root.join(relative))
        .map_err(|error| wrong(&format!("{error}; it must be beneath the root")))?;
    if !metadata.is_file() {
        return Err(wrong("it is not a regular file"));
    }
    Ok(Path::new("/").join(relative))
}

/// The rules of a site, compiled together: a path is compared with all of them at once, in time that does not grow with
/// rules times bytes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Vec<Rule>")]
pub struct Rules {
    /// In their order. A change has no effect once the site was added.
    pub all: Vec<Rule>,
    patterns: GlobSet,
    rule_of: Vec<usize>,
    pub(super) come_before_files: bool,
}

impl From<Vec<Rule>> for Rules {
    fn from(all: Vec<Rule>) -> Rules {
        Rules { all, ..Rules::default() }
    }
}

impl Rules {
    /// An error when the rules are too many.
    pub(super) fn compile(&mut self) -> Result<(), String> {
        if self.all.len() > RULES_MAX {
            return Err(format!("{} rules are more than {RULES_MAX}", self.all.len()));
        }
        let mut patterns = GlobSetBuilder::new();
        let all = [PathGlob::all()?];
        for (number, rule) in self.all.iter().enumerate() {
            let paths = if rule.paths.is_empty() { &all[..] } else { &rule.paths };
            for path in paths {
                patterns.add(path.0.clone());
                self.rule_of.push(number);
            }
        }
        self.patterns = patterns.build().map_err(|error| format!("too many rules: {error}"))?;
        self.come_before_files = self.all.iter().any(Rule::comes_before_files);
        Ok(())
    }

    /// The numbers of the rules for a clean path, as a client asked for it.
    pub(super) fn matching(&self, path: &Path) -> Vec<usize> {
        let mut numbers = Vec::new();
        if !self.all.is_empty() {
            let patterns = self.patterns.matches(path);
            numbers.extend(patterns.into_iter().map(|pattern| self.rule_of[pattern]));
            numbers.dedup();
        }
        numbers
    }

    pub(super) fn of(&self, numbers: &[usize]) -> Policy<'_> {
        Policy(numbers.iter().map(|number| &self.all[*number]).collect())
    }

    /// What the rules for a clean path say together.
    pub(super) fn policy(&self, path: &Path) -> Policy<'_> {
        self.of(&self.matching(path))
    }
}

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
        let (rule, redirect) = self.last(|rule| Some((rule, rule.target.as_ref()?)))?;
        let directories = rule.paths.iter().filter_map(PathGlob::directory);
        let directory = directories.filter(|directory| path.starts_with(directory.as_bytes()));
        let start = directory.map(str::len).max().unwrap_or(1);
        Some((redirect.status, redirect.location(path.get(start..).unwrap_or_default(), query)))
    }

    pub(super) fn auth(&self) -> Vec<&'a Arc<Auth>> {
        self.adding(Protection::Auth).filter_map(|rule| rule.users.as_ref()).collect()
    }

    pub(super) fn admits(&self, client: Option<IpAddr>) -> bool {
        self.adding(Protection::Addresses).all(|rule| rule.admits(client))
    }

    pub(super) fn has_rate(&self) -> bool {
        self.adding(Protection::Rate).any(|rule| rule.rate.is_some())
    }

    /// Counts a request of a client; false if it has had enough.
    pub(super) fn is_within_rate(&self, client: Option<IpAddr>) -> bool {
        self.adding(Protection::Rate).all(|rule| rule.is_within_rate(client))
    }

    pub(super) fn fallback(&self) -> Option<&'a [u8]> {
        self.last(|rule| Some(rule.fallback.as_ref()?.as_os_str().as_bytes()))
    }

    pub(super) fn listing(&self) -> bool {
        self.last(|rule| rule.listing).unwrap_or(false)
    }

    pub(super) fn error_page(&self, status: Status) -> Option<&'a [u8]> {
        let page = self.last(|rule| rule.error_pages.get(&status.as_u16()));
        page.map(|page| page.as_os_str().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(json: &str) -> Result<Rules, String> {
        let mut rules: Rules = serde_json::from_str(json).unwrap();
        rules.compile().map(|()| rules)
    }

    #[test]
    fn protection_adds_up_and_of_the_rest_the_last_rule_counts() {
        let rules = compiled(
            r#"[{"headers": {"X-Frame-Options": "DENY"}},
                {"match": "*.css", "headers": {"X-Css": "1"}},
                {"match": "/a/**", "headers": {"x-frame-options": "SAMEORIGIN"}, "cache-control": "no-cache",
                 "rate": 1, "burst": 2},
                {"match": "/a/b/**", "replace": "headers", "headers": {"X-Own": "2"}, "cache-control": "max-age=1"},
                {"match": "/l/**", "listing": "html"},
                {"match": "/l/off/**", "listing": "off"}]"#,
        );
        let rules = rules.unwrap();
        let policy = |path: &str| rules.policy(Path::new(path));
        for (path, fields, cache) in [
            ("/x", &[("X-Frame-Options", "DENY")][..], None),
            ("/x.css", &[("X-Frame-Options", "DENY"), ("X-Css", "1")], None),
            ("/a/x.css", &[("X-Css", "1"), ("x-frame-options", "SAMEORIGIN")], Some("no-cache")),
            ("/a/b/x.css", &[("X-Own", "2")], Some("max-age=1")),
        ] {
            let policy = policy(path);
            let headers = policy.headers();
            let found = headers.iter().map(|(name, value)| (&**name, value.to_str().unwrap()));
            assert_eq!(found.collect::<Vec<_>>(), fields, "{path}");
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
        let rules = compiled(
            r#"[{"allow": "10.0.0.0/8", "deny": "10.1.0.0/16"},
                {"match": "/a/**", "allow": ["10.2.0.0/16", "192.0.2.0/24"]},
                {"match": "/o/**", "replace": "allow", "deny": "::/0"}]"#,
        );
        let rules = rules.unwrap();
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
        let json = r#"{"match": "/secret.html", "allow": "::1/128"}"#;
        let error = serde_json::from_str::<Rule>(json).unwrap().check().unwrap_err();
        assert!(error.contains("only directories can be protected"), "{error}");
        assert!(Rules::from(vec![Rule::default(); RULES_MAX + 1]).compile().is_err());
    }
}
