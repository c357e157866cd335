//! Runs h2load, of nghttp2, and prints the lines of `twinring load http`: a second opinion on it.
//!
//! h2load sends, receives and takes the times. It announces when its window begins and ends, and logs
//! every request with its start, its status and its duration; those that ended between the two
//! announcements are counted here. It does not compare the content of answers, nor count them by
//! connection.

mod report;

use std::io::{self, BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use peer_common::say;
use twinring_wire::load::{Mark, WINDOW_END, WINDOW_START};

use report::{Answer, Totals, result};

/// HTTP requests in a closed loop by h2load.
#[derive(Parser)]
#[command(name = "h2load-window", version)]
struct Options {
    /// What is asked for.
    url: String,
    /// Connections that ask.
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Bytes of the file.
    #[arg(short, long)]
    size: u32,
    /// Requests in flight per connection.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Length of the window, in milliseconds, as `500ms`.
    #[arg(short, long, value_name = "MS")]
    duration: String,
    /// Load before the window, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "1000ms")]
    warmup: String,
    /// CPU to run on.
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
}

/// A moment by two clocks, in nanoseconds and in microseconds.
#[derive(Clone, Copy, Default)]
struct Moment {
    monotonic_ns: u64,
    real_us: u64,
}

fn main() -> ExitCode {
    peer_common::finish_load("h2load-window", run(&Options::parse()))
}

fn run(options: &Options) -> io::Result<u64> {
    peer_common::pin(options.pin)?;
    let log = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("h2load");
    command
        .args(["--h1", "--threads=1"])
        .arg(format!("--clients={}", options.connections))
        .arg(format!("--max-concurrent-streams={}", options.depth))
        .arg(format!("--duration={}", options.duration))
        .arg(format!("--warm-up-time={}", options.warmup))
        .arg(format!("--log-file={}", log.path().display()))
        .arg(&options.url)
        .stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| io::Error::other(format!("h2load ({error}); install nghttp2-client")))?;
    let mut window = [Moment::default(); 2];
    let mut totals = Totals::default();
    for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
        let line = line?;
        if line.starts_with("Main benchmark duration is started") {
            window[0] = mark(WINDOW_START)?;
        } else if line.starts_with("Main benchmark duration is over") {
            window[1] = mark(WINDOW_END)?;
        } else {
            totals.read(&line);
        }
    }
    let status = child.wait()?;
    if !status.success() || window.iter().any(|it| it.monotonic_ns == 0) {
        return Err(io::Error::other(format!("h2load ended without a window: {status}")));
    }
    let log = BufReader::new(log.reopen()?).lines();
    let answers = log.map(|line| Answer::read(&line?)).collect::<io::Result<Vec<_>>>()?;
    let result = result(options, version()?, window, &totals, &answers);
    say(&serde_json::to_string(&result)?)?;
    Ok(result.all.requests.answered)
}

/// `h2load nghttp2/1.52.0`: results depend on it, and it comes with the system.
fn version() -> io::Result<String> {
    let output = Command::new("h2load").arg("--version").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn mark(event: &str) -> io::Result<Moment> {
    let ns = |clock| clock_gettime(clock).map(|now| now.num_nanoseconds() as u64);
    let monotonic_ns = ns(ClockId::CLOCK_MONOTONIC)?;
    let real_us = ns(ClockId::CLOCK_REALTIME)? / 1_000;
    say(&serde_json::to_string(&Mark { event: event.to_owned(), monotonic_ns })?)?;
    Ok(Moment { monotonic_ns, real_us })
}
