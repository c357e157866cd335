//! `twinring load`: from arguments to a load, its result, and its exit code.

mod http;

use crate::output::{self, complain, or_usage, raise_descriptor_limit};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use twinring::measure::monotonic_ns;
use twinring_lab::CpuList;
use twinring_load::address::{Probe, reachable, resolve};
use twinring_load::http::HttpSettings;
use twinring_load::tcp::TcpSettings;
use twinring_load::udp::UdpSettings;
use twinring_load::{Environment, Generator, Observer, Phase, Progress, Stopper, gates, table};
use twinring_wire::LoadResult;
use twinring_wire::load::Mark;

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
    /// Connect now and begin at this moment, in seconds since 1970 with a fraction, so that several load generators
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
            let server = or_usage(resolve(&run.settings.target));
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
            let server = or_usage(resolve(&run.settings.target));
            drive(*run, server, Probe::Udp)
        }
    };
    ended.unwrap_or_else(|error| {
        output::refuse(&format!("twinring: {error}"));
        ExitCode::FAILURE
    })
}

/// Runs a load against those of the server's addresses that it answers at; the others are named on standard error.
fn drive<S: Generator + Args>(
    Run { mut settings, output }: Run<S>,
    server: Vec<SocketAddr>,
    probe: Probe,
) -> Result<ExitCode, Box<dyn Error>> {
    let common = settings.common();
    let expected = common.duration;
    common.addresses.clone_from(&server);
    common.workers.pin = output.pin.as_ref().map_or(Vec::new(), |it| it.all().to_vec());
    or_usage(settings.check());
    let (good, left_out) = reachable(server, probe)?;
    left_out.iter().for_each(|note| complain(&format!("twinring: left out {note}")));
    settings.common().addresses = good;
    let runtime = settings.runtime().build()?;
    raise_descriptor_limit();
    if let Some(fallback_reason) = runtime.fallback_reason() {
        let why = format!("because io_uring cannot be used: {fallback_reason}");
        complain(&format!("twinring: loading with epoll, {why}"));
    }
    let stopper = Stopper::default();
    let signal = watch(&stopper)?;
    let mut observer = Live::new(expected, S::UNIT, &output);
    let environment = Environment { runtime, stopper: &stopper, observer: &mut observer };
    let result = settings.run(environment);
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
fn watch(Stopper(stops): &Stopper) -> std::io::Result<Arc<AtomicUsize>> {
    let first = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(stops))?;
        flag::register_usize(signal, Arc::clone(&first), signal as usize)?;
        flag::register(signal, Arc::clone(stops))?;
    }
    Ok(first)
}

fn write_hgrm(result: &LoadResult, path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let latencies_ns = result.latencies().map_err(std::io::Error::other)?;
    twinring_load::write_hgrm(&latencies_ns, &mut file)?;
    file.flush()
}

/// The exit code of a run that has a result, after each reason for it.
fn ended(signal: usize, result: &LoadResult) -> ExitCode {
    let (shortfall, failure) = (result.shortfall(), result.failure());
    let breached: Vec<String> =
        result.gates().iter().filter(|gate| gate.breached).map(gates::in_words).collect();
    let failed = failure.iter().map(|what| format!("failed: {what}"));
    for what in shortfall.iter().cloned().chain(breached.iter().cloned()).chain(failed) {
        output::refuse(&format!("twinring: {what}"));
    }
    match signal {
        1.. => ExitCode::from(128 + signal as u8),
        0 if failure.is_some() => ExitCode::FAILURE,
        0 if !breached.is_empty() => ExitCode::from(BREACHED),
        0 if !shortfall.is_empty() => ExitCode::from(NOT_AS_ASKED),
        0 => ExitCode::SUCCESS,
    }
}

/// Output while a load runs: its marks as JSON, and on a terminal a line that is redrawn up to four times a second.
struct Live {
    bar: ProgressBar,
    /// The unit of the counts.
    noun: &'static str,
    /// Marks are written as JSON.
    marks: bool,
    /// Traffic begins then, or at once.
    start_at: Option<f64>,
    /// Answers and their latencies at the last update.
    before: (u64, f64),
    /// The moment had passed when all was connected.
    too_late: bool,
}

impl Live {
    /// `expected` is the maximum length of the window, `noun` the unit of the counts.
    fn new(expected: Duration, noun: &'static str, output: &Output) -> Live {
        // Hidden by itself when standard error is no terminal.
        let target = ProgressDrawTarget::stderr_with_hz(4);
        let bar = ProgressBar::with_draw_target(Some(expected.as_millis() as u64), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {msg}") {
            bar.set_style(style);
        }
        let (marks, start_at) = (output.json, output.start_at);
        Live { bar, noun, marks, start_at, before: (0, 0.0), too_late: false }
    }

    fn finish(&self) -> Result<(), String> {
        self.bar.finish_and_clear();
        let late = "--start-at: the moment had passed when all connections were open";
        if self.too_late { Err(late.to_owned()) } else { Ok(()) }
    }
}

impl Observer for Live {
    fn connected(&mut self) -> Option<u64> {
        let Some(start_at) = self.start_at else { return Some(0) };
        let ahead = Duration::try_from_secs_f64(ahead_s(start_at)).ok();
        self.too_late = ahead.is_none();
        Some(monotonic_ns().saturating_add(ahead?.as_nanos() as u64))
    }

    fn mark(&mut self, event: &str, monotonic_ns: u64) {
        let mark = Mark { event: event.to_owned(), monotonic_ns };
        if self.marks
            && let Ok(line) = serde_json::to_string(&mark)
        {
            // A reader who has left is noticed when the result is printed.
            output::print_line(&line);
        }
    }

    fn progress(&mut self, progress: &Progress) {
        let errors = progress.errors;
        self.bar.set_message(match progress.phase {
            Phase::Connecting => format!("connecting, {errors} errors"),
            Phase::WarmingUp => format!("warming up, {errors} errors"),
            Phase::Measuring => {
                self.bar.set_position((progress.window_s * 1e3) as u64);
                let rate = progress.answered as f64 / progress.window_s.max(1e-9);
                let (answered, latency_s) = self.before;
                self.before = (progress.answered, progress.latency_s);
                let latency = match progress.answered.saturating_sub(answered) {
                    0 => "no answer".to_owned(),
                    more => {
                        format!("{:.2} ms", (progress.latency_s - latency_s) * 1e3 / more as f64)
                    }
                };
                let (noun, window_s) = (self.noun, progress.window_s);
                format!("{window_s:.1} s, {rate:.0} {noun}/s, {latency}, {errors} errors")
            }
        });
    }
}
