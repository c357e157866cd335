//! `twinring load udp`.

use super::options::{Engine, GateArgs, Output, addresses, keep_answering};
use super::outcome::{drive, refuse};
use crate::values::{self, duration};
use clap::Args;
use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;
use twinring_input::quantity;
use twinring_load::address::Probe;
use twinring_load::{Common, udp};
use twinring_wire::LoadResult;

#[derive(Debug, Args)]
pub(crate) struct UdpArgs {
    /// Address of the reflector: IP:PORT, [IPV6]:PORT or NAME:PORT.
    #[arg(value_name = "ADDR")]
    target: String,
    /// Streams, in total.
    #[arg(long, value_name = "N", default_value = "1", value_parser = quantity::count)]
    streams: u64,
    /// Packets per second of each stream; may be a fraction.
    #[arg(long, value_name = "R", default_value = "50", value_parser = quantity::rate_millionths)]
    pps: u64,
    /// Size of a packet: the payload of a datagram, including the RTP header of 12 bytes.
    #[arg(short, long, value_name = "BYTES", default_value = "172", value_parser = values::size)]
    size: u32,
    /// Length of the measured window.
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Load before the window.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    warmup: Duration,
    /// How long to wait for replies after the window.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    drain: Duration,

    /// Interval between wake-ups at which packets are sent.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = duration,
          help_heading = "Pattern")]
    tick: Duration,
    /// Do not verify the content of replies.
    #[arg(long, help_heading = "Pattern")]
    no_verify: bool,
    /// Seed of SSRC, sequence numbers and timestamps [default: a new one each time].
    #[arg(long, value_name = "N", value_parser = quantity::count, help_heading = "Pattern")]
    seed: Option<u64>,

    /// Let the kernel segment larger buffers into packets (GSO), and coalesce received ones (GRO).
    #[arg(long, help_heading = "Network")]
    gso: bool,
    /// On io_uring, keep this many single-shot receives in flight on each socket, as
    /// AsyncUdpTests does, instead of one multishot receive.
    #[arg(long, value_name = "N", value_parser = values::count, help_heading = "Network")]
    pending: Option<u32>,
    /// Send up to 64 packets per system call (on io_uring: bursts of one socket); off: one each.
    #[arg(long, value_name = "on|off", default_value = "on", help_heading = "Network",
          value_parser = values::switch, action = clap::ArgAction::Set)]
    batch: bool,
    /// Receive buffer of each socket (SO_RCVBUF) [default: enough for a quarter of a second, at
    /// least the system's default].
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Network")]
    rcvbuf: Option<u32>,
    /// Send buffer of each socket (SO_SNDBUF) [default: the system's].
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Network")]
    sndbuf: Option<u32>,
    /// Source addresses, used in turn; each has its own 28,000 ports.
    #[arg(long, value_name = "IP,...", value_delimiter = ',', help_heading = "Network")]
    local: Vec<IpAddr>,

    /// Time each system call, and print a table of them.
    #[arg(long, help_heading = "Output")]
    calls: bool,
    /// Print all streams, not only the ten worst.
    #[arg(long, help_heading = "Output")]
    per_stream: bool,
    #[command(flatten)]
    gates: GateArgs,
    #[command(flatten)]
    engine: Engine,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: UdpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let common = Common {
        connections: args.streams,
        workers: args.engine.into(),
        warmup: args.warmup,
        duration: args.duration,
        local: args.local,
        gates: args.gates.into(),
        ..Common::new(addresses(&args.target))
    };
    let mut settings = udp::Settings {
        common,
        rate: args.pps,
        packet_bytes: args.size,
        pending: args.pending,
        batch: args.batch,
        gso: args.gso,
        tick: args.tick,
        drain: args.drain,
        verify: !args.no_verify,
        // The clock differs enough between runs; that is all a seed is for.
        seed: args.seed.unwrap_or_else(twinring::measure::monotonic_ns),
        receive_buffer_bytes: args.rcvbuf,
        send_buffer_bytes: args.sndbuf,
        calls: args.calls,
        per_stream: args.per_stream,
    };
    refuse(settings.check());
    // Streams are to one address: the first that does not refuse datagrams.
    keep_answering(&mut settings.common, Probe::Udp)?;
    let expected = settings.common.duration;
    drive(udp::Load::new(settings)?, args.output, (expected, "replies"), |load, observer| {
        load.run(observer).map(Box::new).map(LoadResult::Udp)
    })
}
