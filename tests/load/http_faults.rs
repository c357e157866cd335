//! `twinring load http` against faulty servers: each fault must be detected and named, and the counts must always balance.

use crate::support::load::{answer_each, answering, assert_faults, ok, run_http, serve};
use socket2::SockRef;
use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    a_closed_port_loses_the_connections,
    wrong_answers_are_counted_by_kind,
    broken_connections_are_counted_by_kind_and_replaced,
    a_server_may_close_between_answers,
    requests_behind_the_last_answer_of_a_connection_fail,
    a_connection_that_the_server_keeps_open_is_reset,
    gates_decide_about_the_exit_code,
    a_refusal_is_read_while_a_large_request_is_sent
];

fn reset(stream: &TcpStream) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Each tenth answer is wrong in its own way: it fails, and its connection stays in use.
fn wrong_answers_are_counted_by_kind() {
    let corrupted = |wrong: fn() -> String| {
        answering(move |number| if number % 10 == 9 { wrong() } else { ok("hello") })
    };
    type Case = (&'static str, fn() -> String, &'static str);
    let cases: [Case; 4] = [
        ("status", || "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy".to_owned(), ""),
        ("length", || ok("hello!"), ""),
        ("hash", || ok("hullo"), "--verify-body"),
        ("hash", || ok("hullo"), "--verify-body=FILE"),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hello").unwrap();
    for (kind, wrong, arguments) in cases {
        let arguments = arguments.replace("FILE", &file.path().display().to_string());
        let target = corrupted(wrong);
        let outcome = run_http("auto", target, &format!("-c 1 -n 200 {arguments}"));
        assert_faults(&outcome, kind, 180, 20);
        assert_eq!(outcome.number("/urls/0/failed"), 20);
        let codes = &outcome.result["status_codes"];
        let others = if kind == "status" { "503" } else { "200" };
        assert!(codes[others].as_u64() >= Some(20), "{codes}");
        assert_eq!(outcome.number("/connections/reconnects"), 0);
        let first = outcome.result["first_error"].as_str().unwrap();
        assert!(first.contains(&format!("{target}/x")), "{first}");
    }
}

/// Every connection is broken in its own way at its fourth request: that one fails, and another
/// connection takes its place.
fn broken_connections_are_counted_by_kind_and_replaced() {
    type Breaks = fn(&mut TcpStream) -> std::io::Result<()>;
    let cases: [(&str, Breaks); 6] = [
        ("closed_early", |_| Ok(())),
        ("closed_early", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell")
        }),
        ("closed_early", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        }),
        ("reset", |stream| {
            reset(stream);
            Ok(())
        }),
        ("malformed", |stream| stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n")),
        ("malformed", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12")
        }),
    ];
    for (kind, breaks) in cases {
        let target = serve(move |_, stream| {
            answer_each(stream, |number, _, stream| match number {
                3 => breaks(stream).is_err(),
                _ => stream.write_all(ok("hello").as_bytes()).is_ok(),
            });
        });
        let outcome = run_http("auto", target, "-c 1 -n 40");
        assert_faults(&outcome, kind, 30, 10);
        assert!(outcome.number("/connections/reconnects") >= 9);
    }
}

fn a_server_may_close_between_answers() {
    let announced = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
    for (announces, last) in [(true, 4), (false, 1)] {
        let target = serve(move |_, stream| {
            answer_each(stream, |number, _, stream| {
                let answer =
                    if number == last && announces { announced.to_owned() } else { ok("hello") };
                stream.write_all(answer.as_bytes()).is_ok() && number < last
            });
        });
        // For a second after each answer nothing is in flight: the server may be slow to close.
        let (arguments, requests, connections) =
            if announces { ("-c 2 -n 100", 100_u64, 2) } else { ("-c 1 -n 3 --rate 1", 3, 1) };
        let outcome = run_http("auto", target, arguments);
        outcome.expect(0, &[]);
        assert_eq!(outcome.number("/whole_run/answered"), requests);
        let reconnects = requests.div_ceil(last as u64 + 1) - connections;
        assert!(outcome.number("/connections/reconnects") >= reconnects, "{}", outcome.result);
    }
}

fn requests_behind_the_last_answer_of_a_connection_fail() {
    let target = serve(|_, stream| {
        answer_each(stream, |number, _, stream| {
            let close = if number == 2 { "Connection: close\r\n" } else { "" };
            let answer = format!("HTTP/1.1 200 OK\r\n{close}Content-Length: 0\r\n\r\n");
            // The requests behind are still read, so that the end is no reset.
            let sent = number > 2 || stream.write_all(answer.as_bytes()).is_ok();
            if number == 2 {
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
            sent
        });
    });
    let outcome = run_http("auto", target, "-c 1 -n 100 --pipeline 10");
    let failed = outcome.number("/whole_run/failed");
    assert_eq!(outcome.number("/whole_run/sent"), 100);
    assert!(failed > 50, "{}", outcome.result);
    assert!(outcome.number("/errors/closed_early") > 5, "{}", outcome.result);
    assert_eq!(outcome.code, 1);
}

fn a_connection_that_the_server_keeps_open_is_reset() {
    let target = answering(|_| ok("hello"));
    let outcome = run_http("auto", target, "-c 2 -n 4 --no-keepalive");
    outcome.expect(0, &[]);
    // One more if an answer took as long as closing may.
    let kept_open = outcome.number("/connections/kept_open");
    assert!((2..=3).contains(&kept_open), "{}", outcome.result);
}

fn a_closed_port_loses_the_connections() {
    // An address of its own, or another test may get the port once it is closed.
    let listener = std::net::TcpListener::bind("127.0.0.61:0").unwrap();
    let target = listener.local_addr().unwrap();
    thread::spawn(move || {
        let streams: Vec<TcpStream> = listener.incoming().take(2).flatten().collect();
        drop(listener);
        let talks = streams.into_iter().map(|stream| {
            thread::spawn(|| {
                answer_each(stream, |number, _, stream| {
                    number < 3 && stream.write_all(ok("hello").as_bytes()).is_ok()
                });
            })
        });
        talks.collect::<Vec<_>>().into_iter().for_each(|talk| talk.join().unwrap());
    });
    let began = Instant::now();
    let outcome = run_http("auto", target, "-c 2 -d 50s --warmup 0s");
    outcome.expect(1, &[("closed_early", 2), ("connect", 20)]);
    assert_eq!(outcome.number("/connections/lost"), 2);
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
    let target = serve(|_, stream| {
        let mut rest = stream.try_clone().unwrap();
        answer_each(stream, |_, _, stream| {
            let answer = "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = std::io::copy(&mut rest, &mut std::io::sink());
            false
        });
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![b'x'; 5_000_000]).unwrap();
    let arguments = format!("-c 2 -n 20 --body @{} --expect-status 413", file.path().display());
    let outcome = run_http("auto", target, &arguments);
    outcome.expect(0, &[]);
    assert_eq!(outcome.number("/whole_run/answered"), 20);
}
