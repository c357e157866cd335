//! The arguments of `twinring load http`.

use crate::load::options::{Common, GateArgs, Network, Times};
use crate::load::outcome::refuse;
use crate::load::start::StartAt;
use crate::values;
use clap::Args;
use std::path::{Path, PathBuf};
use twinring_input::quantity::{count, rate, size};
use twinring_load::http::{
    BODY_BYTES_MAX, ExpectedBody, ExpectedLength, HeaderName, HeaderValue, Method, Request,
    Settings, Statuses, Target, TlsSettings,
};
use twinring_load::schedule::Arrivals;

#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// URLs to request: http://HOST[:PORT][/PATH] or https://..., all on one server.
    #[arg(value_name = "URL", required_unless_present = "urls")]
    url: Vec<String>,
    /// Further URLs from a file: one per line, each optionally followed by its weight.
    #[arg(long, value_name = "FILE")]
    urls: Option<PathBuf>,
    /// Weight of each URL of the command line [default: 1 each].
    #[arg(long, value_name = "W,...", value_delimiter = ',', value_parser = values::count)]
    weights: Vec<u32>,
    /// Connections, in all.
    #[arg(short, long, value_name = "N", default_value = "100", value_parser = count)]
    connections: u64,
    /// End the window when this many requests, in all, were sent in it and answered.
    #[arg(short = 'n', long, value_name = "N", value_parser = count)]
    requests: Option<u64>,
    #[command(flatten)]
    times: Times,

    /// Open loop: requests a second, in all, on a fixed schedule; latency counts from the
    /// scheduled time.
    #[arg(long, value_name = "R", value_parser = rate, help_heading = "Pattern")]
    rate: Option<u64>,
    /// How the requests of --rate follow each other: at equal distances (periodic), or independently
    /// of each other, as those of many users do (poisson).
    #[arg(long, value_name = "HOW", requires = "rate", default_value_t, help_heading = "Pattern")]
    arrivals: Arrivals,
    /// Requests in flight per connection, at most. With --http2 each is a stream, and the server may
    /// allow fewer.
    #[arg(
        long,
        visible_alias = "depth",
        value_name = "N",
        default_value = "1",
        value_parser = values::count,
        help_heading = "Pattern"
    )]
    pipeline: u32,
    /// A connection for each request. Latency then counts from the attempt to connect.
    #[arg(long, help_heading = "Pattern")]
    no_keepalive: bool,
    /// Seed of the choice among several URLs.
    #[arg(long, value_name = "N", default_value = "1", value_parser = count,
          help_heading = "Pattern")]
    seed: u64,

    /// Speak HTTP/2: with https:// as the server agrees in the TLS handshake (ALPN), with http:// from
    /// the first byte (prior knowledge).
    #[arg(long, help_heading = "Request")]
    http2: bool,
    /// Method of the requests [default: GET; POST with a body].
    #[arg(short = 'X', long, value_name = "METHOD", help_heading = "Request")]
    method: Option<Method>,
    /// A header field, `NAME: VALUE`; may be repeated. `Host` replaces that of the URL.
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = Request::field,
          help_heading = "Request")]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Content of the requests.
    #[arg(long, value_name = "TEXT", conflicts_with = "body_file", help_heading = "Request")]
    body: Option<String>,
    /// Content of the requests, from a file.
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    body_file: Option<PathBuf>,

    /// Statuses that count as success, such as `200,206` or `200-299,304`.
    #[arg(long, value_name = "CODES", default_value = "200-299", help_heading = "Verification")]
    expect_status: Statuses,
    /// Required length of every answer's content [default: that of the first answer of the same
    /// URL].
    #[arg(long, value_name = "BYTES", value_parser = size, help_heading = "Verification")]
    expect_length: Option<u64>,
    /// Accept content of any length.
    #[arg(long, conflicts_with = "expect_length", help_heading = "Verification")]
    any_length: bool,
    /// Compare the content of every answer, by length and CRC-32, with FILE; without FILE, with
    /// the first answer of the same URL.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          conflicts_with_all = ["any_length", "expect_length"], help_heading = "Verification")]
    verify_body: Option<Option<PathBuf>>,

    /// Certificates to trust, as PEM, instead of those of the system.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    tls_ca: Option<PathBuf>,
    /// Accept any certificate.
    #[arg(short = 'k', long, conflicts_with = "tls_ca", help_heading = "TLS")]
    insecure: bool,
    /// Never resume a TLS session.
    #[arg(long, help_heading = "TLS")]
    tls_full_handshake: bool,

    #[command(flatten)]
    network: Network,
    #[command(flatten)]
    common: Common,

    /// Write the latencies as a table of percentiles for HdrHistogram's plotters.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) hgrm: Option<PathBuf>,
    #[command(flatten)]
    gates: GateArgs,
}

impl HttpArgs {
    pub(super) fn json_and_start(&self) -> (bool, Option<StartAt>) {
        (self.common.json, self.common.start_at)
    }

    /// # Errors
    /// When a file cannot be read or a name not resolved. Invalid arguments end the program.
    pub(super) fn settings(self) -> Result<Settings, String> {
        let targets = self.targets()?;
        let body = match (&self.body, &self.body_file) {
            (_, Some(path)) => read(path)?,
            (text, None) => text.clone().unwrap_or_default().into_bytes(),
        };
        let method = if body.is_empty() { Method::GET } else { Method::POST };
        let (duration, warmup) = self.times.in_use(self.requests.is_some());
        let Network { connect_timeout, timeout, local } = self.network;
        Ok(Settings {
            request: Request { method: self.method.unwrap_or(method), headers: self.headers, body },
            connections: self.connections,
            http2: self.http2,
            pipeline: self.pipeline,
            keepalive: !self.no_keepalive,
            workers: self.common.workers(),
            rate_per_s: self.rate,
            arrivals: self.arrivals,
            warmup,
            duration,
            requests: self.requests,
            seed: self.seed,
            statuses: self.expect_status,
            length: match (self.expect_length, self.any_length) {
                (Some(bytes), _) => ExpectedLength::Bytes(bytes),
                (None, true) => ExpectedLength::Any,
                (None, false) => ExpectedLength::First,
            },
            body: match self.verify_body {
                None => ExpectedBody::Any,
                Some(None) => ExpectedBody::First,
                Some(Some(path)) => ExpectedBody::Bytes(read(&path)?),
            },
            tls: TlsSettings {
                ca: self.tls_ca,
                insecure: self.insecure,
                full_handshake: self.tls_full_handshake,
            },
            connect_timeout,
            timeout,
            local,
            gates: self.gates.into(),
            ..Settings::new(targets)?
        })
    }

    /// All URLs, those of the command line first.
    fn targets(&self) -> Result<Vec<Target>, String> {
        if !self.weights.is_empty() && self.weights.len() != self.url.len() {
            let (weights, urls) = (self.weights.len(), self.url.len());
            refuse(Err(format!("--weights has {weights} for {urls} URL(s): give one for each")));
        }
        let weights = self.weights.iter().copied().chain(std::iter::repeat(1));
        let mut targets = Vec::new();
        for (url, weight) in self.url.iter().zip(weights) {
            targets.extend(usable(Target::parse(url, weight)));
        }
        let Some(path) = &self.urls else { return Ok(targets) };
        let text = String::from_utf8(read(path)?)
            .map_err(|_| format!("{} is not text in UTF-8", path.display()))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (at, line) in lines {
            let target = listed(line);
            let place = |wrong| format!("{}:{}: {wrong}", path.display(), at + 1);
            targets.extend(usable(target.map_err(place)));
        }
        Ok(targets)
    }
}

/// Ends the program on an error.
fn usable(target: Result<Target, String>) -> Option<Target> {
    match target {
        Ok(target) => Some(target),
        Err(wrong) => {
            refuse(Err(wrong));
            None
        }
    }
}

/// A line of the file of URLs.
fn listed(line: &str) -> Result<Target, String> {
    let mut columns = line.split_whitespace();
    let url = columns.next().unwrap_or_default();
    let weight = columns.next().map_or(Ok(1), values::count);
    match (weight, columns.next()) {
        (Ok(weight), None) => Target::parse(url, weight),
        _ => Err(format!("`{line}`: expected a URL, optionally followed by its weight")),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    twinring_input::read(path, BODY_BYTES_MAX as u64)
        .map_err(|error| format!("{}: {error}", path.display()))
}
