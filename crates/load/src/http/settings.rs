//! The settings of a load.

use super::expect::{ExpectedBody, ExpectedLength, Statuses};
use super::target::{Request, Target};
use super::tls::TlsSettings;
use crate::gates::Gates;
use crate::limits;
use crate::schedule::{Arrivals, RATE_PER_S_MAX};
use crate::workers::Workers;
use http::Method;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use twinring::UringOptions;
use twinring_wire::http as wire;
use twinring_wire::http::Length;

/// Most URLs.
const URLS_MAX: usize = 1 << 20;
/// Most requests in flight on a connection.
const PIPELINE_MAX: u32 = 1 << 16;
/// The same with HTTP/2, where each is a stream of a few KB. Servers allow some hundreds.
const STREAMS_MAX: u64 = 1 << 14;
/// Largest body of a request, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most bytes of requests, in all, that are kept ready to be sent.
const READY_BYTES_MAX: usize = 1 << 30;

/// The settings of a load. All numbers are totals over all threads.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The URLs, all on one server.
    pub targets: Vec<Target>,
    /// The address of that server.
    pub address: SocketAddr,
    /// The common parts of all requests.
    pub request: Request,
    /// Connections.
    pub connections: u64,
    /// Speak HTTP/2, by ALPN or without TLS with prior knowledge.
    pub http2: bool,
    /// Requests in flight per connection, at most. With HTTP/2, each is a stream, and the server may
    /// allow fewer.
    pub pipeline: u32,
    /// Keep connections for further requests.
    pub keepalive: bool,
    /// Worker threads and their engine.
    pub workers: Workers,
    /// Requests per second: makes it an open loop.
    pub rate_per_s: Option<u64>,
    /// How the requests of an open loop follow each other.
    pub arrivals: Arrivals,
    /// Load before the window.
    pub warmup: Duration,
    /// Length of the window; with `requests`, its longest.
    pub duration: Duration,
    /// The window ends when this many requests are answered.
    pub requests: Option<u64>,
    /// Decides which URL each request is for.
    pub seed: u64,
    /// Statuses that count as success.
    pub statuses: Statuses,
    /// Lengths of content that count as success.
    pub length: ExpectedLength,
    /// Content that counts as success.
    pub body: ExpectedBody,
    /// For https.
    pub tls: TlsSettings,
    /// Timeout of one attempt to connect, including the TLS handshake.
    pub connect_timeout: Duration,
    /// Timeout of one answer.
    pub timeout: Duration,
    /// Source addresses, used in turn; empty leaves them to the kernel.
    pub local: Vec<IpAddr>,
    /// Limits of the latency and of errors.
    pub gates: Gates,
}

impl Settings {
    /// GET requests for `targets`, at least one: one connection, 1 s of warm-up, 10 s of window.
    ///
    /// # Errors
    /// When there is no target, they are not on the same server, or it cannot be resolved.
    pub fn new(targets: Vec<Target>) -> Result<Settings, String> {
        let first = targets.first().ok_or("no URL")?;
        if let Some(other) = targets.iter().find(|target| !target.is_beside(first)) {
            return Err(format!("{} and {} are not at the same server", first.url, other.url));
        }
        Ok(Settings {
            address: first.resolve()?,
            targets,
            request: Request::default(),
            connections: 1,
            http2: false,
            pipeline: 1,
            keepalive: true,
            workers: Workers::default(),
            rate_per_s: None,
            arrivals: Arrivals::default(),
            warmup: Duration::from_secs(1),
            duration: Duration::from_secs(10),
            requests: None,
            seed: 1,
            statuses: Statuses::default(),
            length: ExpectedLength::default(),
            body: ExpectedBody::default(),
            tls: TlsSettings::default(),
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            local: Vec::new(),
            gates: Gates::default(),
        })
    }

    /// What an open loop keeps to.
    pub(super) fn schedule(&self) -> Option<(u64, Arrivals)> {
        self.rate_per_s.map(|rate| (rate, self.arrivals))
    }

    /// Checks whether the settings are valid.
    ///
    /// # Errors
    /// The error, for a user.
    pub fn check(&self) -> Result<(), String> {
        limits::shared_out(self.connections, self.workers.threads)?;
        limits::between("--pipeline", self.pipeline.into(), 1, PIPELINE_MAX.into())?;
        limits::optional(&[
            ("--rate", self.rate_per_s, RATE_PER_S_MAX),
            ("--requests", self.requests, u64::MAX - 1),
        ])?;
        limits::sources(&self.local, self.address)?;
        limits::times(self.warmup, self.duration, self.connect_timeout, self.timeout)?;
        self.request.check()?;
        self.check_urls()?;
        self.check_http2()?;
        if !self.keepalive && self.pipeline > 1 {
            return Err("--no-keepalive excludes --pipeline: a connection has one request".into());
        }
        if self.tls != TlsSettings::default() && !self.is_tls() {
            return Err("--tls-ca, --insecure and --tls-full-handshake are for https".into());
        }
        let no_content = self.request.method == Method::HEAD;
        let expects = self.body != ExpectedBody::Any
            || matches!(self.length, ExpectedLength::Bytes(bytes) if bytes > 0);
        if no_content && expects {
            return Err("--method HEAD: its answers have no content to be compared".into());
        }
        if matches!(self.body, ExpectedBody::Bytes(_)) && self.targets.len() > 1 {
            return Err("--verify-body=FILE is for one URL; without FILE it is for any".into());
        }
        Ok(())
    }

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
        limits::between("--pipeline with --http2", self.pipeline.into(), 1, STREAMS_MAX)?;
        self.http2_requests().map(drop)
    }

    /// The requests of HTTP/2 by URL, without their body; none for HTTP/1.1.
    ///
    /// # Errors
    /// The error, for a user.
    pub(super) fn http2_requests(&self) -> Result<Vec<http::Request<()>>, String> {
        let targets = self.targets.iter().filter(|_| self.http2);
        targets.map(|target| self.request.http2(target)).collect()
    }

    fn check_urls(&self) -> Result<(), String> {
        if self.targets.len() > URLS_MAX {
            return Err(format!("{} URLs: at most {URLS_MAX}", self.targets.len()));
        }
        if let Some(target) = self.targets.iter().find(|target| target.weight == 0) {
            return Err(format!("{}: a weight is at least 1", target.url));
        }
        let body = self.request.body.len();
        if body > BODY_BYTES_MAX || (body * self.targets.len()) > READY_BYTES_MAX {
            let urls = self.targets.len();
            return Err(format!(
                "a body of {body} bytes for {urls} URL(s): at most {BODY_BYTES_MAX} bytes, and \
                 {READY_BYTES_MAX} for all URLs together"
            ));
        }
        Ok(())
    }

    pub(super) fn is_tls(&self) -> bool {
        self.targets.first().is_some_and(Target::is_tls)
    }

    /// Receive buffers that suit the bytes that a connection receives at once, unless configured.
    /// The length of answers is known only if it is configured; 4 KiB is a compromise.
    pub(super) fn tuned_uring(&self) -> UringOptions {
        let share = self.connections.div_ceil(self.workers.threads as u64);
        let expected = match (&self.length, &self.body) {
            (ExpectedLength::Bytes(bytes), _) => Some(*bytes),
            (_, ExpectedBody::Bytes(bytes)) => Some(bytes.len() as u64),
            _ => None,
        };
        /// Space for a head.
        const HEAD_BYTES: u64 = 512;
        let (bytes, most) = match expected.map(|b| (b + HEAD_BYTES) * u64::from(self.pipeline)) {
            Some(..=2048) => (2048, 1024),
            Some(8192..) => (16 * 1024, 64),
            _ => (4096, 512),
        };
        let count = (2 * share).clamp(64, most).next_power_of_two() as u32;
        self.workers.uring_with_buffers(bytes, count)
    }

    pub(super) fn report(&self) -> wire::Settings {
        wire::Settings {
            urls: self.targets.len() as u64,
            method: self.request.method.to_string(),
            body_bytes: self.request.body.len() as u64,
            connections: self.connections,
            http: if self.http2 { "2" } else { "1.1" }.to_owned(),
            streams_max: None,
            pipeline: self.pipeline.into(),
            keepalive: self.keepalive,
            threads: self.workers.threads as u64,
            mode: if self.rate_per_s.is_some() { "open" } else { "closed" }.to_owned(),
            rate_per_s: self.rate_per_s,
            arrivals: self.schedule().map(|(_, arrivals)| arrivals.to_string()),
            requests: self.requests,
            seed: self.seed,
            expect_status: self.statuses.to_string(),
            length: Some(match (&self.length, &self.body) {
                (ExpectedLength::Bytes(bytes), _) => Length::Bytes(*bytes),
                (_, ExpectedBody::Bytes(bytes)) => Length::Bytes(bytes.len() as u64),
                (ExpectedLength::Any, ExpectedBody::Any) => Length::Rule("any".to_owned()),
                _ => Length::Rule("first".to_owned()),
            }),
            verify_body: match self.body {
                ExpectedBody::Any => None,
                ExpectedBody::First => Some("first".to_owned()),
                ExpectedBody::Bytes(_) => Some("file".to_owned()),
            },
            tls: None,
            warmup_s: self.warmup.as_secs_f64(),
            duration_s: self.duration.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new(vec![Target::parse("http://127.0.0.1:8080/", 1).unwrap()]).unwrap()
    }

    #[test]
    fn invalid_settings_are_named() {
        assert_eq!(settings().check(), Ok(()));
        type Change = fn(&mut Settings);
        let cases: [(Change, &str); 11] = [
            (|s| s.pipeline = 0, "--pipeline 0"),
            (|s| (s.pipeline, s.keepalive) = (2, false), "--no-keepalive"),
            (|s| s.rate_per_s = Some(0), "--rate 0"),
            (|s| s.connections = 0, "--connections 0"),
            (|s| s.workers.threads = 2, "--threads 2"),
            (|s| s.timeout = Duration::ZERO, "--timeout 0"),
            (|s| s.local = vec![[0, 0, 0, 0, 0, 0, 0, 1].into()], "--local ::1"),
            (|s| s.tls.insecure = true, "--tls-ca"),
            (|s| s.targets[0].weight = 0, "http://127.0.0.1:8080/: a weight"),
            (|s| s.request.method = Method::CONNECT, "--method CONNECT"),
            (|s| (s.request.method, s.body) = (Method::HEAD, ExpectedBody::First), "--method HEAD"),
        ];
        for (change, named) in cases {
            let mut settings = settings();
            change(&mut settings);
            let error = settings.check().unwrap_err();
            assert!(error.starts_with(named), "{error}");
        }
    }

    #[test]
    fn all_urls_have_to_be_at_one_server() {
        let targets = |urls: &[&str]| -> Vec<Target> {
            urls.iter().map(|url| Target::parse(url, 1).unwrap()).collect()
        };
        assert!(Settings::new(targets(&["http://127.0.0.1/a", "http://127.0.0.1:80/b"])).is_ok());
        assert!(Settings::new(targets(&["http://127.0.0.1/a", "http://127.0.0.1:81/a"])).is_err());
        assert!(Settings::new(targets(&["http://127.0.0.1/a", "https://127.0.0.1/a"])).is_err());
        assert!(Settings::new(Vec::new()).is_err());
    }

    #[test]
    fn buffers_suit_the_length_of_answers_unless_configured() {
        let buffers = |length: ExpectedLength, uring: &str| {
            let workers = Workers { uring: uring.parse().unwrap(), ..Workers::default() };
            let tuned = Settings { length, connections: 100, workers, ..settings() }.tuned_uring();
            (tuned.buffer_bytes, tuned.buffer_count)
        };
        assert_eq!(buffers(ExpectedLength::First, ""), (Some(4096), Some(256)));
        assert_eq!(buffers(ExpectedLength::Bytes(512), ""), (Some(2048), Some(256)));
        assert_eq!(buffers(ExpectedLength::Bytes(100_000), ""), (Some(16 * 1024), Some(64)));
        assert_eq!(buffers(ExpectedLength::First, "buffer_bytes=8192"), (Some(8192), None));
    }
}
