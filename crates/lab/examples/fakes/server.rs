//! A server with one thread per connection, and one fault. Here is what all of them share, and an
//! echo server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use twinring_wire::Fields;
use twinring_wire::serve::{Ready, SCHEMA, Statistics};

/// What is done with connections, and the faults there are.
#[derive(Clone, Copy)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) modes: &'static [(&'static str, &'static str)],
    pub(crate) handle: fn(TcpStream, &str) -> std::io::Result<()>,
}

pub(crate) const ECHO: Service = Service { name: "echo", modes: MODES, handle: echo };

/// What the server does beside echoing, each answer after a pause: see [`pause`].
const MODES: &[(&str, &str)] = &[
    ("echo", "nothing: it is clean, and speaks the JSON contract"),
    ("foreign", "nothing, and it says nothing either"),
    ("eager", "answers without a pause, as fast as it can"),
    ("burn", "uses 500 us of CPU more for every message"),
    ("hoards", "keeps a MiB for every connection"),
    ("crowded", "has 200 threads that sleep"),
    ("forks", "has it all done by a child, and says nothing"),
    ("slow", "sleeps 20 ms before every answer"),
    ("lossy", "drops the first byte of every 10th message of a connection"),
    ("swallow", "drops the last byte of every 10th message of a connection"),
    ("garble", "changes a byte of every 10th message of a connection"),
    ("dies", "ends with code 7 after 100 messages"),
    ("admits-64", "serves 64 connections and leaves the others in the backlog"),
    ("deaf", "ignores SIGTERM"),
    ("unready", "never listens"),
    ("crashes", "ends with code 3 before it is ready"),
];

static MESSAGES: AtomicU64 = AtomicU64::new(0);

/// Connections that are served now.
static SERVED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn serve(service: Service, mode: &str, address: &str) -> ExitCode {
    if !service.modes.iter().any(|(known, _)| *known == mode) {
        eprintln!("no mode {mode}; there are {:?}", service.modes);
        return ExitCode::from(2);
    }
    match mode {
        "crashes" => {
            eprintln!("I was never meant to run");
            return ExitCode::from(3);
        }
        "forks" => return by_a_child(address),
        "crowded" => {
            for _ in 0..200 {
                if let Err(error) =
                    thread::Builder::new().name("crowd".to_owned()).spawn(thread::park)
                {
                    eprintln!("the crowd is smaller: {error}");
                }
            }
        }
        "unready" => loop {
            thread::sleep(Duration::from_secs(1));
        },
        _ => {}
    }
    let listener = match TcpListener::bind(address) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("cannot listen on {address}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let talks = mode != "foreign";
    if talks {
        say_ready(service.name, address);
    }
    let mode = mode.to_owned();
    let handle = {
        let mode = mode.clone();
        move |stream| {
            SERVED.fetch_add(1, Ordering::Relaxed);
            drop((service.handle)(stream, &mode));
            SERVED.fetch_sub(1, Ordering::Relaxed);
        }
    };
    thread::spawn(move || {
        for (count, stream) in listener.incoming().flatten().enumerate() {
            if mode == "admits-64" && count == 64 {
                // Holding the listener open keeps the rest waiting.
                loop {
                    thread::park();
                }
            }
            let handle = handle.clone();
            thread::spawn(move || handle(stream));
        }
    });
    wait_for_the_end(service, talks)
}

/// A child of this process serves; it is ended when this process is asked to end.
fn by_a_child(address: &str) -> ExitCode {
    let (Ok(mut signals), Ok(program)) = (Signals::new([SIGTERM]), std::env::current_exe()) else {
        return ExitCode::FAILURE;
    };
    let Ok(mut child) = Command::new(program).args(["server", "foreign", address]).spawn() else {
        return ExitCode::FAILURE;
    };
    signals.forever().next();
    let _ = child.kill();
    let _ = child.wait();
    ExitCode::SUCCESS
}

fn wait_for_the_end(service: Service, talks: bool) -> ExitCode {
    let Ok(mut signals) = Signals::new([SIGTERM]) else { return ExitCode::FAILURE };
    let deaf = std::env::args().any(|argument| argument == "deaf");
    for _ in signals.forever() {
        if !deaf {
            break;
        }
    }
    if talks {
        let messages = MESSAGES.load(Ordering::Relaxed);
        // One read and one write a message.
        let runtime = json!({"syscalls": 2 * messages, "enters": 0, "cq_overflows": 0});
        say_last(service.name, &json!({}), &runtime);
    }
    ExitCode::SUCCESS
}

/// Says that the service can be used.
pub(crate) fn say_ready(service: &str, address: &str) {
    let line = Ready {
        event: "ready".to_owned(),
        schema: SCHEMA.to_owned(),
        service: service.to_owned(),
        listen: address.parse().into_iter().collect(),
        engine: "fake".to_owned(),
        workers: 1,
        pid: std::process::id(),
        ..Ready::default()
    };
    println!("{}", json!(line));
}

/// Says what was counted.
pub(crate) fn say_last(service: &str, service_counters: &Value, runtime_counters: &Value) {
    let line = Statistics {
        event: "final".to_owned(),
        schema: SCHEMA.to_owned(),
        service: service.to_owned(),
        engine: "fake".to_owned(),
        reason: Some("SIGTERM".to_owned()),
        service_counters: Fields::of(service_counters),
        runtime_counters: Fields::of(runtime_counters),
        ..Statistics::default()
    };
    println!("{}", json!(line));
}

/// Counts an answer; in the mode `dies` the last one ends the process.
pub(crate) fn count(mode: &str) {
    if MESSAGES.fetch_add(1, Ordering::Relaxed) == 100 && mode == "dies" {
        eprintln!("out of cheese");
        std::process::exit(7);
    }
}

/// What comes before an answer. However many connections there are, a server with pauses answers a
/// thousand times a second: it leaves the CPUs to the tests beside it, and a busy machine hardly shows.
pub(crate) fn pause(mode: &str) {
    if mode == "burn" {
        let until = Instant::now() + Duration::from_micros(500);
        while Instant::now() < until {}
    }
    match mode {
        "eager" => {}
        "slow" => thread::sleep(Duration::from_millis(20)),
        _ => thread::sleep(Duration::from_millis(SERVED.load(Ordering::Relaxed))),
    }
}

fn echo(mut stream: TcpStream, mode: &str) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 64 << 10];
    // Written, so that the kernel has to find the pages.
    let hoard = vec![u8::from(mode == "hoards"); if mode == "hoards" { 1 << 20 } else { 0 }];
    for number in 1_u64.. {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        let faulty = number % 10 == 0;
        let mut answer = &mut buffer[..read];
        pause(mode);
        match mode {
            "lossy" if faulty => answer = &mut answer[1..],
            "swallow" if faulty => answer = &mut answer[..read - 1],
            "garble" if faulty => answer[read / 2] ^= 0x40,
            _ => {}
        }
        stream.write_all(answer)?;
        count(mode);
    }
    drop(hoard);
    Ok(())
}
