//! The services of the `twinring` command, written once against the runtime. No code in here
//! depends on the engine in use.
//!
//! `server` binds, admits, limits and drains for all of them. To write a TCP service, implement an
//! async function over one [`Connection`] and run it with [`TcpService`]. [`http::HttpService`] has
//! more phases of a connection, and [`udp::UdpService`] answers datagrams.

pub mod echo;
pub mod http;
mod process;
mod rate;
mod server;
mod tcp;
pub mod udp;

pub use process::{raise_descriptor_limit, take_no_signals};
pub use server::{
    AllowList, Meters, Networks, Reading, Running, Server, Service, ServiceCounters, Stage,
};
pub use tcp::{Connection, Limits, Tcp, TcpService};
