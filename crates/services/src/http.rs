//! Static files over HTTP/1.1, 1.0 and 2, according to RFC 9110, RFC 9112 and RFC 9113.
//!
//! The path of a request: `connection` receives it, `http1` or `http2` has it read into a `request`, `answer` finds
//! the answer (a `response`) with the `cache` and its `variant`s, and the transport sends it: at once what is in memory, by
//! `sending` files and listings.
//! The `exchange` records how it ended, in the access log and in the metrics.
//!
//! Beside this path: `options`, `hosts` and `rules` are the configuration, which serde reads (`text`, `pattern`): the
//! settings of the server, the site of a host, what holds for a path. `redirect` and `auth` come before all files,
//! `target` turns targets into file names, `resource` reads files, `conditional` decides on requests for less than a
//! whole file, `encoding` and `compression` on codings. `service` is the service that `crate::server` runs, `tls`
//! encrypts, and `admin` reports health and `metrics`.

mod access_log;
mod admin;
mod answer;
mod auth;
pub mod body;
mod cache;
mod compression;
pub mod conditional;
mod connection;
mod counters;
pub mod date;
pub mod encoding;
mod exchange;
mod hosts;
mod http1;
mod http2;
mod index;
mod metrics;
mod mime;
mod options;
mod pattern;
mod proxies;
mod redirect;
pub mod request;
mod resource;
mod response;
mod rules;
mod sending;
mod service;
pub mod target;
pub mod text;
mod tls;
mod variant;
mod worker;

pub use ::http::StatusCode as Status;
#[doc(hidden)]
pub use access_log::log_line;
pub use access_log::{AccessLog, LogFormat, LogSettings, LogTarget};
pub use admin::Admin;
pub use auth::{Auth, Credentials};
pub use hosts::{HostName, Site, Sites};
pub(crate) use metrics::append_plain;
pub use metrics::{Exposition, Observer};
pub use options::{HttpSettings, SendStrategy};
pub use proxies::{NoProxyHeader, ProxyHeader};
pub use rules::{Rule, Rules, listing};
pub use service::HttpService;
pub use tls::{CertificateFiles, MinVersion, Tls, TlsSettings, TlsUpdate, expired};
pub use worker::Http;
pub use worker::LiveSettings;
