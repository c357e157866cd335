//! The grid of HTTP: files of these sizes, asked for over this many connections.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::grid::{Point, bytes, rate};
use super::tcp::{AnswersInTime, Axis, is_nought, is_zero, one, zero};

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
    /// Requests in flight per connection (pipelining).
    #[serde(default = "one")]
    pub depth: Vec<u32>,
    /// Whether a connection has many requests; `false` is a connection for each request.
    #[serde(default = "only_true")]
    pub keepalive: Vec<bool>,
    /// Whether TLS is spoken.
    #[serde(default = "only_false")]
    pub tls: Vec<bool>,
    /// Requests per second of all connections together, on a schedule (open loop); 0 is a closed
    /// loop.
    #[serde(default = "zero", skip_serializing_if = "is_zero")]
    pub rate_per_s: Vec<u32>,
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
}

fn only_true() -> Vec<bool> {
    vec![true]
}

fn only_false() -> Vec<bool> {
    vec![false]
}

/// A point of the grid of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// Requests per second of all connections; 0 is a closed loop.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub rate_per_s: u32,
}

/// The largest file, and the largest set of files of one size, in bytes.
const FILE_BYTES_MAX: u32 = 64 << 20;
pub(super) const SET_BYTES_MAX: u64 = 4 << 30;

impl HttpGrid {
    pub(super) fn points(&self) -> impl Iterator<Item = Point> {
        let flags = self
            .tls
            .iter()
            .flat_map(|&tls| self.keepalive.iter().map(move |&keepalive| (tls, keepalive)));
        flags.flat_map(|(tls, keepalive)| self.plain_points(keepalive, tls))
    }

    fn plain_points(&self, keepalive: bool, tls: bool) -> Vec<Point> {
        let mut points = Vec::new();
        for &files in &self.files {
            for &file_bytes in &self.file_bytes {
                for &depth in &self.depth {
                    for &connections in &self.connections {
                        points.extend(self.rate_per_s.iter().map(|&rate_per_s| {
                            Point::Http(HttpPoint {
                                connections,
                                file_bytes,
                                files,
                                depth,
                                keepalive,
                                tls,
                                rate_per_s,
                            })
                        }));
                    }
                }
            }
        }
        points
    }

    /// Name, points, smallest and largest value of each axis.
    pub(super) fn axes(&self) -> [Axis<'_>; 5] {
        [
            ("connections", &self.connections, 1, 1_000_000),
            ("file_bytes", &self.file_bytes, 1, FILE_BYTES_MAX),
            ("files", &self.files, 1, 1_000_000),
            ("depth", &self.depth, 1, 10_000),
            ("rate_per_s", &self.rate_per_s, 0, 100_000_000),
        ]
    }
}

impl fmt::Display for HttpPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HttpPoint { connections, file_bytes, files, depth, keepalive, tls, rate_per_s } = *self;
        let plural = if connections == 1 { "" } else { "s" };
        write!(f, "{connections} connection{plural} x {}", bytes(file_bytes))?;
        if files != 1 {
            write!(f, " of {files} files")?;
        }
        if depth != 1 {
            write!(f, " x depth {depth}")?;
        }
        if rate_per_s != 0 {
            write!(f, " at {}/s", rate(rate_per_s))?;
        }
        f.write_str(if tls { " over HTTPS" } else { " over HTTP" })?;
        f.write_str(if keepalive { "" } else { ", a connection per request" })
    }
}
