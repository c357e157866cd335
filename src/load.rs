//! `twinring load`: from arguments to a load, its result, and its exit code.

mod http;
mod observe;

use self::observe::Live;
use crate::output::{self, complain, raise_descriptor_limit};
use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use twinring_lab::CpuList;
use twinring_load::address::{Probe, reachable, resolve};
use twinring_load::http::HttpSettings;
use twinring_load::tcp::TcpSettings;
use twinring_load::udp::UdpSettings;
use twinring_load::{Generator, Stopper, gates, table};
use twinring_wire::LoadResult;

/// The exit code of a run that breached a gate.
const BREACHED: u8 = 3;
/// That of a run whose load was not the one that was asked for.
const NOT_AS_ASKED: u8 = 4;
/// How far ahead the moment of `--start-at` may be.
const AHEAD_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Subcommand)]
pub(crate) enum Load {
    /// Requests over TCP to a server that echoes them.
    Tcp(Box<Run<TcpSettings>>),
    /// Requests over HTTP/1.1 or HTTP/2, each answer checked.
    Http(Box<Run<HttpSettings>>),
    /// Streams of datagrams, by default RTP, to a server that reflects them.
    Udp(Box<Run<UdpSettings>>),
}

#[derive(Debug, Args)]
pub(crate) struct Run<S: Args> {
    #[command(flatten)]
    settings: S,
    #[command(flatten)]
    output: Output,
}

/// What is printed, and where and when the load begins.
#[derive(Debug, Args)]
struct Output {
    /// CPUs for the threads, assigned in turn, such as `0,2-3`.
    #[arg(long, value_name = "CPUS", help_heading = "Engine")]
    pin: Option<CpuList>,
    /// Print JSON lines on standard output.
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write the latencies as a table of percentiles for HdrHistogram's plotters.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    hgrm: Option<PathBuf>,
    /// Connect now and begin at this moment, in seconds since 1970 with a fraction. So several load generators
    /// begin together, on any machines whose clocks agree.
    #[arg(long, value_name = "SECONDS", value_parser = start_at, help_heading = "Pattern")]
    start_at: Option<f64>,
}

fn start_at(text: &str) -> Result<f64, String> {
    let unix_s: f64 = text.parse().map_err(|_| "expected seconds since 1970".to_owned())?;
    match ahead_s(unix_s) <= AHEAD_MAX.as_secs_f64() {
        true => Ok(unix_s),
        false => Err(format!("expected a moment at most {} s ahead", AHEAD_MAX.as_secs())),
    }
}

/// By the clock of this host; negative if the moment has passed.
fn ahead_s(unix_s: f64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    unix_s - now.as_secs_f64()
}

pub(crate) fn run(load: Load) -> ExitCode {
    let ended = match load {
        Load::Tcp(run) => {
            let server = refuse(resolve(&run.settings.target));
            let probe = Probe::Tcp(run.settings.requests.connect_timeout);
            drive(*run, server, probe)
        }
        Load::Http(mut run) => {
            http::prepare(&mut run.settings).map_err(Into::into).and_then(|server| {
                let probe = Probe::Tcp(run.settings.requests.connect_timeout);
                drive(*run, server, probe)
            })
        }
        // Streams are to one address: the first that does not refuse datagrams.
        Load::Udp(run) => {
            let server = refuse(resolve(&run.settings.target));
            drive(*run, server, Probe::Udp)
        }
    };
    ended.unwrap_or_else(|error| {
        output::refuse(&format!("twinring: {error}"));
        ExitCode::FAILURE
    })
}

/// Ends the program if the arguments make no sense.
fn refuse<T>(checked: Result<T, String>) -> T {
    checked.unwrap_or_else(|wrong| {
        let error = clap::Error::raw(ErrorKind::ValueValidation, format!("{wrong}\n"));
        std::process::exit(output::usage(&error).into())
    })
}

/// Runs a load against those of the server's addresses that it answers at; the others are named on standard error.
fn drive<S: Generator + Args>(
    Run { mut settings, output }: Run<S>,
    server: Vec<SocketAddr>,
    probe: Probe,
) -> Result<ExitCode, Box<dyn Error>> {
    let common = settings.common();
    (common.addresses, common.workers.pin) =
        (server, output.pin.map_or(Vec::new(), |it| it.all().to_vec()));
    refuse(settings.check());
    let common = settings.common();
    let (good, left_out) = reachable(std::mem::take(&mut common.addresses), probe)?;
    left_out.iter().for_each(|note| complain(&format!("twinring: left out {note}")));
    common.addresses = good;
    let expected = common.duration;
    let runtime = settings.runtime().build()?;
    raise_descriptor_limit();
    if let Some(fallback_reason) = runtime.fallback_reason() {
        let why = format!("because io_uring cannot be used: {fallback_reason}");
        complain(&format!("twinring: loading with epoll, {why}"));
    }
    let stopper = Stopper::default();
    let signal = watch(stopper.clone())?;
    let mut observer = Live::new(expected, S::UNIT, output.json, output.start_at);
    let result = settings.run(runtime, &stopper, &mut observer);
    observer.finish()?;
    let result = result?;
    let text = match output.json {
        true => serde_json::to_string(&result)?,
        false => table(&result),
    };
    output::print(&format!("{}\n", text.trim_end()))?;
    if let Some(path) = output.hgrm {
        write_hgrm(&result, &path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(ended(signal.load(Ordering::Acquire), &result))
}

/// Handles SIGINT and SIGTERM: the first, 0 before it, ends the window, and the second ends the program.
fn watch(stopper: Stopper) -> std::io::Result<Arc<AtomicU8>> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let first = Arc::new(AtomicU8::new(0));
    let seen = Arc::clone(&first);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if seen.load(Ordering::Acquire) != 0 {
                std::process::exit(128 + signal);
            }
            seen.store(signal as u8, Ordering::Release);
            stopper.stop();
        }
    })?;
    Ok(first)
}

fn write_hgrm(result: &LoadResult, path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let latencies_ns = result.latencies().map_err(std::io::Error::other)?;
    twinring_load::write_hgrm(&latencies_ns, &mut file)?;
    file.flush()
}

/// The exit code of a run that has a result, after each reason for it.
fn ended(signal: u8, result: &LoadResult) -> ExitCode {
    let (shortfall, failure) = (result.shortfall(), result.failure());
    let breached: Vec<String> =
        result.gates().iter().filter(|gate| gate.breached).map(gates::in_words).collect();
    let failed = failure.iter().map(|what| format!("failed: {what}"));
    for what in shortfall.iter().cloned().chain(breached.iter().cloned()).chain(failed) {
        output::refuse(&format!("twinring: {what}"));
    }
    match signal {
        1.. => ExitCode::from(128 + signal),
        0 if failure.is_some() => ExitCode::FAILURE,
        0 if !breached.is_empty() => ExitCode::from(BREACHED),
        0 if !shortfall.is_empty() => ExitCode::from(NOT_AS_ASKED),
        0 => ExitCode::SUCCESS,
    }
}
