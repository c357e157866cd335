//! HTTP: files of these sizes, requested over this many connections.

mod audits;
mod commands;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::requests::{AnswersInTime, Arrivals, check_load, check_pace, phrase_pace};
use super::{
    Axis, Grid, Load, Point, Points, Table, WORKERS_MOST, Workload, bytes, combinations,
    generators, is_nought, is_one, is_single, is_zero, one, phrase_workers, single, zero,
};
use crate::error::LabError;
use crate::experiment::Check;

pub(super) const WORKLOAD: Workload = Workload {
    unit: "request",
    per: "per request",
    latency: "Latency",
    over_tcp: true,
    on_schedule: false,
    tables: &[Table::Each, Table::Requests, Table::Http],
    figures: &["http", "open_loop"],
    service: &["http", "--root", "{root}", "{listen}"],
};

/// HTTP: every combination of the axes is a cell. The lab makes the files itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpGrid {
    /// Connections open at once.
    pub connections: Vec<u32>,
    /// Bytes of one file.
    pub file_bytes: Vec<u32>,
    /// Files of that size; with more than one, each request asks for one of them at random.
    #[serde(default = "one")]
    pub files: Vec<u32>,
    /// Requests in flight per connection: pipelining, or streams of HTTP/2.
    #[serde(default = "one")]
    pub depth: Vec<u32>,
    /// Whether a connection has many requests; `false` is a connection for each request.
    #[serde(default = "only_true")]
    pub keepalive: Vec<bool>,
    /// Whether TLS is spoken.
    #[serde(default = "only_false")]
    pub tls: Vec<bool>,
    /// Whether HTTP/2 is spoken: with TLS as ALPN agrees, without by prior knowledge.
    #[serde(default = "only_false", skip_serializing_if = "is_only_false")]
    pub http2: Vec<bool>,
    /// Requests per second of all connections together, on a schedule (open loop); 0 is a closed
    /// loop.
    #[serde(default = "zero", skip_serializing_if = "is_zero")]
    pub rate_per_s: Vec<u32>,
    /// The rate instead as a percentage of what the slowest subject can serve, as in TCP.
    #[serde(default = "zero", skip_serializing_if = "is_zero")]
    pub load_percent: Vec<u32>,
    /// How the requests of a schedule follow each other, if not at equal distances.
    #[serde(default, skip_serializing_if = "Arrivals::is_default")]
    pub arrivals: Arrivals,
    /// Workers of the server, each on a CPU of its own; the load generator has as many CPUs as the most of
    /// them, in every cell.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub workers: Vec<u32>,
    /// When a subject has done the work that a rate asks for.
    #[serde(default, skip_serializing_if = "AnswersInTime::is_default")]
    pub keeps_up: AnswersInTime,
    /// Load before the window opens, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_s: Option<f64>,
    /// The measured window, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// The command of the load generator, with placeholders in braces. It must print the JSON
    /// lines of `twinring load http`. It never follows the subject's engine.
    pub load: Vec<String>,
    /// The command of another load generator. Every cell is then measured with either, and verdicts
    /// that depend on it are warned of. `{h2load}` is that of nghttp2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub second_load: Vec<String>,
}

fn only_true() -> Vec<bool> {
    vec![true]
}

fn only_false() -> Vec<bool> {
    vec![false]
}

fn is_only_false(flags: &[bool]) -> bool {
    flags == [false]
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A point of the grid of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpPoint {
    /// Connections open at once.
    pub connections: u32,
    /// Bytes of one file.
    pub file_bytes: u32,
    /// Files of that size.
    pub files: u32,
    /// Requests in flight per connection.
    pub depth: u32,
    /// Whether a connection has many requests.
    pub keepalive: bool,
    /// Whether TLS is spoken.
    pub tls: bool,
    /// Whether HTTP/2 is spoken.
    #[serde(default, skip_serializing_if = "is_false")]
    pub http2: bool,
    /// Requests per second of all connections; 0 is a closed loop.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub rate_per_s: u32,
    /// The rate as a percentage of what the slowest subject can serve; 0 is a closed loop, or
    /// `rate_per_s`.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub load_percent: u32,
    /// 1 if the experiment's second load generator asks.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub generator: u32,
    /// Workers of the server, each on a CPU of its own.
    #[serde(default = "single", skip_serializing_if = "is_single")]
    pub workers: u32,
}

/// The largest file, and the largest set of files of one size, in bytes.
const FILE_BYTES_MAX: u32 = 64 << 20;
const SET_BYTES_MAX: u64 = 4 << 30;

impl Grid for HttpGrid {
    fn axes(&mut self) -> Vec<Points<'_>> {
        let axis = |key, option, points, bounds| Points { key, option, points, bounds };
        vec![
            axis("connections", "--connections", &mut self.connections, [1, 1_000_000]),
            axis("file_bytes", "--sizes", &mut self.file_bytes, [1, FILE_BYTES_MAX]),
            axis("files", "", &mut self.files, [1, 1_000_000]),
            axis("depth", "--depth", &mut self.depth, [1, 10_000]),
            axis("rate_per_s", "--rates", &mut self.rate_per_s, [0, 100_000_000]),
            axis("load_percent", "--load-percent", &mut self.load_percent, [0, 100]),
            axis(Axis::WORKERS, "--workers", &mut self.workers, [1, WORKERS_MOST]),
        ]
    }

    fn points(&self) -> Vec<Point> {
        let point = |axes: [u32; 11]| {
            let [http2, tls, keepalive, files, file_bytes, depth, connections, ..] = axes;
            let [.., workers, rate_per_s, load_percent, generator] = axes;
            let (keepalive, tls, http2) = (keepalive != 0, tls != 0, http2 != 0);
            Point::Http(HttpPoint {
                connections,
                file_bytes,
                files,
                depth,
                keepalive,
                tls,
                http2,
                rate_per_s,
                load_percent,
                generator,
                workers,
            })
        };
        let HttpGrid { files, file_bytes, depth, connections, rate_per_s, .. } = self;
        let numbers =
            |flags: &[bool]| flags.iter().map(|flag| u32::from(*flag)).collect::<Vec<_>>();
        let (tls, keepalive) = (numbers(&self.tls), numbers(&self.keepalive));
        let http2 = numbers(&self.http2);
        let generators = generators(&self.second_load);
        let all = combinations([
            &http2,
            &tls,
            &keepalive,
            files,
            file_bytes,
            depth,
            connections,
            &self.workers,
            rate_per_s,
            &self.load_percent,
            generators,
        ]);
        all.into_iter().map(point).collect()
    }

    fn check(&self, check: &Check<'_>, _: bool) -> Result<(), LabError> {
        self.keeps_up.check("http", check)?;
        let flags = [("keepalive", &self.keepalive), ("tls", &self.tls), ("http2", &self.http2)];
        for (flag, points) in flags {
            let right = matches!(points[..], [_]) || matches!(points[..], [a, b] if a != b);
            let found = format!("{flag} = {points:?}");
            check.unless(right, &format!("http.{flag}"), found, "[true], [false], or both")?;
        }
        let per_request = self.keepalive.contains(&false);
        check.unless(
            !per_request || self.depth == [1],
            "http.depth",
            format!("depth = {:?} with a connection for each request", self.depth),
            "depth = [1] with keepalive = [false]",
        )?;
        let http2 = self.http2.contains(&true);
        check.unless(
            !(http2 && per_request),
            "http.http2",
            "http2 = [true] with a connection for each request".to_owned(),
            "keepalive = [true] with http2 = [true]: no client of HTTP/2 asks the server to close",
        )?;
        check.unless(
            !http2 || self.second_load.is_empty(),
            "http.http2",
            "http2 = [true] with a second load generator".to_owned(),
            "no second_load with http2 = [true]: the second one speaks HTTP/1.1",
        )?;
        let most = |axis: &[u32]| axis.iter().copied().max().map_or(0, u64::from);
        let set_bytes = most(&self.files) * most(&self.file_bytes);
        check.unless(
            set_bytes <= SET_BYTES_MAX,
            "http.files",
            format!("{set_bytes} bytes in files of one size"),
            "at most 4 GiB: fewer or smaller files",
        )?;
        let told = check_pace("http", check, &self.rate_per_s, &self.load_percent)?;
        check_load("http.load", check, &self.load, "{urls}", told)?;
        if self.second_load.is_empty() {
            return Ok(());
        }
        check_load("http.second_load", check, &self.second_load, "{urls}", told)
    }

    fn second_load(&self) -> &[String] {
        &self.second_load
    }

    fn arrivals(&self) -> Arrivals {
        self.arrivals
    }
}

impl Load for HttpPoint {
    fn axes(&self) -> Vec<(Axis, &'static str, u32)> {
        vec![
            (Axis::Bytes, "file_bytes", self.file_bytes),
            (Axis::Connections, "connections", self.connections),
            (Axis::Files, "files", self.files),
            (Axis::Depth, "depth", self.depth),
            (Axis::RatePerS, "rate_per_s", self.rate_per_s),
            (Axis::LoadPercent, "load_percent", self.load_percent),
            (Axis::Keepalive, "keepalive", self.keepalive.into()),
            (Axis::Tls, "tls", self.tls.into()),
            (Axis::Http2, "http2", self.http2.into()),
            (Axis::Generator, "generator", self.generator),
            (Axis::Workers, Axis::WORKERS, self.workers),
        ]
    }

    /// Of a file only the sending counts, whether its server copies it or not: the lab cannot see
    /// that.
    fn copied_bytes(&self) -> f64 {
        f64::from(self.file_bytes)
    }

    fn divided(&self, part: &dyn Fn(u32) -> u32) -> Point {
        let (connections, rate_per_s) = (part(self.connections), part(self.rate_per_s));
        Point::Http(HttpPoint { connections, rate_per_s, ..*self })
    }
}

impl fmt::Display for HttpPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HttpPoint { connections, file_bytes, files, depth, .. } = *self;
        let HttpPoint { keepalive, tls, http2, generator, .. } = *self;
        let plural = if connections == 1 { "" } else { "s" };
        write!(f, "{connections} connection{plural} x {}", bytes(file_bytes))?;
        if files != 1 {
            write!(f, " of {files} files")?;
        }
        if depth != 1 {
            write!(f, " x depth {depth}")?;
        }
        phrase_pace(f, self.rate_per_s, self.load_percent)?;
        f.write_str(match (http2, tls) {
            (false, false) => " over HTTP",
            (false, true) => " over HTTPS",
            (true, false) => " over HTTP/2",
            (true, true) => " over HTTP/2 with TLS",
        })?;
        f.write_str(if keepalive { "" } else { ", a connection per request" })?;
        phrase_workers(f, self.workers)?;
        f.write_str(if generator == 0 { "" } else { ", second generator" })
    }
}
