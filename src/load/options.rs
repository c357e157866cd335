//! Options of several loads.

use super::start::StartAt;
use crate::engine_args::CpuList;
use crate::values::{self, duration};
use clap::Args;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;
use twinring::{EngineChoice, EpollOptions, UringOptions};
use twinring_input::quantity;
use twinring_load::Workers;
use twinring_load::gates::{Gates, Slo};

/// Options of all loads.
#[derive(Debug, Args)]
pub(super) struct Common {
    /// Worker threads, each with its own engine and its share of the load.
    #[arg(short, long, value_name = "T", default_value = "1", value_parser = values::count,
          help_heading = "Engine")]
    threads: u32,
    /// CPUs for the threads, assigned in turn, such as `0,2-3`.
    #[arg(long, value_name = "CPUS", help_heading = "Engine")]
    pin: Option<CpuList>,
    /// The load generator's own engine; `auto` uses io_uring if it is allowed, otherwise epoll.
    #[arg(
        long,
        value_name = "auto|io_uring|epoll",
        default_value = "auto",
        help_heading = "Engine"
    )]
    engine: EngineChoice,
    /// Features of io_uring, such as `multishot=off,buffer_count=1024`.
    #[arg(
        long,
        value_name = "KEY=VALUE,...",
        default_value = "",
        hide_default_value = true,
        help_heading = "Engine"
    )]
    uring: UringOptions,
    /// Features of epoll, such as `buffer_count=64`.
    #[arg(
        long,
        value_name = "KEY=VALUE,...",
        default_value = "",
        hide_default_value = true,
        help_heading = "Engine"
    )]
    epoll: EpollOptions,

    /// Print JSON lines on standard output.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
    /// Connect now and begin at this moment, in seconds since 1970 with a fraction. So several load generators
    /// begin together, on any machines whose clocks agree.
    #[arg(long, value_name = "SECONDS", value_parser = StartAt::parse, help_heading = "Pattern")]
    pub(super) start_at: Option<StartAt>,
}

impl Common {
    pub(super) fn workers(self) -> Workers {
        let Common { threads, pin, engine, uring, epoll, .. } = self;
        let pin = pin.map(|list| list.0).unwrap_or_default();
        Workers { threads: threads as usize, pin, engine, uring, epoll }
    }
}

/// How long a load over connections runs.
#[derive(Debug, Args)]
pub(super) struct Times {
    /// Length of the measured window; with -n, its longest [default: 10s, then 1h].
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Load before the window [default: 1s; 0s with -n].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warmup: Option<Duration>,
}

impl Times {
    /// Window and warm-up; `counted` if a number of requests ends the run.
    pub(super) fn in_use(&self, counted: bool) -> (Duration, Duration) {
        let (duration, warmup) = match counted {
            false => (Duration::from_secs(10), Duration::from_secs(1)),
            true => (Duration::from_secs(3600), Duration::ZERO),
        };
        (self.duration.unwrap_or(duration), self.warmup.unwrap_or(warmup))
    }
}

/// How connections are opened, and their timeouts.
#[derive(Debug, Args)]
pub(super) struct Network {
    /// Timeout of one attempt to connect.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    pub(super) connect_timeout: Duration,
    /// Timeout of one answer; a connection that exceeds it is abandoned.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    pub(super) timeout: Duration,
    /// Source addresses, used in turn; each has its own 28,000 ports.
    #[arg(long, value_name = "IP,...", value_delimiter = ',', help_heading = "Network")]
    pub(super) local: Vec<IpAddr>,
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

/// The address of a server.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let resolved = text.to_socket_addrs().map_err(|error| format!("{error}; expected HOST:PORT"));
    resolved?.next().ok_or_else(|| "the name has no address".to_owned())
}
