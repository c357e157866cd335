//! What to write instead of a key that is unknown: keys of 0.2, directives of nginx, and slips of the pen.

use super::config::server_keys;
use serde::de::DeserializeOwned;
use twinring_services::http::{Rule, Site};

/// What does the same here: keys of 0.2, names of nginx and of others.
const ELSEWHERE: &[(&str, &str)] = &[
    ("add_header", "headers = { NAME = \"VALUE\" } in [[site.rule]]"),
    ("auth_basic", "auth = \"FILE\" in [[site.rule]]"),
    ("auth_basic_user_file", "auth = \"FILE\" in [[site.rule]]"),
    ("autoindex", "listing = \"html\" in a [[site.rule]] without match"),
    ("brotli", "compress = [\"br\", \"gz\"] in [[site]] or [default]"),
    ("client_body_timeout", "body-timeout in [server]"),
    ("client_header_timeout", "header-timeout in [server]"),
    ("client_max_body_size", "max-body-bytes in [server]"),
    ("error_page", "error-pages = { 404 = \"FILE\" } in [[site.rule]]"),
    ("expires", "cache-control = \"max-age=SECONDS\" in [[site.rule]]"),
    ("gzip", "compress = [\"gz\"] in [[site]] or [default]"),
    ("gzip_static", "precompressed = [\"gz\"] in [[site]] or [default]"),
    ("host", "[[site]] for each, and [default] for what all have"),
    ("keepalive_requests", "max-requests in [server]"),
    ("keepalive_timeout", "idle-timeout in [server]"),
    ("limit_conn", "max-connections-per-address in [server]"),
    ("limit_req", "rate and burst in [[site.rule]]"),
    ("location", "[[site.rule]] with match"),
    ("return", "redirect and status in [[site.rule]]"),
    ("rewrite", "redirect in [[site.rule]]"),
    ("server_name", "names in [[site]]"),
    ("spa", "fallback = \"FILE\" in a [[site.rule]] without match"),
    ("ssl_certificate", "tls-cert in [[site]]"),
    ("ssl_certificate_key", "tls-key in [[site]]"),
    ("ssl_protocols", "tls-min-version in [server]"),
    ("try_files", "clean-urls = true in [[site]], or fallback in [[site.rule]]"),
    ("worker_processes", "workers in [server]"),
];

/// The names of the keys of a table, from the error about one that it does not have.
pub(super) fn names(error: &str) -> impl Iterator<Item = &str> {
    error.split('`').skip(3).step_by(2)
}

/// The keys of a table: serde lists them in its error about one that the table does not have.
pub(super) fn names_of<T: DeserializeOwned>() -> Vec<String> {
    let error = toml::from_str::<T>("\"?\" = 1").err();
    error.iter().flat_map(|error| names(error.message())).map(str::to_owned).collect()
}

/// What to write instead of a key that its table does not have; `known` are those that it has.
pub(super) fn unknown(key: &str, known: &[String]) -> String {
    if ["config", "check", "sandbox-check"].contains(&key) {
        return format!("{key}: this belongs on the command line");
    }
    for (table, keys) in [
        ("[server]", server_keys()),
        ("[[site]] or [default]", names_of::<Site>()),
        ("[[site.rule]]", names_of::<Rule>()),
    ] {
        match keys.iter().find(|name| **name == key.replace('_', "-")) {
            Some(name) if name == key => return format!("{key}: this belongs in {table}"),
            Some(name) => return format!("{key}: unknown key; here it is {name} in {table}"),
            None => {}
        }
    }
    let elsewhere = key.replace('-', "_");
    if let Some((_, new)) = ELSEWHERE.iter().find(|(name, _)| *name == elsewhere) {
        return format!("{key}: unknown key; here it is {new}");
    }
    let likeness = |name: &&String| (strsim::jaro_winkler(key, name) * 1e6) as u64;
    match known.iter().max_by_key(likeness) {
        Some(name) if strsim::jaro_winkler(key, name) > 0.8 => {
            format!("{key}: unknown key; did you mean `{name}`?")
        }
        _ => format!("{key}: unknown key"),
    }
}
