//! How the service is set up.

use super::hosts::Sites;
use super::proxies::Forwarders;
use super::request::HeadLimits;
use std::str::FromStr;
use std::time::Duration;

/// How large files are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStrategy {
    /// By sendfile(2), where the filesystem has it.
    Sendfile,
    /// Read and sent: bytes in transit do not change when a file is overwritten in place.
    Read,
}

impl FromStr for SendStrategy {
    type Err = String;

    fn from_str(text: &str) -> Result<SendStrategy, String> {
        match text {
            "sendfile" => Ok(SendStrategy::Sendfile),
            "read" => Ok(SendStrategy::Read),
            other => Err(format!("{other}: expected sendfile or read")),
        }
    }
}

/// The default of concurrent requests on a connection of HTTP/2.
pub const HTTP2_STREAMS: u32 = 100;

/// The largest file that can be kept in memory whole, in bytes.
pub const SENDFILE_ABOVE_MAX: u64 = 1 << 20;

/// All settings that decide on the answers.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The sites, by host name.
    pub sites: Sites,
    /// Limits of the cache.
    pub cache: CacheLimits,
    /// Files of more bytes (at most [`SENDFILE_ABOVE_MAX`]) are sent by `send`, not from memory.
    pub sendfile_above: u64,
    /// How large files are sent. Over TLS all are read, encrypted and sent.
    pub send: SendStrategy,
    /// Limits of requests.
    pub limits: HttpLimits,
    /// Timeouts of requests and answers.
    pub timeouts: Timeouts,
    /// HTTP/2, beside HTTP/1.1, with so many concurrent requests of a connection: for clients that begin with it on a
    /// connection without TLS, and for those that agreed on it over TLS. 100 by default.
    pub http2_streams: Option<u32>,
    /// Proxies in front of the service. None by default.
    pub forwarders: Forwarders,
}

impl HttpSettings {
    /// The defaults, for these sites.
    pub fn new(sites: Sites) -> HttpSettings {
        HttpSettings {
            sites,
            cache: CacheLimits::default(),
            sendfile_above: 48 * 1024,
            send: SendStrategy::Sendfile,
            limits: HttpLimits::default(),
            timeouts: Timeouts::default(),
            http2_streams: Some(HTTP2_STREAMS),
            forwarders: Forwarders::default(),
        }
    }
}

/// Bounds of the cache, over all workers; each has an equal share.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Memory: heads, content of small files, keys, and the overhead of keeping them. 64 MiB by
    /// default.
    pub bytes: usize,
    /// Larger files, which are kept open: at most half of the limit of open descriptors. An unused
    /// one is closed within a minute. 1,024 by default.
    pub files: usize,
    /// How old an answer from the cache may be: a changed file is served within this time. 1 s by
    /// default.
    pub valid: Duration,
}

impl Default for CacheLimits {
    fn default() -> CacheLimits {
        CacheLimits { bytes: 64 << 20, files: 1024, valid: Duration::from_secs(1) }
    }
}

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Concurrent connections, over all workers; further ones are closed immediately.
    pub connections: usize,
    /// Concurrent connections of one IPv4 address, or of one IPv6 network of 64 bits.
    pub connections_per_address: usize,
    /// Limits of the head of a request.
    pub head: HeadLimits,
    /// Longest body of a request, which is read and dropped; a longer one gets 413. 64 KiB by
    /// default.
    pub body_bytes: u64,
    /// Requests on one connection; the last one is answered with `Connection: close`, or in HTTP/2
    /// with GOAWAY.
    pub requests: u64,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            connections: usize::MAX,
            connections_per_address: usize::MAX,
            head: HeadLimits::default(),
            body_bytes: 64 << 10,
            requests: u64::MAX,
        }
    }
}

/// Timeouts. Each is precise to a quarter of its length, and to a second: with 10 s, a connection
/// ends after 10 to 11 s.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The TLS handshake, counted from the accept. 10 s by default.
    pub handshake: Duration,
    /// From the first byte of a request's head to its last. 10 s by default; then 408.
    pub header: Duration,
    /// From the end of the head to the end of the body. 30 s by default; then 408.
    pub body: Duration,
    /// Between two requests, counted from when the peer took the first answer. 60 s by default.
    pub idle: Duration,
    /// Time in which the peer must acknowledge 1 KiB of an answer. 30 s by default.
    pub send: Duration,
    /// How long a shutdown waits for peers to take their answers. 10 s by default.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            send: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

/// The format of a directory listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingFormat {
    /// A page.
    Html,
    /// An array of objects.
    Json,
}
