//! `twinring load`: from arguments to a load, its result, and its exit code.

mod observe;
mod signals;

use crate::engine_args::CpuList;
use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use observe::{JsonMarks, Live};
use std::error::Error;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;
use twinring::{EngineChoice, EpollOptions, UringOptions};
use twinring_load::report::Report;
use twinring_load::tcp;
use twinring_services::raise_descriptor_limit;

#[derive(Debug, Subcommand)]
pub(crate) enum Load {
    /// Requests over TCP to a server that echoes them.
    Tcp(TcpArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TcpArgs {
    /// Address of the server: IP:PORT, [IPV6]:PORT or NAME:PORT.
    #[arg(value_name = "ADDR", value_parser = address)]
    target: SocketAddr,
    /// Connections that send, in all.
    #[arg(short, long, value_name = "N", default_value_t = 100)]
    connections: u64,
    /// Size of a request and of its answer.
    #[arg(short, long, value_name = "BYTES", default_value_t = 128)]
    size: u32,
    /// Length of the measured window; with --messages, its longest [default: 10s, then 1h].
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// End the window when this many requests, in all, were sent in it and answered.
    #[arg(short = 'n', long, value_name = "N")]
    messages: Option<u64>,
    /// Load before the window [default: 1s; 0s with --messages].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warmup: Option<Duration>,

    /// Requests in flight per connection, at most [default: 1; 1024 with --rate].
    #[arg(long, value_name = "N", help_heading = "Pattern")]
    depth: Option<u32>,
    /// Open loop: requests a second, in all, on a fixed schedule; latency counts from the
    /// scheduled time.
    #[arg(long, value_name = "R", help_heading = "Pattern")]
    rate: Option<u64>,
    /// Close each connection after this many answers and make a new one.
    #[arg(long, value_name = "N", help_heading = "Pattern")]
    churn: Option<u64>,
    /// Further connections that stay open and send nothing.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Pattern")]
    idle: u64,
    /// Send without waiting for answers until the sockets take no more (at most 16 MiB unanswered
    /// per connection, whatever --depth says), read 64 KiB/s per connection with SO_RCVBUF 16 KiB,
    /// and read the rest at full speed, for at most a second, when the window is over.
    #[arg(long, help_heading = "Pattern")]
    slow_reader: bool,
    /// Do not compare the bytes that come back.
    #[arg(long, help_heading = "Pattern")]
    no_verify: bool,

    /// Limit of one attempt to connect.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    connect_timeout: Duration,
    /// Limit of one answer; a connection that misses it is given up.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    timeout: Duration,
    /// Source addresses, used in turn; each has its own 28,000 ports.
    #[arg(long, value_name = "IP,...", value_delimiter = ',', help_heading = "Network")]
    local: Vec<IpAddr>,

    /// Worker threads, each with its own engine and its share of the connections.
    #[arg(short, long, value_name = "T", default_value_t = 1, help_heading = "Engine")]
    threads: usize,
    /// CPUs for the threads, one each in turn, such as `0,2-3`.
    #[arg(long, value_name = "CPUS", help_heading = "Engine")]
    pin: Option<CpuList>,
    /// The load generator's own engine; `auto` takes io_uring where it is allowed, else epoll.
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

impl TcpArgs {
    fn settings(self) -> tcp::Settings {
        let (duration, warmup) = match self.messages {
            None => (Duration::from_secs(10), Duration::from_secs(1)),
            Some(_) => (Duration::from_secs(3600), Duration::ZERO),
        };
        tcp::Settings {
            target: self.target,
            connections: self.connections,
            message_bytes: self.size,
            depth: self.depth,
            threads: self.threads,
            pin: self.pin.map(|list| list.0).unwrap_or_default(),
            engine: self.engine,
            uring: self.uring,
            epoll: self.epoll,
            rate_per_s: self.rate,
            churn: self.churn,
            idle: self.idle,
            slow_reader: self.slow_reader,
            verify: !self.no_verify,
            warmup: self.warmup.unwrap_or(warmup),
            duration: self.duration.unwrap_or(duration),
            messages: self.messages,
            connect_timeout: self.connect_timeout,
            timeout: self.timeout,
            local: self.local,
        }
    }
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
    let Load::Tcp(args) = load;
    let json = args.json;
    let settings = args.settings();
    if let Err(wrong) = settings.check() {
        clap::Error::raw(ErrorKind::ValueValidation, format!("{wrong}\n")).exit();
    }
    load_tcp(settings, json).unwrap_or_else(|error| {
        eprintln!("twinring: {error}");
        ExitCode::FAILURE
    })
}

fn load_tcp(settings: tcp::Settings, json: bool) -> Result<ExitCode, Box<dyn Error>> {
    if let Err(error) = raise_descriptor_limit() {
        eprintln!("twinring: the limit of open descriptors stays as it is: {error}");
    }
    let expected = settings.duration;
    let load = tcp::Load::new(settings)?;
    if let Some(why_not) = load.why_not() {
        eprintln!("twinring: loading with epoll, as io_uring cannot be used: {why_not}");
    }
    let signals = signals::watch(load.stopper())?;
    let mut observer = Live::new(expected, json.then_some(JsonMarks));
    let report = load.run(&mut observer);
    observer.finish();
    let report = report?;
    print(&report, json)?;
    if let Some(signal) = signals.first() {
        return Ok(ExitCode::from(128 + signal));
    }
    Ok(match report.failure() {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            eprintln!("twinring: failed: {failure}");
            ExitCode::FAILURE
        }
    })
}

fn print(report: &Report, json: bool) -> Result<(), Box<dyn Error>> {
    let text = if json { serde_json::to_string(report)? } else { report.to_string() };
    // Not println!, which panics when the reader has left.
    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
}
