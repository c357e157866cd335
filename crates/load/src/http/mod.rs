//! Requests over HTTP/1.1 or HTTP/2, with TLS or without.
//!
//! A run works as with [`tcp`](crate::tcp). Each connection is one task that speaks one protocol:
//! - `http1.rs`: requests are built once, as bytes; answers are parsed incrementally
//!   (`answer.rs`).
//! - `http2.rs`: requests are streams of the h2 crate.
//!
//! Every answer is verified (`expect.rs`).

mod answer;
mod client;
mod expect;
#[doc(hidden)]
pub mod fuzzing;
mod http1;
mod http2;
mod link;
mod settings;
mod target;
mod tls;

pub use self::expect::Statuses;
pub use self::settings::HttpSettings;
pub use self::target::{Request, Target};
pub use self::tls::TlsSettings;
/// The method of a request.
pub use http::Method;
/// Header fields of a request.
pub use http::{HeaderName, HeaderValue};
