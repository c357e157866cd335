//! The settings of a load.

use super::client::HttpLoad;
use super::expect::Statuses;
use super::http1::Http1;
use super::http2::Http2;
use super::target::{Request, Target};
use super::tls::TlsSettings;
use crate::recorder::Recorder;
use crate::report::{head, of_requests};
use crate::requests::run_requests;
use crate::run::{Environment, Generator};
use crate::settings::{Common, RequestSettings, between};
use clap::{ArgAction, Args};
use http::{HeaderName, HeaderValue, Method};
use std::path::PathBuf;
use std::sync::Arc;
use twinring::Builder;
use twinring_input::quantity::{count, count_u32, size};
use twinring_wire::histogram::{EncodedHistogram, Latency};
use twinring_wire::http::{self as wire, HttpBytes, HttpHistograms, Length, SCHEMA, Url};
use twinring_wire::{HttpResult, LoadResult};

const URLS_REPORTED_MAX: usize = 100;
const URLS_MAX: usize = 1 << 20;
/// Most requests in flight on a connection.
const PIPELINE_MAX: u32 = 1 << 16;
/// The same with HTTP/2, where each is a stream of a few KB. Servers allow some hundreds.
const STREAMS_MAX: u32 = 1 << 14;
/// Most bytes of requests, in all, that are kept ready to be sent.
const READY_BYTES_MAX: usize = 1 << 30;

/// The settings of a load.
#[derive(Args, Clone, Debug)]
pub struct HttpSettings {
    /// URLs to request: http://HOST:PORT/PATH or https://..., all on one server; port and path may be left out.
    #[arg(value_name = "URL", required_unless_present = "urls")]
    pub url: Vec<String>,
    /// Further URLs from a file: one per line, each optionally followed by its weight; or, if its name ends in .toml,
    /// `[[request]]` tables with `url`, `weight`, `method`, `headers` and `body`.
    #[arg(long, value_name = "FILE")]
    pub urls: Option<PathBuf>,
    /// Weight of each URL of the command line [default: 1 each].
    #[arg(long, value_name = "W,...", value_delimiter = ',', value_parser = count_u32)]
    pub weights: Vec<u32>,
    /// Connections, rate, times and addresses.
    #[command(flatten)]
    pub requests: RequestSettings,
    /// Requests in flight per connection, at most. With --http2 each is a stream, and the server may
    /// allow fewer.
    #[arg(long, visible_alias = "depth", value_name = "N", default_value = "1",
          value_parser = count_u32, help_heading = "Pattern")]
    pub pipeline: u32,
    /// A connection for each request. Latency then counts from the attempt to connect.
    #[arg(long = "no-keepalive", action = ArgAction::SetFalse, help_heading = "Pattern")]
    pub keepalive: bool,
    /// Seed of the choice among several URLs.
    #[arg(long, value_name = "N", default_value = "1", value_parser = count,
          help_heading = "Pattern")]
    pub seed: u64,
    /// Speak HTTP/2: with https:// as the server agrees in the TLS handshake (ALPN), with http:// from
    /// the first byte (prior knowledge).
    #[arg(long, help_heading = "Request")]
    pub http2: bool,
    /// Method of the requests [default: GET; POST with a body].
    #[arg(short = 'X', long, value_name = "METHOD", help_heading = "Request")]
    pub method: Option<Method>,
    /// A header field, `NAME: VALUE`; may be repeated. `Host` replaces that of the URL.
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = Request::field,
          help_heading = "Request")]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Content of the requests: a text, or `@FILE`.
    #[arg(long, value_name = "TEXT|@FILE", help_heading = "Request")]
    pub body: Option<String>,
    /// Statuses that count as success, such as `200,206` or `200-299,304`.
    #[arg(long, value_name = "CODES", default_value = "200-299", help_heading = "Verification")]
    pub expect_status: Statuses,
    /// Required length of every answer's content [default: that of the first answer of the same
    /// URL].
    #[arg(long, value_name = "BYTES", value_parser = size, help_heading = "Verification")]
    pub expect_length: Option<u64>,
    /// Accept content of any length.
    #[arg(long, conflicts_with = "expect_length", help_heading = "Verification")]
    pub any_length: bool,
    /// Compare the content of every answer, by length and CRC-32, with FILE; without FILE, with
    /// the first answer of the same URL.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          conflicts_with_all = ["any_length", "expect_length"], help_heading = "Verification")]
    pub verify_body: Option<Option<PathBuf>>,
    /// For https.
    #[command(flatten)]
    pub tls: TlsSettings,
    /// Connect to this HOST:PORT instead of the one in the URLs.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Network")]
    pub connect_to: Option<String>,
    /// The requests of `url` and `urls`, at least one and all to one server.
    #[arg(skip)]
    pub targets: Vec<Target>,
    /// The content of the file of `verify_body`.
    #[arg(skip)]
    pub expected: Option<Vec<u8>>,
}

impl HttpSettings {
    fn check_http2(&self) -> Result<(), String> {
        if !self.http2 {
            return Ok(());
        }
        if !self.keepalive {
            return Err(
                "--http2 excludes --no-keepalive: a client of HTTP/2 cannot ask the server to \
                        close, and would run out of ports if it closed itself"
                    .into(),
            );
        }
        between("--pipeline with --http2", self.pipeline, 1, STREAMS_MAX)?;
        self.http2_requests().map(drop)
    }

    /// The requests of HTTP/2 by URL, without their body; none for HTTP/1.1.
    pub(super) fn http2_requests(&self) -> Result<Vec<http::Request<()>>, String> {
        let targets = self.targets.iter().filter(|_| self.http2);
        targets.map(Target::http2).collect()
    }

    fn check_targets(&self) -> Result<(), String> {
        let first = self.targets.first().ok_or("no URL")?;
        if let Some(other) = self.targets.iter().find(|target| !target.is_beside(first)) {
            return Err(format!("{} and {} are not at the same server", first.url, other.url));
        }
        if self.targets.len() > URLS_MAX {
            return Err(format!("{} URLs: at most {URLS_MAX}", self.targets.len()));
        }
        for Target { url, weight, request, .. } in &self.targets {
            if *weight == 0 {
                return Err(format!("{url}: a weight is at least 1"));
            }
            if request.method == Method::CONNECT {
                return Err("--method CONNECT asks for a tunnel, not for an answer".into());
            }
        }
        let all: usize = self.targets.iter().map(|target| target.request.body.len()).sum();
        match all > READY_BYTES_MAX {
            true => Err(format!("bodies of {all} bytes: at most {READY_BYTES_MAX} for all URLs")),
            false => Ok(()),
        }
    }

    pub(super) fn target(&self, number: u32) -> &Target {
        &self.targets[number as usize]
    }

    fn is_tls(&self) -> bool {
        self.targets.first().is_some_and(|target| target.tls)
    }

    /// The length of every answer's content, if it is configured.
    fn known_length(&self) -> Option<u64> {
        self.expect_length.or_else(|| self.expected.as_ref().map(|bytes| bytes.len() as u64))
    }

    fn report(&self, counts: &Recorder) -> wire::HttpSettings {
        let [protocol, cipher_suite] =
            counts.agreed.clone().map_or([None, None], |it| it.map(Some));
        let tls = self.is_tls().then(|| wire::Tls {
            ca: self.tls.ca.as_ref().map(|file| file.display().to_string()),
            insecure: self.tls.insecure,
            full_handshake: self.tls.full_handshake,
            protocol,
            cipher_suite,
            handshakes: counts.handshakes,
            resumed: counts.resumed,
        });
        let (asked, common) = (&self.requests, &self.requests.common);
        let mut methods: Vec<&str> =
            self.targets.iter().map(|target| target.request.method.as_str()).collect();
        methods.sort_unstable();
        methods.dedup();
        let bodies = self.targets.iter().map(|target| target.request.body.len() as u64);
        wire::HttpSettings {
            addresses: common.addresses.iter().map(ToString::to_string).collect(),
            urls: self.targets.len() as u64,
            method: methods.join(","),
            body_bytes: bodies.max().unwrap_or(0),
            connections: asked.connections,
            http: if self.http2 { "2" } else { "1.1" }.to_owned(),
            streams_max: counts.streams_max,
            pipeline: self.pipeline.into(),
            keepalive: self.keepalive,
            threads: common.workers.threads.into(),
            mode: asked.mode(),
            rate_per_s: asked.rate,
            arrivals: asked.arrivals(),
            requests: asked.requests,
            seed: self.seed,
            expect_status: self.expect_status.text.clone(),
            length: Some(match self.known_length() {
                Some(bytes) => Length::Bytes(bytes),
                None if self.any_length => Length::Rule("any".to_owned()),
                None => Length::Rule("first".to_owned()),
            }),
            verify_body: self.verify_body.as_ref().map(|file| match file {
                None => "first".to_owned(),
                Some(_) => "file".to_owned(),
            }),
            tls,
            warmup_s: common.warmup.as_secs_f64(),
            duration_s: common.duration.as_secs_f64(),
        }
    }
}

impl Generator for HttpSettings {
    const UNIT: &'static str = "requests";

    fn common(&mut self) -> &mut Common {
        &mut self.requests.common
    }

    fn check(&self) -> Result<(), String> {
        self.check_targets()?;
        self.requests.check()?;
        between("--pipeline", self.pipeline, 1, PIPELINE_MAX)?;
        self.check_http2()?;
        if !self.keepalive && self.pipeline > 1 {
            return Err("--no-keepalive excludes --pipeline: a connection has one request".into());
        }
        if self.tls != TlsSettings::default() && !self.is_tls() {
            return Err("--tls-ca, --insecure and --tls-full-handshake are for https".into());
        }
        let expects = self.verify_body.is_some() || self.expect_length.is_some_and(|it| it > 0);
        if expects && self.targets.iter().any(|target| target.request.method == Method::HEAD) {
            return Err("--method HEAD: its answers have no content to be compared".into());
        }
        if self.expected.is_some() && self.targets.len() > 1 {
            return Err("--verify-body=FILE is for one URL; without FILE it is for any".into());
        }
        Ok(())
    }

    /// Receive buffers that suit the bytes that a connection receives at once. The length of answers is known only if it is configured; 4 KiB is a compromise.
    fn runtime(&self) -> Builder {
        const HEAD_BYTES: u64 = 512;
        let of_all = |it: u64| it.saturating_add(HEAD_BYTES).saturating_mul(self.pipeline.into());
        let at_once = self.known_length().map(of_all);
        let (bytes, most) = match at_once {
            Some(..=2048) => (2048, 1024),
            Some(8192..) => (16 * 1024, 64),
            _ => (4096, 512),
        };
        self.requests.builder(bytes, most)
    }

    fn run(self, environment: Environment<'_>) -> Result<LoadResult, String> {
        let plan = Arc::new(HttpLoad::plan(self)?);
        let (asked, settings) = (&plan.requests, &plan.own.settings);
        let target = settings.targets.first().map_or_else(String::new, Target::origin);
        let shown = format!("{target} at {}", asked.common.shown_addresses());
        let (all, ran) = match settings.http2 {
            true => run_requests::<Http2>(&plan, &shown, environment),
            false => run_requests::<Http1>(&plan, &shown, environment),
        }?;
        let latency_from = match (asked.is_open(), settings.keepalive) {
            (true, _) => "intended",
            (false, true) => "send",
            (false, false) => "connect",
        };
        let mut requests = of_requests(&all, &ran, latency_from, asked);
        requests.connections.idle_established = None;
        let urls = settings.targets.iter().zip(&all.urls).take(URLS_REPORTED_MAX);
        Ok(LoadResult::Http(Box::new(HttpResult {
            head: head(SCHEMA, target, &ran),
            settings: settings.report(&all),
            all: requests,
            bytes: HttpBytes {
                sent: all.sent_bytes,
                received: all.received_bytes,
                bodies: all.content_bytes,
            },
            status_codes: all
                .codes
                .iter()
                .map(|(code, count)| (code.to_string(), *count))
                .collect(),
            ttfb_us: Latency::of(&all.first_byte_ns),
            histograms: Some(HttpHistograms {
                raw: asked.is_open().then(|| EncodedHistogram::of(&all.raw_ns)),
                ttfb: EncodedHistogram::of(&all.first_byte_ns),
                connect: EncodedHistogram::of(&all.connect_ns),
            }),
            urls: urls
                .map(|(target, counted)| Url {
                    url: target.url.clone(),
                    weight: target.weight,
                    sent: counted.sent,
                    answered: counted.answered,
                    failed: counted.failed,
                })
                .collect(),
            errors: all.errors,
        })))
    }
}
