//! `twinring load tcp`.

use super::options::{Output, RequestArgs, addresses, keep_answering};
use super::outcome::{drive, refuse};
use crate::values;
use clap::Args;
use std::error::Error;
use std::process::ExitCode;
use twinring_input::quantity::count;
use twinring_load::address::Probe;
use twinring_load::tcp;
use twinring_wire::LoadResult;

#[derive(Debug, Args)]
pub(crate) struct TcpArgs {
    /// Address of the server: IP:PORT, [IPV6]:PORT or NAME:PORT.
    #[arg(value_name = "ADDR")]
    target: String,
    /// Size of a request and of its answer, such as 128 or 4K.
    #[arg(short, long, value_name = "BYTES", default_value = "128", value_parser = values::size)]
    size: u32,
    #[command(flatten)]
    requests: RequestArgs,

    /// Requests in flight per connection, at most [default: 1; 1024 with --rate].
    #[arg(long, value_name = "N", value_parser = values::count, help_heading = "Pattern")]
    depth: Option<u32>,
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
    /// Do not verify the content of answers.
    #[arg(long, help_heading = "Pattern")]
    no_verify: bool,

    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: TcpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let mut settings = tcp::Settings {
        message_bytes: args.size,
        depth: args.depth,
        churn: args.churn,
        idle: args.idle,
        verify: !args.no_verify,
        ..tcp::Settings::new(args.requests.common(addresses(&args.target)))
    };
    refuse(settings.check());
    keep_answering(&mut settings.common, Probe::Tcp)?;
    let expected = settings.common.duration;
    drive(tcp::Load::new(settings)?, args.output, (expected, "requests"), |load, observer| {
        load.run(observer).map(Box::new).map(LoadResult::Tcp)
    })
}
