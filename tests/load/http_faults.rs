//! `twinring load http` against faulty servers, over HTTP/1.1 and HTTP/2: each fault must be detected and named, and the
//! counts must always balance.

use crate::http2::{answer, serve_frames};
use crate::support::http2::*;
use crate::support::load::*;
use crate::support::*;
use std::sync::OnceLock;

pub(crate) const TESTS: &[Test] = tests![
    a_closed_port_loses_the_connections,
    wrong_answers_are_counted_by_kind,
    broken_connections_are_counted_by_kind_and_replaced,
    a_server_may_close_between_answers,
    requests_behind_the_last_answer_of_a_connection_fail,
    a_connection_that_the_server_keeps_open_is_reset,
    gates_decide_about_the_exit_code,
    a_server_that_stops_breaks_the_gates_of_an_open_loop,
    requests_of_connections_that_were_never_made_are_overdue,
    a_refusal_is_read_while_a_large_request_is_sent
];

/// A server of HTTP/2, or of HTTP/1.1: `behave` gets the number of each request on its connection and its stream, and
/// returns whether to continue.
fn serving(
    is_http2: bool,
    behave: impl Fn(usize, u32, &mut TcpStream) -> bool + Send + Sync + 'static,
) -> SocketAddr {
    if is_http2 {
        return serve_frames(b"", behave);
    }
    serving_each(move |number, stream| behave(number, 0, stream))
}

/// The right answer on a stream of HTTP/2, or of HTTP/1.1 on stream 0.
fn right(id: u32) -> Vec<u8> {
    if id == 0 { ok("hello").into_bytes() } else { frames(&answer(id, b"hello")) }
}

fn frames(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(Frame::bytes).collect()
}

fn reset_stream(stream: u32, code: u8) -> Frame {
    Frame::new(RST_STREAM, 0, stream, &[0, 0, 0, code])
}

/// GOAWAY after which only streams up to `last` are answered.
fn goaway(last: u32, code: u8) -> Vec<u8> {
    frames(&[Frame::new(GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &[0, 0, 0, code]].concat())])
}

fn head(stream: u32, more: u8, block: &[u8]) -> Frame {
    Frame::new(HEADERS, END_HEADERS | more, stream, block)
}

/// Header fields of some 90 KB.
fn large_head(stream: u32) -> Vec<u8> {
    let field = [&[0x00, 1, b'x', 100][..], &[b'v'; 100]].concat();
    let block = [&[0x88][..], &field.repeat(900)].concat();
    let parts: Vec<&[u8]> = block.chunks(16_000).collect();
    let frame = |(at, part): (usize, &&[u8])| {
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        let ends = if at + 1 == parts.len() { END_HEADERS } else { 0 };
        // Only HEADERS says that the stream ends.
        Frame::new(kind, ends | if at == 0 { END_STREAM } else { 0 }, stream, part)
    };
    frames(&parts.iter().enumerate().map(frame).collect::<Vec<_>>())
}

/// What a run has counted whose answers were of a kind that fails `failed` times, on connections that are replaced
/// or stay in use.
fn assert_faults(outcome: &Outcome, kind: &str, answered: u64, failed: u64) {
    outcome.expect(1, &[(kind, failed)]);
    let counts = [("/whole_run/answered", answered), ("/whole_run/failed", failed)];
    outcome.has(&[&counts[..], &[("/connections/lost", 0)]].concat());
}

/// Each tenth answer is wrong in its own way: it fails, and its connection stays in use.
fn wrong_answers_are_counted_by_kind() {
    const CANCEL: u8 = 8;
    const REFUSED_STREAM: u8 = 7;
    type Case = (&'static str, &'static str, fn(u32) -> Vec<u8>);
    let cases: [Case; 12] = [
        ("status", "", |_| b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy".to_vec()),
        ("length", "", |_| ok("hello!").into_bytes()),
        ("hash", "--verify-body", |_| ok("hullo").into_bytes()),
        ("hash", "--verify-body=FILE", |_| ok("hullo").into_bytes()),
        ("stream_reset", "--http2", |id| frames(&[reset_stream(id, CANCEL)])),
        ("stream_reset", "--http2", |id| frames(&[head(id, 0, &[0x88]), reset_stream(id, CANCEL)])),
        ("refused_stream", "--http2", |id| frames(&[reset_stream(id, REFUSED_STREAM)])),
        // 404 of the static table.
        ("status", "--http2", |id| frames(&[head(id, END_STREAM, &[0x8d])])),
        ("length", "--http2", |id| frames(&answer(id, b"hello!"))),
        ("hash", "--http2 --verify-body", |id| frames(&answer(id, b"hullo"))),
        // Content-Length: 9, by its place in the static table.
        ("malformed", "--http2", |id| {
            let [_, content] = answer(id, b"hello");
            frames(&[head(id, 0, &[0x88, 0x0f, 0x0d, 1, b'9']), content])
        }),
        ("malformed", "--http2", large_head),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "hello").unwrap();
    for (kind, arguments, wrong) in cases {
        let target = serving(arguments.contains("--http2"), move |number, id, stream| {
            stream.write_all(&if number % 10 == 9 { wrong(id) } else { right(id) }).is_ok()
        });
        let arguments = arguments.replace("FILE", &file.path().display().to_string());
        let outcome = run_http("auto", target, &format!("-c 1 -n 200 {arguments}"));
        assert_faults(&outcome, kind, 180, 20);
        outcome.has(&[("/urls/0/failed", 20), ("/connections/reconnects", 0)]);
        let first = outcome.result["first_error"].as_str().unwrap();
        assert!(first.contains(&format!("{target}/x")), "{first}");
        if kind == "status" {
            let wrong = if arguments.contains("--http2") { "404" } else { "503" };
            outcome.has(&[(&format!("/status_codes/{wrong}"), 20)]);
        }
    }
}

/// Every connection is broken in its own way at its fourth request: that one fails, and another
/// connection takes its place.
fn broken_connections_are_counted_by_kind_and_replaced() {
    type Case = (&'static str, &'static str, fn(u32) -> Vec<u8>);
    let cases: [Case; 12] = [
        ("closed_early", "", |_| Vec::new()),
        ("closed_early", "", |_| b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell".to_vec()),
        ("closed_early", "", |_| {
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".to_vec()
        }),
        ("reset", "", |_| Vec::new()),
        ("malformed", "", |_| b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()),
        ("malformed", "", |_| {
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12".to_vec()
        }),
        // Not processed.
        ("goaway", "--http2", |id| goaway(id - 2, 0)),
        ("goaway", "--http2", |id| goaway(id, 11)),
        ("closed_early", "--http2", |_| Vec::new()),
        ("closed_early", "--http2", |id| frames(&[head(id, 0, &[0x88])])),
        ("malformed", "--http2", |_| b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()),
        // A stream that the client did not open.
        ("malformed", "--http2", |id| frames(&answer(id + 100, b"hello"))),
    ];
    for (kind, version, last) in cases {
        let target = serving(version == "--http2", move |number, id, stream| {
            if number < 3 {
                return stream.write_all(&right(id)).is_ok();
            }
            if kind == "reset" {
                socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).unwrap();
                return false;
            }
            let _gone = stream.write_all(&last(id));
            end(stream);
            false
        });
        let outcome = run_http("auto", target, &format!("-c 1 -n 40 {version}"));
        assert_faults(&outcome, kind, 30, 10);
        assert!(outcome.number("/connections/reconnects") >= 9, "{kind} {version}");
    }
}

/// Ends a connection without a reset: what the client has sent is read.
fn end(stream: &mut TcpStream) {
    let _ = stream.shutdown(Shutdown::Write);
    let _ = std::io::copy(stream, &mut std::io::sink());
}

/// Announced, without a word, and in HTTP/2 by GOAWAY without an error.
fn a_server_may_close_between_answers() {
    let announced = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
    for (arguments, last, requests, connections) in [
        ("-c 2 -n 100", 4, 100_u64, 2),
        // For a second after each answer nothing is in flight: the server may be slow to close.
        ("-c 1 -n 3 --rate 1", 1, 3, 1),
        ("-c 2 -n 100 --http2", 4, 100, 2),
    ] {
        let target = serving(arguments.contains("--http2"), move |number, id, stream| {
            let bytes = match (number == last, id, last) {
                (true, 0, 4) => announced.as_bytes().to_vec(),
                (true, 1.., _) => [goaway(id, 0), right(id)].concat(),
                _ => right(id),
            };
            let sent = stream.write_all(&bytes).is_ok();
            if number == last {
                end(stream);
            }
            sent && number < last
        });
        let outcome = answered(target, arguments, requests);
        let reconnects = requests.div_ceil(last as u64 + 1) - connections;
        assert!(outcome.number("/connections/reconnects") >= reconnects, "{}", outcome.result);
    }
}

fn requests_behind_the_last_answer_of_a_connection_fail() {
    let target = serving_each(|number, stream| {
        let close = if number == 2 { "Connection: close\r\n" } else { "" };
        let answer = format!("HTTP/1.1 200 OK\r\n{close}Content-Length: 0\r\n\r\n");
        // The requests behind are still read, so that the end is no reset.
        let sent = number > 2 || stream.write_all(answer.as_bytes()).is_ok();
        if number == 2 {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        sent
    });
    let outcome = run_http("auto", target, "-c 1 -n 100 --pipeline 10");
    outcome.has(&[("/whole_run/sent", 100)]);
    assert!(outcome.number("/whole_run/failed") > 50, "{}", outcome.result);
    assert!(outcome.number("/errors/closed_early") > 5, "{}", outcome.result);
    assert_eq!(outcome.code, 1);
}

fn a_connection_that_the_server_keeps_open_is_reset() {
    let outcome = answered(answering(|_| ok("hello")), "-c 2 -n 4 --no-keepalive", 4);
    // One more if an answer took as long as closing may.
    let kept_open = outcome.number("/connections/kept_open");
    assert!((2..=3).contains(&kept_open), "{}", outcome.result);
}

fn a_closed_port_loses_the_connections() {
    // An address of its own, or another test may get the port once it is closed.
    let listener = TcpListener::bind("127.0.0.61:0").unwrap();
    let target = listener.local_addr().unwrap();
    thread::spawn(move || {
        let streams: Vec<TcpStream> = listener.incoming().take(2).flatten().collect();
        drop(listener);
        for mut stream in streams {
            thread::spawn(move || {
                let _ended = answer_each(&mut stream, |number, _, stream| {
                    number < 3 && stream.get_mut().write_all(ok("hello").as_bytes()).is_ok()
                });
            });
        }
    });
    let began = Instant::now();
    let outcome = run_http("auto", target, "-c 2 -d 50s --warmup 0s");
    outcome.expect(1, &[("closed_early", 2), ("connect", 20)]);
    outcome.has(&[("/connections/lost", 2)]);
    assert!(outcome.stderr.contains("all connections were lost"), "{}", outcome.stderr);
    assert!(began.elapsed() < Duration::from_secs(50), "the window ends with its connections");
    let first = outcome.result["first_error"].as_str().unwrap();
    assert!(first.contains("closed before an answer"), "{first}");
}

fn gates_decide_about_the_exit_code() {
    let target = answering(|number| match number % 10 {
        0 => "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_owned(),
        _ => {
            thread::sleep(Duration::from_millis(2));
            ok("hello")
        }
    });
    for (gates, code, breached) in [
        ("--max-error-rate 20% --slo p99=10s", 0, [false, false]),
        ("--max-error-rate 0.05 --slo p99=10s", 3, [false, true]),
        ("--max-error-rate 0.2 --slo p99=1ms", 3, [true, false]),
    ] {
        let outcome = run_http("auto", target, &format!("-c 1 -n 100 {gates}"));
        assert_eq!(outcome.code, code, "{gates}: {}", outcome.result);
        for (at, expected) in breached.into_iter().enumerate() {
            assert_eq!(outcome.result["gates"][at]["breached"], expected, "{gates}");
        }
        assert_eq!(outcome.stderr.contains("BREACHED"), code == 3, "{}", outcome.stderr);
    }
}

/// The answer comes before the server has taken the whole request, and the connection ends behind it.
fn a_refusal_is_read_while_a_large_request_is_sent() {
    let target = serving_each(|_, stream| {
        let answer = "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let _ = stream.write_all(answer.as_bytes());
        end(stream);
        false
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![b'x'; 5_000_000]).unwrap();
    let arguments = format!("-c 2 -n 20 --body @{} --expect-status 413", file.path().display());
    answered(target, &arguments, 20);
}

/// Its answers until then were quick, and none of them failed. With few requests to each connection, those that it
/// leaves unanswered are in flight when the window ends, and not unsent.
fn a_server_that_stops_breaks_the_gates_of_an_open_loop() {
    let first = OnceLock::new();
    let target = answering(move |_| {
        if first.get_or_init(Instant::now).elapsed() > Duration::from_secs(1) {
            thread::sleep(Duration::from_secs(9));
        }
        ok("hello")
    });
    let load = "-c 150 --rate 50 -d 3s --warmup 0s --slo p99=1s --max-error-rate 1%";
    let outcome = run_http("auto", target, load);
    outcome.expect(3, &[]);
    // 100, or half of them after a delay of a second. None is unsent; or those of a second if the load generator was
    // delayed at the end, which are not overdue.
    let overdue = outcome.number("/requests/overdue");
    assert!(overdue > 25 && outcome.number("/requests/unsent") <= 50, "{}", outcome.result);
    let gates = outcome.result["gates"].as_array().expect("gates");
    assert!(gates.len() == 2 && gates.iter().all(|it| it["breached"] == true), "{gates:?}");
}

/// Half of the load was never sent, and all gates were kept.
fn requests_of_connections_that_were_never_made_are_overdue() {
    let target = answering(|_| ok("hello"));
    // From the second address nothing gets to the server.
    let load = "-c 4 --rate 400 -d 2s --warmup 0s --local 127.0.0.1,192.0.2.1 --max-error-rate 1%";
    let outcome = run_http("auto", target, load);
    outcome.has(&[("/connections/established", 2), ("/requests/overdue", 200)]);
    // 400, and what the others did not get to at the end: those of a second at most.
    let (sent, unsent) = (outcome.number("/whole_run/sent"), outcome.number("/requests/unsent"));
    assert!((400..=600).contains(&unsent) && sent + unsent == 800, "{}", outcome.result);
    let gates = outcome.result["gates"].as_array().expect("gates");
    assert!(gates.iter().all(|it| it["breached"] == true), "{gates:?}");
}
