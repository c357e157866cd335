//! `twinring load tcp`.

use super::observe::{JsonMarks, Live};
use super::options::{Common, GateArgs, Network, Times, address};
use super::outcome::{finish, prepare, print, refuse};
use super::signals;
use crate::values;
use clap::Args;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use twinring_input::quantity::{count, rate};
use twinring_load::schedule::Arrivals;
use twinring_load::tcp;

#[derive(Debug, Args)]
pub(crate) struct TcpArgs {
    /// Address of the server: IP:PORT, [IPV6]:PORT or NAME:PORT.
    #[arg(value_name = "ADDR", value_parser = address)]
    target: SocketAddr,
    /// Connections that send, in total.
    #[arg(short, long, value_name = "N", default_value = "100", value_parser = count)]
    connections: u64,
    /// Size of a request and of its answer, such as 128 or 4K.
    #[arg(short, long, value_name = "BYTES", default_value = "128", value_parser = values::size)]
    size: u32,
    /// End the window when this many requests, in all, were sent in it and answered.
    #[arg(short = 'n', long, value_name = "N", value_parser = count)]
    messages: Option<u64>,
    #[command(flatten)]
    times: Times,

    /// Requests in flight per connection, at most [default: 1; 1024 with --rate].
    #[arg(long, value_name = "N", value_parser = values::count, help_heading = "Pattern")]
    depth: Option<u32>,
    /// Open loop: requests per second, in total, on a fixed schedule; latency counts from the
    /// scheduled time.
    #[arg(long, value_name = "R", value_parser = rate, help_heading = "Pattern")]
    rate: Option<u64>,
    /// How the requests of --rate follow each other: at equal distances (periodic), or independently
    /// of each other, as those of many users do (poisson).
    #[arg(long, value_name = "HOW", requires = "rate", default_value_t, help_heading = "Pattern")]
    arrivals: Arrivals,
    /// Close each connection after this many answers and make a new one.
    ///
    /// Above 14,000 a minute from one address to one port, the kernel has to search for a port that is
    /// not in TIME_WAIT: give more addresses with --local.
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Pattern")]
    churn: Option<u64>,
    /// Further connections that stay open and send nothing.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count,
          help_heading = "Pattern")]
    idle: u64,
    /// Send without waiting for answers until the sockets are full (at most 16 MiB unanswered per
    /// connection, regardless of --depth), read 64 KiB/s per connection with SO_RCVBUF 16 KiB, and
    /// read the rest at full speed, for at most a second, after the window.
    #[arg(long, help_heading = "Pattern")]
    slow_reader: bool,
    /// Do not verify the content of answers.
    #[arg(long, help_heading = "Pattern")]
    no_verify: bool,

    #[command(flatten)]
    network: Network,
    #[command(flatten)]
    gates: GateArgs,
    #[command(flatten)]
    common: Common,
}

impl TcpArgs {
    fn settings(self) -> tcp::Settings {
        let Network { connect_timeout, timeout, local } = self.network;
        let (duration, warmup) = self.times.in_use(self.messages.is_some());
        tcp::Settings {
            target: self.target,
            connections: self.connections,
            message_bytes: self.size,
            depth: self.depth,
            workers: self.common.workers(),
            rate_per_s: self.rate,
            arrivals: self.arrivals,
            churn: self.churn,
            idle: self.idle,
            slow_reader: self.slow_reader,
            verify: !self.no_verify,
            warmup,
            duration,
            messages: self.messages,
            connect_timeout,
            timeout,
            local,
            gates: self.gates.into(),
        }
    }
}

pub(super) fn run(args: TcpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let (json, start_at) = (args.common.json, args.common.start_at);
    let settings = args.settings();
    refuse(settings.check());
    let expected = settings.duration;
    let load = tcp::Load::new(settings)?;
    prepare(load.fallback_reason());
    let stopper = load.stopper();
    let signals = signals::watch(move || stopper.stop())?;
    let mut observer = Live::new(expected, "requests", json.then_some(JsonMarks), start_at);
    let report = load.run(&mut observer);
    observer.finish()?;
    let report = report?;
    print(&report, tcp::Table(&report), json)?;
    Ok(finish(signals.first(), report.failure(), &report.all.gates, &report.shortfall()))
}
