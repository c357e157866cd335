//! `twinring load`: from arguments to a load, its result, and its exit code.

mod http;
mod observe;
mod signals;
mod tcp;
mod udp;

use crate::engine_args::CpuList;
use crate::output::{self, complain};
use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use std::error::Error;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;
use twinring::{EngineChoice, EpollOptions, UringOptions};
use twinring_load::Workers;
use twinring_services::raise_descriptor_limit;

#[derive(Debug, Subcommand)]
pub(crate) enum Load {
    /// Requests over TCP to a server that echoes them.
    Tcp(tcp::TcpArgs),
    /// Requests over HTTP/1.1, each answer checked.
    Http(Box<http::HttpArgs>),
    /// Streams of datagrams, by default RTP, to a server that reflects them.
    Udp(udp::UdpArgs),
}

/// Options of all loads.
#[derive(Debug, Args)]
struct Common {
    /// Worker threads, each with its own engine and its share of the load.
    #[arg(short, long, value_name = "T", default_value_t = 1, help_heading = "Engine")]
    threads: usize,
    /// CPUs for the threads, assigned in turn, such as `0,2-3`.
    #[arg(long, value_name = "CPUS", help_heading = "Engine")]
    pin: Option<CpuList>,
    /// The load generator's own engine; `auto` uses io_uring if it is allowed, otherwise epoll.
    #[arg(
        long,
        value_name = "auto|io_uring|epoll",
        default_value = "auto",
        help_heading = "Engine"
    )]
    engine: EngineChoice,
    /// Features of io_uring, such as `multishot=off,buffers=incremental`.
    #[arg(
        long,
        value_name = "KEY=VALUE,...",
        default_value = "",
        hide_default_value = true,
        help_heading = "Engine"
    )]
    uring: UringOptions,
    /// Features of epoll, such as `trigger=level`.
    #[arg(
        long,
        value_name = "KEY=VALUE,...",
        default_value = "",
        hide_default_value = true,
        help_heading = "Engine"
    )]
    epoll: EpollOptions,

    /// Print JSON lines on standard output.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl Common {
    fn workers(self) -> Workers {
        let Common { threads, pin, engine, uring, epoll, .. } = self;
        let pin = pin.map(|list| list.0).unwrap_or_default();
        Workers { threads, pin, engine, uring, epoll }
    }
}

/// How long a load over connections runs.
#[derive(Debug, Args)]
struct Times {
    /// Length of the measured window; with -n, its longest [default: 10s, then 1h].
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Load before the window [default: 1s; 0s with -n].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warmup: Option<Duration>,
}

impl Times {
    /// Window and warm-up; `counted` if a number of requests ends the run.
    fn in_use(&self, counted: bool) -> (Duration, Duration) {
        let (duration, warmup) = match counted {
            false => (Duration::from_secs(10), Duration::from_secs(1)),
            true => (Duration::from_secs(3600), Duration::ZERO),
        };
        (self.duration.unwrap_or(duration), self.warmup.unwrap_or(warmup))
    }
}

/// How connections are opened, and their timeouts.
#[derive(Debug, Args)]
struct Network {
    /// Timeout of one attempt to connect.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    connect_timeout: Duration,
    /// Timeout of one answer; a connection that exceeds it is abandoned.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    timeout: Duration,
    /// Source addresses, used in turn; each has its own 28,000 ports.
    #[arg(long, value_name = "IP,...", value_delimiter = ',', help_heading = "Network")]
    local: Vec<IpAddr>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let resolved = text.to_socket_addrs().map_err(|error| format!("{error}; expected HOST:PORT"));
    resolved?.next().ok_or_else(|| "the name has no address".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = |_| "expected a time such as 500ms, 10s or 5m".to_owned();
    text.parse::<jiff::SignedDuration>().and_then(Duration::try_from).map_err(wrong)
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

/// Ends the program if the settings make no sense.
fn refuse(checked: Result<(), String>) {
    if let Err(wrong) = checked {
        clap::Error::raw(ErrorKind::ValueValidation, format!("{wrong}\n")).exit();
    }
}

/// Raises the limit of descriptors, and reports an unexpected engine.
fn prepare(fallback_reason: Option<&str>) {
    if let Err(error) = raise_descriptor_limit() {
        complain(&format!("twinring: cannot raise the limit of open descriptors: {error}"));
    }
    if let Some(fallback_reason) = fallback_reason {
        let why = format!("because io_uring cannot be used: {fallback_reason}");
        complain(&format!("twinring: loading with epoll, {why}"));
    }
}

/// Prints a result: as a line of JSON, or as its table.
fn print(
    result: &impl serde::Serialize,
    table: impl Display,
    json: bool,
) -> Result<(), Box<dyn Error>> {
    let text = if json { serde_json::to_string(result)? } else { table.to_string() };
    Ok(output::print(&format!("{text}\n"))?)
}

/// The exit code of a run that has a result.
fn finish(signal: Option<u8>, failure: Option<String>) -> ExitCode {
    match (signal, failure) {
        (Some(signal), _) => ExitCode::from(128 + signal),
        (None, None) => ExitCode::SUCCESS,
        (None, Some(failure)) => {
            complain(&format!("twinring: failed: {failure}"));
            ExitCode::FAILURE
        }
    }
}
