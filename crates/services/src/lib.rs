//! The services of the `twinring` command, written once against the runtime. No code in here
//! depends on the engine in use.
//!
//! `server` binds, admits, limits and drains for all of them: for [`echo::EchoService`] and [`http::HttpService`] over TCP,
//! and for [`udp::UdpService`], which answers datagrams.

pub mod echo;
pub mod http;
mod process;
mod rate;
mod server;
pub mod udp;

pub use process::{raise_descriptor_limit, take_no_signals};
pub use server::{
    AllowList, Network, Networks, Running, Server, Service, ServiceCounters, Stage,
};
