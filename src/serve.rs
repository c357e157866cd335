//! `twinring serve`: from arguments to a running service, and its exit code.

mod admin;
mod allow;
mod families;
pub mod fuzzing;
mod http;
mod live;
mod notices;
mod report;
mod sandbox;
mod signals;
mod tcp;
mod udp;
mod user;

use clap::{Args, Subcommand};
use live::Live;
use report::{Reporter, Subject, complain};
pub(crate) use sandbox::{Format, profile};
use sandbox::{Paths, Sandbox};
use serde::Serialize;
use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use twinring::Runtime;
use user::Identity;

/// Exit code for invalid arguments and configuration files.
const USAGE: u8 = 2;

/// Errors of a command line or configuration file that are printed; further ones are counted.
const PROBLEMS_MAX: usize = 50;

#[derive(Debug, Subcommand)]
pub(crate) enum Service {
    /// Send every byte back to where it came from (TCP).
    Echo(Box<tcp::TcpArgs>),
    /// Read every byte and answer none (TCP).
    Discard(Box<tcp::TcpArgs>),
    /// Serve the files of a directory over HTTP/1.1.
    Http(Box<http::HttpArgs>),
    /// Send every datagram back to its sender (UDP), impaired on request.
    Udp(Box<udp::UdpArgs>),
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// Print one line of counters every SECS seconds.
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    stats: Option<u32>,
    /// Print JSON lines on standard output.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(service: Service) -> ExitCode {
    twinring::keep_freed_memory();
    // The task of one connection may panic, and a worker must not wait for standard error.
    std::panic::set_hook(Box::new(|panic| notices::tell(format!("twinring: a bug: {panic}"))));
    let _told = Told;
    let outcome = match service {
        Service::Echo(args) => tcp::serve_echo(&args),
        Service::Discard(args) => tcp::serve_discard(&args),
        Service::Http(args) => http::serve(*args),
        Service::Udp(args) => udp::serve(&args),
    };
    outcome.unwrap_or_else(|error| {
        notices::tell(format!("twinring: {error}"));
        ExitCode::FAILURE
    })
}

/// Dropped at the end, on success and on failure: waits until all notices are printed.
struct Told;

impl Drop for Told {
    fn drop(&mut self) {
        notices::finish(report::LAST_WORDS_MAX);
    }
}

/// Drops the rights that a service without files does not need, once its addresses are bound.
fn become_unprivileged(
    sandbox: &mut Sandbox,
    runtime: &Runtime,
    paths: &Paths,
    identity: Option<&Identity>,
) -> Result<(), String> {
    sandbox.enter(runtime, paths, identity)?;
    identity.map_or(Ok(()), Identity::assume)
}

/// Prints the errors.
fn refuse(problems: &[String], code: u8) -> ExitCode {
    let told = problems.iter().take(PROBLEMS_MAX);
    told.for_each(|problem| complain(&format!("twinring: {problem}")));
    if let Some(more @ 1..) = problems.len().checked_sub(PROBLEMS_MAX) {
        complain(&format!("twinring: and {more} more"));
    }
    ExitCode::from(code)
}

type AtEnd = Box<dyn FnOnce(&signals::Received)>;

/// The needs of a service besides being run.
#[derive(Default)]
struct Hooks {
    /// How long a drain may take.
    drain_timeout: Duration,
    /// The comparison of the engines.
    live: Option<Arc<Live>>,
    /// Actions on signals that do not end it.
    signals: signals::Actions,
    /// Called when all workers have ended, before the last line of its report. It may wait for a
    /// bounded time, and not after a second signal.
    at_end: Option<AtEnd>,
}

/// Runs a bound service until a signal ends it, and reports on the way. `prepare` gets the function
/// to call once the service is ready, and returns the function that each worker runs.
fn operate<C, Run, Fut>(
    runtime: Runtime,
    subject: Subject<C>,
    output: &OutputArgs,
    hooks: Hooks,
    sandbox: Sandbox,
    prepare: impl FnOnce(Box<dyn Fn() + Send + Sync>) -> Run,
) -> Result<ExitCode, Box<dyn Error>>
where
    C: Serialize + 'static,
    Run: Fn(usize) -> Fut + Sync,
    Fut: Future<Output = io::Result<()>> + 'static,
{
    let signals = signals::watch(runtime.handle(), hooks.signals, hooks.drain_timeout)?;
    let reporter = Arc::new(Reporter::new(subject, output.json, &runtime, hooks.live.clone()));
    let (ready, sandbox) = (Arc::clone(&reporter), Arc::new(sandbox));
    let (sealing, handle, json) = (Arc::clone(&sandbox), runtime.handle(), output.json);
    let unsealed = Arc::new(OnceLock::new());
    let problem = Arc::clone(&unsealed);
    let live = hooks.live;
    let run = prepare(Box::new(move || match sealing.seal(json) {
        Ok(report) => {
            // First, so that the comparison runs before the ready line is printed.
            live.iter().for_each(Live::start);
            ready.ready(&report);
            if sealing.only_checks() {
                handle.shutdown();
            }
        }
        Err(why) => {
            let _only_one_is_ready_last = problem.set(why);
            handle.stop();
        }
    }));
    if let Some(seconds) = output.stats {
        reporter.print_every(Duration::from_secs(u64::from(seconds)))?;
    }
    let failure = match runtime.run(run) {
        Err(error) => Some(error.to_string()),
        // A worker without a result was stopped by the second signal.
        Ok(workers) => {
            workers.into_iter().flatten().find_map(|worker| Some(worker.err()?.to_string()))
        }
    };
    signals.workers_have_ended();
    if let Some(at_end) = hooks.at_end {
        at_end(&signals);
    }
    let failure = failure.or(unsealed.get().cloned());
    notices::finish(report::LAST_WORDS_MAX);
    reporter.last(&failure.as_ref().map_or_else(|| signals.reason(), |_| "failed".to_owned()));
    match failure {
        Some(failure) => Err(failure.into()),
        None if sandbox.is_leaky() => Ok(ExitCode::FAILURE),
        None => Ok(signals.exit_code()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = |_| "expected a duration such as 500ms, 10s or 5m".to_owned();
    text.parse::<jiff::SignedDuration>().and_then(Duration::try_from).map_err(wrong)
}

fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a timeout of 0 would close every connection at once".to_owned()),
        timeout => Ok(timeout),
    }
}

/// Prints the first notice of each kind; every worker and listener sends its own.
fn print_once() -> impl Fn(twinring::Notice) + Send + Sync + 'static {
    let told = Mutex::new(HashSet::new());
    move |notice| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.insert(std::mem::discriminant(&notice)) {
            notices::tell(format!("twinring: {notice}"));
        }
    }
}

/// Adds a fix to the reason why an address could not be bound; `ss` is the command that shows the
/// socket that has it.
fn with_remedy(error: &io::Error, ss: &str) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => {
            &format!("; another socket has this address: `{ss}` shows it; or choose another port")
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
