//! What `twinring load http` asks for: URLs of the command line and of a file, with their methods, fields and content.

use super::{HttpArgs, read};
use crate::load::outcome::refuse;
use crate::values;
use serde::Deserialize;
use std::mem::take;
use std::path::Path;
use twinring_load::http::{Method, Request, Target};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requests {
    request: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: String,
    #[serde(default = "one")]
    weight: u32,
    method: Option<String>,
    /// `NAME: VALUE`, beside those of the command line with other names.
    #[serde(default)]
    headers: Vec<String>,
    /// A text, or `@FILE`.
    body: Option<String>,
}

fn one() -> u32 {
    1
}

/// The content of a request: a text, or that of a file.
fn content(text: &str) -> Result<Vec<u8>, String> {
    match text.strip_prefix('@') {
        Some(path) => read(Path::new(path)),
        None => Ok(text.as_bytes().to_vec()),
    }
}

impl HttpArgs {
    /// All requests, those of the command line first.
    pub(super) fn targets(&mut self) -> Result<Vec<Target>, String> {
        if !self.weights.is_empty() && self.weights.len() != self.url.len() {
            let (weights, urls) = (self.weights.len(), self.url.len());
            refuse(Err::<(), _>(format!(
                "--weights has {weights} for {urls} URL(s): give one for each"
            )));
        }
        let body = self.body.as_deref().map(content).transpose()?.unwrap_or_default();
        let method = if body.is_empty() { Method::GET } else { Method::POST };
        let common = Request {
            method: self.method.take().unwrap_or(method),
            headers: take(&mut self.headers),
            body: body.into(),
        };
        let weights = take(&mut self.weights).into_iter().chain(std::iter::repeat(1));
        let mut targets = Vec::new();
        for (url, weight) in self.url.iter().zip(weights) {
            let target = refuse(Target::parse(url, weight));
            targets.push(target.asking(common.clone()));
        }
        if let Some(path) = &self.urls {
            let text = String::from_utf8(read(path)?)
                .map_err(|_| format!("{} is not text in UTF-8", path.display()))?;
            match path.extension().is_some_and(|it| it == "toml") {
                true => targets.extend(refuse(of_tables(path, &text, &common))),
                false => targets.extend(refuse(of_lines(path, &text, &common))),
            }
        }
        Ok(targets)
    }
}

fn of_lines(path: &Path, text: &str, common: &Request) -> Result<Vec<Target>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let target = |(at, line): (usize, &str)| {
        let mut columns = line.split_whitespace();
        let url = columns.next().unwrap_or_default();
        let weight = columns.next().map_or(Ok(1), values::count);
        let target = match (weight, columns.next()) {
            (Ok(weight), None) => Target::parse(url, weight),
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
        let target = Target::parse(&self.url, self.weight)?;
        let wrong = |what: String| format!("{}: {what}", self.url);
        let fields: Result<Vec<_>, String> =
            self.headers.iter().map(|field| Request::field(field)).collect();
        let fields = fields.map_err(wrong)?;
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
