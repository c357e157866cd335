//! The settings of all loads as options of a command line, and their bounds.

use crate::gates::Gates;
use crate::run::LINGER;
use crate::schedule::{Arrivals, RATE_PER_S_MAX, Schedule};
use clap::Args;
use clap::builder::ArgPredicate;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use twinring::config::{EpollOptions, UringOptions};
use twinring::{Builder, EngineChoice, Runtime};
use twinring_input::quantity::{count, count_u32, duration, rate};

/// Most connections, idle ones included: all ports of 64 addresses.
pub(crate) const CONNECTIONS_MAX: u64 = 1 << 22;
const THREADS_MAX: u32 = 1024;
/// Longest warm-up, window or timeout.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Worker threads, each with an engine of its own.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub struct Workers {
    /// Worker threads, each with its own engine and its share of the load.
    #[arg(short, long, value_name = "T", default_value = "1", value_parser = count_u32)]
    pub threads: u32,
    /// CPUs for the threads, in turn; empty leaves them to the scheduler.
    #[arg(skip)]
    pub pin: Vec<usize>,
    /// The load generator's own engine; `auto` uses io_uring if it is allowed, otherwise epoll.
    #[arg(long, value_name = "auto|io_uring|epoll", default_value = "auto")]
    pub engine: EngineChoice,
    /// Features of io_uring, such as `multishot=off,buffer_count=1024`.
    #[arg(long, value_name = "KEY=VALUE,...", default_value = "", hide_default_value = true)]
    pub uring: UringOptions,
    /// Features of epoll, such as `buffer_count=64`.
    #[arg(long, value_name = "KEY=VALUE,...", default_value = "", hide_default_value = true)]
    pub epoll: EpollOptions,
}

impl Workers {
    /// A runtime of these workers with these features of io_uring. A panic ends it: one connection or
    /// socket less is less load than requested.
    pub(crate) fn builder(&self, uring: UringOptions) -> Builder {
        Runtime::builder()
            .engine(self.engine)
            .uring(uring)
            .epoll(self.epoll.clone())
            .workers(self.threads as usize)
            .pin(self.pin.clone())
            .linger(LINGER)
            .stop_on_panic(true)
    }
}

/// Settings of every load. All numbers are totals over all threads.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Addresses of the server, used in turn.
    #[arg(skip)]
    pub addresses: Vec<SocketAddr>,
    /// Length of the measured window.
    #[arg(short, long, value_name = "TIME", value_parser = duration, default_value = "10s",
          default_value_if("requests", ArgPredicate::IsPresent, "1h"))]
    pub duration: Duration,
    /// Load before the window.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s",
          default_value_if("requests", ArgPredicate::IsPresent, "0s"))]
    pub warmup: Duration,
    /// Source addresses, used in turn; each has its own 28,000 ports.
    #[arg(long, value_name = "IP,...", value_delimiter = ',', help_heading = "Network")]
    pub local: Vec<IpAddr>,
    /// The threads.
    #[command(flatten)]
    pub workers: Workers,
    /// Limits of the latency and of errors.
    #[command(flatten)]
    pub gates: Gates,
}

impl Common {
    /// Checks whether the settings are valid for so many connections or sockets; `name` is the option of those.
    pub(crate) fn check(&self, name: &str, connections: u64, most: u64) -> Result<(), String> {
        let threads = self.workers.threads;
        between(name, connections, 1, most)?;
        between("--threads", threads, 1, THREADS_MAX)?;
        if u64::from(threads) > connections {
            let why = "each thread needs one";
            return Err(format!("--threads {threads} with {name} {connections}: {why}"));
        }
        between("--warmup", self.warmup, Duration::ZERO, TIME_MAX)?;
        between("--duration", self.duration, Duration::from_nanos(1), TIME_MAX)?;
        sources(&self.local, &self.addresses)
    }

    pub(crate) fn shown_addresses(&self) -> String {
        let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        all.join(", ")
    }
}

/// Settings of requests over connections.
#[derive(Args, Clone, Debug)]
pub struct RequestSettings {
    /// Connections that send, in total.
    #[arg(short, long, value_name = "N", default_value = "100", value_parser = count)]
    pub connections: u64,
    /// End the window when this many requests, in total, were sent in it and answered. Then --duration is its longest
    /// [default: 1h], and there is no warm-up by default.
    #[arg(short = 'n', long, visible_alias = "messages", value_name = "N", value_parser = count)]
    pub requests: Option<u64>,
    /// Addresses, times and threads.
    #[command(flatten)]
    pub common: Common,
    /// Open loop: requests per second, in total, on a fixed schedule; latency counts from the
    /// scheduled time.
    #[arg(long, value_name = "R", value_parser = rate, help_heading = "Pattern")]
    pub rate: Option<u64>,
    /// Requests of --rate at equal distances, or independent of each other, as those of many users are.
    #[arg(
        long,
        value_name = "periodic|poisson",
        requires = "rate",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        help_heading = "Pattern"
    )]
    pub arrivals: Arrivals,
    /// Timeout of one attempt to connect.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    pub connect_timeout: Duration,
    /// Timeout of one answer; a connection that exceeds it is abandoned.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration,
          help_heading = "Network")]
    pub timeout: Duration,
}

impl RequestSettings {
    /// Checks whether the settings are valid.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.common.check("--connections", self.connections, CONNECTIONS_MAX)?;
        let least = Duration::from_nanos(1);
        between("--rate", self.rate.unwrap_or(1), 1, RATE_PER_S_MAX)?;
        between("--requests", self.requests.unwrap_or(1), 1, u64::MAX - 1)?;
        between("--connect-timeout", self.connect_timeout, least, TIME_MAX)?;
        between("--timeout", self.timeout, least, TIME_MAX)
    }

    /// What an open loop keeps to, whose first request is due at `first_ns`.
    pub(crate) fn schedule(&self, first_ns: u64) -> Option<Schedule> {
        let rate = self.rate? * 1_000_000;
        Some(Schedule::new(first_ns, rate, self.connections, self.arrivals))
    }

    pub(crate) fn arrivals(&self) -> Option<String> {
        self.is_open().then(|| format!("{:?}", self.arrivals).to_lowercase())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.rate.is_some()
    }

    pub(crate) fn mode(&self) -> String {
        if self.is_open() { "open" } else { "closed" }.to_owned()
    }

    /// A runtime with receive buffers of this size, at most so many for each thread, unless others than the default
    /// were configured. Buffers of another size have a suitable number by default.
    pub(crate) fn builder(&self, bytes: u32, most: u64) -> Builder {
        let (workers, default) = (&self.common.workers, UringOptions::default());
        let mut uring = workers.uring.clone();
        if uring.buffer_bytes == default.buffer_bytes {
            uring.buffer_bytes = bytes;
            if uring.buffer_count == default.buffer_count {
                let share = self.connections.div_ceil(workers.threads.into());
                uring.buffer_count = (2 * share).clamp(64, most).next_power_of_two() as u32;
            }
        }
        workers.builder(uring)
    }
}

/// Whether the value of an option is within its bounds.
pub(crate) fn between<T: PartialOrd + fmt::Debug>(
    name: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), String> {
    match (&least..=&most).contains(&&value) {
        true => Ok(()),
        false => Err(format!("{name} {value:?}: expected {least:?} to {most:?}")),
    }
}

/// Source addresses must be of the family of a target's address, and each of those needs one.
fn sources(local: &[IpAddr], addresses: &[SocketAddr]) -> Result<(), String> {
    let Some(first) = addresses.first() else { return Err("no address of the server".to_owned()) };
    if let Some(address) = addresses.iter().find(|address| address.port() == 0) {
        return Err(format!("{address}: port 0 is not a valid target"));
    }
    let reaches = |ip: &IpAddr, address: &SocketAddr| ip.is_ipv4() == address.is_ipv4();
    if let Some(other) = local.iter().find(|ip| !addresses.iter().any(|it| reaches(ip, it))) {
        return Err(format!("--local {other} cannot reach {first}"));
    }
    let is_unreached = |it: &&SocketAddr| !local.iter().any(|ip| reaches(ip, it));
    match addresses.iter().find(is_unreached).filter(|_| !local.is_empty()) {
        Some(address) => Err(format!("--local has no address that can reach {address}")),
        None => Ok(()),
    }
}
