//! The bounds of the settings of a load over connections.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Most connections, idle ones included: all ports of 64 addresses.
pub(crate) const CONNECTIONS_MAX: u64 = 1 << 22;
/// Most threads.
pub(crate) const THREADS_MAX: usize = 1024;
/// Longest warm-up, window or timeout.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(7 * 86_400);

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

/// How connections may be shared out to threads.
pub(crate) fn shared_out(connections: u64, threads: usize) -> Result<(), String> {
    between("--connections", connections, 1, CONNECTIONS_MAX)?;
    between("--threads", threads as u64, 1, THREADS_MAX as u64)?;
    if threads as u64 > connections {
        return Err(format!(
            "--threads {threads} with --connections {connections}: each thread needs one"
        ));
    }
    Ok(())
}

/// Source addresses must be of the target's family.
pub(crate) fn sources(local: &[IpAddr], target: SocketAddr) -> Result<(), String> {
    match local.iter().find(|ip| ip.is_ipv4() != target.is_ipv4()) {
        Some(other) => Err(format!("--local {other} cannot reach {target}")),
        None => Ok(()),
    }
}

/// The times of a load; only the warm-up may be zero.
pub(crate) fn times(
    warmup: Duration,
    duration: Duration,
    connect_timeout: Duration,
    timeout: Duration,
) -> Result<(), String> {
    let times = [
        ("--warmup", warmup, true),
        ("--duration", duration, false),
        ("--connect-timeout", connect_timeout, false),
        ("--timeout", timeout, false),
    ];
    for (name, time, may_be_zero) in times {
        if (time.is_zero() && !may_be_zero) || time > TIME_MAX {
            let from = if may_be_zero { "0" } else { "more than 0" };
            return Err(format!("{name} {time:?}: expected {from} to 7 days"));
        }
    }
    Ok(())
}
