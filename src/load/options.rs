//! Options of several loads.

use super::outcome::refuse;
use crate::output::complain;
use crate::values::{self, duration};
use clap::Args;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use twinring::{
    EngineChoice,
    config::{EpollOptions, UringOptions},
};
use twinring_input::quantity::{self, count, rate};
use twinring_lab::CpuList;
use twinring_load::address::{Probe, reachable, resolve};
use twinring_load::gates::{Gates, Slo};
use twinring_load::schedule::Arrivals;
use twinring_load::{Common, Workers};

/// Options of all loads.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(super) struct Engine {
    /// Worker threads, each with its own engine and its share of the load.
    #[arg(short, long, value_name = "T", default_value = "1", value_parser = values::count)]
    threads: u32,
    /// CPUs for the threads, assigned in turn, such as `0,2-3`.
    #[arg(long, value_name = "CPUS")]
    pin: Option<CpuList>,
    /// The load generator's own engine; `auto` uses io_uring if it is allowed, otherwise epoll.
    #[arg(long, value_name = "auto|io_uring|epoll", default_value = "auto")]
    engine: EngineChoice,
    /// Features of io_uring, such as `multishot=off,buffer_count=1024`.
    #[arg(long, value_name = "KEY=VALUE,...", default_value = "", hide_default_value = true)]
    uring: UringOptions,
    /// Features of epoll, such as `buffer_count=64`.
    #[arg(long, value_name = "KEY=VALUE,...", default_value = "", hide_default_value = true)]
    epoll: EpollOptions,
}

impl From<Engine> for Workers {
    fn from(Engine { threads, pin, engine, uring, epoll }: Engine) -> Workers {
        let pin = pin.map(|list| list.all().to_vec()).unwrap_or_default();
        Workers { threads: threads as usize, pin, engine, uring, epoll }
    }
}

/// What is printed, and when the load begins.
#[derive(Debug, Args)]
pub(super) struct Output {
    /// Print JSON lines on standard output.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
    /// Write the latencies as a table of percentiles for HdrHistogram's plotters.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) hgrm: Option<PathBuf>,
    /// Connect now and begin at this moment, in seconds since 1970 with a fraction. So several load generators
    /// begin together, on any machines whose clocks agree.
    #[arg(long, value_name = "SECONDS", value_parser = start_at, help_heading = "Pattern")]
    pub(super) start_at: Option<f64>,
}

/// How far ahead the moment may be.
const AHEAD_MAX: Duration = Duration::from_secs(600);

fn start_at(text: &str) -> Result<f64, String> {
    let unix_s: f64 = text.parse().map_err(|_| "expected seconds since 1970".to_owned())?;
    match ahead_s(unix_s) <= AHEAD_MAX.as_secs_f64() {
        true => Ok(unix_s),
        false => Err(format!("expected a moment at most {} s ahead", AHEAD_MAX.as_secs())),
    }
}

/// By the clock of this host; negative if the moment has passed.
pub(super) fn ahead_s(unix_s: f64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    unix_s - now.as_secs_f64()
}

/// Limits that decide about the exit code.
#[derive(Debug, Args)]
pub(super) struct GateArgs {
    /// Exit code 3 if a percentile of the latency is longer, such as p99=20ms, p99.9=1s or max=5s; of `load udp`, of
    /// the round trip.
    #[arg(long, value_name = "PERCENTILE=TIME,...", value_delimiter = ',', help_heading = "Gates")]
    slo: Vec<Slo>,
    /// Exit code 3 if a larger share failed or stayed without an answer, such as 1%. Without it, any failed request
    /// ends with exit code 1; of `load udp`, loss is a result.
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, help_heading = "Gates")]
    max_error_rate: Option<f64>,
}

impl From<GateArgs> for Gates {
    fn from(GateArgs { slo, max_error_rate }: GateArgs) -> Gates {
        Gates { slo, max_error_rate }
    }
}

/// Options of requests over connections.
#[derive(Debug, Args)]
pub(super) struct RequestArgs {
    /// Connections that send, in total.
    #[arg(short, long, value_name = "N", default_value = "100", value_parser = count)]
    connections: u64,
    /// End the window when this many requests, in total, were sent in it and answered.
    #[arg(short = 'n', long, visible_alias = "messages", value_name = "N", value_parser = count)]
    requests: Option<u64>,
    /// Length of the measured window; with -n, its longest [default: 10s, then 1h].
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Load before the window [default: 1s; 0s with -n].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warmup: Option<Duration>,
    /// Open loop: requests per second, in total, on a fixed schedule; latency counts from the
    /// scheduled time.
    #[arg(long, value_name = "R", value_parser = rate, help_heading = "Pattern")]
    rate: Option<u64>,
    /// How the requests of --rate follow each other: at equal distances (periodic), or independently
    /// of each other, as those of many users do (poisson).
    #[arg(long, value_name = "HOW", requires = "rate", default_value_t, help_heading = "Pattern")]
    arrivals: Arrivals,
    /// Timeout of one attempt to connect.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    connect_timeout: Duration,
    /// Timeout of one answer; a connection that exceeds it is abandoned.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    timeout: Duration,
    /// Source addresses, used in turn; each has its own 28,000 ports.
    #[arg(long, value_name = "IP,...", value_delimiter = ',', help_heading = "Network")]
    local: Vec<IpAddr>,
    #[command(flatten)]
    engine: Engine,
    #[command(flatten)]
    gates: GateArgs,
}

impl RequestArgs {
    /// The settings for a server with these addresses.
    pub(super) fn common(self, addresses: Vec<SocketAddr>) -> Common {
        let (duration, warmup) = match self.requests {
            None => (Duration::from_secs(10), Duration::from_secs(1)),
            Some(_) => (Duration::from_secs(3600), Duration::ZERO),
        };
        Common {
            addresses,
            connections: self.connections,
            workers: self.engine.into(),
            rate_per_s: self.rate,
            arrivals: self.arrivals,
            warmup: self.warmup.unwrap_or(warmup),
            duration: self.duration.unwrap_or(duration),
            requests: self.requests,
            connect_timeout: self.connect_timeout,
            timeout: self.timeout,
            local: self.local,
            gates: self.gates.into(),
        }
    }
}

/// The addresses of a server by its name. Ends the program if it is none.
pub(super) fn addresses(server: &str) -> Vec<SocketAddr> {
    refuse(resolve(server))
}

/// Keeps the addresses that the server answers at; the others are named on standard error.
pub(super) fn keep_answering(common: &mut Common, probe: Probe) -> Result<(), String> {
    let addresses = std::mem::take(&mut common.addresses);
    let (good, notes) = reachable(addresses, probe, common.connect_timeout)?;
    notes.iter().for_each(|note| complain(&format!("twinring: left out {note}")));
    common.addresses = good;
    Ok(())
}
