//! `twinring load udp`.

use super::options::{Engine, GateArgs, Output, Server, answering};
use super::outcome::{drive, refuse};
use crate::values::{self, duration};
use clap::{Args, ValueEnum};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;
use twinring_input::quantity;
use twinring_load::address::Probe;
use twinring_load::udp;
use twinring_wire::LoadResult;

/// How long it may take to learn that a datagram is refused.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct UdpArgs {
    /// Address of the reflector: IP:PORT, [IPV6]:PORT or NAME:PORT.
    #[arg(value_name = "ADDR")]
    target: Server,
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

    /// Content of a packet: an RTP header and a pattern, or a number of 8 bytes and a pattern.
    #[arg(long, value_name = "KIND", default_value = "rtp", help_heading = "Pattern")]
    payload: Payload,
    /// Spread the packets of different streams over the period, or send them all at once.
    #[arg(long, value_name = "HOW", default_value = "even", help_heading = "Pattern")]
    spread: Spread,
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

    /// One socket for all streams of a thread, instead of one per stream.
    #[arg(long, help_heading = "Network")]
    single_socket: bool,
    /// Let the kernel segment larger buffers into packets (GSO), and coalesce received ones (GRO).
    #[arg(long, help_heading = "Network")]
    gso: bool,
    /// On io_uring, keep this many single-shot receives in flight on each socket, as
    /// AsyncUdpTests does, instead of one multishot receive.
    #[arg(long, value_name = "N", value_parser = values::count, help_heading = "Network")]
    pending: Option<u32>,
    /// Send up to 64 packets per system call (on io_uring: bursts of one socket); off: one each.
    #[arg(long, value_name = "on|off", default_value = "on", help_heading = "Network")]
    batch: Switch,
    /// Receive buffer of each socket (SO_RCVBUF) [default: 4 MiB with --single-socket, otherwise
    /// enough for a quarter of a second, at least the system's default].
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Payload {
    Rtp,
    Raw,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spread {
    Even,
    Burst,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl UdpArgs {
    /// The settings, and what is printed.
    fn settings(self, target: SocketAddr) -> (udp::Settings, Output) {
        let settings = udp::Settings {
            streams: self.streams,
            rate: udp::Rate::from_millionths(self.pps),
            packet_bytes: self.size,
            payload: match self.payload {
                Payload::Rtp => udp::Payload::Rtp,
                Payload::Raw => udp::Payload::Raw,
            },
            single_socket: self.single_socket,
            spread: match self.spread {
                Spread::Even => udp::Spread::Even,
                Spread::Burst => udp::Spread::Burst,
            },
            pending: self.pending,
            batch: self.batch == Switch::On,
            gso: self.gso,
            tick: self.tick,
            verify: !self.no_verify,
            // The clock differs enough between runs; that is all a seed is for.
            seed: self.seed.unwrap_or_else(twinring::measure::monotonic_ns),
            warmup: self.warmup,
            duration: self.duration,
            drain: self.drain,
            workers: self.engine.into(),
            receive_buffer_bytes: self.rcvbuf,
            send_buffer_bytes: self.sndbuf,
            local: self.local,
            gates: self.gates.into(),
            calls: self.calls,
            per_stream: self.per_stream,
            ..udp::Settings::new(target)
        };
        (settings, self.output)
    }
}

pub(super) fn run(args: UdpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let addresses = args.target.resolve();
    let first = refuse(addresses.first().copied().ok_or_else(|| "no address".to_owned()));
    let (mut settings, output) = args.settings(first);
    refuse(settings.check());
    // Streams are to one address: the first that does not refuse datagrams.
    settings.target = *answering(addresses, Probe::Udp, PROBE_LIMIT)?.first().unwrap_or(&first);
    let expected = settings.duration;
    drive(udp::Load::new(settings)?, output, (expected, "replies"), |load, observer| {
        load.run(observer).map(Box::new).map(LoadResult::Udp)
    })
}
