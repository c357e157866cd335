//! The `twinring` command: arguments in, library calls out. It is a library only so that `fuzz/` can
//! call its parsers.

mod engine_args;
mod lab;
mod load;
mod output;
mod probe;
mod serve;

#[doc(hidden)]
pub use serve::fuzzing;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// One network service on two engines, io_uring and epoll, and evidence for which one suits your
/// workload.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server.
    #[command(subcommand)]
    Serve(serve::Service),
    /// Put a server under load and measure it.
    #[command(subcommand)]
    Load(Box<load::Load>),
    /// Show what this system allows, what it refuses, and how to fix it.
    Probe(probe::Probe),
    /// Compare engines and servers in paired experiments.
    #[command(subcommand)]
    Lab(lab::Lab),
    /// How the lab starts its children.
    #[command(name = lab::HELPER, hide = true)]
    LabHelper {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// Runs the command of the process's arguments, and returns its exit code.
pub fn main() -> ExitCode {
    // Clap prints usage errors to stderr and exits with 2.
    match Cli::parse().command {
        Command::Serve(service) => serve::run(service),
        Command::Load(load) => load::run(*load),
        Command::Probe(probe) => probe::run(&probe),
        Command::Lab(lab) => lab::run(lab),
        Command::LabHelper { arguments } => twinring_lab::helper(&arguments),
    }
}
