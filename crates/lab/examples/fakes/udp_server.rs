//! A UDP reflector with one socket, and one fault.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::server;

/// What the reflector does beside reflecting.
pub(crate) const MODES: &[(&str, &str)] = &[
    ("reflect", "nothing: it is clean, and speaks the JSON contract"),
    ("foreign", "nothing, and it says nothing either"),
    ("burn", "uses 100 us of CPU more for every packet"),
    ("lossy", "drops every 19th packet, so that every stream has a part of it"),
    ("garble", "changes a byte of every 20th packet"),
    ("dies", "ends with code 7 after 100 packets"),
    ("mute", "listens and never answers"),
    ("stray", "sends a packet of a stream that does not exist after every 20th"),
    ("spills", "nothing, but it says that packets found its buffer full and completions its queue"),
    ("unbound", "never listens"),
];

static RECEIVED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn serve(mode: &str, address: &str) -> ExitCode {
    if !MODES.iter().any(|(known, _)| *known == mode) {
        eprintln!("no mode {mode}; there are {MODES:?}");
        return ExitCode::from(2);
    }
    if mode == "unbound" {
        loop {
            thread::park();
        }
    }
    // A subject that takes its time is asked again until its port is there.
    if mode == "foreign" {
        thread::sleep(Duration::from_millis(100));
    }
    let socket = match UdpSocket::bind(address) {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("cannot bind {address}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let talks = mode != "foreign";
    if talks {
        server::say_ready("udp", address);
    }
    let task = mode.to_owned();
    thread::spawn(move || reflect(&socket, &task));
    let Ok(mut signals) = Signals::new([SIGTERM]) else { return ExitCode::FAILURE };
    signals.forever().next();
    if talks {
        let received = RECEIVED.load(Ordering::Relaxed);
        let spilt = if mode == "spills" { 5 } else { 0 };
        let service = json!({"received": received, "kernel_drops": spilt});
        // One receive and one send a packet.
        let runtime = json!({"syscalls": 2 * received, "enters": 0, "cq_overflows": spilt});
        server::say_last("udp", &service, &runtime);
    }
    ExitCode::SUCCESS
}

fn reflect(socket: &UdpSocket, mode: &str) {
    let mut buffer = vec![0; 64 << 10];
    for number in 1_u64.. {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        RECEIVED.fetch_add(1, Ordering::Relaxed);
        match mode {
            "mute" => continue,
            "lossy" if number % 19 == 0 => continue,
            "garble" if number % 20 == 0 => buffer[length - 1] ^= 0x40,
            "burn" => {
                let until = Instant::now() + Duration::from_micros(100);
                while Instant::now() < until {}
            }
            "dies" if number == 100 => {
                eprintln!("out of cheese");
                std::process::exit(7);
            }
            _ => {}
        }
        // A client that has gone is no trouble of a reflector.
        let _ = socket.send_to(&buffer[..length], from);
        if mode == "stray" && number % 20 == 0 {
            buffer[..4].fill(0xFF);
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}
