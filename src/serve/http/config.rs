//! The configuration file: TOML with `[server]`, `[default]`, `[[site]]` and `[[site.rule]]`. serde reads each table into
//! the settings that are used; here is what the command line says instead, and how errors are told: one at a time, with
//! its line.

use super::HttpArgs;
use super::moved::{names, names_of, unknown};
use crate::serve::arguments::ServerArgs;
use crate::serve::listen::{self, ListenOn};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use twinring_input::quantity::Count;
use twinring_services::http::text::{optional, several};
use twinring_services::http::{HttpSettings, LogSettings, MinVersion, Rule, Site};

const FILE_BYTES_MAX: u64 = 1 << 20;

/// Command line and file together.
#[derive(Debug)]
pub(super) struct Configuration {
    /// As they were given.
    pub(super) given: HttpArgs,
    pub(super) listening: Listening,
    pub(super) args: ServerArgs,
    pub(super) log: LogSettings,
    /// Without sites.
    pub(super) http: HttpSettings,
    pub(super) sites: Vec<SiteConfig>,
    /// `[server]`, to compare it at a reload.
    fixed: toml::Table,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Listening {
    #[serde(deserialize_with = "several")]
    pub(super) listen: Vec<ListenOn>,
    #[serde(deserialize_with = "several")]
    pub(super) listen_tls: Vec<ListenOn>,
    #[serde(deserialize_with = "optional")]
    pub(super) backlog: Option<Count<1, 65_535>>,
    pub(super) tls_min_version: MinVersion,
    /// Directories for roots that a reload adds.
    #[serde(deserialize_with = "several")]
    pub(super) sandbox_read: Vec<PathBuf>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SiteConfig {
    /// `FILE:LINE: `, where it begins.
    pub(super) place: String,
    /// Those of its rules.
    pub(super) rule_places: Vec<String>,
    /// Its rules behind those of `[default]`.
    pub(super) site: Site,
    /// The keys that hold, as text.
    pub(super) shown: Vec<String>,
}

impl SiteConfig {
    fn has_content(&self) -> bool {
        let Site { root, redirect_to_https, rules, .. } = &self.site;
        let is_redirected = rules.all.iter().any(|rule| rule.redirect.is_some());
        root.is_some() || redirect_to_https.is_some() || is_redirected
    }
}

/// The keys of `[server]`.
pub(super) fn server_keys() -> Vec<String> {
    [
        names_of::<Listening>(),
        names_of::<LogSettings>(),
        names_of::<HttpSettings>(),
        names_of::<ServerArgs>(),
    ]
    .concat()
}

impl Configuration {
    /// What is missing in both.
    pub(super) fn usage(&self) -> Vec<String> {
        let mut usage = Vec::new();
        if self.sites.is_empty() {
            usage.push("no directory to serve: give --root DIR, or a [[site]]".to_owned());
        }
        for SiteConfig { place, site, .. } in &self.sites {
            match (&site.tls_cert, &site.tls_key) {
                (Some(_), None) => usage.push(format!("{place}tls-key is missing")),
                (None, Some(_)) => usage.push(format!("{place}tls-cert is missing")),
                _ => {}
            }
        }
        let Listening { listen, listen_tls, .. } = &self.listening;
        let has_certificate = self.sites.iter().any(|config| config.site.tls_cert.is_some());
        match (listen_tls.is_empty(), has_certificate) {
            (true, true) => usage.push("for TLS, --listen-tls ADDR is missing".to_owned()),
            (false, false) => usage.push("for TLS, --tls-cert FILE is missing".to_owned()),
            _ => {}
        }
        usage.extend(listen::once(listen::addresses(&[&listen[..], listen_tls].concat())).err());
        usage
    }

    /// What the command line says of the server.
    fn add(&mut self, args: &HttpArgs) {
        let Listening { listen, listen_tls, .. } = &mut self.listening;
        for (given, list) in [(&args.listen, &mut *listen), (&args.listen_tls, &mut *listen_tls)] {
            if !given.is_empty() {
                list.clone_from(given);
            }
        }
        if listen.is_empty() && listen_tls.is_empty() {
            listen.push(ListenOn::Address(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))));
        }
        if let Some(path) = &args.access_log {
            self.log.access_log = Some(path.clone().into());
        }
        if let Some(streams) = args.http2_streams {
            self.http.http2_streams = streams.get() as u32;
        }
    }

    /// The keys of `[server]` that the other one has differently.
    pub(super) fn differences(&self, other: &Configuration) -> Vec<String> {
        let (one, other) = (&self.fixed, &other.fixed);
        let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
        keys.filter(|key| one.get(*key) != other.get(*key)).cloned().collect()
    }
}

pub(super) fn read(args: &HttpArgs) -> Result<Configuration, String> {
    let Some(path) = &args.config else { return merge(Path::new(""), "", args) };
    let text = twinring_input::read_to_string(path, FILE_BYTES_MAX)
        .map_err(|error| format!("cannot read --config {}: {error}", path.display()))?;
    merge(path, &text, args)
}

/// Reads a configuration file of this name and text: all options and sites, in the format of `Debug`. For `fuzz/`.
///
/// # Errors
/// The first one of the file.
pub fn configuration(name: &str, text: &str) -> Result<String, String> {
    merge(Path::new(name), text, &HttpArgs::default()).map(|read| format!("{read:?}"))
}

/// Adds the keys of a file to the arguments of the command.
fn merge(path: &Path, text: &str, args: &HttpArgs) -> Result<Configuration, String> {
    let file = File { path, text };
    let mut all = DeTable::parse(text).map_err(|error| file.explain(&error))?.into_inner();
    let mut of_server = file.table("server", all.remove("server"))?;
    let of_default = file.table("default", all.remove("default"))?;
    let of_sites = match all.remove("site").map(|list| (list.span(), list.into_inner())) {
        None => Vec::new(),
        Some((_, DeValue::Array(sites))) => sites.into_iter().collect(),
        Some((span, _)) => {
            return Err(format!("{}site: write it as [[site]]", file.place(Some(span))));
        }
    };
    if let Some(key) = all.keys().next() {
        return Err(file.unknown(key, &["server", "default", "site"].map(str::to_owned)));
    }
    let default = file.site(of_default.clone(), &DeTable::new(), &SiteConfig::default())?;
    let Site { names, tls_cert, tls_key, .. } = &default.site;
    let of_one = [!names.is_empty(), tls_cert.is_some(), tls_key.is_some()];
    if let Some(number) = of_one.iter().position(|is_there| *is_there) {
        let name = ["names", "tls-cert", "tls-key"][number];
        return Err(format!("{}{name}: this belongs in a [[site]]", default.place));
    }
    let mut configuration = Configuration {
        given: args.clone(),
        fixed: file.read(of_server.clone())?,
        listening: file.take(&mut of_server)?,
        args: args.server.clone().or(file.take(&mut of_server)?),
        log: file.take(&mut of_server)?,
        http: file.take(&mut of_server)?,
        sites: Vec::new(),
    };
    if let Some(key) = of_server.get_ref().keys().next() {
        return Err(file.unknown(key, &server_keys()));
    }
    for of_site in of_sites {
        let of_site = file.table("site", Some(of_site))?;
        let site = file.site(of_site, of_default.get_ref(), &default)?;
        if !site.has_content() {
            return Err(format!("{}site: root is missing, here and in [default]", site.place));
        }
        configuration.sites.push(site);
    }
    configuration.add(args);
    add_site_of_arguments(args, &mut configuration.sites, default);
    Ok(configuration)
}

/// What the command line says of the site of hosts without one of their own, which is like `default` unless the file
/// has it.
fn add_site_of_arguments(args: &HttpArgs, sites: &mut Vec<SiteConfig>, default: SiteConfig) {
    let HttpArgs { root, listing, tls_cert, tls_key, .. } = args;
    let found = sites.iter().position(|config| config.site.names.is_empty());
    let says = root.is_some() || listing.is_some() || tls_cert.is_some() || tls_key.is_some();
    if !says && (!sites.is_empty() || !default.has_content()) {
        return;
    }
    let number = found.unwrap_or_else(|| {
        sites.push(default);
        sites.len() - 1
    });
    let SiteConfig { site, rule_places, shown, .. } = &mut sites[number];
    for (name, given, key) in [
        ("root", root, &mut site.root),
        ("tls-cert", tls_cert, &mut site.tls_cert),
        ("tls-key", tls_key, &mut site.tls_key),
    ] {
        if let Some(path) = given {
            *key = Some(path.clone());
            shown.push(format!("{name} = {:?}", path.display().to_string()));
        }
    }
    if let Some(is_listed) = *listing {
        let text = if is_listed { "html" } else { "off" };
        shown.push(format!("rule = {{ listing = \"{text}\" }}"));
        let mut rule = Rule::default();
        rule.listing = Some(is_listed);
        site.rules.all.push(rule);
        rule_places.push(String::new());
    }
}

/// A table of the file, and where it is.
type Table<'f> = Spanned<DeTable<'f>>;

struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    /// `FILE:LINE: `; without a place, which keys of too many parts do not have, `FILE: `.
    fn place(&self, span: Option<Range<usize>>) -> String {
        let path = self.path.display();
        let Some(Range { start, .. }) = span else { return format!("{path}: ") };
        let line = self.text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        format!("{path}:{line}: ")
    }

    fn unknown(&self, key: &Spanned<Cow<'_, str>>, known: &[String]) -> String {
        self.place(Some(key.span())) + &unknown(key.get_ref(), known)
    }

    /// An error behind its place and its key. The first line of a message says what; a further one, what was expected.
    fn explain(&self, error: &toml::de::Error) -> String {
        let (what, whole) = (error.message().replace('\n', "; "), error.to_string());
        let keys = whole.rsplit_once("\nin `").and_then(|(_, it)| it.trim_end().strip_suffix('`'));
        let what = match (what.strip_prefix("unknown field `"), keys) {
            (Some(rest), _) => {
                let known: Vec<String> = names(&what).map(str::to_owned).collect();
                unknown(rest.split('`').next().unwrap_or_default(), &known)
            }
            (None, Some(keys)) => format!("{}: {what}", keys.rsplit('.').next().unwrap_or(keys)),
            (None, None) => what,
        };
        self.place(error.span()) + &what
    }

    fn read<T: DeserializeOwned>(&self, table: Table<'_>) -> Result<T, String> {
        T::deserialize(toml::Deserializer::from(table)).map_err(|error| self.explain(&error))
    }

    /// Takes the keys of one part out of a table that several have.
    fn take<T: DeserializeOwned>(&self, table: &mut Table<'_>) -> Result<T, String> {
        let (span, left) = (table.span(), table.get_mut());
        let own = names_of::<T>();
        let own = own.iter().filter_map(|name| left.remove_entry(name.as_str()));
        self.read(Spanned::new(span, own.collect()))
    }

    /// A table; an empty one if it is missing.
    fn table<'f>(
        &self,
        key: &str,
        value: Option<Spanned<DeValue<'f>>>,
    ) -> Result<Table<'f>, String> {
        let Some(value) = value else { return Ok(Spanned::new(0..0, DeTable::new())) };
        match (value.span(), value.into_inner()) {
            (span, DeValue::Table(table)) => Ok(Spanned::new(span, table)),
            (span, _) => Err(format!("{}{key}: expected a table", self.place(Some(span)))),
        }
    }

    /// A site with these keys, those of `[default]` for what it does not say, and its rules behind those of that.
    fn site(
        &self,
        own: Table<'_>,
        of_default: &DeTable<'_>,
        default: &SiteConfig,
    ) -> Result<SiteConfig, String> {
        let at = own.span();
        let place = if at.is_empty() { String::new() } else { self.place(Some(at.clone())) };
        let own_rules = own.get_ref().get("rule").and_then(|rules| rules.get_ref().as_array());
        let own_rules = own_rules.into_iter().flat_map(|rules| rules.iter());
        let own_places: Vec<_> = own_rules.map(|rule| self.place(Some(rule.span()))).collect();
        let mut keys = of_default.clone();
        keys.remove("rule");
        keys.extend(own.into_inner());
        let keys = Spanned::new(at, keys);
        let mut values: toml::Table = self.read(keys.clone())?;
        let mut site: Site = self.read(keys)?;
        for (rule, place) in site.rules.all.iter_mut().zip(&own_places) {
            rule.check().map_err(|why| format!("{place}{why}"))?;
        }
        let rule_places = [&default.rule_places[..], &own_places].concat();
        site.rules.all.splice(0..0, default.site.rules.all.iter().cloned());
        values.remove("names");
        let rules = values.remove("rule");
        let mut shown: Vec<String> =
            values.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        shown.extend(default.shown.iter().filter(|line| line.starts_with("rule = ")).cloned());
        let rules = rules.as_ref().and_then(toml::Value::as_array);
        shown.extend(rules.into_iter().flatten().map(|rule| format!("rule = {rule}")));
        Ok(SiteConfig { place, rule_places, site, shown })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../deploy/twinring-http.toml");

    fn problem(text: &str) -> Option<String> {
        configuration("x.toml", text).err()
    }

    /// The error named line 1 wherever the key was; the parser does not report the line.
    #[test]
    fn an_error_without_a_place_names_no_line() {
        let text = format!("[server]\nbacklog = 1\n{}a = 1\n", "a.".repeat(200));
        assert_eq!(problem(&text).unwrap(), "x.toml: recursion limit");
    }

    /// Every key has an example, with a comment that explains it.
    #[test]
    fn the_example_has_every_key() {
        for keys in [server_keys(), names_of::<Site>(), names_of::<Rule>()] {
            assert!(keys.len() > 10, "{keys:?}");
            for key in keys.iter().filter(|key| *key != "rule") {
                let is_key = |line: &str| {
                    let line = line.trim_start_matches('#');
                    line.starts_with(&format!("{key} = ")) || line.starts_with(&format!("{key}."))
                };
                assert!(EXAMPLE.lines().any(is_key), "{key} is not in the example");
            }
        }
    }

    #[test]
    fn wrong_keys_and_values_are_told_with_the_right_ones() {
        for (text, told) in [
            ("header-timeout = 1", "1: header-timeout: this belongs in [server]"),
            ("root = \"/srv\"", "1: root: this belongs in [[site]] or [default]"),
            ("[[default.rule]]\nroot = 1", "2: root: this belongs in [[site]] or [default]"),
            (
                "[[site]]\nspa = \"i.html\"",
                "2: spa: unknown key; here it is fallback = \"FILE\" in a",
            ),
            ("[[host]]\nnames = \"a\"\n", "1: host: unknown key; here it is [[site]] for each"),
            ("gzip = true", "1: gzip: unknown key; here it is compress = [\"gz\"] in [[site]]"),
            ("try-files = true", "1: try-files: unknown key; here it is clean-urls = true"),
            ("sever = 1", "1: sever: unknown key; did you mean `server`?"),
            ("[server]\nlistn = 1", "2: listn: unknown key; did you mean `listen`?"),
            ("[default]\nindx = 1", "2: indx: unknown key; did you mean `index`?"),
            ("[table]", "1: table: unknown key"),
            ("[server]\ncheck = true", "2: check: this belongs on the command line"),
            ("[default]\nindex = [1, \"a/b\"]", "2: index: `a/b` is not a file name"),
            ("[default]\nnames = \"a\"", "1: names: this belongs in a [[site]]"),
            ("[[site]]\nnames = [\"a:80\", 5]", "2: names: `a:80` is not a host name"),
            ("[[default.rule]]\nmatch = \"css/*\"", "2: match: the pattern `css/*` matches no"),
            ("[[default.rule]]\nallow = \"10.0.0.1/8\"", "2: allow: `10.0.0.1/8` is an address"),
            ("[default]\nrule = [{ headers.Date = \"x\" }]", "2: headers: the service itself"),
            ("[default]\nrule = [{}, { status = 302 }]", "2: status needs redirect in the same"),
            ("[[default.rule]]\nmatch = \"/a\"\nallow = \"::1\"", "1: `/a`: only directories can"),
            ("[server]\nidle-timeout = 10", "2: idle-timeout: `10` has no unit: expected"),
            ("[server]\nworkers = [1]", "2: workers: expected one value, found a list"),
            ("[server]\njson = \"yes\"", "2: json: invalid type: string \"yes\", expected a bool"),
            ("[server]\nengine = \"kqueue\"", "2: engine: "),
        ] {
            let found = problem(text).expect(text);
            assert!(found.starts_with(&format!("x.toml:{told}")), "{found}");
        }
        for right in ["cache-bytes = \"64M\"", "cache-bytes = 67_108_864"] {
            assert_eq!(problem(&format!("[server]\n{right}\n")), None);
        }
    }
}
