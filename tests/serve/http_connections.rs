//! How connections of `serve http` live and end: one request after the other, limits, timeouts, slow peers,
//! shutdown.

use crate::support::http::*;
use crate::support::http2::{self, Frame};
use crate::support::namespace::in_a_namespace;
use crate::support::tls::{Identity, encrypted, serve};
use crate::support::*;
use memchr::memmem;

pub(crate) const TESTS: &[Test] = tests![
    connections_closed_on_request_free_their_place,
    connections_end_behind_their_last_request_or_idle_without_a_word,
    request_timeouts_hold_during_a_drain,
    a_slow_upload_behind_a_refusal_loses_no_answer,
    answers_behind_one_that_waits_have_their_own_date,
    readiness_ends_with_the_drain_and_liveness_stays;
    engines:
    what_was_answered_arrives,
    connections_stay_and_close_as_they_should,
    a_slow_reader_is_served_until_it_stalls,
    a_shutdown_finishes_started_requests
];

fn connections_stay_and_close_as_they_should(engine: &str) {
    let (_site, server) = served_on(engine, &[]);
    // Without FIN from here: only a server that closes lets these end.
    for request in [
        get("/large.bin", "Connection: close\r\n"),
        get("/nothing", "Connection: close\r\n"),
        "GET /hello.txt HTTP/1.0\r\n\r\n".to_owned(),
    ] {
        assert_eq!(ask_last(server.address(), &request).field("connection"), Some("close"));
    }
    let mut stream = connect(server.address());
    for round in 0..3 {
        for target in ["/hello.txt", "/large.bin", "/nothing", "/sub", "/empty.txt"] {
            let answer = ask_on(&mut stream, &get(target, ""));
            assert_eq!(answer.field("connection"), None, "{target} in round {round}");
            let head = ask_on(&mut stream, &get(target, "").replacen("GET", "HEAD", 1));
            assert_eq!(head.status, answer.status);
        }
    }
    let kept = "GET /hello.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    assert_eq!(ask_on(&mut stream, kept).field("connection"), Some("keep-alive"));
    assert_eq!(ask_on(&mut stream, kept).body.len(), 36);
    drop(stream);
    // Data behind the last request is not answered.
    let behind = get("/", "Connection: close\r\n") + &get("/hello.txt", "");
    ask_last(server.address(), &behind);
    server.end_with(&[("accepted", 5), ("requests", 36)]);
}

/// A client that had announced its last request was awaited, up to 2 s, until it closed as well.
fn connections_closed_on_request_free_their_place() {
    let (_site, server) = served(&["server.max-connections = '1'"]);
    let mut open = Vec::new();
    for target in ["/hello.txt", "/large.bin", "/nothing"].repeat(5) {
        let stream = begin(server.address(), get(target, "Connection: close\r\n"));
        assert_eq!(responses(&read_to_end(&stream).expect("a clean end")).len(), 1);
        open.push(stream);
    }
    server.end_with(&[("accepted", 15), ("refused", 0)]);
}

fn connections_end_behind_their_last_request_or_idle_without_a_word() {
    let (_site, server) = served(&["server.max-requests = '3'", "server.idle-timeout = '500ms'"]);
    let (silent, mut idle) = (connect(server.address()), connect(server.address()));
    assert_eq!(ask_on(&mut idle, &get("/", "")).status, 200);
    let requests = get("/hello.txt", "").repeat(5);
    let answers = responses(&talk_until_closed(server.address(), requests));
    let closes: Vec<_> = answers.iter().map(|answer| answer.field("connection")).collect();
    assert_eq!(closes, [None, None, Some("close")]);
    for stream in [&silent, &idle] {
        assert_eq!(read_to_end(stream).unwrap(), b"");
    }
    server.end_with(&[("idle_closed", 2)]);
}

/// It gets everything as long as it reads. (One that read less than 256 KiB in the time-out was treated as stalled, and
/// over HTTP/2 one whose kernel had no room for so long.)
fn a_slow_reader_is_served_until_it_stalls(engine: &str) {
    // Longer than the reader may be kept from the CPU.
    let (site, server) = served_on(engine, &["server.send-timeout = '2s'"]);
    let content = pattern(3, 40_000_000);
    site.write("huge.bin", &content);
    let of_http2 = [http2::unlimited(), Frame::get(1, "/huge.bin").bytes()].concat();
    let requests = [get("/huge.bin", "").into_bytes(), of_http2];
    let mut readers = requests.map(|request| {
        let mut stream = connect_narrow(server.address());
        say(&mut stream, request);
        (stream, Vec::new())
    });
    let started = Instant::now();
    let mut chunk = vec![0; 8192];
    while started.elapsed() < Duration::from_secs(4) {
        for (stream, read) in &mut readers {
            let length = stream.read(&mut chunk).expect("an answer that goes on");
            read.extend_from_slice(&chunk[..length]);
        }
        thread::sleep(Duration::from_millis(100));
    }
    let [(_, read), _] = &readers;
    let head = memmem::find(read, b"\r\n\r\n").expect("a head") + 4;
    assert_same(&read[head..], &content[..read.len() - head]);
    assert!(read.len() < 1 << 20, "{engine}: too fast for this test: {} bytes", read.len());
    // Now nothing is read any more.
    server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
    for (stream, _) in &readers {
        assert!(read_to_end(stream).is_err(), "{engine}: a cut answer ended cleanly");
    }
    server.end_with(&[("send_timeouts", 2)]);
}

fn a_shutdown_finishes_started_requests(engine: &str) {
    let (site, server) = served_on(engine, &["server.drain-timeout = '20s'"]);
    let content = pattern(3, 20_000_000);
    site.write("huge.bin", &content);
    let idle = connect(server.address());
    let mut kept = connect(server.address());
    assert_eq!(ask_on(&mut kept, &get("/hello.txt", "")).status, 200);
    let mut slow = begin(server.address(), get("/huge.bin", ""));
    let mut first = [0; 1000];
    slow.read_exact(&mut first).unwrap();
    let mut begun = begin(server.address(), "GET /hello.txt HT");
    wait_until("all are accepted", || server.sockets() == SOCKETS_WITHOUT_CONNECTIONS + 4);
    server.signal(Signal::SIGTERM);
    assert_eq!(read_to_end(&idle).unwrap(), b"");
    assert_eq!(read_to_end(&kept).unwrap(), b"");
    let last = ask_on(&mut begun, "TP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!((last.status, last.field("connection")), (200, Some("close")));
    assert_eq!(read_to_end(&begun).unwrap(), b"");
    drop(begun);
    let length = memmem::find(&first, b"\r\n\r\n").unwrap() + 4 + content.len();
    let mut rest = vec![0; length - first.len()];
    slow.read_exact(&mut rest).expect("all of the answer");
    assert_same(&rest, &content[content.len() - rest.len()..]);
    assert_eq!(read_to_end(&slow).unwrap(), b"");
    drop(slow);
    server.wait().expect(0, &[("cut", 0)]);
}

/// They had no timeout while a shutdown waited for them.
fn request_timeouts_hold_during_a_drain() {
    let (site, server) = served(&["server.header-timeout = '400ms'", "server.send-timeout = '1s'"]);
    site.write("huge.bin", &pattern(3, 40_000_000));
    let mut begun = begin(server.address(), "GET / HTTP/1.1\r\n");
    let mut stuck = begin(server.address(), get("/huge.bin", ""));
    // The server is in the middle of both.
    stuck.read_exact(&mut [0; 1000]).unwrap();
    server.signal(Signal::SIGTERM);
    assert_eq!(read_response(&mut begun, false).status, 408);
    // The drain itself has 10 s; a busy machine may use any part of that.
    server.wait().expect(0, &[("header_timeouts", 1), ("send_timeouts", 1), ("cut", 0)]);
    assert!(read_to_end(&stuck).is_err(), "a cut answer ended cleanly");
}

/// It got EPIPE after two seconds, and a reset that discards what it has not read.
fn a_slow_upload_behind_a_refusal_loses_no_answer() {
    let (_site, server) = served(&[]);
    let head = get("/hello.txt", "Content-Length: 100000000\r\n");
    let mut client = begin(server.address(), head);
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(200));
        say(&mut client, [b'x'; 2048]);
    }
    assert_eq!(read_response(&mut client, false).status, 413);
    assert_eq!(client.read(&mut [0; 1]).expect("FIN, no reset"), 0);
    drop(client);
    server.end_with(&[("reset", 0)]);
}

/// Answers behind a request that waited had the time of that one.
fn answers_behind_one_that_waits_have_their_own_date() {
    let (site, server) = served(&[]);
    site.write("huge.bin", &pattern(3, 40_000_000));
    let mut stream = connect(server.address());
    assert_eq!(ask_on(&mut stream, &get("/hello.txt", "")).status, 200);
    say(&mut stream, get("/huge.bin", "") + &get("/hello.txt", ""));
    thread::sleep(Duration::from_millis(2500));
    let dates: Vec<String> = (0..2)
        .map(|_| read_response(&mut stream, false).field("date").expect("a date").to_owned())
        .collect();
    assert_ne!(dates[0], dates[1]);
    server.terminate();
}

fn readiness_ends_with_the_drain_and_liveness_stays() {
    let site = Site::usual();
    let (server, admin) = with_admin(&site, &[]);
    assert_eq!(ask_last(admin, &get("/healthz", "")).text(), "ok\n");
    assert_eq!(ask_last(admin, &get("/readyz", "")).text(), "ready\n");
    // A request that is under way keeps the drain waiting.
    let request = get("/hello.txt", "");
    let (first, end) = request.split_at(20);
    let mut stream = begin(server.address(), first);
    ask(&server, &get("/hello.txt", ""));
    server.signal(Signal::SIGTERM);
    wait_until("it is not ready any more", || {
        let answer = ask_last(admin, &get("/readyz", ""));
        answer.status == 503 && answer.text() == "draining\n"
    });
    assert_eq!(ask_last(admin, &get("/healthz", "")).status, 200);
    assert!(ask_last(admin, &get("/metrics", "")).text().contains("\ntwinring_http_ready 0\n"));
    assert_eq!(ask_on(&mut stream, end).status, 200);
    drop(stream);
    server.wait().expect(0, &[("requests", 2)]);
    assert!(TcpStream::connect(admin).is_err(), "the admin port is closed");
}

const DELIVERED_BYTES: usize = 2_000_000;

/// Fetches a file over each protocol, and calls `shut_down` while all of them are under way.
fn fetch(server: &Server, rate: Option<&str>, shut_down: impl FnOnce()) {
    let (clear, tls) = (server.address(), encrypted(server));
    let into = tempfile::tempdir().expect("a directory for temporary files");
    let clients = [
        ("http", clear, "--http1.1"),
        ("http", clear, "--http2-prior-knowledge"),
        ("https", tls, "--http1.1"),
        ("https", tls, "--http2"),
    ];
    let clients = clients.map(|(scheme, address, protocol)| {
        let name = format!("{scheme} {protocol}");
        let file = into.path().join(&name);
        let mut curl = Command::new("curl");
        curl.args(["-sSNk", "-m", "60", protocol, "-o"]).arg(&file);
        curl.args(rate.iter().flat_map(|rate| ["--limit-rate", rate]));
        let curl = curl.arg(format!("{scheme}://{address}/large.bin")).spawn();
        (name, file, curl.expect("curl starts"))
    });
    wait_until("all have begun", || {
        let begun = |it: &std::path::PathBuf| it.metadata().is_ok_and(|it| it.len() > 0);
        clients.iter().all(|(_, file, _)| begun(file))
    });
    shut_down();
    for (name, file, mut curl) in clients {
        let (status, found) = (curl.wait().expect("a child"), fs::read(file).expect("a file"));
        let is_whole = status.success() && found == pattern(1, DELIVERED_BYTES);
        assert!(is_whole, "{name}: {status}, {} bytes", found.len());
    }
}

/// Calls this with a rate for slow clients, and without one over a slow link.
fn slowly(test: impl Fn(Option<&str>) + Sync) {
    testing::needs_program("curl");
    testing::needs_program("tc");
    in_a_namespace(|| {
        test(Some("700k"));
        for command in [
            "ip link set lo mtu 1500",
            "tc qdisc add dev lo root tbf rate 16mbit burst 32kb latency 50ms",
        ] {
            let words: Vec<_> = command.split(' ').collect();
            let output = Command::new(words[0]).args(&words[1..]).output().expect("it starts");
            if !output.status.success() {
                testing::needs("tc with tbf", String::from_utf8_lossy(&output.stderr));
            }
        }
        test(None);
    });
}

/// They were cut on HTTP/2, behind a shutdown and behind the last request of a connection: the client's next
/// WINDOW_UPDATE drew a reset, which discards what was not sent yet.
fn what_was_answered_arrives(engine: &str) {
    slowly(|rate| {
        let (site, identity) = (Site::usual(), Identity::new());
        site.write("large.bin", &pattern(1, DELIVERED_BYTES));
        for requests_max in ["2", "1"] {
            let most = format!("server.max-requests = '{requests_max}'");
            let options = ["server.drain-timeout = '50s'", &most];
            let server = serve(engine, site.path(), &identity, &options);
            let is_last = requests_max == "1";
            fetch(&server, rate, || {
                if !is_last {
                    server.signal(Signal::SIGTERM)
                }
            });
            let ended = if is_last { server.end() } else { server.wait() };
            ended.expect(0, &[("cut", 0)]);
        }
    });
}
