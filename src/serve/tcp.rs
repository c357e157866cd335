//! Services over TCP: `twinring serve echo` and `twinring serve discard`.

use super::admin::{self, AdminArgs};
use super::allow::AllowArgs;
use super::both::Both;
use super::families;
use super::notices::print_once;
use super::operate::{Hooks, become_unprivileged, operate};
use super::problems::{USAGE, refuse, with_remedy};
use super::report::{OutputArgs, Subject, engine_name};
use super::sandbox::paths::Paths;
use super::sandbox::{Sandbox, SandboxArgs};
use super::user::UserArgs;
use crate::engine_args::EngineArgs;
use crate::output::complain;
use crate::values::{self, MOST, duration, timeout};
use clap::Args;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use twinring::confine::Uses;
use twinring::{Handle, net::ListenOptions};
use twinring_input::quantity::Count;
use twinring_services::http::plain_metrics;
use twinring_services::{Limits, TcpService, echo, raise_descriptor_limit};

#[derive(Debug, Args)]
pub(crate) struct TcpArgs {
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:7000`).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7000", value_parser = values::listen)]
    listen: Vec<SocketAddr>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Concurrent connections; further ones are accepted and closed immediately.
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections: Option<Count<1, MOST>>,
    /// Concurrent connections per IPv4 address, or IPv6 network of 64 bits.
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections_per_address: Option<Count<1, MOST>>,
    #[command(flatten)]
    allow: AllowArgs,
    /// Close a connection without traffic for this long, such as `30s` or `5m`.
    #[arg(long, value_name = "DURATION", help_heading = "Limits", value_parser = timeout)]
    idle_timeout: Option<Duration>,
    /// How long a shutdown waits for peers to read their remaining answers.
    #[arg(long, value_name = "DURATION", help_heading = "Limits", default_value = "10s",
          value_parser = duration)]
    drain_timeout: Duration,
    /// Connections that the kernel queues before they are accepted; net.core.somaxconn caps it.
    #[arg(long, value_name = "N", help_heading = "Limits", default_value = "4096")]
    backlog: Count<1, 65_535>,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    user: UserArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn serve_echo(args: &TcpArgs) -> Result<ExitCode, Box<dyn Error>> {
    serve("echo", echo::bind, args)
}

pub(super) fn serve_discard(args: &TcpArgs) -> Result<ExitCode, Box<dyn Error>> {
    serve("discard", echo::bind_discard, args)
}

/// The `bind` of a service.
type Bind = fn(&[SocketAddr], &ListenOptions, Limits, usize, Handle) -> io::Result<TcpService>;

/// Runs a TCP service until a signal ends it.
fn serve(name: &'static str, bind: Bind, args: &TcpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let allow = match args.allow.list_for(&args.listen) {
        Ok(allow) => allow,
        Err(problem) => return Ok(refuse(&[problem], USAGE)),
    };
    if let Err(error) = raise_descriptor_limit() {
        complain(&format!("twinring: cannot raise the limit of open descriptors: {error}"));
    }
    // A service flushes before it closes; data that is still unsent then was cut on purpose.
    let builder = args.engine.runtime().linger(Duration::ZERO).on_event(print_once());
    let identity = args.user.identity()?;
    let uses = Uses { accept: true, ..Uses::default() };
    let mut sandbox = Sandbox::new(&args.sandbox, uses);
    let runtime = sandbox.confine(builder, &args.engine, identity.as_ref()).build()?;
    let handle = runtime.handle();
    let options = ListenOptions { backlog: args.backlog.get() as u32, ..ListenOptions::default() };
    let most =
        |limit: Option<Count<1, MOST>>| limit.map_or(usize::MAX, |limit| limit.get() as usize);
    let limits = Limits {
        max_connections: most(args.max_connections),
        max_connections_per_address: most(args.max_connections_per_address),
        allow,
        idle_timeout: args.idle_timeout,
        drain_timeout: args.drain_timeout,
    };
    let [listen] = families::available([&args.listen]);
    let service = bind(&listen, &options, limits, runtime.workers(), handle)
        .map_err(|error| with_remedy(&error, "ss -ltnp"))?;
    let both = Both::of(&args.engine, &runtime, &service)?;
    let subject = Subject::new(name, service.addresses(), service.counters());
    let allowed = args.allow.list();
    let subject =
        subject.with_details("allow", &allowed, format!("answers {}", allowed.join(", ")));
    let admin = args.admin.bind()?;
    let subject = admin::with_details(subject, admin.as_ref());
    let paths = Paths { own_process: admin.is_some(), ..Paths::default() };
    become_unprivileged(&mut sandbox, &runtime, &paths, identity.as_ref())?;
    let engine = engine_name(runtime.features(), both.is_some());
    let observer = service.observer(engine, plain_metrics(name, service.counters()));
    let at_end = admin::start(admin, observer)?;
    let hooks = Hooks { drain_timeout: args.drain_timeout, both, at_end, ..Hooks::default() };
    operate(runtime, subject, &args.output, hooks, sandbox, |ready| {
        let service = Arc::new(service.on_ready(ready));
        move |worker| Arc::clone(&service).run(worker)
    })
}
