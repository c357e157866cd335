//! `twinring serve echo`.

use super::families;
use super::problems::{USAGE, refuse, with_remedy};
use super::reflector::ReflectorArgs;
use super::report::Subject;
use crate::output::raise_descriptor_limit;
use crate::values::{self, MOST, timeout};
use clap::Args;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use twinring::confine::Uses;
use twinring::net::ListenOptions;
use twinring_input::quantity::Count;
use twinring_services::echo::{EchoService, Limits};

#[derive(Debug, Args)]
pub(crate) struct TcpArgs {
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:7000`).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7000", value_parser = values::listen)]
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

pub(super) fn serve(args: &TcpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let allow = match args.common.allow.list_for(&args.listen) {
        Ok(allow) => allow,
        Err(problem) => return Ok(refuse(&[problem], USAGE)),
    };
    raise_descriptor_limit();
    let prepared = args.common.prepare(Uses { accept: true, ..Uses::default() })?;
    let (workers, handle) = (prepared.runtime.workers(), prepared.runtime.handle());
    let options = ListenOptions { backlog: args.backlog.get() as u32, ..ListenOptions::default() };
    let most =
        |limit: Option<Count<1, MOST>>| limit.map_or(usize::MAX, |limit| limit.get() as usize);
    let limits = Limits {
        max_connections: most(args.max_connections),
        max_connections_per_address: most(args.max_connections_per_address),
        allow,
        idle_timeout: args.idle_timeout,
        drain_timeout: args.common.drain_timeout,
    };
    let [listen] = families::available([&args.listen]);
    let service = EchoService::bind(&listen, &options, limits, workers, handle)
        .map_err(|error| with_remedy(&error, "ss -ltnp"))?;
    let subject = Subject::new("echo", service.addresses(), service.counters());
    args.common.serve(prepared, service, subject)
}
