//! Timeouts of `twinring serve http`: stalled peers, slow peers, and the waits of a shutdown.

use crate::support::http::*;
use crate::support::*;
use memchr::memmem;
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    requests_that_dawdle_are_cut_off,
    a_peer_that_does_not_read_is_reset_and_delays_no_other,
    a_slow_reader_gets_everything,
    a_shutdown_finishes_started_requests,
    a_drain_that_takes_too_long_is_cut,
    slow_peers_are_served_and_stalled_peers_are_reset,
    request_timeouts_hold_during_a_drain,
    answers_behind_one_that_waits_have_their_own_date
];

fn requests_that_dawdle_are_cut_off(engine: &str) {
    let site = Site::usual();
    let arguments =
        ["--header-timeout", "400ms", "--body-timeout", "400ms", "--idle-timeout", "1500ms"];
    let server = Server::http(engine, site.path(), &arguments);
    let started = Instant::now();
    let drip = |beginning: &str| {
        let mut stream = connect(server.address());
        stream.write_all(beginning.as_bytes()).expect("the server reads");
        let mut reader = stream.try_clone().expect("a descriptor");
        // One byte every 50 ms: slow, but never silent.
        let dripping = std::thread::spawn(move || {
            while stream.write_all(b"x").is_ok() && started.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let answer = read_response(&mut reader, false);
        drop(reader);
        (answer, dripping)
    };
    for beginning in [
        "G",
        "GET / HTTP/1.1\r\nHost: h\r\nX: ",
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n",
    ] {
        let (answer, dripping) = drip(beginning);
        assert_eq!((answer.status, answer.field("connection")), (408, Some("close")));
        dripping.join().unwrap();
    }
    let idle = connect(server.address());
    assert_eq!(read_to_end(&idle).unwrap(), b"", "closed without a word");
    let mut idle = connect(server.address());
    assert_eq!(ask_on(&mut idle, &get("/", "")).status, 200);
    assert_eq!(read_to_end(&idle).unwrap(), b"");
    server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
    let ended = server.terminate();
    assert_eq!((ended.count("header_timeouts"), ended.count("body_timeouts")), (2, 1));
    assert_eq!(ended.count("idle_closed"), 2);
    println!("{engine}: 3 slow requests and 2 idle connections ended");
}

fn a_peer_that_does_not_read_is_reset_and_delays_no_other(engine: &str) {
    let site = Site::usual();
    site.write("huge.bin", &pattern(3, 40_000_000));
    // Longer than it takes to be sure that the second one is stuck.
    let server = Server::http(engine, site.path(), &["--send-timeout", "3s"]);
    let mut stuck = connect(server.address());
    stuck.write_all(get("/huge.bin", "").as_bytes()).unwrap();
    // The same with answers from memory.
    let flooding = connect(server.address());
    let requests = get("/hello.txt", "").repeat(200_000).into_bytes();
    write_until_stuck(&flooding, &requests);
    for _ in 0..50 {
        assert_eq!(ask(&server, &get("/large.bin", "")).body.len(), 700_001);
    }
    server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
    assert!(read_to_end(&stuck).is_err(), "{engine}: a cut answer ended cleanly");
    assert!(read_to_end(&flooding).is_err(), "{engine}: cut answers ended cleanly");
    let memory = server.memory_bytes();
    assert!(memory < 100 << 20, "{engine}: {memory} bytes");
    assert_eq!(server.terminate().count("send_timeouts"), 2);
    println!("{engine}: two that did not read were reset, 50 others served meanwhile");
}

fn a_slow_reader_gets_everything(engine: &str) {
    let site = Site::usual();
    let content = pattern(3, 8_000_000);
    site.write("huge.bin", &content);
    let server = Server::http(engine, site.path(), &[]);
    let mut stream = connect(server.address());
    stream.write_all(get("/huge.bin", "Connection: close\r\n").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 200_000];
    loop {
        match stream.read(&mut chunk).expect("bytes or the end") {
            0 => break,
            read => bytes.extend_from_slice(&chunk[..read]),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_same(&read_response(&mut bytes.as_slice(), false).body, &content);
}

fn a_shutdown_finishes_started_requests(engine: &str) {
    let site = Site::usual();
    let content = pattern(3, 20_000_000);
    site.write("huge.bin", &content);
    let server = Server::http(engine, site.path(), &["--drain-timeout", "20s"]);
    let idle = connect(server.address());
    let mut kept = connect(server.address());
    assert_eq!(ask_on(&mut kept, &get("/hello.txt", "")).status, 200);
    let mut slow = connect(server.address());
    slow.write_all(get("/huge.bin", "").as_bytes()).unwrap();
    let mut first = [0; 1000];
    slow.read_exact(&mut first).unwrap();
    let mut begun = connect(server.address());
    begun.write_all(b"GET /hello.txt HT").unwrap();
    wait_until("all are accepted", || server.sockets() == SOCKETS_WITHOUT_CONNECTIONS + 4);
    server.signal(Signal::SIGTERM);
    assert_eq!(read_to_end(&idle).unwrap(), b"");
    assert_eq!(read_to_end(&kept).unwrap(), b"");
    begun.write_all(b"TP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let last = read_response(&mut begun, false);
    assert_eq!((last.status, last.field("connection")), (200, Some("close")));
    assert_eq!(read_to_end(&begun).unwrap(), b"");
    drop(begun);
    let length = memmem::find(&first, b"\r\n\r\n").unwrap() + 4 + content.len();
    let mut rest = vec![0; length - first.len()];
    slow.read_exact(&mut rest).expect("all of the answer");
    assert_same(&rest, &content[content.len() - rest.len()..]);
    assert_eq!(read_to_end(&slow).unwrap(), b"");
    drop(slow);
    let ended = server.wait();
    assert_eq!((ended.code, ended.count("cut")), (Some(0), 0), "{}", ended.stderr);
}

fn a_drain_that_takes_too_long_is_cut(engine: &str) {
    let site = Site::usual();
    site.write("huge.bin", &pattern(3, 40_000_000));
    let server = Server::http(engine, site.path(), &["--drain-timeout", "300ms"]);
    let mut stuck = connect(server.address());
    stuck.write_all(get("/huge.bin", "").as_bytes()).unwrap();
    stuck.read_exact(&mut [0; 1000]).unwrap();
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("cut")), (Some(0), 1));
    assert!(read_to_end(&stuck).is_err(), "{engine}: a cut answer ended cleanly");
}

/// A peer that read less than 256 KiB in the time was treated as stalled.
fn slow_peers_are_served_and_stalled_peers_are_reset(engine: &str) {
    let site = Site::usual();
    site.write("huge.bin", &pattern(3, 40_000_000));
    // Longer than the reader may be kept from the CPU.
    let server = Server::http(engine, site.path(), &["--send-timeout", "2s"]);
    let mut stream = connect_narrow(server.address());
    stream.write_all(get("/huge.bin", "").as_bytes()).unwrap();
    let (started, mut read) = (Instant::now(), 0);
    let mut chunk = vec![0; 8192];
    while started.elapsed() < Duration::from_secs(4) {
        read += stream.read(&mut chunk).expect("an answer that goes on");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(read < 1 << 20, "{engine}: too fast for this test: {read} bytes");
    // Now nothing is read any more.
    server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
    assert!(read_to_end(&stream).is_err(), "{engine}: a cut answer ended cleanly");
    assert_eq!(server.terminate().count("send_timeouts"), 1);
    println!("{engine}: {read} bytes in 4 s, then reset");
}

/// They had no timeout while a shutdown waited for them.
fn request_timeouts_hold_during_a_drain(engine: &str) {
    let site = Site::usual();
    site.write("huge.bin", &pattern(3, 40_000_000));
    let arguments = ["--header-timeout", "400ms", "--send-timeout", "1s"];
    let server = Server::http(engine, site.path(), &arguments);
    let mut begun = connect(server.address());
    begun.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut stuck = connect(server.address());
    stuck.write_all(get("/huge.bin", "").as_bytes()).unwrap();
    // The server is in the middle of both.
    stuck.read_exact(&mut [0; 1000]).unwrap();
    let started = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(read_response(&mut begun, false).status, 408);
    let ended = server.wait();
    // The drain itself has 10 s; a busy machine may use any part of that.
    println!("{engine}: ended after {:.1} s", started.elapsed().as_secs_f64());
    assert_eq!((ended.count("header_timeouts"), ended.count("send_timeouts")), (1, 1));
    assert_eq!((ended.code, ended.count("cut")), (Some(0), 0), "{}", ended.stderr);
    assert!(read_to_end(&stuck).is_err(), "{engine}: a cut answer ended cleanly");
}

/// Answers behind a request that waited had the time of that one.
fn answers_behind_one_that_waits_have_their_own_date(engine: &str) {
    let site = Site::usual();
    site.write("huge.bin", &pattern(3, 40_000_000));
    let server = Server::http(engine, site.path(), &[]);
    let mut stream = connect(server.address());
    assert_eq!(ask_on(&mut stream, &get("/hello.txt", "")).status, 200);
    let both = get("/huge.bin", "") + &get("/hello.txt", "");
    stream.write_all(both.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    let dates: Vec<String> = (0..2)
        .map(|_| read_response(&mut stream, false).field("date").expect("a date").to_owned())
        .collect();
    assert_ne!(dates[0], dates[1], "{engine}");
    server.terminate();
}
