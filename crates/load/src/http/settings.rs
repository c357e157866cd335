//! The settings of a load.

use super::expect::{ExpectedBody, ExpectedLength, Statuses};
use super::target::Target;
use super::tls::TlsSettings;
use crate::recorder::Recorder;
use crate::settings::{CONNECTIONS_MAX, Common, between};
use bytes::Bytes;
use http::Method;
use twinring::config::UringOptions;
use twinring_wire::http as wire;
use twinring_wire::http::Length;

const URLS_MAX: usize = 1 << 20;
/// Most requests in flight on a connection.
const PIPELINE_MAX: u32 = 1 << 16;
/// The same with HTTP/2, where each is a stream of a few KB. Servers allow some hundreds.
const STREAMS_MAX: u32 = 1 << 14;
/// Largest body of a request, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most bytes of requests, in all, that are kept ready to be sent.
const READY_BYTES_MAX: usize = 1 << 30;

/// The settings of a load.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Connections, rate, times and addresses.
    pub common: Common,
    /// The requests, all to one server.
    pub targets: Vec<Target>,
    /// Speak HTTP/2, by ALPN or without TLS with prior knowledge.
    pub http2: bool,
    /// Requests in flight per connection, at most. With HTTP/2, each is a stream, and the server may
    /// allow fewer.
    pub pipeline: u32,
    /// Keep connections for further requests.
    pub keepalive: bool,
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
}

impl Settings {
    /// Requests for `targets`, at least one.
    ///
    /// # Errors
    /// When there is no target, or they are not on the same server.
    pub fn new(targets: Vec<Target>, common: Common) -> Result<Settings, String> {
        let first = targets.first().ok_or("no URL")?;
        if let Some(other) = targets.iter().find(|target| !target.is_beside(first)) {
            return Err(format!("{} and {} are not at the same server", first.url, other.url));
        }
        Ok(Settings {
            common,
            targets,
            http2: false,
            pipeline: 1,
            keepalive: true,
            seed: 1,
            statuses: Statuses::default(),
            length: ExpectedLength::default(),
            body: ExpectedBody::default(),
            tls: TlsSettings::default(),
        })
    }

    /// Checks whether the settings are valid.
    ///
    /// # Errors
    /// The error, for a user.
    pub fn check(&self) -> Result<(), String> {
        self.common.check("--connections", CONNECTIONS_MAX)?;
        between("--pipeline", self.pipeline, 1, PIPELINE_MAX)?;
        self.check_targets()?;
        self.check_http2()?;
        if !self.keepalive && self.pipeline > 1 {
            return Err("--no-keepalive excludes --pipeline: a connection has one request".into());
        }
        if self.tls != TlsSettings::default() && !self.is_tls() {
            return Err("--tls-ca, --insecure and --tls-full-handshake are for https".into());
        }
        let expects = self.body != ExpectedBody::Any
            || matches!(self.length, ExpectedLength::Bytes(bytes) if bytes > 0);
        if expects && self.targets.iter().any(|target| target.request.method == Method::HEAD) {
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
        between("--pipeline with --http2", self.pipeline, 1, STREAMS_MAX)?;
        self.http2_requests().map(drop)
    }

    /// The requests of HTTP/2 by URL, without their body; none for HTTP/1.1.
    pub(super) fn http2_requests(&self) -> Result<Vec<http::Request<()>>, String> {
        let targets = self.targets.iter().filter(|_| self.http2);
        targets.map(Target::http2).collect()
    }

    fn check_targets(&self) -> Result<(), String> {
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
            if request.body.len() > BODY_BYTES_MAX {
                let bytes = request.body.len();
                return Err(format!("{url}: a body of {bytes} bytes: at most {BODY_BYTES_MAX}"));
            }
        }
        let all: usize = self.targets.iter().map(|target| target.request.body.len()).sum();
        match all > READY_BYTES_MAX {
            true => Err(format!("bodies of {all} bytes: at most {READY_BYTES_MAX} for all URLs")),
            false => Ok(()),
        }
    }

    /// True if answers for this URL have no content.
    pub(super) fn is_head(&self, target: u32) -> bool {
        let target = self.targets.get(target as usize);
        target.is_some_and(|target| target.request.method == Method::HEAD)
    }

    /// The content of the request for a URL.
    pub(super) fn body(&self, target: u32) -> Bytes {
        let target = self.targets.get(target as usize);
        target.map_or_else(Bytes::new, |target| target.request.body.clone())
    }

    pub(super) fn is_tls(&self) -> bool {
        self.targets.first().is_some_and(|target| target.tls)
    }

    /// Receive buffers that suit the bytes that a connection receives at once, unless configured.
    /// The length of answers is known only if it is configured; 4 KiB is a compromise.
    pub(super) fn tuned_uring(&self) -> UringOptions {
        let share = self.common.share();
        let expected = match (&self.length, &self.body) {
            (ExpectedLength::Bytes(bytes), _) => Some(*bytes),
            (_, ExpectedBody::Bytes(bytes)) => Some(bytes.len() as u64),
            _ => None,
        };
        const HEAD_BYTES: u64 = 512;
        let (bytes, most) = match expected.map(|b| (b + HEAD_BYTES) * u64::from(self.pipeline)) {
            Some(..=2048) => (2048, 1024),
            Some(8192..) => (16 * 1024, 64),
            _ => (4096, 512),
        };
        let count = (2 * share).clamp(64, most).next_power_of_two() as u32;
        self.common.workers.uring_with_buffers(bytes, count)
    }

    pub(super) fn report(&self, counts: &Recorder) -> wire::Settings {
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
        let common = &self.common;
        let mut methods: Vec<&str> =
            self.targets.iter().map(|target| target.request.method.as_str()).collect();
        methods.sort_unstable();
        methods.dedup();
        let bodies = self.targets.iter().map(|target| target.request.body.len() as u64);
        wire::Settings {
            addresses: common.addresses.iter().map(ToString::to_string).collect(),
            urls: self.targets.len() as u64,
            method: methods.join(","),
            body_bytes: bodies.max().unwrap_or(0),
            connections: common.connections,
            http: if self.http2 { "2" } else { "1.1" }.to_owned(),
            streams_max: counts.streams_max,
            pipeline: self.pipeline.into(),
            keepalive: self.keepalive,
            threads: common.workers.threads as u64,
            mode: common.mode(),
            rate_per_s: common.rate_per_s,
            arrivals: common.arrivals(),
            requests: common.requests,
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
            tls,
            warmup_s: common.warmup.as_secs_f64(),
            duration_s: common.duration.as_secs_f64(),
        }
    }
}
