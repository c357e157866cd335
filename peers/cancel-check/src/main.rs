//! `cargo run --manifest-path peers/Cargo.toml -p cancel-check -- tokio`
//!
//! Checks the rules of `twinring-cancellation` against one runtime, as its documentation shows it:
//! the plain calls for receiving, sending, accepting and connecting. Each runs in a process of its
//! own, because descriptors and freed buffers are counted for the whole process.

mod subjects;

use clap::{Parser, ValueEnum};
use subjects::{Compio, Monoio, Tokio, Twinring};
use twinring::EngineChoice;
use twinring_cancellation::{Quarantine, check};

#[global_allocator]
static ALLOCATOR: Quarantine = Quarantine::new();

/// Prints what a runtime does with what dropped futures were working on.
#[derive(Parser)]
#[command(name = "cancel-check", version)]
struct Options {
    /// The runtime to check.
    runtime: Runtime,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Runtime {
    /// tokio, current-thread runtime (epoll).
    Tokio,
    /// monoio on io_uring.
    Monoio,
    /// compio on io_uring.
    Compio,
    /// twinring on epoll.
    TwinringEpoll,
    /// twinring on io_uring.
    TwinringUring,
}

fn main() {
    let findings = match Options::parse().runtime {
        Runtime::Tokio => check(&Tokio),
        Runtime::Monoio => check(&Monoio),
        Runtime::Compio => check(&Compio),
        Runtime::TwinringEpoll => check(&Twinring(EngineChoice::Epoll)),
        Runtime::TwinringUring => check(&Twinring(EngineChoice::IoUring)),
    };
    findings.iter().for_each(|finding| println!("{finding}"));
}
