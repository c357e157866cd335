//! The configuration file: the options of the command line, in TOML, and a `[[host]]` for each
//! virtual host.
//!
//! A key is the long name of an option without its dashes, so there is one list of options, with
//! one description and one check of their values each: those of clap. All errors of the file are
//! reported at once, with their lines. The command line takes precedence over the file.

use super::arguments::HttpArgs;
use super::host::HostArgs;
use super::site::SiteArgs;
use super::tls::CertificateArgs;
use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Id};
use std::any::TypeId;
use std::collections::HashSet;
use std::error::Error;
use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use twinring_services::http::HostName;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Options that are not allowed in the file.
const COMMAND_LINE_ONLY: [&str; 4] = ["config", "check", "help", "sandbox-check"];

/// Options that a host does not inherit: without a certificate of its own, it has the default one.
const NOT_INHERITED: [&str; 2] = ["tls-cert", "tls-key"];

/// Lists of rules that a host adds to: its own come first, and those of the whole behind them, unless the host has
/// one for the same paths, or names the list in `replace`. So no host loses a protection by a rule of its own.
const ADDED: [&str; 4] = ["basic-auth", "cache-control", "header", "redirect"];

/// What a rule is about: its paths, and for a header field its name as well. A host's own rule about the same takes the
/// place of that of the whole.
fn subject(list: &str, rule: &str) -> String {
    let (paths, rest) = rule.split_once('=').unwrap_or((rule, ""));
    match (list, rest.split_once(':')) {
        ("header", Some((name, _value))) => format!("{paths}={}", name.trim().to_ascii_lowercase()),
        _ => paths.to_owned(),
    }
}

/// The options of a host.
#[derive(Debug, Args)]
struct HostOptions {
    #[command(flatten)]
    site: SiteArgs,
    #[command(flatten)]
    certificate: CertificateArgs,
}

/// The options of command line and file together.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) args: HttpArgs,
    pub(crate) hosts: Vec<HostArgs>,
    /// The errors of the file; the other fields have the rest of it.
    pub(crate) problems: Vec<String>,
    /// The values of all options but those of hosts.
    pub(super) options: ArgMatches,
}

impl Configuration {
    /// The errors of the file, and options that are missing in both.
    pub(super) fn usage(&self) -> Vec<String> {
        let Configuration { args, hosts, problems, .. } = self;
        let mut usage = problems.clone();
        if !args.site.has_content() && hosts.is_empty() && usage.is_empty() {
            usage.push("no directory to serve: give --root DIR".to_owned());
        }
        if let Some(missing) = args.tls.missing(hosts) {
            usage.push(format!("for TLS, {missing} is missing"));
        }
        usage
    }
}

/// Options whose values a reload replaces; `[[host]]` is replaced, too.
pub(super) const RELOADED: [&str; 36] = [
    "autoindex",
    "basic-auth",
    "basic-auth-realm",
    "body-timeout",
    "cache-bytes",
    "cache-control",
    "cache-files",
    "cache-valid",
    "compress",
    "forwarded-field",
    "forwarded-from",
    "header",
    "header-timeout",
    "http2",
    "http2-streams",
    "idle-timeout",
    "index",
    "max-body-bytes",
    "max-header-bytes",
    "max-requests",
    "max-uri-bytes",
    "not-found",
    "precompressed",
    "proxy-protocol-from",
    "redirect",
    "redirect-to-https",
    "root",
    "send-timeout",
    "sendfile-above",
    "server-timing",
    "spa",
    "symlinks",
    "tls-cert",
    "tls-handshake-timeout",
    "tls-key",
    "tls-min-version",
];

/// The names of the options whose values differ.
pub(super) fn differences(one: &ArgMatches, other: &ArgMatches) -> Vec<String> {
    let values = |matches: &ArgMatches, id: &str| -> Vec<OsString> {
        let raw = matches.try_get_raw(id).ok().flatten();
        raw.into_iter().flatten().map(OsString::from).collect()
    };
    let command = HttpArgs::augment_args(Command::new("http"));
    let mut names = Vec::new();
    for arg in command.get_arguments() {
        let (id, Some(name)) = (arg.get_id().as_str(), arg.get_long()) else { continue };
        if values(one, id) != values(other, id) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Merges command line and file, if there is one.
///
/// # Errors
/// The errors, if they prevent further checks.
pub(super) fn read(path: Option<&Path>) -> Result<Configuration, Vec<String>> {
    let text = path.map(text_of).transpose().map_err(|problem| vec![problem])?;
    let file = File { path: path.unwrap_or(Path::new("")), text: text.as_deref().unwrap_or("") };
    merge(&file, std::env::args_os().collect())
}

/// Adds the options of a file to the arguments of the command.
///
/// # Errors
/// As [`read`].
pub(crate) fn merge(
    file: &File<'_>,
    mut arguments: Vec<OsString>,
) -> Result<Configuration, Vec<String>> {
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
    let command = HttpArgs::augment_args(Command::new("http"));
    let given = matches(arguments.clone()).map_err(|error| vec![summary(&error)])?;
    let mut hosts = None;
    for (key, value) in document.get_ref() {
        if key.get_ref() == "host" {
            hosts = Some(value);
        } else if let Some((id, text)) = reader.option(&command, key, value)
            && given.value_source(id.as_str()) != Some(ValueSource::CommandLine)
        {
            arguments.extend(text);
        }
    }
    let Reader { mut problems, .. } = reader;
    let merged = matches(arguments).and_then(|all| Ok((HttpArgs::from_arg_matches(&all)?, all)));
    let (args, all) = match merged {
        Ok(merged) => merged,
        Err(error) => {
            problems.push((0, summary(&error)));
            return Err(in_order(problems));
        }
    };
    let mut reader = Reader { file, problems };
    let hosts = hosts.map(|hosts| reader.hosts(hosts, &all)).unwrap_or_default();
    Ok(Configuration { args, hosts, problems: in_order(reader.problems), options: all })
}

fn text_of(path: &Path) -> Result<String, String> {
    twinring_input::read_to_string(path, FILE_BYTES_MAX)
        .map_err(|error| format!("cannot read --config {}: {error}", path.display()))
}

/// The arguments of `serve http` in these arguments of the command.
fn matches(arguments: impl IntoIterator<Item = OsString>) -> Result<ArgMatches, clap::Error> {
    let mut matches = crate::Cli::command().try_get_matches_from(arguments)?;
    while let Some((_, of_subcommand)) = matches.remove_subcommand() {
        matches = of_subcommand;
    }
    Ok(matches)
}

fn in_order(mut problems: Vec<(usize, String)>) -> Vec<String> {
    problems.sort_by_key(|(offset, _)| *offset);
    problems.into_iter().map(|(_, problem)| problem).collect()
}

/// The first paragraph of clap's message.
fn summary(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or(&text);
    let words: Vec<&str> = first.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
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

struct Reader<'a> {
    file: &'a File<'a>,
    /// Each with its offset in the file.
    problems: Vec<(usize, String)>,
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;
type Value<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn complain(&mut self, span: Range<usize>, what: &str) {
        self.problems.push((span.start, self.file.tell(&span, what)));
    }

    /// The option of `command` that a key names, and the arguments that give it the value.
    fn option(
        &mut self,
        command: &Command,
        key: &Key<'_>,
        value: &Value<'_>,
    ) -> Option<(Id, Vec<OsString>)> {
        let name = key.get_ref();
        let found = command.get_arguments().find(|arg| arg.get_long() == Some(name.as_ref()));
        let Some(arg) = found.filter(|_| !COMMAND_LINE_ONLY.contains(&name.as_ref())) else {
            self.complain(key.span(), &unknown(command, name));
            return None;
        };
        match values(arg, value.get_ref()) {
            Ok(values) => {
                let mut arguments = Vec::new();
                for text in values {
                    let argument = match text {
                        Some(text) => format!("--{name}={text}"),
                        None => format!("--{name}"),
                    };
                    if let Err(why) = check(command, &argument) {
                        self.complain(value.span(), &format!("{name}: {why}"));
                        return None;
                    }
                    arguments.push(argument.into());
                }
                Some((arg.get_id().clone(), arguments))
            }
            Err(what) => {
                self.complain(value.span(), &format!("{name}: {what}"));
                None
            }
        }
    }

    fn hosts(&mut self, hosts: &Value<'_>, defaults: &ArgMatches) -> Vec<HostArgs> {
        let Some(hosts) = hosts.get_ref().as_array() else {
            self.complain(hosts.span(), "host: expected tables that begin with [[host]]");
            return Vec::new();
        };
        let mut all = Vec::new();
        for host in hosts.iter() {
            match host.get_ref().as_table() {
                Some(table) => all.extend(self.host(table, host.span(), defaults)),
                None => {
                    self.complain(host.span(), "host: expected tables that begin with [[host]]");
                }
            }
        }
        all
    }

    /// One host: its own options, and those of the whole for the others.
    fn host(
        &mut self,
        table: &DeTable<'_>,
        span: Range<usize>,
        defaults: &ArgMatches,
    ) -> Option<HostArgs> {
        let command = HostOptions::augment_args(Command::new("host"));
        let before = self.problems.len();
        let mut names = None;
        let (mut own, mut subjects) = (HashSet::new(), HashSet::new());
        let mut replaced = Vec::new();
        let mut arguments = vec![OsString::from("host")];
        for (key, value) in table {
            if key.get_ref() == "names" {
                names = Some(self.names(value));
            } else if key.get_ref() == "replace" {
                replaced = self.replaced(value);
            } else if let Some((id, text)) = self.option(&command, key, value) {
                for rule in text.iter().filter_map(|text| text.to_str()?.split_once('=')) {
                    subjects.insert((id.clone(), subject(key.get_ref(), rule.1)));
                }
                own.insert(id);
                arguments.extend(text);
            }
        }
        if names.as_ref().is_none() {
            self.complain(span.clone(), "host: names are missing, such as names = [\"a.org\"]");
        }
        for arg in command.get_arguments() {
            let Some(name) = arg.get_long().filter(|name| !NOT_INHERITED.contains(name)) else {
                continue;
            };
            if replaced.iter().any(|list| list == name)
                || own.contains(arg.get_id()) && !ADDED.contains(&name)
            {
                continue;
            }
            for value in defaults.get_raw(arg.get_id().as_str()).into_iter().flatten() {
                let rule = subject(name, &value.to_string_lossy());
                if subjects.contains(&(arg.get_id().clone(), rule)) {
                    continue;
                }
                let mut argument = OsString::from(format!("--{name}="));
                argument.push(value);
                arguments.push(argument);
            }
        }
        if self.problems.len() > before {
            return None;
        }
        let options = command.try_get_matches_from(arguments);
        let options = options.and_then(|matches| HostOptions::from_arg_matches(&matches));
        match options {
            Ok(HostOptions { site, certificate }) if site.has_content() => {
                if let Some(missing) = certificate.missing() {
                    let missing = missing.trim_start_matches("--").trim_end_matches(" FILE");
                    self.complain(span, &format!("host: {missing} is missing"));
                    return None;
                }
                let (place, certificate) = (self.file.place(&span), certificate.files());
                Some(HostArgs { place, names: names?, site, certificate })
            }
            Ok(_) => {
                self.complain(span, "host: root is missing, here and for the whole");
                None
            }
            Err(error) => {
                self.complain(span, &format!("host: {}", summary(&error)));
                None
            }
        }
    }

    /// The lists that a host does not add to.
    fn replaced(&mut self, value: &Value<'_>) -> Vec<String> {
        let one = std::slice::from_ref(value);
        let list = value.get_ref().as_array().map_or(one, |list| &list[..]);
        let mut names = Vec::new();
        for name in list {
            match name.get_ref().as_str().filter(|name| ADDED.contains(name)) {
                Some(known) => names.push(known.to_owned()),
                None => {
                    let what = format!("replace: expected some of {}", ADDED.join(", "));
                    self.complain(name.span(), &what);
                }
            }
        }
        names
    }

    fn names(&mut self, value: &Value<'_>) -> Vec<HostName> {
        let mut names = Vec::new();
        let one = std::slice::from_ref(value);
        let list = value.get_ref().as_array().map_or(one, |list| &list[..]);
        for name in list {
            match name.get_ref().as_str().map(str::parse) {
                Some(Ok(parsed)) => names.push(parsed),
                Some(Err(why)) => self.complain(name.span(), &format!("names: {why}")),
                None => {
                    let found = name.get_ref().type_str();
                    let what = format!("names: expected a string or strings, found {found}");
                    self.complain(name.span(), &what);
                }
            }
        }
        if list.is_empty() {
            self.complain(value.span(), "names: expected at least one");
        }
        names
    }
}

/// The message for an unknown key.
fn unknown(command: &Command, name: &str) -> String {
    if COMMAND_LINE_ONLY.contains(&name) {
        return format!("{name}: this belongs on the command line");
    }
    let error = command.clone().try_get_matches_from(["", &format!("--{name}")]).err();
    let similar = error.as_ref().and_then(|error| error.get(ContextKind::SuggestedArg));
    match similar {
        Some(ContextValue::String(option)) => {
            let option = option.trim_start_matches('-');
            format!("{name}: unknown key; did you mean `{option}`?")
        }
        _ => format!("{name}: unknown key"),
    }
}

/// The values of an option as on the command line, `None` for a flag and for an option whose value
/// may be missing; or an error about the type.
fn values(arg: &Arg, value: &DeValue<'_>) -> Result<Vec<Option<String>>, String> {
    let may_lack_value = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    let is_bool = value.as_bool().is_some();
    if matches!(arg.get_action(), ArgAction::SetTrue) || may_lack_value && is_bool {
        return match value.as_bool() {
            Some(true) => Ok(vec![None]),
            Some(false) => Ok(Vec::new()),
            None => Err(format!("expected true or false, found {}", value.type_str())),
        };
    }
    let is_list = matches!(arg.get_action(), ArgAction::Append);
    let is_integer = takes_integers(arg.get_value_parser());
    let expected = match (is_integer, is_list) {
        (true, false) => "an integer",
        (true, true) => "an integer or integers",
        (false, false) => "a string",
        (false, true) => "a string or strings",
    };
    let scalar = |value: &DeValue<'_>| match (value, is_integer) {
        (DeValue::String(text), false) => Ok(Some(text.to_string())),
        (DeValue::Integer(number), true) => {
            let digits = i128::from_str_radix(number.as_str(), number.radix());
            digits.map(|number| Some(number.to_string())).map_err(|_| "too large".to_owned())
        }
        _ => Err(format!("expected {expected}, found {}", value.type_str())),
    };
    match value {
        DeValue::Array(list) if is_list => {
            list.iter().map(|value| scalar(value.get_ref())).collect()
        }
        value => Ok(vec![scalar(value)?]),
    }
}

fn takes_integers(parser: &ValueParser) -> bool {
    let integers = [TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>()];
    integers.iter().any(|integer| parser.type_id() == *integer)
}

/// Checks one argument with clap; returns the error about its value.
fn check(command: &Command, argument: &str) -> Result<(), String> {
    match command.clone().try_get_matches_from(["", argument]) {
        Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => {
            Err(match error.source() {
                Some(source) => source.to_string(),
                None => summary(&error),
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../deploy/twinring-http.toml");

    fn merged(text: &str) -> Result<Configuration, Vec<String>> {
        let file = File { path: Path::new("x.toml"), text };
        merge(&file, ["twinring", "serve", "http"].map(OsString::from).to_vec())
    }

    #[test]
    fn no_text_causes_a_panic_and_every_error_has_a_line() {
        assert!(merged(EXAMPLE).is_ok_and(|merged| merged.problems.is_empty()));
        let mut wrong = 0;
        for at in (0..EXAMPLE.len()).step_by(61) {
            for damage in ["", "\"", "[[host]]", "\u{0}", "= 5\n", "\n\n]"] {
                let end = if damage.is_empty() { at } else { EXAMPLE.len() };
                let text = format!("{}{damage}{}", &EXAMPLE[..at], &EXAMPLE[at..end]);
                let problems = match merged(&text) {
                    Ok(merged) => merged.problems,
                    Err(problems) => problems,
                };
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
        let text = format!("backlog = 1\n{}a = 1\n", "a.".repeat(200));
        assert_eq!(merged(&text).expect_err("wrong"), ["x.toml: recursion limit"]);
    }
}
