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

use hdrhistogram::Histogram;
use nix::time::ClockId;
use serde_json::json;
use twinring_wire::histogram::{EncodedHistogram, Latency};
use twinring_wire::load::{WINDOW_END, WINDOW_START};
use twinring_wire::{UdpResult, tcp, udp};

use crate::client::{self, now};

/// How often the simulator looks what is due.
const TICK: Duration = Duration::from_millis(1);

/// How long it waits, at most, for answers after the window.
const DRAIN: Duration = Duration::from_millis(500);

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
            let name = [WINDOW_START, WINDOW_END][marks.len()];
            // When it was due: the packets of the window are those of the schedule, however late.
            let at_ns = began_ns + (window_s[marks.len()] * 1e9) as u64;
            client::mark(name, at_ns);
            marks.push((at_ns, cpu()));
        }
        if at_s >= window_s[1] + DRAIN.as_secs_f64() {
            break;
        }
        for stream in &mut streams {
            send_due(plan, stream, window_s, began, &mut seen);
            receive(plan, stream, window_s, began, &mut seen);
        }
        let mut packets = streams.iter().flat_map(|stream| &stream.sent);
        if marks.len() == 2 && packets.all(|(sent, came)| sent.is_none() || *came) {
            break;
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
    println!("{}", json!(result));
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

fn report(
    plan: &Plan,
    streams: &[Stream],
    seen: &Seen,
    window_ns: [u64; 2],
    cpu_share: f64,
) -> UdpResult {
    let window = client::window(window_ns);
    let packets = packets(plan, streams, seen, window.seconds);
    let bytes = plan.bytes as u64;
    UdpResult {
        head: client::head(udp::SCHEMA, plan.address.to_string()),
        settings: udp::Settings {
            streams: plan.streams.into(),
            packets_per_s: plan.packets_per_s,
            packet_bytes: bytes,
            payload: "raw".to_owned(),
            sockets: "each".to_owned(),
            spread: "even".to_owned(),
            threads: 1,
            tick_us: 1000.0,
            verify: true,
            warmup_s: plan.warmup.as_secs_f64(),
            duration_s: plan.window.as_secs_f64(),
            drain_s: DRAIN.as_secs_f64(),
            ..udp::Settings::default()
        },
        window,
        packets,
        loss_ratio: packets.lost as f64 / packets.sent.max(1) as f64,
        bytes: tcp::Bytes { sent: packets.sent * bytes, received: packets.received * bytes },
        jitter_us: udp::Jitter { mean: 1.0, p50: 1.0, p99: 1.0, max: 1.0 },
        round_trip_us: round_trips(plan, &seen.round_trips),
        send_lateness_us: Latency::of(&seen.lateness),
        wait_overrun_us: Latency::of(&seen.overruns),
        histograms: udp::Histograms {
            round_trip: EncodedHistogram::of(&seen.round_trips),
            send_lateness: EncodedHistogram::of(&seen.lateness),
            wait_overrun: EncodedHistogram::of(&seen.overruns),
        },
        kernel_drops: Some(0),
        streams: udp::Streams {
            asked: plan.streams.into(),
            opened: plan.streams.into(),
            answered: streams.iter().filter(|stream| stream.answered).count() as u64,
            ..udp::Streams::default()
        },
        cpu: client::cpu_of(cpu_share, window.seconds),
        ..UdpResult::default()
    }
}

fn packets(plan: &Plan, streams: &[Stream], seen: &Seen, seconds: f64) -> udp::Packets {
    let window_s = [plan.warmup, plan.warmup + plan.window].map(|at| at.as_secs_f64());
    let of_window = |stream: &Stream| -> Vec<(Option<f64>, bool)> {
        let counts = |(number, _): &(usize, &_)| in_window(due_s(plan, stream, *number), window_s);
        stream.sent.iter().enumerate().filter(counts).map(|(_, packet)| *packet).collect()
    };
    let packets: Vec<_> = streams.iter().flat_map(of_window).collect();
    let count = |is: fn(&(Option<f64>, bool)) -> bool| {
        packets.iter().filter(|packet| is(packet)).count() as u64
    };
    // The laziness is kept a secret: those packets are said not to have been due.
    let unsent = if plan.fault == "lazy" { 0 } else { count(|packet| packet.0.is_none()) };
    let sent = count(|packet| packet.0.is_some());
    let received = count(|packet| packet.1);
    let lost = sent - received;
    udp::Packets {
        due: sent + unsent,
        sent,
        unsent,
        received,
        lost: if plan.fault == "miscounts" { lost / 2 + 7 } else { lost },
        duplicated: seen.duplicated,
        mismatched: seen.mismatched,
        foreign: seen.foreign,
        sent_per_second: sent as f64 / seconds,
        received_per_second: received as f64 / seconds,
        ..udp::Packets::default()
    }
}

/// The percentiles that are claimed; the histogram says the truth.
fn round_trips(plan: &Plan, round_trips: &Histogram<u64>) -> Latency {
    let truth = Latency::of(round_trips);
    if plan.fault != "flatters" {
        return truth;
    }
    Latency { mean: truth.mean / 2.0, p99: truth.p99 / 2.0, p99_9: truth.p99_9 / 2.0, ..truth }
}
