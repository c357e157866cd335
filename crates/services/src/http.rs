//! Static files over HTTP/1.1 and 1.0, as RFC 9110 and RFC 9112 say.
//!
//! The way of a request through the rooms: `conversation` receives it, `head` reads it, `path`
//! makes a name of its target, `cache` or `resource` find the file, `reply` makes the answer
//! (with `conditional`, `range`, `encoding`), and `sending` sends it. `service` accepts the
//! connections, and `session` watches over the time they take.

pub mod body;
mod cache;
pub mod conditional;
mod conversation;
mod counters;
pub mod date;
pub mod encoding;
pub mod head;
mod index;
mod mime;
mod options;
pub mod path;
pub mod range;
mod reply;
mod resource;
mod response;
mod sending;
mod service;
mod session;
mod status;
pub mod target;
mod worker;

pub use counters::HttpCounters;
pub use options::{
    CacheLimits, FieldRule, HttpLimits, HttpSettings, ListingFormat, SENDFILE_ABOVE_MAX, Timeouts,
};
pub use service::HttpService;
pub use status::Status;
