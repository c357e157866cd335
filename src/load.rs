//! `twinring load`: from arguments to a load, its result, and its exit code.

mod http;
mod observe;
mod options;
mod outcome;
mod tcp;
mod udp;

use crate::output::complain;
use clap::Subcommand;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum Load {
    /// Requests over TCP to a server that echoes them.
    Tcp(tcp::TcpArgs),
    /// Requests over HTTP/1.1 or HTTP/2, each answer checked.
    Http(Box<http::HttpArgs>),
    /// Streams of datagrams, by default RTP, to a server that reflects them.
    Udp(udp::UdpArgs),
}

pub(crate) fn run(load: Load) -> ExitCode {
    let ended = match load {
        Load::Tcp(args) => tcp::run(args),
        Load::Http(args) => http::run(*args),
        Load::Udp(args) => udp::run(args),
    };
    ended.unwrap_or_else(|error| {
        complain(&format!("twinring: {error}"));
        ExitCode::FAILURE
    })
}
