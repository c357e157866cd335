//! The settings that all loads of requests over connections share, and the bounds of all settings.

use crate::gates::Gates;
use crate::run::Plan;
use crate::schedule::{Arrivals, RATE_PER_S_MAX};
use crate::workers::Workers;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Most connections, idle ones included: all ports of 64 addresses.
pub(crate) const CONNECTIONS_MAX: u64 = 1 << 22;
/// Most threads.
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
            workers: Workers::default(),
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

    /// Checks whether the settings are valid.
    pub(crate) fn check(&self) -> Result<(), String> {
        let threads = self.workers.threads;
        between("--connections", self.connections, 1, CONNECTIONS_MAX)?;
        between("--threads", threads as u64, 1, THREADS_MAX as u64)?;
        if threads as u64 > self.connections {
            let connections = self.connections;
            return Err(format!(
                "--threads {threads} with --connections {connections}: each thread needs one"
            ));
        }
        optional(&[
            ("--rate", self.rate_per_s, RATE_PER_S_MAX),
            ("--requests", self.requests, u64::MAX - 1),
        ])?;
        sources(&self.local, &self.addresses)?;
        let least = Duration::from_nanos(1);
        times(&[
            ("--warmup", self.warmup, Duration::ZERO, TIME_MAX),
            ("--duration", self.duration, least, TIME_MAX),
            ("--connect-timeout", self.connect_timeout, least, TIME_MAX),
            ("--timeout", self.timeout, least, TIME_MAX),
        ])
    }

    /// What an open loop keeps to.
    pub(crate) fn schedule(&self) -> Option<(u64, Arrivals)> {
        self.rate_per_s.map(|rate| (rate, self.arrivals))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.rate_per_s.is_some()
    }

    pub(crate) fn plan(&self) -> Plan {
        Plan {
            threads: self.workers.threads,
            warmup: self.warmup,
            duration: self.duration,
            requests: self.requests,
        }
    }

    /// The connections of each thread, about.
    pub(crate) fn share(&self) -> u64 {
        self.connections.div_ceil(self.workers.threads as u64)
    }

    /// The addresses as a result shows them.
    pub(crate) fn shown_addresses(&self) -> String {
        let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        all.join(", ")
    }
}

pub(crate) fn between(name: &str, number: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&number) {
        return Ok(());
    }
    Err(format!("{name} {number}: expected {least} to {most}"))
}

/// Optional numbers, which are at least 1.
pub(crate) fn optional(numbers: &[(&str, Option<u64>, u64)]) -> Result<(), String> {
    numbers.iter().try_for_each(|(name, number, most)| {
        number.map_or(Ok(()), |number| between(name, number, 1, *most))
    })
}

/// Source addresses must be of the family of a target's address, and each of those needs one.
pub(crate) fn sources(local: &[IpAddr], addresses: &[SocketAddr]) -> Result<(), String> {
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

pub(crate) fn times(times: &[(&str, Duration, Duration, Duration)]) -> Result<(), String> {
    let wrong = times.iter().find(|(_, time, least, most)| !(*least..=*most).contains(time));
    wrong.map_or(Ok(()), |(name, time, least, most)| {
        Err(format!("{name} {time:?}: expected {least:?} to {most:?}"))
    })
}
