//! The services that send everything back: `twinring serve echo`, over TCP, and `twinring serve udp`.
//!
//! An answer to a forged address is traffic against a third party, so only this machine is answered unless the operator
//! allows other clients.

use super::Ended;
use super::arguments::ServerArgs;
use super::listen::{self, with_remedy};
use super::operate::Prepared;
use super::report::Reporter;
use super::sandbox::paths::Paths;
use super::user::Identity;
use crate::output::{self, complain, raise_descriptor_limit};
use clap::{ArgAction, Args};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use twinring::confine::Uses;
use twinring::net::{Granted, ListenOptions, UdpOptions};
use twinring_input::quantity::{Count, PerSecond, Size, duration, switch, timeout};
use twinring_services::echo::{EchoService, Limits};
use twinring_services::udp::{UdpService, UdpSettings};
use twinring_services::{AllowList, Network, Server, Service};

#[derive(Debug, Args)]
struct ReflectorArgs {
    /// Admit other clients than loopback addresses: a network such as `192.0.2.0/24`, an address, or
    /// `any`. May be given several times. Required to listen on addresses that others can reach.
    #[arg(long, value_name = "CIDR|any", help_heading = "Limits", value_parser = clients)]
    allow: Vec<Option<Network>>,
    /// How long a shutdown waits for peers to read their remaining answers.
    #[arg(long, value_name = "DURATION", help_heading = "Limits", default_value = "10s",
          value_parser = duration)]
    drain_timeout: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

/// A network; `None` for any address.
fn clients(text: &str) -> Result<Option<Network>, String> {
    match text {
        "any" => Ok(None),
        _ => text.parse::<Network>().map(Some).map_err(|expected| format!("{expected} (or any)")),
    }
}

impl ReflectorArgs {
    /// The allow list of a service that listens on these addresses.
    fn allow_list(&self, listen: &[SocketAddr]) -> Result<AllowList, String> {
        listen::once(listen.to_vec())?;
        if self.allow.contains(&None) {
            return Ok(AllowList::any());
        }
        let open = listen.iter().find(|address| !address.ip().to_canonical().is_loopback());
        match open {
            Some(address) if self.allow.is_empty() => Err(format!(
                "others can reach {address}, and this service sends back everything that it \
                 receives: list its clients with --allow CIDR (repeatable), or answer all with \
                 --allow any"
            )),
            // Loopback addresses are checked as well: hand-written or forwarded packets
            // (net.ipv4.conf.*.route_localnet) can arrive there from elsewhere.
            _ => Ok(AllowList::of(self.allow.iter().copied().flatten())),
        }
    }

    fn prepare(&self, uses: Uses) -> Result<Prepared, String> {
        self.server.prepare(uses).map_err(|problems| problems.join("; "))
    }

    /// Runs a service whose addresses are bound.
    fn run<S: Service>(
        &self,
        mut prepared: Prepared,
        service: Server<S>,
        mut reporter: Reporter,
    ) -> Ended {
        let networks: Option<Vec<String>> =
            self.allow.iter().map(|network| Some(network.as_ref()?.to_string())).collect();
        let allowed = match networks {
            Some(networks) => [vec!["loopback".to_owned()], networks].concat(),
            None => vec!["any".to_owned()],
        };
        reporter.add("allow", &allowed, format!("clients {}", allowed.join(", ")));
        prepared.drain_timeout = self.drain_timeout;
        prepared.bind_admin()?;
        let paths = Paths { own_process: prepared.admin.is_some(), ..Paths::default() };
        let identity = prepared.identity.as_ref();
        prepared.sandbox.enter(&prepared.runtime, &paths, identity)?;
        identity.map_or(Ok(()), Identity::assume)?;
        prepared.run(service, reporter)
    }
}

/// The largest count where nothing else bounds it.
const MOST: u64 = u32::MAX as u64;

#[derive(Debug, Args)]
pub(crate) struct EchoArgs {
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:7000`).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7000", value_parser = listen::address)]
    listen: Vec<SocketAddr>,
    /// Concurrent connections; further ones are accepted and closed immediately.
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections: Option<Count<1, MOST>>,
    /// Concurrent connections per IPv4 address, or IPv6 network of 64 bits.
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections_per_address: Option<Count<1, MOST>>,
    /// Close a connection without traffic for this long, such as `30s` or `5m`.
    #[arg(long, value_name = "DURATION", help_heading = "Limits", value_parser = timeout)]
    idle_timeout: Option<Duration>,
    /// Connections that the kernel queues before they are accepted; net.core.somaxconn caps it.
    #[arg(long, value_name = "N", help_heading = "Limits", default_value = "4096")]
    backlog: Count<1, 65_535>,
    #[command(flatten)]
    common: ReflectorArgs,
}

pub(super) fn serve_echo(args: &EchoArgs) -> Ended {
    let allow = output::or_usage(args.common.allow_list(&args.listen));
    raise_descriptor_limit();
    let prepared = args.common.prepare(Uses { accept: true, ..Uses::default() })?;
    let (workers, handle) = (prepared.runtime.workers(), prepared.runtime.handle());
    let options = ListenOptions { backlog: args.backlog.get() as u32 };
    let most = |limit: Option<Count<1, MOST>>| limit.map_or(usize::MAX, |it| it.get() as usize);
    let limits = Limits {
        max_connections: most(args.max_connections),
        max_connections_per_address: most(args.max_connections_per_address),
        allow,
        idle_timeout: args.idle_timeout,
        drain_timeout: args.common.drain_timeout,
    };
    let listen = listen::available(&args.listen);
    let service = EchoService::bind(&listen, &options, limits, workers, handle)
        .map_err(|error| with_remedy(&error, "ss -ltnp"))?;
    let reporter = Reporter::new(&prepared, &service);
    args.common.run(prepared, service, reporter)
}

#[derive(Debug, Args)]
pub(crate) struct UdpArgs {
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:9000`).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000", value_parser = listen::address)]
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
          value_parser = switch, action = ArgAction::Set)]
    gro: bool,
    /// Differentiated services codepoint of the answers, 0 to 63.
    #[arg(long, value_name = "N", help_heading = "Datagrams", default_value = "0")]
    dscp: Count<0, 63>,
    /// On io_uring, keep this many single-shot receives in flight, 1 to 4096, instead of one
    /// multishot receive: slower, and datagrams may be reordered. 0 is off.
    #[arg(long, value_name = "N", help_heading = "Datagrams", default_value = "0")]
    pending: Count<0, 4096>,
    /// Datagrams answered per second per IPv4 address, or IPv6 network of 64 bits, on each socket.
    /// Allows bursts of a tenth of a second, at least 64. Remembers 65536 sources.
    #[arg(long, value_name = "PPS", help_heading = "Limits")]
    max_rate_per_source: Option<PerSecond<10_000_000>>,
    #[command(flatten)]
    common: ReflectorArgs,
}

impl UdpArgs {
    fn options(&self) -> UdpOptions {
        // Each may hold 64 KiB of coalesced datagrams.
        let buffers = if self.gro { 64 } else { 1024 };
        UdpOptions {
            recv_buffer_bytes: Some(self.rcvbuf.get() as u32),
            send_buffer_bytes: Some(self.sndbuf.get() as u32),
            buffer_bytes: self.max_datagram.get() as u32,
            buffer_count: self.buffers.unwrap_or(buffers),
            gro: self.gro,
            dscp: self.dscp.get() as u8,
            pending: self.pending.get() as u32,
            ..UdpOptions::default()
        }
    }

    /// Says where the kernel has granted less than requested, and the fix.
    fn compare(&self, granted: Granted) {
        for (option, asked, granted, limit) in [
            ("--rcvbuf", self.rcvbuf.get(), granted.recv_buffer_bytes, "net.core.rmem_max"),
            ("--sndbuf", self.sndbuf.get(), granted.send_buffer_bytes, "net.core.wmem_max"),
        ] {
            // The kernel doubles what is asked, for its own bookkeeping (socket(7)).
            let granted = granted / 2;
            if granted < asked as usize {
                complain(&format!(
                    "twinring: {option} {asked}: the kernel grants {granted}; raise {limit}, or grant \
                     CAP_NET_ADMIN"
                ));
            }
        }
        if self.gro && !granted.gro {
            complain(
                "twinring: --gro on: this kernel has no UDP_GRO (Linux 5.0); datagrams arrive \
                 one by one",
            );
        }
    }
}

fn buffers(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|count: &u32| count.is_power_of_two() && (4..=1 << 15).contains(count))
        .ok_or_else(|| "expected a power of two from 4 to 32768".to_owned())
}

pub(super) fn serve_udp(args: &UdpArgs) -> Ended {
    let allow = output::or_usage(args.common.allow_list(&args.listen));
    let prepared = args.common.prepare(Uses { datagrams: true, ..Uses::default() })?;
    let (workers, handle) = (prepared.runtime.workers(), prepared.runtime.handle());
    let settings = UdpSettings {
        options: args.options(),
        allow,
        rate_per_source: args.max_rate_per_source.map(|PerSecond(rate)| rate),
        drain_timeout: args.common.drain_timeout,
    };
    let listen = listen::available(&args.listen);
    let service = UdpService::bind(&listen, settings, workers, handle)
        .map_err(|error| with_remedy(&error, "ss -lunp"))?;
    let granted = service.granted();
    args.compare(granted);
    let (bytes, gro) = match granted.gro {
        true => (65_535, ", coalescing"),
        false => (args.max_datagram.get() as u32, ""),
    };
    let mut reporter = Reporter::new(&prepared, &service);
    let details = json!({"max_datagram_bytes": bytes, "granted": granted});
    reporter.add("udp", &details, format!("datagrams up to {bytes} bytes{gro}"));
    args.common.run(prepared, service, reporter)
}
