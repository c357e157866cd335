//! What to write instead of a key that is unknown: keys of 0.2, directives of nginx, and slips of the pen.

use super::keys::{RuleKeys, ServerKeys, SiteKeys};
use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use toml::de::DeValue;

/// Items of a list that are shown in their new form.
const SHOWN_MAX: usize = 3;

/// Values with more bytes are not repeated.
const TEXT_MAX: usize = 80;

/// How alike two names are that may be meant for each other.
const ALIKE: f64 = 0.8;

/// The tables of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Root,
    Server,
    Site,
    Rule,
}

impl Table {
    /// The names of its keys.
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Table::Root => &["server", "default", "site"],
            Table::Server => fields::<ServerKeys>(),
            Table::Site => fields::<SiteKeys>(),
            Table::Rule => fields::<RuleKeys>(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Table::Root => "the file",
            Table::Server => "[server]",
            Table::Site => "[[site]] or [default]",
            Table::Rule => "[[site.rule]]",
        }
    }
}

/// What does the same here: names of nginx and of others.
const ELSEWHERE: &[(&str, &str)] = &[
    ("add_header", "headers = { NAME = \"VALUE\" } in [[site.rule]]"),
    ("auth_basic", "auth = \"FILE\" in [[site.rule]]"),
    ("auth_basic_user_file", "auth = \"FILE\" in [[site.rule]]"),
    ("basic-auth-realm", "realm beside auth in [[site.rule]]"),
    ("brotli", "compress = [\"br\", \"gz\"] in [[site]] or [default]"),
    ("client_body_timeout", "body-timeout in [server]"),
    ("client_header_timeout", "header-timeout in [server]"),
    ("client_max_body_size", "max-body-bytes in [server]"),
    ("default_type", "default-type in [[site]] or [default]"),
    ("error_page", "error-pages = { 404 = \"FILE\" } in [[site.rule]]"),
    ("expires", "cache-control = \"max-age=SECONDS\" in [[site.rule]]"),
    ("gzip", "compress = [\"gz\"] in [[site]] or [default]"),
    ("gzip_static", "precompressed = [\"gz\"] in [[site]] or [default]"),
    ("hosts", "names in [[site]]"),
    ("keepalive_requests", "max-requests in [server]"),
    ("keepalive_timeout", "idle-timeout in [server]"),
    ("limit_conn", "max-connections-per-address in [server]"),
    ("limit_req", "rate and burst in [[site.rule]]"),
    ("listen_tls", "listen-tls in [server]"),
    ("location", "[[site.rule]] with match"),
    ("return", "redirect and status in [[site.rule]]"),
    ("rewrite", "redirect in [[site.rule]]"),
    ("send_timeout", "send-timeout in [server]"),
    ("server_name", "names in [[site]]"),
    ("ssl_certificate", "tls-cert in [[site]]"),
    ("ssl_certificate_key", "tls-key in [[site]]"),
    ("ssl_protocols", "tls-min-version in [server]"),
    ("try_files", "clean-urls = true in [[site]], or fallback in [[site.rule]]"),
    ("worker_processes", "workers in [server]"),
];

/// Why a key is not one of `table`, and what to write; `text` is its value in the file.
pub(super) fn unknown(table: Table, key: &str, value: &DeValue<'_>, text: &str) -> String {
    let text = if text.len() > TEXT_MAX || text.contains('\n') { "..." } else { text };
    if let Some(new) = new_form(key, value, text) {
        return format!("{key}: since 0.3.0 write {new}");
    }
    if ["config", "check", "sandbox-check"].contains(&key) {
        return format!("{key}: this belongs on the command line");
    }
    let others = [Table::Server, Table::Site, Table::Rule];
    if let Some(other) = others.into_iter().find(|other| other.keys().contains(&key)) {
        return format!("{key}: write `{key} = {text}` in {}", other.name());
    }
    let hyphenated = key.replace('-', "_");
    if let Some((_, new)) = ELSEWHERE.iter().find(|(name, _)| *name == key || *name == hyphenated) {
        return format!("{key}: unknown key; here it is {new}");
    }
    let likeness = |name: &&&str| (strsim::jaro_winkler(key, name) * 1e6) as u64;
    match table.keys().iter().max_by_key(likeness) {
        Some(name) if strsim::jaro_winkler(key, name) > ALIKE => {
            format!("{key}: unknown key; did you mean `{name}`?")
        }
        _ => format!("{key}: unknown key in {}", table.name()),
    }
}

/// What 0.3.0 has for a key of 0.2.
fn new_form(key: &str, value: &DeValue<'_>, text: &str) -> Option<String> {
    let in_rule = |what: String| Some(format!("`{what}` in a [[site.rule]] without match"));
    match key {
        "host" => Some("[[site]] for each [[host]], and [default] for what all have".to_owned()),
        "autoindex" => in_rule(format!("listing = {text}")),
        "spa" => in_rule(format!("fallback = {text}")),
        "not-found" => in_rule(format!("error-pages = {{ 404 = {text} }}")),
        "header" => rules(value, |paths, rest| {
            let (name, value) = rest.split_once(':')?;
            Some(format!("match = {paths:?}, headers = {{ {} = {:?} }}", name.trim(), value.trim()))
        }),
        "cache-control" => {
            rules(value, |paths, rest| Some(format!("match = {paths:?}, cache-control = {rest:?}")))
        }
        "basic-auth" => {
            rules(value, |paths, rest| Some(format!("match = {paths:?}, auth = {rest:?}")))
        }
        "redirect" => rules(value, |paths, rest| {
            let (status, to) = match rest.split_once(':') {
                Some((code, to)) if code.parse::<u16>().is_ok() => {
                    (format!(", status = {code}"), to)
                }
                _ => (String::new(), rest),
            };
            Some(format!("match = {paths:?}, redirect = {:?}{status}", across(to)))
        }),
        _ => None,
    }
}

/// Rules in their new form, of items that begin with paths and `=`.
fn rules(value: &DeValue<'_>, rule: impl Fn(&str, &str) -> Option<String>) -> Option<String> {
    let items: Vec<&str> = match value {
        DeValue::Array(list) => list.iter().filter_map(|item| item.get_ref().as_str()).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let new = items.iter().take(SHOWN_MAX).filter_map(|item| {
        let (paths, rest) = item.split_once('=')?;
        Some(format!("{{ {} }}", rule(&across(paths), rest)?))
    });
    let new = new.collect::<Vec<_>>().join(", ");
    let more = if items.len() > SHOWN_MAX { ", ..." } else { "" };
    Some(format!("`rule = [{new}{more}]` in [[site]] or [default]"))
}

/// A path in which `*` stood for slashes, too.
fn across(paths: &str) -> String {
    match paths {
        "*" => "/**".to_owned(),
        paths if paths.ends_with("/*") => format!("{paths}*"),
        paths => paths.to_owned(),
    }
}

/// The names of the fields of a struct.
fn fields<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    // It fails by design.
    let _fields = T::deserialize(Probe(&mut found));
    found
}

/// Finds out which fields a struct has.
struct Probe<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("no struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("no value"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
