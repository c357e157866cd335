//! The configuration file: TOML with `[server]`, `[default]`, `[[site]]` and `[[site.rule]]`, and what the command line
//! says instead.
//!
//! serde reads it. A file with an error is read again without the key that has it, so that all errors are reported at
//! once, with their lines.

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
use toml::de::{DeTable, DeValue, ValueDeserializer};
use twinring_services::http::Rule;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Errors of a file that are found; a further one ends the search.
const PROBLEMS_MAX: usize = 100;

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
        let server = &self.server;
        let addresses = [&server.listen[..], &server.listen_tls].map(listen::addresses);
        usage.extend(families::once(addresses.concat()).err());
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
    let read = |path: &PathBuf| {
        twinring_input::read_to_string(path, FILE_BYTES_MAX)
            .map_err(|error| vec![format!("cannot read --config {}: {error}", path.display())])
    };
    let text = args.config.as_ref().map(read).transpose()?;
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
        return Err(errors.iter().map(|error| file.tell(error.span(), error.message())).collect());
    }
    let mut document = document.into_inner();
    let (keys, mut problems) = file.keys(&mut document);
    let values = toml::Table::deserialize(deserializer(document)).unwrap_or_default();
    let fixed = values.get("server").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    let none = toml::Table::new();
    let default_values = values.get("default").and_then(toml::Value::as_table).unwrap_or(&none);
    let default = keys.default.get_ref();
    for (name, is_there) in [
        ("names", !default.names.0.is_empty()),
        ("tls-cert", default.tls_cert.is_some()),
        ("tls-key", default.tls_key.is_some()),
    ] {
        if is_there {
            let problem = format!("{name}: this belongs in a [[site]]");
            problems
                .push((keys.default.span().start, file.tell(Some(keys.default.span()), &problem)));
        }
    }
    let default_rules = file.rules(default, &mut problems);
    let mut sites = Vec::new();
    let all_values = values.get("site").and_then(toml::Value::as_array);
    for (number, (site, site_values)) in
        keys.site.iter().zip(all_values.into_iter().flatten()).enumerate()
    {
        let site_values = site_values.as_table().unwrap_or(&none);
        let mut rules = default_rules.clone();
        rules.extend(file.rules(site.get_ref(), &mut problems));
        let start = site.span().start;
        let site = file.site(site.span(), &[default_values, site_values], rules);
        // One with an error is left out: without a key that it was to have, others would look wrong.
        let end = keys.site.get(number + 1).map_or(usize::MAX, |next| next.span().start);
        if problems.iter().any(|(at, _)| (start..end).contains(at)) {
            continue;
        }
        match site.has_content() {
            true => sites.push(site),
            false => {
                let problem = format!("{}site: root is missing, here and in [default]", site.place);
                problems.push((start, problem));
            }
        }
    }
    let default = file.site(keys.default.span(), &[default_values], default_rules);
    add_site_of_arguments(args, &mut sites, default);
    problems.sort();
    problems.dedup();
    let problems = problems.into_iter().map(|(_, problem)| problem).collect();
    Ok(Configuration { server: Server::new(args, keys.server), sites, problems, fixed })
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

/// The tables of a file.
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

/// A configuration file and its errors.
pub(crate) struct File<'a> {
    pub(crate) path: &'a Path,
    pub(crate) text: &'a str,
}

/// An error, behind its offset in the file.
type Problem = (usize, String);

impl File<'_> {
    /// `FILE:LINE: `; without a place, which keys of too many parts do not have, `FILE: `.
    fn place(&self, span: Option<Range<usize>>) -> String {
        let path = self.path.display();
        let Some(Range { start, .. }) = span else { return format!("{path}: ") };
        let line = self.text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        format!("{path}:{line}: ")
    }

    /// The first line of an error says what; a further one, what was expected.
    fn tell(&self, span: Option<Range<usize>>, what: &str) -> String {
        self.place(span) + &what.replace('\n', "; ")
    }

    /// All keys without errors; the others are taken out of the document.
    fn keys(&self, document: &mut DeTable<'_>) -> (FileKeys, Vec<Problem>) {
        let mut problems = Vec::new();
        for _ in 0..PROBLEMS_MAX {
            let error = match FileKeys::deserialize(deserializer(document.clone())) {
                Ok(keys) => return (keys, problems),
                Err(error) => error,
            };
            let at = error.span().unwrap_or(0..0);
            let removed = remove(document, &at);
            let what = match &removed {
                Some((key, value)) if error.message().starts_with("unknown field") => {
                    unknown(key, self.text.get(value.clone()).unwrap_or_default(), error.message())
                }
                Some((key, _)) => format!("{key}: {}", error.message()),
                None => error.message().to_owned(),
            };
            problems.push((at.start, self.tell(Some(at), &what)));
            if removed.is_none() {
                break;
            }
        }
        (FileKeys::default(), problems)
    }

    /// The rules of a site.
    fn rules(&self, keys: &SiteKeys, problems: &mut Vec<Problem>) -> Vec<RuleConfig> {
        let mut rules = Vec::new();
        for keys in &keys.rule {
            let place = self.place(Some(keys.span()));
            match keys.get_ref().rule() {
                Ok(rule) => rules.push(RuleConfig { place, keys: keys.get_ref().clone(), rule }),
                Err(why) => problems.push((keys.span().start, place + &why)),
            }
        }
        rules
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

fn deserializer(table: DeTable<'_>) -> ValueDeserializer<'_> {
    ValueDeserializer::from(Spanned::new(0..0, DeValue::Table(table)))
}

/// Takes the key out of a table that is at this place in the file, or whose value is. Returns its name within its
/// `[[site]]` or other table of the file, and the place of its value.
fn remove(table: &mut DeTable<'_>, at: &Range<usize>) -> Option<(String, Range<usize>)> {
    let is_in = |span: Range<usize>| span.start <= at.start && at.end <= span.end;
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let name = key.get_ref().to_string();
        let inner: Vec<&mut DeTable<'_>> = match value.get_mut() {
            DeValue::Table(table) => vec![table],
            DeValue::Array(list) => {
                let tables = list.iter_mut().filter_map(|value| match value.get_mut() {
                    DeValue::Table(table) => Some(table),
                    _ => None,
                });
                tables.collect()
            }
            _ => Vec::new(),
        };
        if !is_in(key.span())
            && let Some((path, value)) = inner.into_iter().find_map(|table| remove(table, at))
        {
            let is_table = ["server", "default", "site", "rule"].contains(&name.as_str());
            return Some((if is_table { path } else { format!("{name}.{path}") }, value));
        }
        if is_in(key.span()) || is_in(value.span()) {
            found = Some(name);
        }
    }
    let name = found?;
    let (_, value) = table.remove_entry(name.as_str())?;
    Some((name, value.span()))
}

#[cfg(test)]
mod tests {
    use super::super::moved::{error_of, names};
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
            (
                "[[site]]\nspa = \"i.html\"",
                "x.toml:2: spa: since 0.3.0 write `fallback = \"FILE\"` in a",
            ),
            ("not-found = \"x\"", "write `error-pages = { 404 = \"FILE\" }` in a [[site.rule]]"),
            (
                "header = [\"*=X-A: b\"]",
                "`rule = [{ match = \"/**\", headers = { NAME = \"VALUE\" } }]`",
            ),
            ("cache-control = \"*.css=max-age=60\"", "cache-control = \"VALUE\" }]`"),
            ("redirect = [\"/a=302:/b\"]", "redirect = \"/TO/**\", status = 301 }]`"),
            ("basic-auth = \"/p/*=/etc/users\"", "auth = \"FILE\" }]`"),
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
