//! The settings that all loads of requests over connections share, and the bounds of all settings.

use crate::gates::Gates;
use crate::schedule::{Arrivals, RATE_PER_S_MAX, Schedule};
use crate::workers::Workers;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use twinring::EngineChoice;
use twinring::config::{EpollOptions, UringOptions};

/// Most connections, idle ones included: all ports of 64 addresses.
pub(crate) const CONNECTIONS_MAX: u64 = 1 << 22;
pub(crate) const THREADS_MAX: usize = 1024;
/// Longest warm-up, window or timeout.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Settings of requests over connections. All numbers are totals over all threads.
#[derive(Clone, Debug)]
pub struct Common {
    /// Addresses of the server, used in turn.
    pub addresses: Vec<SocketAddr>,
    /// Connections that send.
    pub connections: u64,
    /// Worker threads and their engine.
    pub workers: Workers,
    /// Requests per second: makes it an open loop.
    pub rate_per_s: Option<u64>,
    /// How the requests of an open loop follow each other.
    pub arrivals: Arrivals,
    /// Load before the window.
    pub warmup: Duration,
    /// Length of the window; with `requests`, its longest.
    pub duration: Duration,
    /// The window ends when this many requests are answered.
    pub requests: Option<u64>,
    /// Timeout of one attempt to connect, including the TLS handshake.
    pub connect_timeout: Duration,
    /// Timeout of one answer.
    pub timeout: Duration,
    /// Source addresses, used in turn; empty leaves them to the kernel.
    pub local: Vec<IpAddr>,
    /// Limits of the latency and of errors.
    pub gates: Gates,
}

impl Common {
    /// Settings for a server: one connection, 1 s of warm-up, 10 s of window.
    pub fn new(addresses: Vec<SocketAddr>) -> Common {
        Common {
            addresses,
            connections: 1,
            workers: Workers {
                threads: 1,
                pin: Vec::new(),
                engine: EngineChoice::default(),
                uring: UringOptions::default(),
                epoll: EpollOptions::default(),
            },
            rate_per_s: None,
            arrivals: Arrivals::default(),
            warmup: Duration::from_secs(1),
            duration: Duration::from_secs(10),
            requests: None,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            local: Vec::new(),
            gates: Gates::default(),
        }
    }

    /// Checks whether the settings are valid; `name` is the option of the connections.
    pub(crate) fn check(&self, name: &str, most: u64) -> Result<(), String> {
        let (threads, connections) = (self.workers.threads, self.connections);
        between(name, connections, 1, most)?;
        between("--threads", threads, 1, THREADS_MAX)?;
        if threads as u64 > connections {
            let why = "each thread needs one";
            return Err(format!("--threads {threads} with {name} {connections}: {why}"));
        }
        let least = Duration::from_nanos(1);
        between("--rate", self.rate_per_s.unwrap_or(1), 1, RATE_PER_S_MAX)?;
        between("--requests", self.requests.unwrap_or(1), 1, u64::MAX - 1)?;
        between("--warmup", self.warmup, Duration::ZERO, TIME_MAX)?;
        between("--duration", self.duration, least, TIME_MAX)?;
        between("--connect-timeout", self.connect_timeout, least, TIME_MAX)?;
        between("--timeout", self.timeout, least, TIME_MAX)?;
        sources(&self.local, &self.addresses)
    }

    /// What an open loop keeps to, whose first request is due at `first_ns`.
    pub(crate) fn schedule(&self, first_ns: u64) -> Option<Schedule> {
        let rate = self.rate_per_s? * 1_000_000;
        Some(Schedule::new(first_ns, rate, self.connections, self.arrivals))
    }

    pub(crate) fn arrivals(&self) -> Option<String> {
        self.is_open().then(|| self.arrivals.to_string())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.rate_per_s.is_some()
    }

    pub(crate) fn mode(&self) -> String {
        if self.is_open() { "open" } else { "closed" }.to_owned()
    }

    /// The connections of each thread, about.
    pub(crate) fn share(&self) -> u64 {
        self.connections.div_ceil(self.workers.threads as u64)
    }

    pub(crate) fn shown_addresses(&self) -> String {
        let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        all.join(", ")
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
