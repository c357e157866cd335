//! Virtual hosts: selects the files and rules for the host name of a request.

use super::encoding::Coding;
use super::mime;
use super::request::Request;
use super::rules::Rules;
use super::target::is_host;
use super::text::{read, several};
use http::HeaderValue;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use twinring::fs::{Dir, Symlinks};

/// The longest name in the Domain Name System, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// The files of some hosts, and their rules: a `[[site]]` of a configuration, each field one of its keys.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Site {
    /// Its hosts; without names, it is for all that have no site of their own.
    #[serde(deserialize_with = "several")]
    pub names: Vec<HostName>,
    /// Where the files are; none for a site that only redirects.
    pub root: Option<PathBuf>,
    /// Whether symbolic links beneath it are followed.
    pub symlinks: Symlinks,
    /// Index file names instead of `index.html`; the first that exists is used.
    #[serde(deserialize_with = "file_names")]
    pub index: Option<Vec<String>>,
    /// `/about` is also the file `about.html`.
    pub clean_urls: bool,
    /// Codings of precompressed files, the preferred one first.
    #[serde(deserialize_with = "several")]
    pub precompressed: Vec<Coding>,
    /// Codings in which text is compressed on the fly, the preferred one first.
    #[serde(deserialize_with = "several")]
    pub compress: Vec<Coding>,
    /// Media types by extension, before those that everybody knows.
    #[serde(deserialize_with = "mime::types")]
    pub types: HashMap<String, String>,
    /// The media type of unknown extensions instead of `application/octet-stream`.
    #[serde(deserialize_with = "mime::one")]
    pub default_type: Option<String>,
    /// The charset of text instead of UTF-8; none is declared if it is empty.
    #[serde(deserialize_with = "mime::charset")]
    pub charset: Option<String>,
    /// The port to which requests without TLS are sent, before any rule is applied.
    #[serde(deserialize_with = "to_https")]
    pub redirect_to_https: Option<u16>,
    /// The value of `Strict-Transport-Security`, which is sent over TLS only.
    #[serde(deserialize_with = "hsts")]
    pub hsts: Option<HeaderValue>,
    /// PEM file with the certificate, followed by its chain to one that clients trust.
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its private key.
    pub tls_key: Option<PathBuf>,
    /// What holds for the paths that clients ask for.
    #[serde(rename = "rule")]
    pub rules: Rules,
    #[serde(skip)]
    pub(super) directory: Option<Dir>,
}

fn file_names<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    let names: Vec<String> = several(from)?;
    let is_name =
        |name: &&String| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    match names.iter().find(|name| !is_name(name)) {
        Some(wrong) => Err(Error::custom(format!("`{wrong}` is not a file name"))),
        None => Ok(Some(names)),
    }
}

fn to_https<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    read(from, |text| match text {
        "false" => Ok(None),
        "true" => Ok(Some(443)),
        port => port.parse().map(Some).map_err(|_| format!("`{port}`: expected true or a port")),
    })
}

fn hsts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<HeaderValue>, D::Error> {
    read(from, |text| {
        let value = HeaderValue::from_str(text).ok();
        let value = value.filter(|_| text.to_ascii_lowercase().starts_with("max-age="));
        let expected = || format!("`{text}`: expected such as max-age=31536000; includeSubDomains");
        value.map(Some).ok_or_else(expected)
    })
}

impl Site {
    pub(super) fn comes_before_files(&self) -> bool {
        self.redirect_to_https.is_some() || self.rules.come_before_files
    }

    /// Opens its root, reads the files that its rules name, and compiles the rules. Returns what is wrong, if it is about
    /// a rule with its number.
    fn prepare(&mut self) -> Vec<(Option<usize>, String)> {
        let mut problems = Vec::new();
        match self.root.as_ref().map(|root| (root, Dir::open(root))) {
            Some((root, Err(error))) => {
                problems.push((None, format!("cannot serve root {}: {error}", root.display())));
            }
            opened => self.directory = opened.and_then(|(_, root)| root.ok()),
        }
        let root = self.root.as_deref().filter(|_| self.directory.is_some());
        for (number, rule) in self.rules.all.iter_mut().enumerate() {
            problems.extend(rule.prepare(root).err().map(|why| (Some(number), why)));
        }
        problems.extend(self.rules.compile().err().map(|why| (None, why)));
        problems
    }
}

/// The name of a host, `example.org`, or of all hosts beneath one, `*.example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// In lower case; of hosts beneath another one without the star, but with its dot.
    name: String,
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<HostName, String> {
        let lower = text.to_ascii_lowercase();
        let wildcard = lower.strip_prefix("*.");
        let name = wildcard.unwrap_or(&lower);
        let is_name = is_host(name.as_bytes())
            && !name.is_empty()
            && !name.starts_with('.')
            && !name.contains('*')
            && name.len() <= NAME_BYTES_MAX
            && *name_in(name.as_bytes()) == *name.as_bytes()
            && !(wildcard.is_some() && name.starts_with('['));
        if !is_name {
            return Err(format!(
                "`{text}` is not a host name; expected one such as example.org or \
                 *.example.org, without a port"
            ));
        }
        Ok(HostName { name: lower.trim_start_matches('*').to_owned() })
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.name.starts_with('.') { "*" } else { "" }, self.name)
    }
}

/// Values by the name of a host, and perhaps one for all others, which has the empty name. An exact name counts before a
/// wildcard, and a longer wildcard before a shorter one.
#[derive(Clone, Debug, Default)]
pub(super) struct HostMap<T>(pub(super) HashMap<Vec<u8>, T>);

impl<T: Clone> HostMap<T> {
    /// Adds a value for these names; without any it is for all other hosts. Returns what two values have then.
    pub(super) fn add(&mut self, names: &[HostName], value: &T) -> Vec<String> {
        let all_others = [HostName { name: String::new() }];
        let mut taken = Vec::new();
        for name in if names.is_empty() { &all_others } else { names } {
            match self.0.entry(name.name.clone().into_bytes()) {
                Entry::Vacant(free) => drop(free.insert(value.clone())),
                Entry::Occupied(_) if names.is_empty() => {
                    taken.push("no names: only one is for all other hosts".to_owned());
                }
                Entry::Occupied(_) => taken.push(format!("the name {name}")),
            }
        }
        taken
    }

    pub(super) fn find<'h>(&self, host: impl FnOnce() -> Option<&'h [u8]>) -> Option<&T> {
        let default = self.0.get(&b""[..]);
        // Most services have one site.
        let has_names = self.0.len() > usize::from(default.is_some());
        has_names.then(host).flatten().and_then(|host| self.named(host)).or(default)
    }

    fn named(&self, host: &[u8]) -> Option<&T> {
        let name = name_in(host);
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        // Only wildcards begin with a dot.
        let exact = self.0.get(&*name).filter(|_| !name.starts_with(b"."));
        let mut dots = memchr::memchr_iter(b'.', &name);
        exact.or_else(|| dots.find_map(|dot| self.0.get(&name[dot..])))
    }
}

/// The sites of a service, and the hosts that they belong to.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    all: Vec<Site>,
    /// Without a default, hosts without a site get 421 (Misdirected Request).
    by_host: HostMap<usize>,
    /// It may matter to one of them which client asks.
    pub(super) know_clients: bool,
}

impl Sites {
    /// Adds a site: opens its root, reads the files that its rules name, and compiles the rules. An exact name counts
    /// before a wildcard.
    ///
    /// # Errors
    /// What is wrong with the site, each with the number of the rule if it is about one.
    pub fn add(&mut self, mut site: Site) -> Result<(), Vec<(Option<usize>, String)>> {
        let mut problems = site.prepare();
        let taken = self.by_host.add(&site.names, &self.all.len()).into_iter();
        problems.extend(taken.map(|taken| (None, format!("two sites have {taken}"))));
        self.know_clients |= site.rules.come_before_files;
        // A site that is wrong serves nothing.
        self.all.push(if problems.is_empty() { site } else { Site::default() });
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// The first name of each site; none for the default.
    pub(super) fn names(&self) -> impl Iterator<Item = Option<String>> {
        self.all.iter().map(|site| site.names.first().map(HostName::to_string))
    }

    pub(super) fn site(&self, number: usize) -> &Site {
        &self.all[number]
    }

    pub(super) fn find(&self, request: &Request<'_>) -> Option<usize> {
        self.by_host.find(|| request.host()).copied()
    }
}

/// The name in `host:port`: in lower case, without the dot that may end it.
fn name_in(host: &[u8]) -> Cow<'_, [u8]> {
    let end = match host.first() {
        Some(b'[') => host.iter().position(|byte| *byte == b']').map_or(host.len(), |end| end + 1),
        _ => memchr::memchr(b':', host).unwrap_or(host.len()),
    };
    let name = host[..end].strip_suffix(b".").unwrap_or(&host[..end]);
    match name.iter().any(u8::is_ascii_uppercase) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites() -> Sites {
        let mut sites = Sites::default();
        let mut add = |names: &[&str]| {
            let names = names.iter().map(|name| name.parse().unwrap()).collect();
            sites.add(Site { names, ..Site::default() })
        };
        for names in
            [&[][..], &["example.org", "[::1]"], &["*.example.org"], &["*.a.example.org", "x"]]
        {
            add(names).unwrap();
        }
        let taken = vec![(None, "two sites have the name example.org".to_owned())];
        assert_eq!(add(&["EXAMPLE.org"]), Err(taken));
        sites
    }

    #[test]
    fn exact_names_come_first_and_then_the_longest_wildcard() {
        let sites = sites();
        for (host, expected) in [
            ("example.org", 1),
            ("EXAMPLE.ORG.:8080", 1),
            ("[::1]:80", 1),
            ("www.example.org", 2),
            ("b.c.example.org", 2),
            ("b.a.example.org", 3),
            ("a.example.org", 2),
            ("x", 3),
            (".example.org", 2),
        ] {
            assert_eq!(sites.by_host.find(|| Some(host.as_bytes())), Some(&expected), "{host}");
        }
        for host in ["y.x", "example.com", "badexample.org", "", ":80", &"a.".repeat(500)] {
            assert_eq!(sites.by_host.find(|| Some(host.as_bytes())), Some(&0), "{host}");
        }
    }

    #[test]
    fn names_of_hosts_have_no_port_and_at_most_one_star() {
        for (text, written) in [
            ("Example.ORG", "example.org"),
            ("*.a.b", "*.a.b"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(text.parse::<HostName>().unwrap().to_string(), written);
        }
        for wrong in
            ["", "*", "*.", "a:80", "a.", "*.*.a", "a.*", ".a", "a b", "[::1]:1", "*.[::1]", "u@h"]
        {
            assert!(wrong.parse::<HostName>().is_err(), "{wrong:?}");
        }
    }
}
