//! The services of the `twinring` command, written once against the runtime: nothing in here
//! knows which engine runs.
//!
//! A TCP service is an async function over one [`Connection`]. [`TcpService`] does the rest:
//! accepting, limits, idle timeouts, counting, and the drain at shutdown. The UDP reflector is a
//! service of its own, [`udp::UdpService`]; so is [`http::HttpService`], whose connections keep
//! more than one kind of time.

mod accepting;
mod activity;
mod audience;
mod connections;
mod counters;
mod descriptors;
pub mod echo;
mod guests;
pub mod http;
mod signals;
mod tcp;
pub mod udp;

pub use audience::Audience;
pub use connections::Connection;
pub use counters::ServiceCounters;
pub use descriptors::raise_descriptor_limit;
pub use signals::take_no_signals;
pub use tcp::{Limits, TcpService};
