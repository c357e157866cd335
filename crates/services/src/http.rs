//! Static files over HTTP/1.1, 1.0 and 2, according to RFC 9110, RFC 9112 and RFC 9113.
//!
//! The path of a request: `requests` receives it, `head` parses it, `path` turns its target into a
//! file name, `cache` or `resource` find the file and its `variant`s, `reply` builds the answer (with `conditional`,
//! `range`, `encoding`), and `sending` sends it. `rules` say what holds for a path; `redirect` and `auth` come before all files.
//! `service` is the service that `crate::server` runs, `connection` is one connection, and `tls`
//! encrypts it. `http2` is the same path with the framing of HTTP/2.
//!
//! For the operator, `hosts` selects the site, `access_log` logs the requests, and `admin` reports
//! health and metrics (`observer`, `metrics`).

mod access_log;
mod admin;
mod auth;
pub mod body;
mod cache;
mod compressed;
mod compression;
pub mod conditional;
mod connection;
mod counters;
pub mod date;
mod durations;
pub mod encoding;
mod forwarders;
#[doc(hidden)]
pub mod fuzzing;
mod generation;
pub mod head;
mod hosts;
pub mod http2;
mod index;
mod inflight;
mod metrics;
mod mime;
mod observer;
mod open_file;
mod options;
pub mod path;
mod proxy_protocol;
pub mod range;
mod redirect;
mod reply;
mod requests;
mod resource;
mod response;
mod rules;
mod sending;
mod service;
mod status;
pub mod target;
mod tls;
mod variant;
mod worker;

pub use access_log::{AccessLog, LogFormat, LogSettings, LogTarget};
pub use admin::{Admin, Pages, RunningAdmin};
pub use auth::{Auth, Credentials, Realm, Users};
pub use counters::HttpCounters;
pub use forwarders::{ForwardedField, Forwarders, Networks};
pub use generation::LiveSettings;
pub use hosts::{HostName, Site, Sites};
pub use metrics::{Exposition, PlainObserver};
pub use mime::MediaTypes;
pub use observer::Observer;
pub use options::{
    CacheLimits, Http2Limits, HttpLimits, HttpSettings, ListingFormat, SENDFILE_ABOVE_MAX,
    SendStrategy, Timeouts,
};
pub use proxy_protocol::{NoProxyHeader, ProxyHeader};
pub use redirect::{HttpsAddress, Redirect};
pub use rules::{
    Addresses, HeaderField, PathGlob, Protection, RULES_MAX, RequestRate, Rule, Rules,
};
pub use service::HttpService;
pub use status::Status;
pub use tls::{CertificateFiles, MinVersion, Tls, TlsError, TlsSettings, TlsUpdate};
pub use worker::Http;
