//! A closed-loop load generator with one thread per connection that speaks the JSON contract, of
//! echoes and of files over HTTP.
//!
//! Faults, to see whether the lab believes it: `miscounts` (claims answers it did not get),
//! `flatters` (halves the latencies it reports, histogram and all), `hangs` (never ends), and of
//! files `plain` (claims a connection for each request), `shrinks` (counts a byte too little of each
//! file) and `blind` (does not look at content).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::http_client::{self, File};

/// A percentile of the whole may be an eighth of a microsecond off at 100 us.
const DIGITS: u8 = 3;

#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) connections: u64,
    pub(crate) bytes: usize,
    pub(crate) depth: u64,
    pub(crate) warmup: Duration,
    pub(crate) window: Duration,
    pub(crate) fault: String,
    /// What is asked for, if it is no echo.
    pub(crate) file: Option<File>,
}

/// What one connection saw.
pub(crate) struct Seen {
    latencies: Histogram<u64>,
    sent: u64,
    answered: u64,
    sent_inside: u64,
    answered_inside: u64,
    abandoned: u64,
    failed: u64,
    trouble: Option<Trouble>,
    connect_error: bool,
    oldest: Duration,
}

pub(crate) fn load(words: &[&str]) -> ExitCode {
    let Some(plan) = parse(words) else {
        eprintln!("fakes client ADDR CONNECTIONS BYTES DEPTH WARMUP_MS WINDOW_MS [FAULT]");
        return ExitCode::from(2);
    };
    run(&plan)
}

pub(crate) fn run(plan: &Plan) -> ExitCode {
    let served = Arc::new(AtomicU64::new(0));
    let begin = Instant::now() + Duration::from_millis(50) + plan.warmup;
    let end = begin + plan.window;
    let connections: Vec<_> = (0..plan.connections)
        .map(|number| {
            let (plan, served) = (plan.clone(), served.clone());
            thread::spawn(move || drive(&plan, number, begin..end, &served))
        })
        .collect();
    thread::sleep(begin.saturating_duration_since(Instant::now()));
    let (start_ns, start_cpu) = (now(ClockId::CLOCK_MONOTONIC), cpu());
    println!("{}", json!({"event": "window_start", "monotonic_ns": start_ns}));
    thread::sleep(end.saturating_duration_since(Instant::now()));
    let (end_ns, end_cpu) = (now(ClockId::CLOCK_MONOTONIC), cpu());
    println!("{}", json!({"event": "window_end", "monotonic_ns": end_ns}));
    if plan.fault == "hangs" {
        loop {
            thread::park();
        }
    }
    let seen: Vec<Seen> = connections.into_iter().flat_map(thread::JoinHandle::join).collect();
    let cpu_share = (end_cpu - start_cpu) as f64 / (end_ns - start_ns) as f64;
    let window = [start_ns, end_ns];
    report(plan, &seen, window, cpu_share, served.load(Ordering::Relaxed))
}

fn parse(words: &[&str]) -> Option<Plan> {
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    Some(Plan {
        address: words.first()?.parse().ok()?,
        connections: number(1)?,
        bytes: number(2)? as usize,
        depth: number(3)?,
        warmup: Duration::from_millis(number(4)?),
        window: Duration::from_millis(number(5)?),
        fault: words.get(6).copied().unwrap_or_default().to_owned(),
        file: None,
    })
}

pub(crate) fn now(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).expect("a clock of POSIX");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

fn cpu() -> u64 {
    now(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

fn drive(plan: &Plan, number: u64, window: std::ops::Range<Instant>, served: &AtomicU64) -> Seen {
    let mut seen = Seen {
        latencies: Histogram::new_with_bounds(1, 60_000_000_000, DIGITS).expect("valid bounds"),
        sent: 0,
        answered: 0,
        sent_inside: 0,
        answered_inside: 0,
        abandoned: 0,
        failed: 0,
        trouble: None,
        connect_error: false,
        oldest: Duration::ZERO,
    };
    let stream = TcpStream::connect_timeout(&plan.address, Duration::from_secs(5));
    let Ok(mut stream) = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream)) else {
        seen.connect_error = true;
        return seen;
    };
    while Instant::now() < window.end {
        let began = Instant::now();
        seen.sent += plan.depth;
        seen.sent_inside += if window.contains(&began) { plan.depth } else { 0 };
        let exchanged = match &plan.file {
            None => exchange(plan, number, seen.sent, &mut stream, window.end),
            Some(file) => http_client::exchange(plan, file, &mut stream, window.end),
        };
        match exchanged {
            Ok(()) => {
                seen.answered += plan.depth;
                if seen.answered == plan.depth {
                    served.fetch_add(1, Ordering::Relaxed);
                }
                let ended = Instant::now();
                if window.contains(&ended) {
                    seen.answered_inside += plan.depth;
                    let took = (ended - began).as_nanos() as u64;
                    let claimed = if plan.fault == "flatters" { took / 2 } else { took };
                    seen.latencies.saturating_record_n(claimed, plan.depth);
                }
            }
            Err(Trouble::TimeIsUp) => {
                seen.abandoned += plan.depth;
                seen.oldest = began.elapsed();
                break;
            }
            Err(trouble) => {
                seen.trouble = Some(trouble);
                seen.failed += plan.depth;
                break;
            }
        }
    }
    seen
}

/// What can go wrong with an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Other bytes came.
    Mismatch,
    /// No HTTP came.
    Malformed,
    /// Another status came.
    Status,
    /// Content of another length came.
    Length,
    Closed,
    TimeIsUp,
}

/// Sends `depth` messages and takes their echo, comparing every byte as it comes.
fn exchange(
    plan: &Plan,
    number: u64,
    position: u64,
    stream: &mut TcpStream,
    end: Instant,
) -> Result<(), Trouble> {
    let total = plan.bytes * plan.depth as usize;
    // Every position of every connection and round has a byte of its own.
    let pattern = |index: usize| (index as u64 * 131 + position * 17 + number * 29) as u8;
    let message: Vec<u8> = (0..total).map(pattern).collect();
    stream.write_all(&message).map_err(|_| Trouble::Closed)?;
    let mut got = 0;
    let mut buffer = vec![0; 64 << 10];
    while got < total {
        let read = read_until(stream, &mut buffer, end)?;
        if buffer[..read] != message[got..][..read.min(total - got)] {
            return Err(Trouble::Mismatch);
        }
        got += read;
    }
    Ok(())
}

/// Reads what there is, and waits for it until `end`.
pub(crate) fn read_until(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    end: Instant,
) -> Result<usize, Trouble> {
    let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let _ = stream.set_read_timeout(Some(left));
    match stream.read(buffer) {
        Ok(0) => Err(Trouble::Closed),
        Ok(read) => Ok(read),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err(Trouble::TimeIsUp),
        Err(_) => Err(Trouble::Closed),
    }
}

fn report(
    plan: &Plan,
    seen: &[Seen],
    window_ns: [u64; 2],
    cpu_share: f64,
    served: u64,
) -> ExitCode {
    let sum = |field: fn(&Seen) -> u64| seen.iter().map(field).sum::<u64>();
    let mut latencies: Histogram<u64> =
        Histogram::new_with_bounds(1, 60_000_000_000, DIGITS).expect("valid bounds");
    for one in seen {
        latencies.add(&one.latencies).expect("the same bounds");
    }
    let seconds = (window_ns[1] - window_ns[0]) as f64 / 1e9;
    let miscounted = if plan.fault == "miscounts" { 1000 } else { 0 };
    let answered = sum(|seen| seen.answered_inside);
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let quantile = |share| micros(latencies.value_at_quantile(share));
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(&latencies, &mut bytes).expect("writing to memory");
    let troubles =
        |trouble| seen.iter().filter(|seen| seen.trouble == Some(trouble)).count() as u64;
    let mismatch = troubles(Trouble::Mismatch);
    let cpu_s = cpu_share * seconds;
    let mut result = json!({
        "event": "result", "schema": "twinring.load.tcp/1", "target": plan.address,
        "engine": "fake", "interrupted": false,
        "settings": {"connections": plan.connections, "message_bytes": plan.bytes,
            "depth": plan.depth, "threads": plan.connections, "mode": "closed", "rate_per_s": null,
            "churn": null, "idle": 0, "slow_reader": false, "verify": true,
            "warmup_s": plan.warmup.as_secs_f64(), "duration_s": plan.window.as_secs_f64()},
        "window": {"start_monotonic_ns": window_ns[0], "end_monotonic_ns": window_ns[1],
            "seconds": seconds},
        "requests": {"sent": sum(|seen| seen.sent_inside), "answered": answered,
            "failed": sum(|seen| seen.failed), "in_flight_at_end": sum(|seen| seen.abandoned),
            "oldest_in_flight_us":
                seen.iter().map(|seen| seen.oldest.as_secs_f64() * 1e6).fold(0.0, f64::max),
            "per_second": answered as f64 / seconds},
        "whole_run": {"sent": sum(|seen| seen.sent),
            "answered": sum(|seen| seen.answered) + miscounted, "failed": sum(|seen| seen.failed),
            "abandoned": sum(|seen| seen.abandoned)},
        "bytes": {"sent": sum(|seen| seen.sent) * plan.bytes as u64,
            "received": sum(|seen| seen.answered) * plan.bytes as u64},
        "latency_us": {"min": micros(latencies.min()), "mean": latencies.mean() / 1e3,
            "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99),
            "p99_9": quantile(0.999), "p99_99": quantile(0.9999), "max": micros(latencies.max())},
        "latency_from": "send", "schedule_lag_us": null,
        "histogram": {"unit": "ns", "encoding": "hdr-v2-base64", "data": STANDARD.encode(bytes)},
        "connections": {"asked": plan.connections,
            "established": plan.connections - sum(|seen| seen.connect_error.into()),
            "served": served, "served_at_once_max": served, "reconnects": 0,
            "min_answered": seen.iter().map(|seen| seen.answered_inside).min(),
            "max_answered": seen.iter().map(|seen| seen.answered_inside).max()},
        "errors": {"connect": sum(|seen| seen.connect_error.into()), "reset": 0,
            "closed_early": troubles(Trouble::Closed), "timeout": 0,
            "mismatch": mismatch, "other": 0},
        "first_error": (mismatch > 0).then_some("an answer differs from what was sent"),
        "cpu": {"user_s": cpu_s, "system_s": 0.0, "busiest_thread_share": cpu_share,
            "saturated": cpu_share >= 0.95},
        "runtime_counters": {}});
    if let Some(file) = &plan.file {
        merge(&mut result, http_client::result(plan, file, answered, &troubles));
    }
    println!("{result}");
    ExitCode::from(u8::from(mismatch > 0))
}

/// Puts the fields of one object into another, whose own fields of these names go.
fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
