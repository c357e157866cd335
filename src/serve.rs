//! `twinring serve`: from arguments to a running service, and its exit code.

mod admin;
mod allow;
mod both;
mod families;
pub mod fuzzing;
mod http;
mod manager;
mod notices;
mod operate;
mod problems;
mod reflector;
mod report;
mod sandbox;
mod signals;
mod tcp;
mod udp;
mod user;

pub(crate) use sandbox::{Format, profile};

use clap::Subcommand;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum Service {
    /// Send every byte back to where it came from (TCP).
    Echo(Box<tcp::TcpArgs>),
    /// Serve the files of a directory over HTTP/1.1 and HTTP/2.
    Http(Box<http::HttpArgs>),
    /// Send every datagram back to its sender (UDP).
    Udp(Box<udp::UdpArgs>),
}

pub(crate) fn run(service: Service) -> ExitCode {
    twinring::measure::keep_freed_memory();
    // The task of one connection may panic, and a worker must not wait for standard error.
    std::panic::set_hook(Box::new(|panic| notices::tell(format!("twinring: a bug: {panic}"))));
    manager::connect();
    let _told = Told;
    let outcome = match service {
        Service::Echo(args) => tcp::serve(&args),
        Service::Http(args) => http::serve(*args),
        Service::Udp(args) => udp::serve(&args),
    };
    outcome.unwrap_or_else(|error| {
        notices::tell(format!("twinring: {error}"));
        ExitCode::FAILURE
    })
}

/// Dropped at the end, on success and on failure: waits until all notices are printed.
struct Told;

impl Drop for Told {
    fn drop(&mut self) {
        notices::finish(report::LAST_WORDS_MAX);
    }
}
