//! The configuration file: TOML with `[server]`, `[default]`, `[[site]]` and `[[site.rule]]`, read by serde, and what the
//! command line says instead. The first error of a file is reported, with its line.

use super::super::families;
use super::arguments::HttpArgs;
use super::keys::{RuleKeys, ServerKeys, SiteKeys};
use super::listen;
use super::moved::unknown;
use super::server::Server;
use serde::Deserialize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use twinring_services::http::Rule;

const FILE_BYTES_MAX: u64 = 1 << 20;

/// Command line and file together.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(super) server: Server,
    pub(super) sites: Vec<SiteConfig>,
    /// `[server]`, to compare it at a reload.
    fixed: toml::Table,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SiteConfig {
    /// `FILE:LINE: `, where it begins.
    pub(super) place: String,
    pub(super) keys: SiteKeys,
    /// Those of `[default]` come first.
    pub(super) rules: Vec<RuleConfig>,
    /// The keys that hold, as text.
    pub(super) shown: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct RuleConfig {
    pub(super) place: String,
    pub(super) keys: RuleKeys,
    /// Without what is in files.
    pub(super) rule: Rule,
}

impl SiteConfig {
    pub(super) fn is_for_others(&self) -> bool {
        self.keys.names.0.is_empty()
    }

    fn has_content(&self) -> bool {
        let is_redirected = self.rules.iter().any(|rule| rule.rule.redirect.is_some());
        self.keys.root.is_some() || self.keys.redirect_to_https.is_some() || is_redirected
    }

    fn missing_half(&self) -> Option<&'static str> {
        match (&self.keys.tls_cert, &self.keys.tls_key) {
            (Some(_), None) => Some("tls-key"),
            (None, Some(_)) => Some("tls-cert"),
            _ => None,
        }
    }
}

impl Configuration {
    /// What is missing in both.
    pub(super) fn usage(&self) -> Vec<String> {
        let mut usage = Vec::new();
        if self.sites.is_empty() {
            usage.push("no directory to serve: give --root DIR, or a [[site]]".to_owned());
        }
        let half =
            |site: &SiteConfig| Some(format!("{}{} is missing", site.place, site.missing_half()?));
        usage.extend(self.sites.iter().filter_map(half));
        let has_certificate = self.sites.iter().any(|site| site.keys.tls_cert.is_some());
        match (self.server.listen_tls.is_empty(), has_certificate) {
            (true, true) => usage.push("for TLS, --listen-tls ADDR is missing".to_owned()),
            (false, false) => usage.push("for TLS, --tls-cert FILE is missing".to_owned()),
            _ => {}
        }
        let server = &self.server;
        let addresses = [&server.listen[..], &server.listen_tls].map(listen::addresses);
        usage.extend(families::once(addresses.concat()).err());
        usage
    }

    pub(super) fn differences(&self, other: &Configuration) -> Vec<String> {
        let (one, other) = (&self.fixed, &other.fixed);
        let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
        keys.filter(|key| one.get(*key) != other.get(*key)).cloned().collect()
    }
}

pub(super) fn read(args: &HttpArgs) -> Result<Configuration, String> {
    let read = |path: &PathBuf| {
        twinring_input::read_to_string(path, FILE_BYTES_MAX)
            .map_err(|error| format!("cannot read --config {}: {error}", path.display()))
    };
    let text = args.config.as_ref().map(read).transpose()?;
    let path = args.config.as_deref().unwrap_or(Path::new(""));
    merge(&File { path, text: text.as_deref().unwrap_or("") }, args)
}

/// Adds the keys of a file to the arguments of the command.
pub(crate) fn merge(file: &File<'_>, args: &HttpArgs) -> Result<Configuration, String> {
    let keys: FileKeys = toml::from_str(file.text).map_err(|error| file.explain(&error))?;
    let values: toml::Table = toml::from_str(file.text).map_err(|error| file.explain(&error))?;
    let table = |name| values.get(name).and_then(toml::Value::as_table).cloned();
    let default_values = table("default").unwrap_or_default();
    let default = keys.default.get_ref();
    for (name, is_there) in [
        ("names", !default.names.0.is_empty()),
        ("tls-cert", default.tls_cert.is_some()),
        ("tls-key", default.tls_key.is_some()),
    ] {
        if is_there {
            let place = file.place(Some(keys.default.span()));
            return Err(format!("{place}{name}: this belongs in a [[site]]"));
        }
    }
    let default_rules = file.rules(default)?;
    let mut sites = Vec::new();
    let all_values = values.get("site").and_then(toml::Value::as_array).into_iter().flatten();
    for (site, values) in keys.site.iter().zip(all_values.filter_map(toml::Value::as_table)) {
        let mut rules = default_rules.clone();
        rules.extend(file.rules(site.get_ref())?);
        let site = file.site(site.span(), &[&default_values, values], rules);
        if !site.has_content() {
            return Err(format!("{}site: root is missing, here and in [default]", site.place));
        }
        sites.push(site);
    }
    let default = file.site(keys.default.span(), &[&default_values], default_rules);
    add_site_of_arguments(args, &mut sites, default);
    let fixed = table("server").unwrap_or_default();
    Ok(Configuration { server: Server::new(args, keys.server), sites, fixed })
}

/// What the command line says of the site of hosts without one of their own, which is like `default` unless the file
/// has it.
fn add_site_of_arguments(args: &HttpArgs, sites: &mut Vec<SiteConfig>, default: SiteConfig) {
    let HttpArgs { root, listing, tls_cert, tls_key, .. } = args;
    let found = sites.iter().position(SiteConfig::is_for_others);
    let says = root.is_some() || listing.is_some() || tls_cert.is_some() || tls_key.is_some();
    if !says && (found.is_some() || !sites.is_empty() || !default.has_content()) {
        return;
    }
    let number = found.unwrap_or_else(|| {
        sites.push(default);
        sites.len() - 1
    });
    let SiteConfig { keys, rules, shown, .. } = &mut sites[number];
    for (name, given, key) in [
        ("root", root, &mut keys.root),
        ("tls-cert", tls_cert, &mut keys.tls_cert),
        ("tls-key", tls_key, &mut keys.tls_key),
    ] {
        if let Some(path) = given {
            *key = Some(path.clone());
            shown.push(format!("{name} = {:?}", path.display().to_string()));
        }
    }
    if let Some(listing) = listing {
        shown.push(format!("rule = {{ listing = \"{listing}\" }}"));
        let rule = Rule { listing: Some(listing.0), ..Rule::default() };
        rules.push(RuleConfig { place: String::new(), keys: RuleKeys::default(), rule });
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FileKeys {
    server: ServerKeys,
    default: Spanned<SiteKeys>,
    site: Vec<Spanned<SiteKeys>>,
}

impl Default for FileKeys {
    fn default() -> FileKeys {
        let default = Spanned::new(0..0, SiteKeys::default());
        FileKeys { server: ServerKeys::default(), default, site: Vec::new() }
    }
}

pub(crate) struct File<'a> {
    pub(crate) path: &'a Path,
    pub(crate) text: &'a str,
}

impl File<'_> {
    /// `FILE:LINE: `; without a place, which keys of too many parts do not have, `FILE: `.
    fn place(&self, span: Option<Range<usize>>) -> String {
        let path = self.path.display();
        let Some(Range { start, .. }) = span else { return format!("{path}: ") };
        let line = self.text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        format!("{path}:{line}: ")
    }

    /// An error behind its place and its key. The first line of a message says what; a further one, what was expected.
    fn explain(&self, error: &toml::de::Error) -> String {
        let what = error.message().replace('\n', "; ");
        let before = error.span().and_then(|span| self.text.get(..span.start)).unwrap_or_default();
        let key = before.trim_end().strip_suffix('=').and_then(|it| it.split_whitespace().last());
        let what = match (what.strip_prefix("unknown field `"), key) {
            (Some(rest), _) => unknown(rest.split('`').next().unwrap_or_default(), &what),
            (None, Some(key)) => format!("{}: {what}", key.trim_start_matches(['{', ',', '['])),
            (None, None) => what,
        };
        self.place(error.span()) + &what
    }

    fn rules(&self, keys: &SiteKeys) -> Result<Vec<RuleConfig>, String> {
        let rule = |keys: &Spanned<RuleKeys>| {
            let (place, keys) = (self.place(Some(keys.span())), keys.get_ref().clone());
            match keys.rule() {
                Ok(rule) => Ok(RuleConfig { place, keys, rule }),
                Err(why) => Err(place + &why),
            }
        };
        keys.rule.iter().map(rule).collect()
    }

    /// A site with the keys of the last of these tables that has them.
    fn site(
        &self,
        at: Range<usize>,
        tables: &[&toml::Table],
        rules: Vec<RuleConfig>,
    ) -> SiteConfig {
        let keys = tables.iter().copied().flatten().filter(|(name, _)| *name != "rule");
        let mut table: toml::Table =
            keys.map(|(name, value)| (name.clone(), value.clone())).collect();
        // They were read before, so this does not fail.
        let keys = SiteKeys::deserialize(table.clone()).unwrap_or_default();
        table.remove("names");
        let mut shown: Vec<String> =
            table.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let of_table =
            |table: &&toml::Table| table.get("rule").and_then(toml::Value::as_array).cloned();
        let all = tables.iter().filter_map(of_table).flatten();
        shown.extend(all.map(|rule| format!("rule = {rule}")));
        let place = if at.is_empty() { String::new() } else { self.place(Some(at)) };
        SiteConfig { place, keys, rules, shown }
    }
}

#[cfg(test)]
mod tests {
    use super::super::moved::{error_of, names};
    use super::*;

    const EXAMPLE: &str = include_str!("../../../deploy/twinring-http.toml");

    fn problem(text: &str) -> Option<String> {
        merge(&File { path: Path::new("x.toml"), text }, &HttpArgs::default()).err()
    }

    #[test]
    fn no_text_causes_a_panic_and_every_error_has_a_line() {
        assert_eq!(problem(EXAMPLE), None);
        let mut wrong = 0;
        for at in (0..EXAMPLE.len()).step_by(61) {
            for damage in ["", "\"", "[[site]]", "\u{0}", "= 5\n", "\n\n]"] {
                let end = if damage.is_empty() { at } else { EXAMPLE.len() };
                let text = format!("{}{damage}{}", &EXAMPLE[..at], &EXAMPLE[at..end]);
                let Some(problem) = problem(&text) else { continue };
                wrong += 1;
                assert!(problem.starts_with("x.toml:"), "{at} {damage:?}: {problem}");
            }
        }
        assert!(wrong > 100, "{wrong}");
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
        for keys in [error_of::<ServerKeys>(), error_of::<SiteKeys>(), error_of::<RuleKeys>()] {
            assert!(names(&keys).count() > 10, "{keys}");
            for key in names(&keys).filter(|key| *key != "rule") {
                let is_key = |line: &str| {
                    let line = line.trim_start_matches('#');
                    line.starts_with(&format!("{key} = ")) || line.starts_with(&format!("{key}."))
                };
                assert!(EXAMPLE.lines().any(is_key), "{key} is not in the example");
            }
        }
    }

    /// A file of 0.2 said "unknown key".
    #[test]
    fn wrong_keys_and_values_are_told_with_the_right_ones() {
        for (text, told) in [
            ("header-timeout = 1", "1: header-timeout: this belongs in [server]"),
            ("root = \"/srv\"", "1: root: this belongs in [[site]] or [default]"),
            ("[[default.rule]]\nroot = 1", "2: root: this belongs in [[site]] or [default]"),
            ("[[site]]\nspa = \"i.html\"", "2: spa: since 0.3.0 write `fallback = \"FILE\"` in a"),
            ("[[host]]\nnames = \"a\"\n", "host: since 0.3.0 write [[site]] for each [[host]]"),
            ("gzip = true", "1: gzip: unknown key; here it is compress = [\"gz\"] in [[site]]"),
            ("try-files = true", "1: try-files: unknown key; here it is clean-urls = true"),
            ("sever = 1", "1: sever: unknown key; did you mean `server`?"),
            ("[server]\nlistn = 1", "2: listn: unknown key; did you mean `listen`?"),
            ("[default]\nindx = 1", "2: indx: unknown key; did you mean `index`?"),
            ("[table]", "1: table: unknown key"),
            ("[server]\ncheck = true", "2: check: this belongs on the command line"),
            ("[default]\nindex = [1, \"a/b\"]", "2: index: `a/b` is not a file name"),
            ("[default]\nnames = \"a\"", "names: this belongs in a [[site]]"),
            ("[[site]]\nnames = [\"a:80\", 5]", "2: names: `a:80` is not a host name"),
            (
                "[[default.rule]]\nmatch = \"css/*\"",
                "2: match: the pattern `css/*` matches no path",
            ),
            ("[[default.rule]]\nallow = \"10.0.0.1/8\"", "2: allow: `10.0.0.1/8` is an address"),
            ("[default]\nrule = [{}, {rate = \"10KB\"}]", "2: rate: `10KB` is a size, not a rate"),
            ("[default]\nrule = [{ headers.Date = \"x\" }]", "2: headers: the service itself"),
            ("[server]\nidle-timeout = 10", "2: idle-timeout: `10` has no unit: expected"),
            ("[server]\nidle-timeout = \"0s\"", "2: idle-timeout: a timeout of 0"),
            ("[server]\nworkers = 0", "2: workers: `0` is too small: at least 1"),
            ("[server]\nworkers = \"two\"", "2: workers: `two` is not a count: expected a number"),
            ("[server]\nworkers = [1]", "2: workers: expected one value, found a list"),
            (
                "[server]\njson = \"yes\"",
                "2: json: invalid type: string \"yes\", expected a boolean",
            ),
            ("[server]\nengine = \"kqueue\"", "2: engine: "),
        ] {
            let found = problem(text).expect(text);
            let start = format!("x.toml:{told}");
            let is_whole = told.starts_with(|c: char| c.is_ascii_digit());
            assert!(
                if is_whole { found.starts_with(&start) } else { found.contains(told) },
                "{found}"
            );
        }
        for right in
            ["cache-bytes = \"64M\"", "cache-bytes = 67_108_864", "idle-timeout = \"1h30m\""]
        {
            assert_eq!(problem(&format!("[server]\n{right}\n")), None);
        }
    }
}
