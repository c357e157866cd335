//! How the service is set up: `[server]` of a configuration, as far as it decides on answers.

use super::hosts::Sites;
use super::request::HeadLimits;
use super::text::{count, several, size, timeout, wait};
use crate::Network;
use serde::Deserialize;
use std::time::Duration;

/// How large files are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendStrategy {
    /// By sendfile(2), where the filesystem has it.
    Sendfile,
    /// Read and sent: bytes in transit do not change when a file is overwritten in place.
    Read,
}

/// The largest file that can be kept in memory whole, in bytes.
const SENDFILE_ABOVE_MAX: u64 = 1 << 20;

/// Bytes that no memory holds.
const BYTES_MAX: u64 = 1 << 40;

/// The largest count where nothing else bounds it.
const MOST: u64 = u32::MAX as u64;

/// All settings that decide on the answers: each is a key of `[server]`, with its default below.
///
/// Timeouts are precise to a quarter of their length, and to a second: with 10 s, a connection ends after 10 to 11 s.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HttpSettings {
    /// The sites, by host name.
    #[serde(skip)]
    pub sites: Sites,
    /// Memory of the cache, over all workers: heads, content of small files, keys, and the overhead of keeping them.
    #[serde(deserialize_with = "size::<0, BYTES_MAX, _, _>")]
    pub cache_bytes: usize,
    /// Larger files that the cache keeps open: at most half of the limit of open descriptors. An unused one is closed
    /// within a minute.
    #[serde(deserialize_with = "count::<0, 1_000_000, _, _>")]
    pub cache_files: usize,
    /// How old an answer from the cache may be: a changed file is served within this time.
    #[serde(deserialize_with = "wait")]
    pub cache_valid: Duration,
    /// Files of more bytes are sent by `send`, not from memory.
    #[serde(deserialize_with = "size::<0, SENDFILE_ABOVE_MAX, _, _>")]
    pub sendfile_above: u64,
    /// How large files are sent. Over TLS all are read, encrypted and sent.
    pub send: SendStrategy,
    /// Concurrent connections, over all workers; further ones are closed immediately.
    #[serde(deserialize_with = "count::<1, MOST, _, _>")]
    pub max_connections: usize,
    /// Concurrent connections of one IPv4 address, or of one IPv6 network of 64 bits.
    #[serde(deserialize_with = "count::<1, MOST, _, _>")]
    pub max_connections_per_address: usize,
    /// The head of a request, in bytes.
    #[serde(deserialize_with = "size::<256, { 1 << 20 }, _, _>")]
    pub max_header_bytes: usize,
    /// Its target, in bytes.
    #[serde(deserialize_with = "size::<16, { 1 << 19 }, _, _>")]
    pub max_uri_bytes: usize,
    /// Longest body of a request, which is read and dropped; a longer one gets 413.
    #[serde(deserialize_with = "size::<0, BYTES_MAX, _, _>")]
    pub max_body_bytes: u64,
    /// Requests on one connection; the last one is answered with `Connection: close`, or in HTTP/2 with GOAWAY.
    #[serde(deserialize_with = "count::<1, { u64::MAX }, _, _>")]
    pub max_requests: u64,
    /// The TLS handshake, counted from the accept.
    #[serde(deserialize_with = "timeout")]
    pub tls_handshake_timeout: Duration,
    /// From the first byte of a request's head to its last; then 408.
    #[serde(deserialize_with = "timeout")]
    pub header_timeout: Duration,
    /// From the end of the head to the end of the body; then 408.
    #[serde(deserialize_with = "timeout")]
    pub body_timeout: Duration,
    /// Between two requests, counted from when the peer took the first answer.
    #[serde(deserialize_with = "timeout")]
    pub idle_timeout: Duration,
    /// Time in which the peer must acknowledge 1 KiB of an answer.
    #[serde(deserialize_with = "timeout")]
    pub send_timeout: Duration,
    /// How long a shutdown waits for peers to take their answers.
    #[serde(deserialize_with = "wait")]
    pub drain_timeout: Duration,
    /// Serves HTTP/2 to clients that begin with it on a connection without TLS, and to those that agreed on it over TLS.
    pub http2: bool,
    /// Concurrent requests of a connection of HTTP/2.
    #[serde(deserialize_with = "count::<1, 10_000, _, _>")]
    pub http2_streams: u32,
    /// Connections from here must begin with a header of the PROXY protocol.
    #[serde(deserialize_with = "several")]
    pub proxy_protocol_from: Vec<Network>,
    /// `X-Forwarded-For` and `X-Forwarded-Proto` of these are believed.
    #[serde(deserialize_with = "several")]
    pub forwarded_from: Vec<Network>,
}

impl Default for HttpSettings {
    fn default() -> HttpSettings {
        HttpSettings {
            sites: Sites::default(),
            cache_bytes: 64 << 20,
            cache_files: 1024,
            cache_valid: Duration::from_secs(1),
            sendfile_above: 48 * 1024,
            send: SendStrategy::Sendfile,
            max_connections: usize::MAX,
            max_connections_per_address: usize::MAX,
            max_header_bytes: HeadLimits::default().head_bytes,
            max_uri_bytes: HeadLimits::default().target_bytes,
            max_body_bytes: 64 << 10,
            max_requests: u64::MAX,
            tls_handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            http2: true,
            http2_streams: 100,
            proxy_protocol_from: Vec::new(),
            forwarded_from: Vec::new(),
        }
    }
}

impl HttpSettings {
    pub(super) fn head(&self) -> HeadLimits {
        HeadLimits { head_bytes: self.max_header_bytes, target_bytes: self.max_uri_bytes }
    }
}
