//! The configuration file: TOML with `[server]`, `[default]`, `[[site]]` and `[[site.rule]]`, and what the command line
//! says instead.
//!
//! serde reads each table. A table with an error is read again without the key that has it, so that all errors are
//! reported at once, with their lines.

use super::arguments::HttpArgs;
use super::keys::{RuleKeys, ServerKeys, SiteKeys};
use super::moved::{Table, unknown};
use super::server::Server;
use serde::Deserialize;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use twinring_services::http::Rule;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Errors that are found in one table; a further one ends the search.
const PROBLEMS_MAX: usize = 100;

/// What a site does not take from `[default]`.
const NOT_INHERITED: [&str; 3] = ["names", "tls-cert", "tls-key"];

/// Command line and file together.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(super) server: Server,
    pub(super) sites: Vec<SiteConfig>,
    /// The errors of the file; the other fields have the rest of it.
    pub(crate) problems: Vec<String>,
    /// `[server]`, to compare it at a reload.
    fixed: toml::Table,
}

/// A site of the file.
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

/// A rule of the file.
#[derive(Clone, Debug)]
pub(super) struct RuleConfig {
    pub(super) place: String,
    pub(super) keys: RuleKeys,
    /// Without what is in files.
    pub(super) rule: Rule,
    shown: String,
}

impl SiteConfig {
    /// True for the site of hosts without one of their own.
    pub(super) fn is_for_others(&self) -> bool {
        self.keys.names.0.is_empty()
    }

    /// True if there is anything to serve.
    fn has_content(&self) -> bool {
        let is_redirected = self.rules.iter().any(|rule| rule.rule.redirect.is_some());
        self.keys.root.is_some() || self.keys.redirect_to_https.is_some() || is_redirected
    }

    /// The key of a certificate that is missing.
    fn missing_half(&self) -> Option<&'static str> {
        match (&self.keys.tls_cert, &self.keys.tls_key) {
            (Some(_), None) => Some("tls-key"),
            (None, Some(_)) => Some("tls-cert"),
            _ => None,
        }
    }
}

impl Configuration {
    /// The errors of the file, and what is missing in both.
    pub(super) fn usage(&self) -> Vec<String> {
        let mut usage = self.problems.clone();
        if self.sites.is_empty() && usage.is_empty() {
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
        usage
    }

    /// The keys of `[server]` whose values differ.
    pub(super) fn differences(&self, other: &Configuration) -> Vec<String> {
        let (one, other) = (&self.fixed, &other.fixed);
        let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
        keys.filter(|key| one.get(*key) != other.get(*key)).cloned().collect()
    }
}

/// Merges command line and file, if there is one.
///
/// # Errors
/// The errors, if they prevent further checks.
pub(super) fn read(args: &HttpArgs) -> Result<Configuration, Vec<String>> {
    let text = args.config.as_deref().map(text_of).transpose().map_err(|problem| vec![problem])?;
    let path = args.config.as_deref().unwrap_or(Path::new(""));
    merge(&File { path, text: text.as_deref().unwrap_or("") }, args)
}

/// Adds the keys of a file to the arguments of the command.
///
/// # Errors
/// As [`read`].
pub(crate) fn merge(file: &File<'_>, args: &HttpArgs) -> Result<Configuration, Vec<String>> {
    let (document, errors) = DeTable::parse_recoverable(file.text);
    if !errors.is_empty() {
        let told = |error: &toml::de::Error| {
            // Its first line says what; a further one, what was expected.
            let what = error.message().replace('\n', "; ");
            match error.span() {
                Some(span) => file.tell(&span, &what),
                // Keys of too many parts: the parser does not say where.
                None => format!("{}: {what}", file.path.display()),
            }
        };
        return Err(errors.iter().map(told).collect());
    }
    let mut reader = Reader { file, problems: Vec::new() };
    let (mut server, mut default, mut sites) = (None, None, Vec::new());
    for (key, value) in document.into_inner() {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("server", DeValue::Table(_)) => server = Some(value),
            ("default", DeValue::Table(_)) => default = Some(value),
            ("site", DeValue::Array(_)) => sites = reader.tables("site", value),
            ("site", _) => {
                reader.complain(value.span(), "site: expected tables that begin with [[site]]");
            }
            (name @ ("server" | "default"), _) => {
                reader.complain(value.span(), &format!("{name}: expected a table [{name}]"));
            }
            (name, _) => reader.unknown(Table::Root, name, key.span(), &value),
        }
    }
    let (mut server, span) = parts(server);
    let keys: ServerKeys = reader.keys(Table::Server, &mut server, span);
    let fixed = toml::Table::deserialize(deserializer(&server, 0..0)).unwrap_or_default();
    let mut defaults = reader.defaults(default);
    let mut sites: Vec<SiteConfig> =
        sites.into_iter().filter_map(|site| reader.site(site, &defaults)).collect();
    add_site_of_arguments(args, &mut sites, &mut defaults);
    reader.problems.sort_by_key(|(offset, _)| *offset);
    reader.problems.dedup();
    let problems = reader.problems.into_iter().map(|(_, problem)| problem).collect();
    Ok(Configuration { server: Server::new(args, keys), sites, problems, fixed })
}

/// What all sites have.
struct Defaults<'a> {
    table: DeTable<'a>,
    config: SiteConfig,
}

/// What the command line says of the site of hosts without one of their own.
fn add_site_of_arguments(
    args: &HttpArgs,
    sites: &mut Vec<SiteConfig>,
    defaults: &mut Defaults<'_>,
) {
    let HttpArgs { root, listing, tls_cert, tls_key, .. } = args;
    let found = sites.iter().position(SiteConfig::is_for_others);
    let says = root.is_some() || listing.is_some() || tls_cert.is_some() || tls_key.is_some();
    if !says && (found.is_some() || !sites.is_empty() || !defaults.config.has_content()) {
        return;
    }
    let number = found.unwrap_or_else(|| {
        sites.push(std::mem::take(&mut defaults.config));
        sites.len() - 1
    });
    let site = &mut sites[number];
    let own =
        [("root", root, &mut site.keys.root), ("tls-cert", tls_cert, &mut site.keys.tls_cert)];
    for (name, given, key) in own.into_iter().chain([("tls-key", tls_key, &mut site.keys.tls_key)])
    {
        if let Some(path) = given {
            *key = Some(path.clone());
            site.shown.push(format!("{name} = {:?}", path.display().to_string()));
        }
    }
    if let Some(listing) = listing {
        let rule = Rule { listing: Some(listing.0), ..Rule::default() };
        let shown = format!("{{ listing = \"{listing}\" }}");
        site.shown.push(format!("rule = {shown}"));
        let keys = RuleKeys::default();
        site.rules.push(RuleConfig { place: String::new(), keys, rule, shown });
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    twinring_input::read_to_string(path, FILE_BYTES_MAX)
        .map_err(|error| format!("cannot read --config {}: {error}", path.display()))
}

/// A table, and where it begins.
fn parts(value: Option<Value<'_>>) -> (DeTable<'_>, Range<usize>) {
    let span = value.as_ref().map_or(0..0, Spanned::span);
    match value.map(Spanned::into_inner) {
        Some(DeValue::Table(table)) => (table, span),
        _ => (DeTable::default(), span),
    }
}

fn deserializer<'a>(table: &DeTable<'a>, span: Range<usize>) -> ValueDeserializer<'a> {
    ValueDeserializer::from(Spanned::new(span, DeValue::Table(table.clone())))
}

/// A configuration file and its errors.
pub(crate) struct File<'a> {
    pub(crate) path: &'a Path,
    pub(crate) text: &'a str,
}

impl File<'_> {
    /// `FILE:LINE: `
    fn place(&self, span: &Range<usize>) -> String {
        let line = self.text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1;
        format!("{}:{line}: ", self.path.display())
    }

    fn tell(&self, span: &Range<usize>, what: &str) -> String {
        format!("{}{what}", self.place(span))
    }
}

struct Reader<'f> {
    file: &'f File<'f>,
    /// Each with its offset in the file.
    problems: Vec<(usize, String)>,
}

type Value<'a> = Spanned<DeValue<'a>>;

/// A key with an error, taken out of its table.
struct Removed<'a> {
    /// With those of the tables that it is in.
    path: String,
    value: Value<'a>,
}

/// Takes the key out of a table that is at this place in the file, or whose value is.
fn remove<'a>(table: &mut DeTable<'a>, at: &Range<usize>) -> Option<Removed<'a>> {
    let is_in = |span: Range<usize>| span.start <= at.start && at.end <= span.end;
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let name = key.get_ref().to_string();
        if !is_in(key.span())
            && let DeValue::Table(inner) = value.get_mut()
            && let Some(removed) = remove(inner, at)
        {
            return Some(Removed { path: format!("{name}.{}", removed.path), ..removed });
        }
        if is_in(key.span()) || is_in(value.span()) {
            found = Some(name);
        }
    }
    let path = found?;
    let (_, value) = table.remove_entry(path.as_str())?;
    Some(Removed { path, value })
}

impl Reader<'_> {
    fn complain(&mut self, span: Range<usize>, what: &str) {
        self.problems.push((span.start, self.file.tell(&span, what)));
    }

    fn unknown(&mut self, table: Table, key: &str, at: Range<usize>, value: &Value<'_>) {
        if let ("host", DeValue::Array(hosts)) = (key, value.get_ref()) {
            // Each of them, and what its keys are now.
            for host in hosts.iter() {
                self.complain(host.span(), &unknown(table, key, host.get_ref(), ""));
                let keys = host.get_ref().as_table().into_iter().flatten();
                for (key, value) in
                    keys.filter(|(key, _)| !Table::Site.keys().contains(&key.get_ref().as_ref()))
                {
                    self.unknown(Table::Site, key.get_ref(), key.span(), value);
                }
            }
            return;
        }
        let text = self.file.text.get(value.span()).unwrap_or_default();
        self.complain(at, &unknown(table, key, value.get_ref(), text));
    }

    /// The keys of a table; those with errors are taken out of it.
    fn keys<'a, T: Deserialize<'a> + Default>(
        &mut self,
        kind: Table,
        table: &mut DeTable<'a>,
        span: Range<usize>,
    ) -> T {
        for _ in 0..PROBLEMS_MAX {
            let error = match T::deserialize(deserializer(table, span.clone())) {
                Ok(keys) => return keys,
                Err(error) => error,
            };
            let what = error.message().replace('\n', "; ");
            let at = error.span().unwrap_or(span.clone());
            match remove(table, &at) {
                Some(Removed { path, value }) if what.starts_with("unknown field") => {
                    self.unknown(kind, &path, at, &value);
                }
                Some(Removed { path, .. }) => self.complain(at, &format!("{path}: {what}")),
                None => {
                    self.complain(at, &what);
                    break;
                }
            }
        }
        T::default()
    }

    /// The tables of an array.
    fn tables<'a>(&mut self, name: &str, array: Value<'a>) -> Vec<Value<'a>> {
        let DeValue::Array(array) = array.into_inner() else { return Vec::new() };
        let mut tables = Vec::new();
        for value in array {
            match value.get_ref() {
                DeValue::Table(_) => tables.push(value),
                _ => self.complain(value.span(), &format!("{name}: expected a table")),
            }
        }
        tables
    }

    /// The rules in a table, which are taken out of it.
    fn rules(&mut self, table: &mut DeTable<'_>) -> Vec<RuleConfig> {
        let Some((_, value)) = table.remove_entry("rule") else { return Vec::new() };
        if value.get_ref().as_array().is_none() {
            self.complain(value.span(), "rule: expected tables that begin with [[site.rule]]");
            return Vec::new();
        }
        let mut rules = Vec::new();
        for value in self.tables("rule", value) {
            let (mut table, span) = parts(Some(value));
            let before = self.problems.len();
            let keys: RuleKeys = self.keys(Table::Rule, &mut table, span.clone());
            let place = self.file.place(&span);
            match keys.rule() {
                Ok(rule) if self.problems.len() == before => {
                    let shown = toml::Table::deserialize(deserializer(&table, 0..0));
                    let shown = shown.map(|table| toml::Value::Table(table).to_string());
                    rules.push(RuleConfig { place, keys, rule, shown: shown.unwrap_or_default() });
                }
                Ok(_) => {}
                Err(why) => self.complain(span, &why),
            }
        }
        rules
    }

    /// What all sites have.
    fn defaults<'a>(&mut self, default: Option<Value<'a>>) -> Defaults<'a> {
        let (mut table, span) = parts(default);
        let rules = self.rules(&mut table);
        let keys: SiteKeys = self.keys(Table::Site, &mut table, span.clone());
        for name in NOT_INHERITED {
            if table.contains_key(name) {
                self.complain(span.clone(), &format!("{name}: this belongs in a [[site]]"));
            }
        }
        let shown = shown(&table, &rules);
        let place = if span.is_empty() { String::new() } else { self.file.place(&span) };
        Defaults { table, config: SiteConfig { place, keys, rules, shown } }
    }

    /// One site: its own keys, and those of all sites for the others.
    fn site<'a>(&mut self, site: Value<'a>, defaults: &Defaults<'a>) -> Option<SiteConfig> {
        let (mut table, span) = parts(Some(site));
        let before = self.problems.len();
        let mut rules = defaults.config.rules.clone();
        rules.extend(self.rules(&mut table));
        for (key, value) in &defaults.table {
            if !table.contains_key(key.get_ref().as_ref()) {
                table.insert(key.clone(), value.clone());
            }
        }
        let keys: SiteKeys = self.keys(Table::Site, &mut table, span.clone());
        let shown = shown(&table, &rules);
        let place = self.file.place(&span);
        let site = SiteConfig { place, keys, rules, shown };
        if self.problems.len() == before && !site.has_content() {
            self.complain(span, "site: root is missing, here and in [default]");
        }
        (self.problems.len() == before).then_some(site)
    }
}

/// The keys and rules that hold, a line each.
fn shown(table: &DeTable<'_>, rules: &[RuleConfig]) -> Vec<String> {
    let value = |key: &Spanned<Cow<'_, str>>, value: &Value<'_>| {
        let value = toml::Value::deserialize(ValueDeserializer::from(value.clone())).ok()?;
        Some(format!("{} = {value}", key.get_ref()))
    };
    let keys = table.iter().filter(|(key, _)| key.get_ref() != "names");
    let keys = keys.filter_map(|(key, of_key)| value(key, of_key));
    keys.chain(rules.iter().map(|rule| format!("rule = {}", rule.shown))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../deploy/twinring-http.toml");

    fn merged(text: &str) -> Result<Configuration, Vec<String>> {
        merge(&File { path: Path::new("x.toml"), text }, &HttpArgs::default())
    }

    fn problems(text: &str) -> Vec<String> {
        merged(text).map_or_else(|problems| problems, |merged| merged.problems)
    }

    #[test]
    fn no_text_causes_a_panic_and_every_error_has_a_line() {
        assert_eq!(problems(EXAMPLE), Vec::<String>::new());
        let mut wrong = 0;
        for at in (0..EXAMPLE.len()).step_by(61) {
            for damage in ["", "\"", "[[site]]", "\u{0}", "= 5\n", "\n\n]"] {
                let end = if damage.is_empty() { at } else { EXAMPLE.len() };
                let text = format!("{}{damage}{}", &EXAMPLE[..at], &EXAMPLE[at..end]);
                let problems = problems(&text);
                wrong += usize::from(!problems.is_empty());
                let is_placed = |problem: &String| problem.starts_with("x.toml:");
                assert!(problems.iter().all(is_placed), "{at} {damage:?}: {problems:?}");
            }
        }
        assert!(wrong > 100, "{wrong}");
    }

    /// The error named line 1 wherever the key was; the parser does not report the line.
    #[test]
    fn an_error_without_a_place_names_no_line() {
        let text = format!("[server]\nbacklog = 1\n{}a = 1\n", "a.".repeat(200));
        assert_eq!(problems(&text), ["x.toml: recursion limit"]);
    }

    /// Every key has an example, with a comment that explains it.
    #[test]
    fn the_example_has_every_key() {
        for table in [Table::Server, Table::Site, Table::Rule] {
            for key in table.keys() {
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
    fn keys_that_moved_are_told_in_their_new_form() {
        for (old, new) in [
            (
                "header-timeout = \"5s\"",
                "header-timeout: write `header-timeout = \"5s\"` in [server]",
            ),
            ("root = \"/srv\"", "root: write `root = \"/srv\"` in [[site]] or [default]"),
            (
                "autoindex = \"html\"",
                "autoindex: since 0.3.0 write `listing = \"html\"` in a [[site.rule]]",
            ),
            ("spa = \"i.html\"", "write `fallback = \"i.html\"` in a [[site.rule]]"),
            ("not-found = \"x\"", "write `error-pages = { 404 = \"x\" }` in a [[site.rule]]"),
            (
                "header = [\"*=X-A: b\", \"/c/*=D:e\"]",
                "write `rule = [{ match = \"/**\", headers = { X-A = \"b\" } }, \
                 { match = \"/c/**\", headers = { D = \"e\" } }]` in [[site]] or [default]",
            ),
            (
                "cache-control = \"*.css=max-age=60\"",
                "`rule = [{ match = \"*.css\", cache-control = \"max-age=60\" }]`",
            ),
            (
                "redirect = [\"/a=302:/b\", \"/c/*=/d/*\"]",
                "`rule = [{ match = \"/a\", redirect = \"/b\", status = 302 }, \
                 { match = \"/c/**\", redirect = \"/d/**\" }]`",
            ),
            (
                "basic-auth = \"/p/*=/etc/users\"",
                "`rule = [{ match = \"/p/**\", auth = \"/etc/users\" }]`",
            ),
            ("[[host]]\nnames = \"a\"\n", "host: since 0.3.0 write [[site]] for each [[host]]"),
            (
                "gzip = true",
                "gzip: unknown key; here it is compress = [\"gz\"] in [[site]] or [default]",
            ),
            ("try-files = true", "clean-urls = true"),
            ("sever = 1", "sever: unknown key; did you mean `server`?"),
            ("[server]\nlistn = 1", "x.toml:2: listn: unknown key; did you mean `listen`?"),
            (
                "[default]\nclean-url = true",
                "x.toml:2: clean-url: unknown key; did you mean `clean-urls`?",
            ),
            ("[default]\nindx = 1", "did you mean `index`?"),
            ("[[default.rule]]\nredirct = 1", "did you mean `redirect`?"),
            ("[[default.rule]]\nroot = 1", "write `root = 1` in [[site]] or [default]"),
        ] {
            let problems = problems(old);
            assert!(problems.iter().any(|told| told.contains(new)), "{old}: {problems:?}");
        }
        let text = "[[host]]\nnames = \"a\"\nspa = \"x\"\nroot = \"/\"\n";
        let told = problems(text);
        assert!(told.len() == 2 && told[1].starts_with("x.toml:3: spa: "), "{told:?}");
    }

    #[test]
    fn quantities_are_read_alike_and_refused_with_their_bounds() {
        for (line, what) in [
            ("cache-bytes = \"64M\"", None),
            ("cache-bytes = 67_108_864", None),
            ("max-requests = \"10k\"", None),
            ("idle-timeout = \"1h30m\"", None),
            ("idle-timeout = 10", Some("idle-timeout: `10` has no unit: expected a number with")),
            ("idle-timeout = \"0s\"", Some("idle-timeout: a timeout of 0")),
            ("workers = 0", Some("workers: `0` is too small: at least 1")),
            ("workers = \"two\"", Some("workers: `two` is not a count: expected a number")),
            ("workers = \"2KB\"", Some("workers: `2KB` is a size, not a count")),
            ("workers = [1]", Some("workers: expected one value, found a list")),
            ("json = \"yes\"", Some("json: invalid type: string \"yes\", expected a boolean")),
            ("max-uri-bytes = 1", Some("max-uri-bytes: `1` is too small: at least 16")),
            ("engine = \"kqueue\"", Some("engine: ")),
        ] {
            let told = problems(&format!("[server]\n{line}\n"));
            match what {
                None => assert_eq!(told, Vec::<String>::new(), "{line}"),
                Some(what) => {
                    let start = format!("x.toml:2: {what}");
                    assert!(told.len() == 1 && told[0].starts_with(&start), "{line}: {told:?}");
                }
            }
        }
        let told = problems("[[default.rule]]\nrate = \"10KB\"\n");
        assert!(told[0].contains("rate: `10KB` is a size, not a rate"), "{told:?}");
    }
}
