//! What `twinring load http` asks for: URLs of the command line and of a file, with their methods, fields and content.

use crate::output::or_usage;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::Path;
use twinring_input::quantity::count_u32;
use twinring_load::address::resolve;
use twinring_load::http::{HttpSettings, Method, Request, Target};

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requests {
    request: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: String,
    weight: Option<u32>,
    method: Option<String>,
    /// `NAME: VALUE`, beside those of the command line with other names.
    #[serde(default)]
    headers: Vec<String>,
    /// A text, or `@FILE`.
    body: Option<String>,
}

/// The content of a request: a text, or that of a file.
fn content(text: &str) -> Result<Vec<u8>, String> {
    match text.strip_prefix('@') {
        Some(path) => read(Path::new(path)),
        None => Ok(text.as_bytes().to_vec()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    twinring_input::read(path, FILE_BYTES_MAX)
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads what the settings name, and returns the addresses of the server.
pub(super) fn prepare(settings: &mut HttpSettings) -> Result<Vec<SocketAddr>, String> {
    settings.targets = targets(settings)?;
    if let Some(Some(path)) = &settings.verify_body {
        settings.expected = Some(read(path)?);
    }
    match (&settings.connect_to, settings.targets.first()) {
        (Some(server), _) => Ok(or_usage(resolve(server))),
        (None, Some(target)) => target.resolve(),
        (None, None) => Ok(Vec::new()),
    }
}

/// All requests, those of the command line first.
fn targets(settings: &HttpSettings) -> Result<Vec<Target>, String> {
    let (weights, urls) = (&settings.weights, &settings.url);
    if !weights.is_empty() && weights.len() != urls.len() {
        let (weights, urls) = (weights.len(), urls.len());
        let wrong = format!("--weights has {weights} for {urls} URL(s): give one for each");
        or_usage(Err::<(), _>(wrong));
    }
    let body = settings.body.as_deref().map(content).transpose()?.unwrap_or_default();
    let method = if body.is_empty() { Method::GET } else { Method::POST };
    let common = Request {
        method: settings.method.clone().unwrap_or(method),
        headers: settings.headers.clone(),
        body: body.into(),
    };
    let mut targets = Vec::new();
    for (url, weight) in urls.iter().zip(weights.iter().chain(std::iter::repeat(&1))) {
        targets.push(or_usage(Target::parse(url, *weight)).asking(common.clone()));
    }
    if let Some(path) = &settings.urls {
        let text = String::from_utf8(read(path)?)
            .map_err(|_| format!("{} is not text in UTF-8", path.display()))?;
        targets.extend(or_usage(match path.extension().is_some_and(|it| it == "toml") {
            true => of_tables(path, &text, &common),
            false => of_lines(path, &text, &common),
        }));
    }
    Ok(targets)
}

fn of_lines(path: &Path, text: &str, common: &Request) -> Result<Vec<Target>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let target = |(at, line): (usize, &str)| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let target = match columns[..] {
            [url] => Target::parse(url, 1),
            [url, weight] => count_u32(weight).and_then(|weight| Target::parse(url, weight)),
            _ => Err(format!("`{line}`: expected a URL, optionally followed by its weight")),
        };
        let target = target.map_err(|wrong| format!("{}:{}: {wrong}", path.display(), at + 1))?;
        Ok(target.asking(common.clone()))
    };
    lines.map(target).collect()
}

fn of_tables(path: &Path, text: &str, common: &Request) -> Result<Vec<Target>, String> {
    let named = |wrong: String| format!("{}: {wrong}", path.display());
    let file: Requests = toml::from_str(text).map_err(|error| named(error.to_string()))?;
    file.request.into_iter().map(|entry| entry.target(common).map_err(named)).collect()
}

impl Entry {
    fn target(self, common: &Request) -> Result<Target, String> {
        let target = Target::parse(&self.url, self.weight.unwrap_or(1))?;
        let wrong = |what: String| format!("{}: {what}", self.url);
        let fields = self.headers.iter().map(|field| Request::field(field));
        let fields = fields.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let mut headers = common.headers.clone();
        headers.retain(|(name, _)| !fields.iter().any(|(own, _)| own == name));
        headers.extend(fields);
        let method = match (&self.method, &self.body) {
            (Some(method), _) => method.parse().map_err(|error| wrong(format!("{error}")))?,
            (None, Some(_)) => Method::POST,
            (None, None) => common.method.clone(),
        };
        let body = match &self.body {
            Some(text) => content(text)?.into(),
            None => common.body.clone(),
        };
        Ok(target.asking(Request { method, headers, body }))
    }
}
