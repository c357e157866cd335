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

use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::json;
use twinring_wire::histogram::{EncodedHistogram, Latency};
use twinring_wire::load::{Cpu, Head, Mark, SATURATED_SHARE, WINDOW_END, WINDOW_START, Window};
use twinring_wire::requests::{Connections, RequestResult, Requests, WholeRun};
use twinring_wire::{TcpResult, tcp};

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
    mark(WINDOW_START, start_ns);
    thread::sleep(end.saturating_duration_since(Instant::now()));
    let (end_ns, end_cpu) = (now(ClockId::CLOCK_MONOTONIC), cpu());
    mark(WINDOW_END, end_ns);
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
    let all = requests(plan, seen, window_ns, cpu_share, served);
    let troubles =
        |trouble| seen.iter().filter(|seen| seen.trouble == Some(trouble)).count() as u64;
    if let Some(file) = &plan.file {
        return print(&http_client::result(plan, file, all, &troubles), true);
    }
    let mismatch = troubles(Trouble::Mismatch);
    let sum = |field: fn(&Seen) -> u64| seen.iter().map(field).sum::<u64>();
    let first_error = (mismatch > 0).then(|| "an answer differs from what was sent".to_owned());
    let result = TcpResult {
        head: head(tcp::SCHEMA, plan.address.to_string()),
        settings: tcp::Settings {
            connections: plan.connections,
            message_bytes: plan.bytes as u64,
            depth: plan.depth,
            threads: plan.connections,
            mode: "closed".to_owned(),
            verify: true,
            warmup_s: plan.warmup.as_secs_f64(),
            duration_s: plan.window.as_secs_f64(),
            ..tcp::Settings::default()
        },
        all: RequestResult { first_error, ..all },
        bytes: tcp::Bytes {
            sent: sum(|seen| seen.sent) * plan.bytes as u64,
            received: sum(|seen| seen.answered) * plan.bytes as u64,
        },
        errors: tcp::Errors {
            connect: sum(|seen| seen.connect_error.into()),
            closed_early: troubles(Trouble::Closed),
            mismatch,
            ..tcp::Errors::default()
        },
    };
    print(&result, mismatch == 0)
}

/// Prints a result, and returns the exit code.
fn print(result: &impl Serialize, succeeded: bool) -> ExitCode {
    println!("{}", json!(result));
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(crate) fn head(schema: &str, target: String) -> Head {
    Head {
        event: "result".to_owned(),
        schema: schema.to_owned(),
        target,
        engine: "fake".to_owned(),
        ..Head::default()
    }
}

pub(crate) fn mark(event: &str, monotonic_ns: u64) {
    println!("{}", json!(Mark { event: event.to_owned(), monotonic_ns }));
}

pub(crate) fn window([start_monotonic_ns, end_monotonic_ns]: [u64; 2]) -> Window {
    let seconds = (end_monotonic_ns - start_monotonic_ns) as f64 / 1e9;
    Window { start_monotonic_ns, end_monotonic_ns, seconds }
}

pub(crate) fn cpu_of(share: f64, seconds: f64) -> Cpu {
    Cpu {
        user_s: share * seconds,
        system_s: 0.0,
        busiest_thread_share: share,
        saturated: share >= SATURATED_SHARE,
        ..Cpu::default()
    }
}

fn requests(
    plan: &Plan,
    seen: &[Seen],
    window_ns: [u64; 2],
    cpu_share: f64,
    served: u64,
) -> RequestResult {
    let sum = |field: fn(&Seen) -> u64| seen.iter().map(field).sum::<u64>();
    let inside = || seen.iter().map(|seen| seen.answered_inside);
    let mut latencies: Histogram<u64> =
        Histogram::new_with_bounds(1, 60_000_000_000, DIGITS).expect("valid bounds");
    for one in seen {
        latencies.add(&one.latencies).expect("the same bounds");
    }
    let window = window(window_ns);
    let miscounted = if plan.fault == "miscounts" { 1000 } else { 0 };
    let answered = sum(|seen| seen.answered_inside);
    let oldest_us = seen.iter().map(|seen| seen.oldest.as_secs_f64() * 1e6).fold(0.0, f64::max);
    RequestResult {
        window,
        requests: Requests {
            sent: sum(|seen| seen.sent_inside),
            answered,
            failed: sum(|seen| seen.failed),
            in_flight_at_end: sum(|seen| seen.abandoned),
            oldest_in_flight_us: Some(oldest_us),
            per_second: answered as f64 / window.seconds,
            ..Requests::default()
        },
        whole_run: WholeRun {
            sent: sum(|seen| seen.sent),
            answered: sum(|seen| seen.answered) + miscounted,
            failed: sum(|seen| seen.failed),
            abandoned: sum(|seen| seen.abandoned),
        },
        latency_us: Latency::of(&latencies),
        latency_from: "send".to_owned(),
        histogram: EncodedHistogram::of(&latencies),
        connections: Connections {
            asked: plan.connections,
            established: plan.connections - sum(|seen| seen.connect_error.into()),
            served,
            served_at_once_max: served,
            min_answered: inside().min().unwrap_or(0),
            max_answered: inside().max().unwrap_or(0),
            ..Connections::default()
        },
        cpu: cpu_of(cpu_share, window.seconds),
        ..RequestResult::default()
    }
}
