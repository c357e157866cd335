//! How the service is set up.

use super::hosts::Sites;
use super::proxies::Forwarders;
use super::request::HeadLimits;
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

/// Concurrent requests of a connection of HTTP/2.
pub(super) const HTTP2_STREAMS: u32 = 100;

/// The largest file that can be kept in memory whole, in bytes.
pub const SENDFILE_ABOVE_MAX: u64 = 1 << 20;

/// All settings that decide on the answers.
///
/// Timeouts are precise to a quarter of their length, and to a second: with 10 s, a connection ends after 10 to 11 s.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The sites, by host name.
    pub sites: Sites,
    /// Memory of the cache, over all workers: heads, content of small files, keys, and the overhead of keeping them.
    pub cache_bytes: usize,
    /// Larger files that the cache keeps open: at most half of the limit of open descriptors. An unused one is closed
    /// within a minute.
    pub cache_files: usize,
    /// How old an answer from the cache may be: a changed file is served within this time.
    pub cache_valid: Duration,
    /// Files of more bytes (at most [`SENDFILE_ABOVE_MAX`]) are sent by `send`, not from memory.
    pub sendfile_above: u64,
    /// How large files are sent. Over TLS all are read, encrypted and sent.
    pub send: SendStrategy,
    /// Concurrent connections, over all workers; further ones are closed immediately.
    pub max_connections: usize,
    /// Concurrent connections of one IPv4 address, or of one IPv6 network of 64 bits.
    pub max_connections_per_address: usize,
    /// Limits of the head of a request.
    pub head: HeadLimits,
    /// Longest body of a request, which is read and dropped; a longer one gets 413.
    pub max_body_bytes: u64,
    /// Requests on one connection; the last one is answered with `Connection: close`, or in HTTP/2 with GOAWAY.
    pub max_requests: u64,
    /// The TLS handshake, counted from the accept.
    pub handshake_timeout: Duration,
    /// From the first byte of a request's head to its last; then 408.
    pub header_timeout: Duration,
    /// From the end of the head to the end of the body; then 408.
    pub body_timeout: Duration,
    /// Between two requests, counted from when the peer took the first answer.
    pub idle_timeout: Duration,
    /// Time in which the peer must acknowledge 1 KiB of an answer.
    pub send_timeout: Duration,
    /// How long a shutdown waits for peers to take their answers.
    pub drain_timeout: Duration,
    /// Concurrent requests of a connection of HTTP/2; `None` serves HTTP/1 only. HTTP/2 is for clients that begin with it
    /// on a connection without TLS, and for those that agreed on it over TLS.
    pub http2_streams: Option<u32>,
    /// Proxies in front of the service. None by default.
    pub forwarders: Forwarders,
}

impl HttpSettings {
    /// The defaults, for these sites.
    pub fn new(sites: Sites) -> HttpSettings {
        HttpSettings {
            sites,
            cache_bytes: 64 << 20,
            cache_files: 1024,
            cache_valid: Duration::from_secs(1),
            sendfile_above: 48 * 1024,
            send: SendStrategy::Sendfile,
            max_connections: usize::MAX,
            max_connections_per_address: usize::MAX,
            head: HeadLimits::default(),
            max_body_bytes: 64 << 10,
            max_requests: u64::MAX,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            http2_streams: Some(HTTP2_STREAMS),
            forwarders: Forwarders::default(),
        }
    }
}
