//! An open-loop simulator of streams, each on its own socket, in one thread, that speaks the JSON
//! contract.
//!
//! Faults, to see whether the lab believes it: `miscounts` (claims packets that did not come
//! back), `flatters` (halves the round trips that it prints, not those of the histogram), `late`
//! (sleeps for 40 ms now and then), `lazy` (leaves out every other packet of its schedule), `spins`
//! (never sleeps).

use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use nix::time::ClockId;
use serde_json::{Value, json};

use crate::client::now;

/// How often the simulator looks what is due.
const TICK: Duration = Duration::from_millis(1);

/// How long it waits for answers after the window.
const DRAIN: Duration = Duration::from_millis(100);

/// The head of a packet: number of the stream, number of the packet in it.
const HEAD_BYTES: usize = 8;

struct Plan {
    address: SocketAddr,
    streams: u32,
    packets_per_s: f64,
    bytes: usize,
    warmup: Duration,
    window: Duration,
    fault: String,
}

/// One stream and what it has seen of the packets due in the window.
struct Stream {
    number: u32,
    socket: UdpSocket,
    phase_s: f64,
    /// When each packet left, from the start of the run, and whether it came back.
    sent: Vec<(Option<f64>, bool)>,
    answered: bool,
}

struct Seen {
    round_trips: Histogram<u64>,
    lateness: Histogram<u64>,
    overruns: Histogram<u64>,
    duplicated: u64,
    mismatched: u64,
    foreign: u64,
}

pub(crate) fn load(words: &[&str]) -> ExitCode {
    let Some(plan) = parse(words) else {
        eprintln!("fakes udp-client ADDR STREAMS PPS BYTES WARMUP_MS WINDOW_MS [FAULT]");
        return ExitCode::from(2);
    };
    let opened: std::io::Result<Vec<Stream>> =
        (0..plan.streams).map(|number| open(&plan, number)).collect();
    match opened {
        Ok(streams) => simulate(&plan, streams),
        Err(error) => {
            eprintln!("cannot open a stream: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[&str]) -> Option<Plan> {
    let number = |index: usize| words.get(index)?.parse::<u32>().ok();
    Some(Plan {
        address: words.first()?.parse().ok()?,
        streams: number(1)?,
        packets_per_s: f64::from(number(2)?),
        bytes: number(3)? as usize,
        warmup: Duration::from_millis(number(4)?.into()),
        window: Duration::from_millis(number(5)?.into()),
        fault: words.get(6).copied().unwrap_or_default().to_owned(),
    })
    .filter(|plan| plan.bytes >= HEAD_BYTES)
}

fn open(plan: &Plan, number: u32) -> std::io::Result<Stream> {
    let local = if plan.address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(local)?;
    socket.connect(plan.address)?;
    socket.set_nonblocking(true)?;
    let phase_s = f64::from(number) / f64::from(plan.streams) / plan.packets_per_s;
    Ok(Stream { number, socket, phase_s, sent: Vec::new(), answered: false })
}

fn packet(plan: &Plan, stream: u32, number: u32) -> Vec<u8> {
    let mut packet = vec![stream as u8; plan.bytes];
    packet[..4].copy_from_slice(&stream.to_be_bytes());
    packet[4..HEAD_BYTES].copy_from_slice(&number.to_be_bytes());
    packet
}

fn simulate(plan: &Plan, mut streams: Vec<Stream>) -> ExitCode {
    let histogram = || Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds");
    let mut seen = Seen {
        round_trips: histogram(),
        lateness: histogram(),
        overruns: histogram(),
        duplicated: 0,
        mismatched: 0,
        foreign: 0,
    };
    let (began, began_ns) = (Instant::now(), now(ClockId::CLOCK_MONOTONIC));
    let window_s = [plan.warmup, plan.warmup + plan.window].map(|at| at.as_secs_f64());
    let cpu = || now(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    let mut marks: Vec<(u64, u64)> = Vec::new();
    for tick in 1_u32.. {
        let at_s = began.elapsed().as_secs_f64();
        if marks.len() < 2 && at_s >= window_s[marks.len()] {
            let name = ["window_start", "window_end"][marks.len()];
            // When it was due: the packets of the window are those of the schedule, however late.
            let at_ns = began_ns + (window_s[marks.len()] * 1e9) as u64;
            println!("{}", json!({"event": name, "monotonic_ns": at_ns}));
            marks.push((at_ns, cpu()));
        }
        if at_s >= window_s[1] + DRAIN.as_secs_f64() {
            break;
        }
        for stream in &mut streams {
            send_due(plan, stream, window_s, began, &mut seen);
            receive(plan, stream, window_s, began, &mut seen);
        }
        // Not where the marks are: a window that begins late is another fault.
        if plan.fault == "late" && tick % 100 == 50 {
            thread::sleep(Duration::from_millis(40));
        }
        let wake = began + TICK * tick;
        if plan.fault == "spins" {
            while Instant::now() < wake {}
        }
        thread::sleep(wake.saturating_duration_since(Instant::now()));
        seen.overruns
            .saturating_record((Instant::now().saturating_duration_since(wake)).as_nanos() as u64);
    }
    let [(start_ns, start_cpu), (end_ns, end_cpu)] = [marks[0], marks[1]];
    let cpu_share = (end_cpu - start_cpu) as f64 / (end_ns - start_ns) as f64;
    let result = report(plan, &streams, &seen, [start_ns, end_ns], cpu_share);
    println!("{result}");
    ExitCode::from(u8::from(seen.mismatched > 0))
}

/// When a packet is due, in seconds from the start of the run.
fn due_s(plan: &Plan, stream: &Stream, number: usize) -> f64 {
    stream.phase_s + number as f64 / plan.packets_per_s
}

fn in_window(at_s: f64, window_s: [f64; 2]) -> bool {
    (window_s[0]..window_s[1]).contains(&at_s)
}

fn send_due(plan: &Plan, stream: &mut Stream, window_s: [f64; 2], began: Instant, seen: &mut Seen) {
    loop {
        let number = stream.sent.len();
        let due_s = due_s(plan, stream, number);
        let now_s = began.elapsed().as_secs_f64();
        if due_s > now_s || due_s >= window_s[1] {
            return;
        }
        let leaves_out = plan.fault == "lazy" && number % 2 == 1;
        let sends =
            !leaves_out && stream.socket.send(&packet(plan, stream.number, number as u32)).is_ok();
        stream.sent.push((sends.then_some(now_s), false));
        if sends && in_window(due_s, window_s) {
            seen.lateness.saturating_record(((now_s - due_s) * 1e9) as u64);
        }
    }
}

fn receive(plan: &Plan, stream: &mut Stream, window_s: [f64; 2], began: Instant, seen: &mut Seen) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length) = stream.socket.recv(&mut buffer) {
        if buffer[..4] != stream.number.to_be_bytes() {
            seen.foreign += 1;
            continue;
        }
        let head = buffer[4..HEAD_BYTES].try_into().expect("four bytes");
        let number = u32::from_be_bytes(head);
        if buffer[..length] != packet(plan, stream.number, number) {
            seen.mismatched += 1;
            continue;
        }
        let due_s = due_s(plan, stream, number as usize);
        let (Some(sent_s), answered) = &mut stream.sent[number as usize] else { continue };
        stream.answered = true;
        if std::mem::replace(answered, true) {
            seen.duplicated += 1;
        } else if in_window(due_s, window_s) {
            let took_s = began.elapsed().as_secs_f64() - *sent_s;
            seen.round_trips.saturating_record((took_s * 1e9) as u64);
        }
    }
}

fn quantiles(histogram: &Histogram<u64>, scale: f64) -> Value {
    let us = |nanos: f64| nanos / 1e3 * scale;
    let at = |share| us(histogram.value_at_quantile(share) as f64);
    json!({"min": us(histogram.min() as f64), "mean": us(histogram.mean()), "p50": at(0.5),
        "p90": at(0.9), "p99": at(0.99), "p99_9": at(0.999), "p99_99": at(0.9999),
        "max": us(histogram.max() as f64)})
}

fn encoded(histogram: &Histogram<u64>) -> Value {
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(histogram, &mut bytes).expect("writing to memory");
    json!({"unit": "ns", "encoding": "hdr-v2-base64", "data": STANDARD.encode(bytes)})
}

fn report(
    plan: &Plan,
    streams: &[Stream],
    seen: &Seen,
    window_ns: [u64; 2],
    cpu_share: f64,
) -> Value {
    let window_s = [plan.warmup, plan.warmup + plan.window].map(|at| at.as_secs_f64());
    let of_window = |stream: &Stream| -> Vec<(Option<f64>, bool)> {
        let counts = |(number, _): &(usize, &_)| in_window(due_s(plan, stream, *number), window_s);
        stream.sent.iter().enumerate().filter(counts).map(|(_, packet)| *packet).collect()
    };
    let packets: Vec<_> = streams.iter().flat_map(of_window).collect();
    // The laziness is kept a secret: those packets are said not to have been due.
    let unsent =
        if plan.fault == "lazy" { 0 } else { packets.iter().filter(|it| it.0.is_none()).count() };
    let sent = packets.iter().filter(|it| it.0.is_some()).count();
    let received = packets.iter().filter(|it| it.1).count();
    let lost = sent - received;
    let claimed = if plan.fault == "miscounts" { lost / 2 + 7 } else { lost };
    let seconds = (window_ns[1] - window_ns[0]) as f64 / 1e9;
    let scale = if plan.fault == "flatters" { 0.5 } else { 1.0 };
    let answered = streams.iter().filter(|stream| stream.answered).count();
    let cpu_s = cpu_share * seconds;
    json!({
        "event": "result", "schema": "twinring.load.udp/1", "target": plan.address,
        "engine": "fake", "features": {}, "why_not": null, "interrupted": false,
        "settings": {"streams": plan.streams, "packets_per_s": plan.packets_per_s,
            "packet_bytes": plan.bytes, "payload": "raw", "sockets": "each", "spread": "even",
            "pending": null, "threads": 1, "tick_us": 1000, "gso": false, "verify": true,
            "warmup_s": plan.warmup.as_secs_f64(), "duration_s": plan.window.as_secs_f64(),
            "drain_s": DRAIN.as_secs_f64()},
        "window": {"start_monotonic_ns": window_ns[0], "end_monotonic_ns": window_ns[1],
            "seconds": seconds},
        "packets": {"due": sent + unsent, "sent": sent, "unsent": unsent, "refused": 0,
            "received": received, "lost": claimed, "duplicated": seen.duplicated, "reordered": 0,
            "mismatched": seen.mismatched, "foreign": seen.foreign,
            "sent_per_second": sent as f64 / seconds,
            "received_per_second": received as f64 / seconds},
        "loss_ratio": claimed as f64 / sent.max(1) as f64,
        "bytes": {"sent": sent * plan.bytes, "received": received * plan.bytes},
        "jitter_us": {"mean": 1.0, "p50": 1.0, "p99": 1.0, "max": 1.0},
        "round_trip_us": quantiles(&seen.round_trips, scale),
        "send_lateness_us": quantiles(&seen.lateness, 1.0),
        "wait_overrun_us": quantiles(&seen.overruns, 1.0),
        "histograms": {"round_trip": encoded(&seen.round_trips),
            "send_lateness": encoded(&seen.lateness), "wait_overrun": encoded(&seen.overruns)},
        "kernel_drops": 0,
        "streams": {"asked": plan.streams, "opened": plan.streams, "answered": answered,
            "worst": []},
        "calls": null, "ramp": null,
        "socket_buffers": {"asked_bytes": 0, "granted_receive_bytes": 0, "granted_send_bytes": 0},
        "errors": {"icmp_refused": 0, "send": 0, "receive": 0},
        "first_error": null,
        "cpu": {"user_s": cpu_s, "system_s": 0.0, "busiest_thread_share": cpu_share,
            "saturated": cpu_share >= 0.95},
        "runtime_counters": {}})
}
