//! Static files over HTTP/1.1 and 1.0, as RFC 9110 and RFC 9112 say.
//!
//! The path of a request: `requests` receives it, `head` parses it, `path` makes a name of its
//! target, `cache` or `resource` find the file, `reply` makes the answer (with `conditional`,
//! `range`, `encoding`), and `sending` sends it. `service` is what `crate::server` runs for the
//! connections, `connection` is one of them, and `tls` encrypts it.
//!
//! For those who operate it, `hosts` tells its sites apart, `access_log` writes down what was
//! asked, and `admin` tells how the service is (`observer`, `metrics`).

mod access_log;
mod admin;
pub mod body;
mod cache;
pub mod conditional;
mod connection;
mod counters;
pub mod date;
pub mod encoding;
#[doc(hidden)]
pub mod fuzzing;
pub mod head;
mod hosts;
mod index;
mod inflight;
mod metrics;
mod mime;
mod observer;
mod open_file;
mod options;
pub mod path;
pub mod range;
mod reply;
mod requests;
mod resource;
mod response;
mod sending;
mod service;
mod status;
pub mod target;
mod tls;
mod worker;

pub use access_log::{AccessLog, LogFormat, LogSettings, LogTarget};
pub use admin::{Admin, RunningAdmin};
pub use counters::HttpCounters;
pub use hosts::{HostName, Site, Sites};
pub use observer::Observer;
pub use options::{
    CacheLimits, FieldRule, HttpLimits, HttpSettings, ListingFormat, SENDFILE_ABOVE_MAX, Timeouts,
};
pub use service::{Http, HttpService};
pub use status::Status;
pub use tls::{MinVersion, Tls, TlsError, TlsSettings};
