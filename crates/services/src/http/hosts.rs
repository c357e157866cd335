//! Virtual hosts: selects the files and rules for the host name of a request.

use super::encoding::Coding;
use super::mime::MediaTypes;
use super::redirect::HttpsAddress;
use super::request::Request;
use super::rules::Rules;
use super::target::is_host;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use twinring::fs::{Dir, Symlinks};

/// The longest name in the Domain Name System, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// The files of a host, and their rules.
#[derive(Clone, Debug)]
pub struct Site {
    /// Where the files are; none for a site that only redirects.
    pub root: Option<Dir>,
    /// Whether symbolic links beneath it are followed.
    pub symlinks: Symlinks,
    /// Index file names; the first that exists is used.
    pub index: Vec<String>,
    /// `/about` is also the file `about.html`.
    pub clean_urls: bool,
    /// Codings of precompressed files, the preferred one first.
    pub precompressed: Vec<Coding>,
    /// Codings in which text is compressed on the fly, the preferred one first. None by default.
    pub compress: Vec<Coding>,
    /// Media types of files.
    pub types: MediaTypes,
    /// Where requests without TLS are sent, before any rule is applied.
    pub to_https: Option<HttpsAddress>,
    /// The value of `Strict-Transport-Security`, which is sent over TLS only.
    pub hsts: Option<String>,
    /// What holds for the paths that clients ask for.
    pub rules: Rules,
}

impl Default for Site {
    /// A site that only redirects.
    fn default() -> Site {
        Site {
            root: None,
            symlinks: Symlinks::Beneath,
            index: vec!["index.html".to_owned()],
            clean_urls: false,
            precompressed: Vec::new(),
            compress: Vec::new(),
            types: MediaTypes::default(),
            to_https: None,
            hsts: None,
            rules: Rules::default(),
        }
    }
}

impl Site {
    /// True if a request may get an answer before any file is looked for.
    pub(super) fn comes_before_files(&self) -> bool {
        self.to_https.is_some() || self.rules.come_before_files()
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

/// Values by the name of a host. An exact name counts before a wildcard, and a longer wildcard
/// before a shorter one.
#[derive(Clone, Debug)]
pub(super) struct HostMap<T>(HashMap<Vec<u8>, T>);

impl<T> Default for HostMap<T> {
    fn default() -> HostMap<T> {
        HostMap(HashMap::new())
    }
}

impl<T> HostMap<T> {
    /// Adds a value; false if the name has one already.
    pub(super) fn add(&mut self, name: &HostName, value: T) -> bool {
        let name = name.name.clone().into_bytes();
        let is_free = !self.0.contains_key(&name);
        if is_free {
            self.0.insert(name, value);
        }
        is_free
    }

    /// The value for `host:port`.
    pub(super) fn find(&self, host: &[u8]) -> Option<&T> {
        let name = name_in(host);
        // Only wildcards begin with a dot.
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let exact = self.0.get(&*name).filter(|_| !name.starts_with(b"."));
        exact.or_else(|| memchr::memchr_iter(b'.', &name).find_map(|dot| self.0.get(&name[dot..])))
    }
}

/// The sites of a service, and the hosts that they belong to.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    /// Each with its first name.
    all: Vec<(Option<HostName>, Site)>,
    /// For hosts without a site; without a default they get 421.
    default: Option<usize>,
    by_host: HostMap<usize>,
}

impl Sites {
    /// With a default site for hosts without one of their own; without it, those get 421
    /// (Misdirected Request).
    pub fn new(default: Option<Site>) -> Sites {
        let number = default.as_ref().map(|_| 0);
        let all = default.map(|site| (None, site)).into_iter().collect();
        Sites { all, default: number, ..Sites::default() }
    }

    /// Adds a site for the hosts of these names. An exact name counts before a wildcard.
    ///
    /// # Errors
    /// The name that another site has already.
    pub fn add(&mut self, names: &[HostName], site: Site) -> Result<(), HostName> {
        let number = self.all.len();
        self.all.push((names.first().cloned(), site));
        match names.iter().find(|name| !self.by_host.add(name, number)) {
            Some(taken) => Err(taken.clone()),
            None => Ok(()),
        }
    }

    /// True if it may matter to a site which client asks.
    pub(super) fn know_clients(&self) -> bool {
        self.all.iter().any(|(_, site)| site.rules.come_before_files())
    }

    /// The first name of each site; none for the default.
    pub(super) fn names(&self) -> impl Iterator<Item = Option<String>> {
        self.all.iter().map(|(name, _)| name.as_ref().map(HostName::to_string))
    }

    pub(super) fn site(&self, number: usize) -> &Site {
        &self.all[number].1
    }

    /// The number of the site for a request, if there is one.
    pub(super) fn find(&self, request: &Request<'_>) -> Option<usize> {
        if self.by_host.0.is_empty() {
            return self.default;
        }
        let named = request.host().and_then(|host| self.by_host.find(host));
        named.copied().or(self.default)
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
        let site = Site::default;
        let mut sites = Sites::new(Some(site()));
        for names in [&["example.org", "[::1]"][..], &["*.example.org"], &["*.a.example.org", "x"]]
        {
            let names: Vec<HostName> = names.iter().map(|name| name.parse().unwrap()).collect();
            sites.add(&names, site()).unwrap();
        }
        let taken: HostName = "EXAMPLE.org".parse().unwrap();
        assert_eq!(sites.add(std::slice::from_ref(&taken), site()), Err(taken));
        sites
    }

    #[test]
    fn exact_names_come_first_and_then_the_longest_wildcard() {
        let sites = sites();
        for (host, expected) in [
            ("example.org", Some(1)),
            ("EXAMPLE.ORG.:8080", Some(1)),
            ("[::1]:80", Some(1)),
            ("www.example.org", Some(2)),
            ("b.c.example.org", Some(2)),
            ("b.a.example.org", Some(3)),
            ("a.example.org", Some(2)),
            ("x", Some(3)),
            ("y.x", None),
            ("example.com", None),
            ("badexample.org", None),
            (".example.org", Some(2)),
            ("", None),
            (":80", None),
            (&"a.".repeat(500), None),
        ] {
            assert_eq!(sites.by_host.find(host.as_bytes()).copied(), expected, "{host}");
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
