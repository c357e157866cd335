//! `twinring serve udp`: the reflector.

use super::families;
use super::problems::{USAGE, refuse, with_remedy};
use super::reflector::ReflectorArgs;
use super::report::Subject;
use crate::output::complain;
use crate::values::{self, PerSecond};
use clap::Args;
use serde_json::json;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use twinring::confine::Uses;
use twinring::net::{Granted, UdpOptions};
use twinring_input::quantity::{Count, Size};
use twinring_services::udp::{UdpService, UdpSettings};

/// Buffers of a socket that takes coalesced datagrams: each may hold 64 KiB.
const COALESCED_BUFFERS: u32 = 64;
const BUFFERS: u32 = 1024;
/// `--max-datagram` with UDP_GRO.
const COALESCED_BYTES: u32 = 65_535;

#[derive(Debug, Args)]
pub(crate) struct UdpArgs {
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:9000`).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000", value_parser = values::listen)]
    listen: Vec<SocketAddr>,
    /// Longest datagram that is answered, 16 to 65535 bytes; longer ones are dropped and counted.
    #[arg(long, value_name = "BYTES", help_heading = "Datagrams", default_value = "65535")]
    max_datagram: Size<16, 65_535>,
    /// Receive buffers of each worker, of --max-datagram bytes; a power of two from 4 to 32768.
    /// [default: 1024; 64 with --gro on]
    #[arg(long, value_name = "N", help_heading = "Datagrams", value_parser = buffers)]
    buffers: Option<u32>,
    /// Receive buffer to request for each socket; net.core.rmem_max caps it, except with
    /// CAP_NET_ADMIN.
    #[arg(long, value_name = "BYTES", help_heading = "Datagrams", default_value = "4M")]
    rcvbuf: Size<1, { 1 << 30 }>,
    /// Send buffer to request for each socket; as for --rcvbuf, with net.core.wmem_max.
    #[arg(long, value_name = "BYTES", help_heading = "Datagrams", default_value = "4M")]
    sndbuf: Size<1, { 1 << 30 }>,
    /// Let the kernel coalesce and segment datagrams of one flow (UDP_GRO, UDP_SEGMENT), for bulk
    /// traffic. The kernel then counts a dropped coalesced buffer as one datagram.
    #[arg(long, value_name = "on|off", help_heading = "Datagrams", default_value = "off",
          value_parser = values::switch, action = clap::ArgAction::Set)]
    gro: bool,
    /// Differentiated services codepoint of the answers, 0 to 63.
    #[arg(long, value_name = "N", help_heading = "Datagrams", default_value = "0")]
    dscp: Count<0, 63>,
    /// On io_uring, keep this many single-shot receives in flight, 1 to 4096, instead of one
    /// multishot receive: slower, and datagrams may be reordered. 0 is off.
    #[arg(long, value_name = "N", help_heading = "Datagrams", default_value = "0")]
    pending: Count<0, 4096>,
    /// Up to 64 datagrams per system call (on io_uring: bursts of answers); off: one each.
    #[arg(long, value_name = "on|off", help_heading = "Datagrams", default_value = "on",
          value_parser = values::switch, action = clap::ArgAction::Set)]
    batch: bool,
    /// Datagrams answered per second per IPv4 address, or IPv6 network of 64 bits, on each socket.
    /// Allows bursts of a tenth of a second, at least 64. Remembers 65536 sources.
    #[arg(long, value_name = "PPS", help_heading = "Limits")]
    max_rate_per_source: Option<PerSecond<10_000_000>>,
    #[command(flatten)]
    common: ReflectorArgs,
}

impl UdpArgs {
    fn options(&self) -> UdpOptions {
        let buffers = if self.gro { COALESCED_BUFFERS } else { BUFFERS };
        UdpOptions {
            recv_buffer_bytes: Some(self.rcvbuf.get() as u32),
            send_buffer_bytes: Some(self.sndbuf.get() as u32),
            buffer_bytes: self.max_datagram.get() as u32,
            buffer_count: self.buffers.unwrap_or(buffers),
            gro: self.gro,
            dscp: self.dscp.get() as u8,
            pending: self.pending.get() as u32,
            batch: self.batch,
            ..UdpOptions::default()
        }
    }

    /// Where the kernel has granted less than requested: the shortfall, and the fix.
    fn compare(&self, granted: Granted) -> Vec<String> {
        let mut shortfalls = Vec::new();
        for (option, asked, granted, limit) in [
            ("--rcvbuf", self.rcvbuf.get(), granted.recv_buffer_bytes, "net.core.rmem_max"),
            ("--sndbuf", self.sndbuf.get(), granted.send_buffer_bytes, "net.core.wmem_max"),
        ] {
            // The kernel doubles what is asked, for its own bookkeeping (socket(7)).
            if granted / 2 < asked as usize {
                shortfalls.push(format!(
                    "twinring: {option} {asked}: the kernel grants {}; raise {limit}, or grant \
                     CAP_NET_ADMIN",
                    granted / 2
                ));
            }
        }
        if self.gro && !granted.gro {
            shortfalls.push(
                "twinring: --gro on: this kernel has no UDP_GRO (Linux 5.0); datagrams arrive \
                 one by one"
                    .to_owned(),
            );
        }
        shortfalls
    }
}

fn buffers(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|count: &u32| count.is_power_of_two() && (4..=1 << 15).contains(count))
        .ok_or_else(|| "expected a power of two from 4 to 32768".to_owned())
}

pub(super) fn serve(args: &UdpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let allow = match args.common.allow.list_for(&args.listen) {
        Ok(allow) => allow,
        Err(problem) => return Ok(refuse(&[problem], USAGE)),
    };
    let prepared = args.common.prepare(Uses { datagrams: true, ..Uses::default() })?;
    let (workers, handle) = (prepared.runtime.workers(), prepared.runtime.handle());
    let settings = UdpSettings {
        options: args.options(),
        allow,
        rate_per_source: args.max_rate_per_source.map(|PerSecond(rate)| rate),
        drain_timeout: args.common.drain_timeout,
    };
    let [listen] = families::available([&args.listen]);
    let service = UdpService::bind(&listen, settings, workers, handle)
        .map_err(|error| with_remedy(&error, "ss -lunp"))?;
    let granted = service.granted();
    args.compare(granted).iter().for_each(|shortfall| complain(shortfall));
    let (bytes, gro) = match granted.gro {
        true => (COALESCED_BYTES, ", coalescing"),
        false => (args.max_datagram.get() as u32, ""),
    };
    let subject = Subject::new("udp", service.addresses(), service.counters()).with_details(
        "udp",
        &json!({"max_datagram_bytes": bytes, "granted": granted}),
        format!("datagrams up to {bytes} bytes{gro}"),
    );
    args.common.serve(prepared, service, subject)
}
