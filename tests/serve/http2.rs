//! `serve http` speaking HTTP/2, to the h2 crate and frame by frame. (The tables of `http_answers` are asked over HTTP/2,
//! too; curl is in `http_connections`.)

use crate::support::http::*;
use crate::support::http2::{
    self, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, HEADERS, NO_ERROR,
    PING, PREFACE, RST_STREAM, SETTINGS, fields, frames, next_frame, open, raw, receive,
    run_client,
};
use crate::support::tls::*;
use crate::support::*;
use h2::client::Builder;

pub(crate) const TESTS: &[Test] = tests![
    a_client_that_stops_reading_is_cut_off,
    bodies_are_skipped_within_their_limits,
    a_flood_of_resets_ends_the_connection,
    header_fields_are_bounded,
    quiet_connections_are_ended_with_goaway,
    requests_extend_the_idle_timeout_and_pings_do_not,
    who_reads_many_answers_slowly_gets_them_all,
    the_last_request_is_followed_by_goaway,
    bytes_cut_anywhere_are_put_together,
    many_requests_are_answered_at_once;
    engines:
    streams_that_are_not_read_are_bounded_and_lose_nothing
];
pub(crate) const LONG_TESTS: &[Test] = long_tests![h2spec_passes];

/// What is in /hello.txt.
const SMALL: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

fn many_requests_are_answered_at_once() {
    let (_site, server) = served(&["--http2-streams", "40"]);
    let (small, large) = (SMALL, pattern(7, 700_001));
    run_client(async {
        let client = open(server.address(), None, &Builder::new()).await;
        // Behind the server's settings, without which the client would open too many streams.
        assert_eq!(http2::ask(&client, &get("/empty.txt", "")).await.status, 200);
        let mut answers = Vec::new();
        for number in 0..150 {
            let path = if number % 3 == 0 { "/large.bin" } else { "/hello.txt" };
            answers.push(twinring::spawn(receive(http2::send(&client, &get(path, "")).await)));
        }
        for (number, answer) in answers.into_iter().enumerate() {
            let answer = answer.await.expect("no panic").expect("an answer");
            let expected: &[u8] = if number % 3 == 0 { &large } else { small };
            assert_same(&answer.body, expected);
        }
    });
    server.end_with(&[("requests", 151), ("accepted", 1)]);
}

/// A client that takes nothing of many streams, and then everything.
fn streams_that_are_not_read_are_bounded_and_lose_nothing(engine: &str) {
    const BYTES: usize = 5_000_000;
    const STREAMS: usize = 100;
    let (site, identity, server) = usual(engine, &["server.send-timeout = '60s'"]);
    let content = pattern(5, BYTES);
    site.write("huge.bin", &content);
    let trust = Arc::new(identity.trust(&VERSIONS));
    for trust in [None, Some(&trust)] {
        let address = server.addresses()[usize::from(trust.is_some())];
        let before = server.memory_bytes();
        run_client(async {
            let mut builder = Builder::new();
            builder.initial_window_size(50_000).initial_connection_window_size(1 << 30);
            let client = open(address, trust, &builder).await;
            let mut stalled = Vec::new();
            for _ in 0..STREAMS - 1 {
                let response = http2::send(&client, &get("/huge.bin", "")).await;
                stalled.push(response.await.expect("an answer").into_body());
            }
            twinring::sleep(Duration::from_millis(300)).await;
            let grown = server.memory_bytes().saturating_sub(before);
            assert!(grown < (STREAMS as u64 * (48 << 10)) + (8 << 20), "{engine}: {grown}");
            // Other streams go on.
            let small = http2::ask(&client, &get("/hello.txt", "")).await;
            assert_eq!(small.body.len(), 36);
            let mut body = stalled.remove(0);
            drop(stalled);
            let received = http2::content(&mut body).await.expect("no reset");
            assert_same(&received, &content);
        });
    }
    server.end();
}

fn a_client_that_stops_reading_is_cut_off() {
    let (site, server) = served(&["server.send-timeout = '500ms'"]);
    site.write("huge.bin", &pattern(5, 5_000_000));
    run_client(async {
        let client = open(server.address(), None, &Builder::new()).await;
        let response = http2::send(&client, &get("/huge.bin", "")).await;
        let mut body = response.await.expect("an answer").into_body();
        let mut received = 0;
        let cut = loop {
            match body.data().await {
                Some(Ok(data)) => received += data.len(),
                other => break other,
            }
        };
        assert!(matches!(cut, Some(Err(_))), "an end after {received} bytes");
        assert!(received <= 65_535, "{received}");
    });
    assert!(server.end().count("send_timeouts") >= 1);
}

fn bodies_are_skipped_within_their_limits() {
    let (_site, server) =
        served(&["server.max-body-bytes = '100000'", "server.body-timeout = '1s'"]);
    let body = "x".repeat(100_000);
    run_client(async {
        let client = open(server.address(), None, &Builder::new()).await;
        let fits = http2::ask(&client, &(get("/hello.txt", "") + &body)).await;
        assert_eq!((fits.status, fits.body.len()), (200, 36));
        let expects = get("/hello.txt", "Expect: 100-continue\r\n") + &body;
        assert_eq!(http2::ask(&client, &expects).await.status, 200);
        let too_long = http2::ask(&client, &(get("/hello.txt", "") + &body + "x")).await;
        assert_eq!(too_long.status, 413);
        // Announced, and not sent.
        let mut ready = client.clone().ready().await.expect("the connection stays");
        let request = ::http::Request::get("http://test/hello.txt").body(()).expect("a request");
        let (response, _body) = ready.send_request(request, false).expect("room");
        assert_eq!(receive(response).await.expect("an answer").status, 408);
        assert_eq!(http2::ask(&client, &get("/hello.txt", "")).await.status, 200);
    });
    server.end_with(&[("body_timeouts", 1)]);
}

/// The error code of GOAWAY among these.
fn told(frames: &[Frame]) -> Option<u32> {
    frames.iter().find_map(Frame::goaway)
}

/// CVE-2023-44487, as fast as the client can, and at a pace at which each request is looked at before it is reset: with
/// a body that never comes, none is answered.
fn a_flood_of_resets_ends_the_connection() {
    let (_site, server) = served(&[]);
    let reset = |stream| Frame::new(RST_STREAM, 0, stream, &[0, 0, 0, 8]).bytes();
    let mut client = raw(server.address());
    let stream = |stream| [Frame::get(stream, "/large.bin").bytes(), reset(stream)].concat();
    // The server may end before it has read all.
    let _sent = client.write_all(&(1..1000).step_by(2).flat_map(stream).collect::<Vec<_>>());
    assert_eq!(told(&frames(&mut client)), Some(ENHANCE_YOUR_CALM));
    let mut client = raw(server.address());
    let mut code = None;
    for stream in (1..2000).step_by(2) {
        let begin = Frame::new(HEADERS, END_HEADERS, stream, &fields("/hello.txt")).bytes();
        // The answer to PING shows that the server has seen the request.
        let ping = Frame::new(PING, 0, 0, &[0; 8]).bytes();
        let mut is_open = client.write_all(&[begin, ping].concat()).is_ok();
        while let Some(frame) = is_open.then(|| next_frame(&mut client)).flatten() {
            code = code.or(frame.goaway());
            if frame.kind == PING || code.is_some() {
                break;
            }
        }
        is_open = is_open && code.is_none() && client.write_all(&reset(stream)).is_ok();
        if !is_open {
            break;
        }
    }
    assert_eq!(code.or_else(|| told(&frames(&mut client))), Some(ENHANCE_YOUR_CALM));
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    let ended = server.end();
    assert_eq!(ended.count("http2_floods"), 2);
    assert!(ended.count("requests") < 300);
}

fn header_fields_are_bounded() {
    let (_site, server) = served(&["server.max-header-bytes = '4096'"]);
    // More than the limit, in a few frames: 431, and the connection stays.
    run_client(async {
        let client = open(server.address(), None, &Builder::new()).await;
        let large = get("/hello.txt", &format!("X-Large: {}\r\n", "x".repeat(5000)));
        assert_eq!(http2::ask(&client, &large).await.status, 431);
        assert_eq!(http2::ask(&client, &get("/hello.txt", "")).await.status, 200);
    });
    // Without an end.
    let mut client = raw(server.address());
    say(&mut client, Frame::new(HEADERS, 0, 1, &fields("/hello.txt")).bytes());
    // One field each, with a value of 15,990 bytes (RFC 7541 section 5.1).
    let field = [&[0x00, 1, b'x', 0x7f, 0xf7, 0x7b][..], &[b'y'; 15_990]].concat();
    // The server may end before it has read all.
    let _sent = client.write_all(&Frame::new(CONTINUATION, 0, 1, &field).bytes().repeat(100));
    assert_eq!(told(&frames(&mut client)), Some(ENHANCE_YOUR_CALM));
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    server.end();
}

fn quiet_connections_are_ended_with_goaway() {
    let options = ["server.idle-timeout = '700ms'", "server.header-timeout = '300ms'"];
    let (_site, identity, server) = usual(ENGINE, &options);
    // Over TLS, behind the handshake.
    let mut config = identity.trust(&VERSIONS);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut secret = secure(encrypted(&server), &Arc::new(config)).expect("a handshake");
    say(&mut secret, [PREFACE, &Frame::new(SETTINGS, 0, 0, b"").bytes()].concat());
    let request = Frame::get(1, "/hello.txt").bytes();
    // Headers without their end.
    let begun = Frame::new(HEADERS, END_STREAM, 1, &fields("/hello.txt")).bytes();
    let clients = [("silent", &[][..]), ("idle", &request), ("dawdler", &begun)];
    let clients = clients.map(|(name, bytes)| {
        let mut client = raw(server.address());
        say(&mut client, bytes);
        (name, client)
    });
    for (name, mut client) in clients {
        let frames = frames(&mut client);
        assert_eq!(told(&frames), Some(NO_ERROR), "{name}: {frames:?}");
        let answered = frames.iter().any(|frame| frame.kind == DATA);
        assert_eq!(answered, name == "idle", "{name}: {frames:?}");
    }
    assert_eq!(told(&frames(&mut secret)), Some(NO_ERROR));
    // In the middle of the preface.
    let mut slow = begin(server.address(), &PREFACE[..10]);
    assert_eq!(read_response(&mut slow, false).status, 408);
    server.end_with(&[("idle_closed", 4), ("header_timeouts", 1), ("reset", 0)]);
}

/// Reading the answers to PINGs counted as progress, for ever; requests with small answers did not.
fn requests_extend_the_idle_timeout_and_pings_do_not() {
    const PINGS: usize = 100;
    let (_site, server) = served(&["server.idle-timeout = '1500ms'"]);
    run_client(async {
        let client = open(server.address(), None, &Builder::new()).await;
        for _ in 0..8 {
            let known = get("/hello.txt", "If-None-Match: *\r\n");
            assert_eq!(http2::ask(&client, &known).await.status, 304);
            twinring::sleep(std::time::Duration::from_millis(400)).await;
        }
    });
    let mut client = raw(server.address());
    let pings = Frame::new(PING, 0, 0, &[0; 8]).bytes().repeat(PINGS);
    let mut told = None;
    wait_until("it is ended", || {
        let mut left = if client.write_all(&pings).is_ok() { PINGS } else { usize::MAX };
        while left > 0 && told.is_none() {
            let Some(frame) = next_frame(&mut client) else { return true };
            left -= usize::from(frame.kind == PING);
            told = frame.goaway();
        }
        told.is_some()
    });
    drop(client);
    assert_eq!((told, server.end().count("idle_closed")), (Some(NO_ERROR), 1));
}

/// The h2 crate had more of them than the network had, which did not count, and behind FIN was lost.
fn who_reads_many_answers_slowly_gets_them_all() {
    const BYTES: usize = 24_000;
    const STREAMS: u32 = 300;
    let (site, server) = served(&["server.idle-timeout = '2s'", "server.http2-streams = '300'"]);
    site.write("page.bin", &pattern(3, BYTES));
    for (has_said_all, is_drained) in [(false, false), (true, false), (false, true)] {
        let mut client = connect_narrow(server.address());
        let get = |number| Frame::get(2 * number + 1, "/page.bin").bytes();
        say(&mut client, [http2::unlimited(), (0..STREAMS).flat_map(get).collect()].concat());
        if has_said_all {
            client.shutdown(Shutdown::Write).expect("FIN");
        }
        if is_drained {
            // What was finished and not yet taken was dropped.
            thread::sleep(Duration::from_millis(300));
            server.signal(Signal::SIGTERM);
            thread::sleep(Duration::from_millis(300));
        }
        let mut left = STREAMS as usize * BYTES;
        while left > 0 {
            let frame =
                next_frame(&mut client).filter(|frame| is_drained || frame.goaway().is_none());
            let frame = frame.unwrap_or_else(|| panic!("it ended {left} bytes too early"));
            if frame.kind == DATA {
                left -= frame.payload.len();
                thread::sleep(Duration::from_millis(if is_drained { 1 } else { 8 }));
            }
        }
    }
    server.wait().expect(0, &[("idle_closed", 0)]);
}

fn the_last_request_is_followed_by_goaway() {
    let (_site, server) = served(&["server.max-requests = '3'"]);
    run_client(async {
        let client = open(server.address(), None, &Builder::new()).await;
        for _ in 0..3 {
            assert_eq!(http2::ask(&client, &get("/large.bin", "")).await.status, 200);
        }
        let error = http2::ended(client).await.expect_err("an end");
        assert!(error.is_go_away() || error.is_io(), "{error:?}");
    });
    // Those that were sent before it got REFUSED_STREAM.
    let mut client = raw(server.address());
    for stream in [1, 3, 5, 7, 9] {
        say(&mut client, Frame::get(stream, "/hello.txt").bytes());
    }
    client.shutdown(Shutdown::Write).expect("FIN");
    let frames = frames(&mut client);
    assert_eq!(frames.iter().filter(|frame| frame.payload == SMALL).count(), 5, "{frames:?}");
    // Not by the idle timeout, which ends it with GOAWAY as well.
    server.end_with(&[("requests", 8), ("idle_closed", 0)]);
}

fn bytes_cut_anywhere_are_put_together() {
    let (_site, server) = served(&[]);
    let mut client = connect(server.address());
    let settings = Frame::new(SETTINGS, 0, 0, b"").bytes();
    let bytes = [PREFACE.to_vec(), settings, Frame::get(1, "/hello.txt").bytes()].concat();
    for byte in bytes.chunks(1) {
        say(&mut client, byte);
        thread::sleep(Duration::from_micros(200));
    }
    let data = std::iter::from_fn(|| next_frame(&mut client)).find(|frame| frame.kind == DATA);
    assert_eq!(data.expect("an answer").payload, SMALL);
    // What begins like the preface and is none is HTTP/1.1.
    let almost = "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n";
    assert_eq!(ask_last(server.address(), almost).status, 505);
    server.terminate().expect(0, &[("http2_connections", 1)]);
}

/// Fails without TLS: what does not begin like HTTP/2 is answered as HTTP/1.1, with 400.
const FAILS_WITHOUT_TLS: &str = "Sends invalid connection preface";

fn h2spec_passes() {
    // go install github.com/summerwind/h2spec/cmd/h2spec@latest
    testing::needs_program("h2spec");
    let (_site, _identity, server) = usual(ENGINE, &[]);
    for (address, tls) in server.addresses().iter().zip([&[][..], &["--tls", "--insecure"]]) {
        let mut command = Command::new("h2spec");
        command.args(["--host", "127.0.0.1", "--strict", "--timeout", "10", "--port"]);
        command.arg(address.port().to_string()).args(tls);
        let (_, text, _) = run_to_its_end(&mut command);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        assert!(last.unwrap_or_default().contains(" passed, 0 skipped, "), "{text}");
        // A failure is listed as `× 2: Sends …`.
        let (_, failures) = text.split_once("\nFailures:").unwrap_or_default();
        let failures = failures.lines().filter(|line| line.trim_start().starts_with('×'));
        let failures: Vec<&str> = failures.collect();
        assert_eq!(failures.len(), usize::from(tls.is_empty()), "{text}");
        assert!(failures.iter().all(|case| case.ends_with(FAILS_WITHOUT_TLS)), "{text}");
    }
}
