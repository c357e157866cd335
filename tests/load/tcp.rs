//! `twinring load tcp` against servers of known behaviour: each fault must be detected and named, and the counts must
//! always balance.

use crate::support::load::*;
use crate::support::*;
use socket2::SockRef;
use std::net::TcpListener;
use std::sync::atomic::AtomicUsize;
use std::thread;
use twinring_load::schedule::{Arrivals, Schedule};

pub(crate) const TESTS: &[Test] = tests![
    a_server_that_admits_only_64_connections_is_seen_through,
    a_number_of_messages_is_met_exactly,
    lost_bytes_and_surplus_bytes_are_mismatches,
    a_server_that_never_answers_is_a_timeout,
    an_unreachable_rate_reports_unsent_requests,
    requests_arrive_as_independently_as_asked_for,
    a_closed_port_names_the_address_and_a_fix
];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    a_correct_echo_has_no_mismatch_and_all_counts_balance,
    one_corrupted_byte_is_found_and_named,
    an_interrupt_reports_the_result_so_far,
    connections_that_the_server_ends_are_counted_by_kind
];

/// Echoes; `corrupt` gets each chunk with its position in the stream and may change it.
fn echo_with(mut stream: TcpStream, mut corrupt: impl FnMut(usize, &mut Vec<u8>)) {
    let _ = stream.set_nodelay(true);
    let (mut memory, mut position) = (vec![0; 1 << 16], 0);
    while let Ok(bytes @ 1..) = stream.read(&mut memory) {
        let mut chunk = memory[..bytes].to_vec();
        corrupt(position, &mut chunk);
        position += bytes;
        if stream.write_all(&chunk).is_err() {
            return;
        }
    }
}

fn echo(stream: TcpStream) {
    echo_with(stream, |_, _| {});
}

fn command(engine: &str, target: SocketAddr, arguments: &str) -> Command {
    load::command(engine, "tcp", &target.to_string(), arguments)
}

fn run(engine: &str, target: SocketAddr, arguments: &str) -> Outcome {
    sound(Bounded(Some(command(engine, target, arguments).spawn().unwrap())).output())
}

fn a_correct_echo_has_no_mismatch_and_all_counts_balance(engine: &'static str) {
    let target = serve(|_, stream| echo(stream));
    let cases = [
        "-c 8 -s 128 -t 2",
        "-c 4 -s 1 --depth 7",
        "-c 3 -s 100000 --depth 5",
        "-c 2 -s 700001",
        "-c 5 -s 300 --churn 3",
        "-c 4 -s 64 --churn 10 --depth 4 --rate 2000",
        "-c 3 -s 5000 --rate 300 --idle 2",
        "-c 6 -s 33 --local 127.0.0.2,127.0.0.3",
        "-c 2 -s 1000 --no-verify",
    ];
    for case in cases {
        // After a delay of half a second, a part of the window is left.
        let outcome = run(engine, target, &format!("-d 700ms --warmup 50ms {case}"));
        outcome.expect(0, &[]);
        assert_eq!(outcome.result["engine"], *engine);
        let asked = outcome.number("/settings/connections");
        for counted in ["established", "served"] {
            assert_eq!(outcome.number(&format!("/connections/{counted}")), asked, "{case}");
        }
        assert_eq!(outcome.number("/whole_run/abandoned"), 0, "{case}");
        assert!(outcome.number("/requests/answered") > 0, "{case}");
        let churns = !outcome.result["settings"]["churn"].is_null();
        assert_eq!(outcome.number("/connections/reconnects") > 0, churns, "{case}");
        let answered = outcome.number("/whole_run/answered");
        println!("{engine} {case}: {answered} answered, no mismatch");
    }
}

fn a_number_of_messages_is_met_exactly() {
    let target = serve(|_, stream| echo(stream));
    for case in ["-n 1000 -c 7", "-n 3 -c 4 --depth 5", "-n 500 -c 4 -t 2 --rate 5000"] {
        let outcome = run("auto", target, case);
        outcome.expect(0, &[]);
        let asked = outcome.number("/settings/messages");
        for path in ["/requests/sent", "/requests/answered", "/whole_run/sent"] {
            assert_eq!(outcome.number(path), asked, "{case} {path}");
        }
    }
}

fn one_corrupted_byte_is_found_and_named(engine: &str) {
    let target = serve(|number, stream| {
        echo_with(stream, |position, chunk| {
            if number % 4 == 3
                && let Some(byte) =
                    1000_usize.checked_sub(position).and_then(|at| chunk.get_mut(at))
            {
                *byte ^= 1;
            }
        });
    });
    let outcome = run(engine, target, "-c 4 -s 128 -d 1200ms --warmup 0s");
    outcome.expect(1, &[("mismatch", 1)]);
    let first = outcome.result["first_error"].as_str().unwrap();
    assert!(first.contains("byte 1000 of the stream differs"), "{first}");
    assert!(outcome.number("/whole_run/failed") >= 1);
    let unchecked = run(engine, target, "-c 4 -s 128 -n 1000 --no-verify");
    unchecked.expect(0, &[]);
}

fn lost_bytes_and_surplus_bytes_are_mismatches() {
    let lossy = serve(|_, stream| {
        echo_with(stream, |position, chunk| {
            if let Some(at) = 1000_usize.checked_sub(position).filter(|at| *at < chunk.len()) {
                chunk.remove(at);
            }
        });
    });
    let chatty = serve(|_, stream| {
        echo_with(stream, |position, chunk| {
            if position >= 1000 {
                chunk.push(0);
            }
        });
    });
    for target in [lossy, chatty] {
        // It ends when all three have failed.
        let outcome = run("auto", target, "-c 3 -s 128 -d 20s --warmup 0s --depth 2");
        outcome.expect(1, &[("mismatch", 3)]);
    }
}

fn connections_that_the_server_ends_are_counted_by_kind(engine: &str) {
    // The third of three messages is not answered.
    fn take_three(stream: &mut TcpStream) {
        let mut message = [0; 128];
        for answered in 0..3 {
            if stream.read_exact(&mut message).is_err()
                || (answered < 2 && stream.write_all(&message).is_err())
            {
                return;
            }
        }
    }
    let closes = serve(|number, mut stream| match number % 4 {
        1 => take_three(&mut stream),
        _ => echo(stream),
    });
    let resets = serve(|number, mut stream| match number % 4 {
        1 => {
            take_three(&mut stream);
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        _ => echo(stream),
    });
    for (target, kind) in [(closes, "closed_early"), (resets, "reset")] {
        let outcome = run(engine, target, "-c 4 -s 128 -d 600ms --warmup 0s");
        outcome.expect(1, &[(kind, 1)]);
        assert!(outcome.stderr.contains("requests failed"), "{}", outcome.stderr);
        assert_eq!(outcome.number("/whole_run/failed"), 1);
        assert_eq!(outcome.number("/connections/min_answered"), 2);
    }
}

fn a_server_that_never_answers_is_a_timeout() {
    let target = serve(|_, mut stream| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let outcome = run("auto", target, "-c 5 -d 30s --warmup 0s --timeout 200ms");
    outcome.expect(1, &[("timeout", 5)]);
    assert_eq!(outcome.number("/whole_run/failed"), 5);
    assert_eq!(outcome.number("/connections/served"), 0);
    // The window ends before the timeout: no error is reported, and nothing is hidden.
    let outcome = run("auto", target, "-c 5 -d 1200ms --warmup 0s");
    outcome.expect(1, &[]);
    assert_eq!(outcome.number("/whole_run/abandoned"), 5);
    assert!(outcome.result["requests"]["oldest_in_flight_us"].as_f64().unwrap() >= 100_000.0);
}

fn a_server_that_admits_only_64_connections_is_seen_through() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    // The others stay in the backlog: for them connecting succeeds.
    thread::spawn(move || {
        for stream in listener.incoming().take(64).flatten() {
            thread::spawn(move || echo(stream));
        }
        thread::sleep(RUN_MAX);
    });
    let outcome = run("auto", target, "-c 80 -d 1200ms --warmup 100ms");
    outcome.expect(4, &[]);
    assert!(outcome.stderr.contains("NOT ANSWERED: 16 requests"), "{}", outcome.stderr);
    assert_eq!(outcome.number("/connections/established"), 80);
    assert_eq!(outcome.number("/connections/served"), 64);
    assert_eq!(outcome.number("/connections/served_at_once_max"), 64);
    assert_eq!(outcome.number("/connections/min_answered"), 0);
    assert_eq!(outcome.number("/whole_run/abandoned"), 16);
}

/// More than can be sent: the generator reports unsent requests instead of sending without end. It ended with 0.
fn an_unreachable_rate_reports_unsent_requests() {
    let target = serve(|_, stream| echo(stream));
    let outcome = run("auto", target, "-c 4 -d 500ms --warmup 0s --rate 100m");
    assert_eq!((outcome.code, outcome.errors()), (4, Vec::new()));
    assert!(outcome.stderr.contains("RATE NOT REACHED"), "{}", outcome.stderr);
    assert_eq!(outcome.result["requests"]["rate_reached"], false);
    let sent = outcome.number("/whole_run/sent");
    assert!(sent > 0);
    assert_eq!(sent + outcome.number("/requests/unsent"), 50_000_000);
    assert_eq!(outcome.number("/requests/due"), 50_000_000);
}

/// As many requests as a Poisson process has in that time, which is known: the schedule is the same in
/// every run.
fn requests_arrive_as_independently_as_asked_for() {
    let target = serve(|_, stream| echo(stream));
    let due = Schedule::new(0, 500_000_000, 1, Arrivals::Poisson).due(0, 500_000_000 - 1);
    let periodic = Schedule::new(0, 500_000_000, 1, Arrivals::Periodic).due(0, 500_000_000 - 1);
    assert_ne!(due, periodic);
    let arguments = "-c 1 -d 500ms --warmup 0s --rate 500 --arrivals poisson";
    let outcome = run("auto", target, arguments);
    outcome.expect(0, &[]);
    assert_eq!(outcome.number("/whole_run/sent") + outcome.number("/requests/unsent"), due);
    assert_eq!(outcome.number("/requests/due"), due);
    assert_eq!(outcome.result["settings"]["arrivals"], "poisson");
    let refused = command("epoll", target, "-c 1 --arrivals poisson").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

fn an_interrupt_reports_the_result_so_far(engine: &'static str) {
    for (signal, code) in INTERRUPTS {
        let heard = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&heard);
        let target = serve(move |_, stream| {
            echo_with(stream, |_, chunk| {
                counted.fetch_add(chunk.len(), Ordering::Relaxed);
            });
        });
        // Four messages may be in flight: the fifth is behind an answer.
        let command = command(engine, target, "-c 4 -d 1h --warmup 0s");
        let outcome = interrupted(command, signal, &heard, 4 * 128);
        outcome.expect(code, &[]);
        assert!(outcome.number("/requests/answered") > 0);
    }
}

fn a_closed_port_names_the_address_and_a_fix() {
    // Bound and not listening: connecting is refused, and no other program can take the port.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let target = socket.local_addr().unwrap().as_socket().unwrap();
    let run = Bounded(Some(command("auto", target, "-c 3").spawn().unwrap()));
    let output = run.output();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in [&target.to_string(), "Connection refused", "check that the server is running"] {
        assert!(stderr.contains(part), "{stderr}");
    }
}
