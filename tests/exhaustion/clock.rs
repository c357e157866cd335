//! A clock that is set while a server runs, back and forth, by seconds and by years. The real
//! command on the real engines gets another wall clock (`wall_clock.c`), and the machine keeps its
//! own: time stamps follow, and nothing else is affected, because all waits use clocks that cannot
//! be set. (The kernel's own stamps, on files and in its logs, do not follow here.)

use crate::clients::OtherClient;
use crate::support::http::{MODIFIED, MODIFIED_S, Site, ask_on, get, responses, talk};
use crate::support::load::{Bounded, sound};
use crate::support::tls::{Identity, VERSIONS, end, secure};
use crate::support::{ENGINES, Server, connect, pattern, ping, wait_until};
use rustls::HandshakeKind;
use rustls::client::Resumption;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testing::{Test, engine_tests, tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    only_dates_follow_a_clock_that_is_set,
    sessions_are_resumed_or_replaced_across_clock_jumps
];

pub(crate) const TESTS: &[Test] = tests![clock_changes_disturb_no_connection];

const HOUR_S: i64 = 3600;
const DAY_S: i64 = 24 * HOUR_S;

/// A wall clock for processes that are started with it.
struct WallClock {
    directory: tempfile::TempDir,
    offset: File,
}

impl WallClock {
    fn new() -> WallClock {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exhaustion/wall_clock.c");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(directory.path().join("clock.so"));
        // The build needs one as well.
        let made = compile.arg(source).status().expect("a C compiler");
        assert!(made.success(), "the clock does not compile");
        let path = directory.path().join("offset");
        let offset = File::create(path).expect("a file");
        let clock = WallClock { directory, offset };
        clock.set_off(0);
        clock
    }

    /// Sets the clock a number of seconds before or after that of the machine.
    fn set_off(&self, seconds: i64) {
        let ns = seconds * 1_000_000_000;
        self.offset.write_all_at(&ns.to_ne_bytes(), 0).expect("a file of 8 bytes");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn twinring(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
        command.env("LD_PRELOAD", self.path("clock.so"));
        command.env("TWINRING_TEST_WALL_CLOCK", self.path("offset"));
        command.args(arguments);
        command
    }

    fn serve(&self, engine: &str, service: &[&str]) -> Server {
        let common = ["--json", "--listen", "127.0.0.1:0", "--engine", engine];
        Server::spawn(self.twinring(&[&["serve"], service, &common].concat()))
    }

    /// Sets the clock every few milliseconds, by up to ten days each way, until `alive` has no
    /// other owner.
    fn storm(&self, alive: Weak<()>) -> u64 {
        let mut jumps = 0;
        let mut state = 1_u64;
        while alive.strong_count() > 0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.set_off((state >> 33) as i64 % (20 * DAY_S) - 10 * DAY_S);
            jumps += 1;
            std::thread::sleep(Duration::from_millis(3));
        }
        self.set_off(0);
        jumps
    }
}

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64
}

/// Seconds since 1970 of a date of HTTP.
fn seconds_of(date: &str) -> i64 {
    twinring_services::http::date::parse_date(date.as_bytes()).expect("a date")
}

fn only_dates_follow_a_clock_that_is_set(engine: &str) {
    // Most of it is waiting.
    std::thread::scope(|scope| {
        scope.spawn(move || follow(engine));
    });
}

fn follow(engine: &str) {
    let clock = WallClock::new();
    let site = Site::usual();
    let log = clock.path("access.log");
    let log = log.to_str().expect("UTF-8");
    let root = site.path().to_str().expect("UTF-8");
    let service = ["http", "--root", root, "--access-log", log, "--cache-valid", "200ms"];
    let server = clock.serve(engine, &service);
    let mut stream = connect(server.address());
    let mut idle = connect(server.address());
    let to_1970_s = 60 - now_s();
    let jumps = [-1, HOUR_S, -DAY_S, 80 * 365 * DAY_S, to_1970_s, 0];
    for (number, jump_s) in jumps.into_iter().enumerate() {
        clock.set_off(jump_s);
        // A worker reads the clock once per second.
        wait_until("the date follows", || {
            let answer = ask_on(&mut stream, &get("/hello.txt", ""));
            assert_eq!(answer.status, 200);
            let shown_s = seconds_of(answer.field("date").expect("a date"));
            (shown_s - (now_s() + jump_s)).abs() <= 1
        });
        // Whether a file has changed depends on its own date; a date in the future is invalid (RFC
        // 9110 section 8.8.2.1).
        let expected = if now_s() + jump_s < MODIFIED_S as i64 { 200 } else { 304 };
        let since = format!("If-Modified-Since: {MODIFIED}\r\n");
        wait_until("that is known", || {
            ask_on(&mut stream, &get("/hello.txt", &since)).status == expected
        });
        // Cached content expires after a fixed time, however the clock is set.
        let content = pattern(number as u64, 50 + number);
        site.replace("hello.txt", &content, MODIFIED_S);
        wait_until("the new file is served", || {
            ask_on(&mut stream, &get("/hello.txt", "")).body == content
        });
    }
    // The limit is a minute of silence; by the other clock it was decades.
    assert_eq!(ask_on(&mut idle, &get("/hello.txt", "")).status, 200);
    drop((idle, stream));
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("idle_closed")), (Some(0), 0), "{}", ended.stderr);
    let lines = std::fs::read_to_string(log).expect("a log");
    assert!(lines.contains("[01/Jan/1970:00:0"), "{engine}: the log follows, too");
    assert_eq!(lines.lines().count() as u64, ended.count("requests"));
    println!("{engine}: set {} times, by up to 80 years; dates and the log followed", jumps.len());
}

fn sessions_are_resumed_or_replaced_across_clock_jumps(engine: &str) {
    let clock = WallClock::new();
    let (site, identity) = (Site::usual(), Identity::new());
    let root = site.path().to_str().expect("UTF-8");
    clock.set_off(0);
    let tls = identity.arguments();
    let tls = tls.iter().map(String::as_str);
    let service: Vec<&str> = ["http", "--root", root].into_iter().chain(tls).collect();
    let server = clock.serve(engine, &service);
    let mut resumed = Vec::new();
    for jump in [0, HOUR_S, DAY_S, 300 * DAY_S, -300 * DAY_S, 0] {
        // Each time a ticket is issued before the clock is set, and used afterwards.
        let mut trust = identity.trust(&VERSIONS);
        trust.resumption = Resumption::in_memory_sessions(8);
        let trust = Arc::new(trust);
        for _ in 0..2 {
            let mut client = secure(server.addresses()[1], &trust).expect("hands are shaken");
            client.write_all(get("/hello.txt", "").as_bytes()).expect("the server reads");
            end(&mut client);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).expect("an orderly end");
            assert_eq!(responses(&answer)[0].status, 200, "{engine} {jump}");
            let kind = client.conn.handshake_kind().expect("it is over");
            resumed.push(kind == HandshakeKind::Resumed);
            clock.set_off(jump);
        }
    }
    let count = resumed.iter().filter(|resumed| **resumed).count();
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("tls_failures")), (Some(0), 0), "{}", ended.stderr);
    println!("{engine}: {} handshakes, all good; {count} of 6 tickets were taken", resumed.len());
}

fn clock_changes_disturb_no_connection() {
    let clock = WallClock::new();
    let site = Site::usual();
    let root = site.path().to_str().expect("UTF-8");
    for engine in ENGINES {
        let echo = clock.serve(engine, &["echo", "--idle-timeout", "20s"]);
        let http = clock.serve(engine, &["http", "--root", root]);
        let udp = clock.serve(engine, &["udp", "--max-rate-per-source", "100000"]);
        let address = http.address();
        let idle = connect(echo.address());
        let jumps = std::thread::scope(|scope| {
            let alive = Arc::new(());
            let watched = Arc::downgrade(&alive);
            let storm = scope.spawn(|| clock.storm(watched));
            let mut stream = connect(address);
            let other = OtherClient::new(move |_| {
                ask_on(&mut stream, &get("/hello.txt", "")).status == 200
            });
            let runs = [
                ("tcp", echo.address().to_string(), "-c 20 --rate 2000"),
                ("http", format!("http://{address}/hello.txt"), "-c 20 --rate 1000"),
                ("udp", udp.address().to_string(), "--streams 20 --pps 50 --drain 300ms"),
            ];
            for (kind, target, arguments) in runs {
                for generator in ENGINES {
                    let mut load = clock.twinring(&["load", kind, &target, "--json"]);
                    load.args(["--engine", generator, "-d", "400ms", "--warmup", "100ms"]);
                    load.args(arguments.split_whitespace()).stdin(Stdio::null());
                    load.stdout(Stdio::piped()).stderr(Stdio::piped());
                    let began = Instant::now();
                    let output = Bounded(Some(load.spawn().expect("it starts"))).output();
                    let took_us = began.elapsed().as_micros() as f64;
                    assert_eq!(output.status.code(), Some(0), "{engine} {kind}: {output:?}");
                    if kind != "udp" {
                        // No time is longer than the whole run, as one by a clock that is set would
                        // be.
                        let outcome = sound(output);
                        let max_us = outcome.latency_us("max");
                        assert!((0.0..=took_us).contains(&max_us), "{max_us} of {took_us} us");
                    }
                }
            }
            let served = other.end();
            drop(alive);
            let jumps = storm.join().expect("a clock");
            println!("{engine}: {jumps} jumps of up to 20 days under load; {served}");
            jumps
        });
        assert!(jumps > 100);
        // It was idle for a few seconds, and for centuries by the other clock.
        ping(&idle, b"still there");
        drop(idle);
        let answers = talk(address, get("/hello.txt", "").as_bytes());
        assert_eq!(responses(&answers)[0].status, 200);
        for server in [echo, http, udp] {
            assert_eq!(server.terminate().code, Some(0));
        }
    }
}
