//! `twinring serve`: from arguments to a running service, and its exit code.

mod report;
mod signals;

use crate::engine_args::EngineArgs;
use clap::{Args, Subcommand};
use report::{Reporter, complain};
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use twinring::ListenOptions;
use twinring_services::{Connection, Limits, TcpService, echo, raise_descriptor_limit};

#[derive(Debug, Subcommand)]
pub(crate) enum Service {
    /// Send every byte back to where it came from (TCP).
    Echo(TcpArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TcpArgs {
    /// Address to listen on; may be given several times, for IPv4 and IPv6 (`[::1]:7000`).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7000")]
    listen: Vec<SocketAddr>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Connections served at once; more are accepted and closed at once.
    #[arg(long, value_name = "N", help_heading = "Limits",
          value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    /// Close a connection on which nothing moved for this long, such as `30s` or `5m`.
    #[arg(long, value_name = "DURATION", help_heading = "Limits", value_parser = timeout)]
    idle_timeout: Option<Duration>,
    /// How long a shutdown waits for peers to take what was received from them.
    #[arg(long, value_name = "DURATION", help_heading = "Limits", default_value = "10s",
          value_parser = duration)]
    drain_timeout: Duration,
    /// Connections the kernel holds before they are accepted; net.core.somaxconn caps it.
    #[arg(long, value_name = "N", help_heading = "Limits", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    backlog: u32,
    /// Print one line of counters every so many seconds.
    #[arg(long, value_name = "SECS", help_heading = "Output",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    stats: Option<u32>,
    /// Print JSON lines on standard output.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = |_| "expected a duration such as 500ms, 10s or 5m".to_owned();
    text.parse::<jiff::SignedDuration>().and_then(Duration::try_from).map_err(wrong)
}

fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a timeout of 0 would close everything at once".to_owned()),
        timeout => Ok(timeout),
    }
}

pub(crate) fn run(service: Service) -> ExitCode {
    let outcome = match service {
        Service::Echo(args) => serve_tcp("echo", echo::echo, &args),
    };
    outcome.unwrap_or_else(|error| {
        complain(&format!("twinring: {error}"));
        ExitCode::FAILURE
    })
}

/// Runs a TCP service until a signal ends it.
fn serve_tcp<S>(name: &'static str, serve: S, args: &TcpArgs) -> Result<ExitCode, Box<dyn Error>>
where
    S: AsyncFn(&Connection) -> io::Result<()> + Clone + Send + Sync + 'static,
{
    if let Err(error) = raise_descriptor_limit() {
        complain(&format!("twinring: the limit of open descriptors stays as it is: {error}"));
    }
    // A service flushes before it closes; what is then still unsent was cut on purpose.
    let runtime = args.engine.runtime().linger(Duration::ZERO).on_notice(print_once()).build()?;
    let handle = runtime.handle();
    let options = ListenOptions { backlog: args.backlog, ..ListenOptions::default() };
    let limits = Limits {
        max_connections: args.max_connections.map_or(usize::MAX, |maximum| maximum as usize),
        idle_timeout: args.idle_timeout,
        drain_timeout: args.drain_timeout,
    };
    let workers = runtime.workers();
    let service = TcpService::bind(serve, &args.listen, &options, limits, workers, handle.clone())
        .map_err(with_remedy)?;
    let signals = signals::watch(handle.clone())?;
    let reporter = Arc::new(Reporter::new(
        name,
        args.json,
        &runtime,
        service.addresses().to_vec(),
        Box::new(service.counters()),
    ));
    let ready = Arc::clone(&reporter);
    let service = Arc::new(service.on_ready(move || ready.ready()));
    if let Some(seconds) = args.stats {
        reporter.print_every(Duration::from_secs(u64::from(seconds)))?;
    }
    let outcome = runtime.run(|worker| Arc::clone(&service).run(worker));
    let failure = match outcome {
        Err(error) => Some(error.to_string()),
        // A worker without a result was stopped by the second signal.
        Ok(workers) => {
            workers.into_iter().flatten().find_map(|worker| Some(worker.err()?.to_string()))
        }
    };
    reporter.last(&failure.as_ref().map_or_else(|| signals.reason(), |_| "failed".to_owned()));
    match failure {
        Some(failure) => Err(failure.into()),
        None => Ok(signals.exit_code()),
    }
}

/// Tells the operator the first notice of this kind; every worker and listener sends its own.
fn print_once() -> impl Fn(twinring::Notice) + Send + Sync + 'static {
    let told = AtomicBool::new(false);
    move |notice| {
        if !told.swap(true, Ordering::Relaxed) {
            complain(&format!("twinring: {notice}"));
        }
    }
}

/// Adds to the reason why an address could not be bound what can be done about it.
fn with_remedy(error: io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another socket has this address: `ss -ltnp` shows whose, or choose another port"
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE: choose \
             a higher port or grant the capability"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; no interface of this machine has this address: `ip address` lists those it has"
        }
        _ => "",
    };
    format!("{error}{remedy}")
}
