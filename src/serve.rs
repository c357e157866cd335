//! `twinring serve`: from arguments to a running service, and its exit code.

mod arguments;
mod http;
mod listen;
mod notices;
mod operate;
mod reflector;
mod report;
mod sandbox;
mod signals;
mod user;

pub use http::configuration;
pub(crate) use sandbox::{Format, profile};

use clap::Subcommand;
use std::error::Error;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum Service {
    /// Send every byte back to where it came from (TCP).
    Echo(Box<reflector::EchoArgs>),
    /// Serve the files of a directory over HTTP/1.1 and HTTP/2.
    Http(Box<http::HttpArgs>),
    /// Send every datagram back to its sender (UDP).
    Udp(Box<reflector::UdpArgs>),
}

type Ended = Result<ExitCode, Box<dyn Error>>;

pub(crate) fn run(service: Service) -> ExitCode {
    // SAFETY: nothing has started a thread yet.
    unsafe { twinring::measure::keep_freed_memory() };
    // The task of one connection may panic, and a worker must not wait for standard error.
    std::panic::set_hook(Box::new(|panic| notices::tell(format!("twinring: a bug: {panic}"))));
    notices::connect_manager();
    let ended = match service {
        Service::Echo(args) => reflector::serve_echo(&args),
        Service::Http(args) => http::serve(*args),
        Service::Udp(args) => reflector::serve_udp(&args),
    };
    let code = ended.unwrap_or_else(|error| {
        notices::tell(format!("twinring: {error}"));
        ExitCode::FAILURE
    });
    notices::finish();
    code
}
