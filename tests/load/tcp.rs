//! `twinring load tcp` against servers of known behaviour: each fault must be detected and named, and the counts must
//! always balance.

use crate::support::load::*;
use crate::support::*;
use std::process::Output;
use twinring_load::schedule::{Arrivals, Schedule};

pub(crate) const TESTS: &[Test] = tests![
    a_server_that_admits_only_64_connections_is_seen_through,
    a_number_of_messages_is_met_exactly,
    lost_bytes_and_surplus_bytes_are_mismatches,
    a_server_that_never_answers_is_a_timeout,
    an_unreachable_rate_reports_unsent_requests,
    requests_arrive_as_independently_as_asked_for,
    a_closed_port_names_the_address_and_a_fix;
    engines:
    a_correct_echo_has_no_mismatch_and_all_counts_balance,
    one_corrupted_byte_is_found_and_named,
    an_interrupt_reports_the_result_so_far,
    connections_that_the_server_ends_are_counted_by_kind
];

/// Echoes; `corrupt` gets each chunk with its position in the stream and may change it.
fn echo_with(mut stream: TcpStream, mut corrupt: impl FnMut(usize, &mut Vec<u8>)) {
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
    finished(command(engine, target, arguments))
}

fn a_correct_echo_has_no_mismatch_and_all_counts_balance(engine: &str) {
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
        assert_eq!(outcome.result["engine"], engine);
        let asked = outcome.number("/settings/connections");
        outcome.has(&["/connections/established", "/connections/served"].map(|it| (it, asked)));
        outcome.has(&[("/whole_run/abandoned", 0)]);
        assert!(outcome.number("/requests/answered") > 0, "{case}");
        let churns = !outcome.result["settings"]["churn"].is_null();
        assert_eq!(outcome.number("/connections/reconnects") > 0, churns, "{case}");
    }
}

fn a_number_of_messages_is_met_exactly() {
    let target = serve(|_, stream| echo(stream));
    for case in ["-n 1000 -c 7", "-n 3 -c 4 --depth 5", "-n 500 -c 4 -t 2 --rate 5000"] {
        let outcome = run("auto", target, case);
        outcome.expect(0, &[]);
        let asked = outcome.number("/settings/messages");
        let all = ["/requests/sent", "/requests/answered", "/whole_run/sent"];
        outcome.has(&all.map(|path| (path, asked)));
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
    run(engine, target, "-c 4 -s 128 -n 1000 --no-verify").expect(0, &[]);
}

fn lost_bytes_and_surplus_bytes_are_mismatches() {
    let lossy = |position: usize, chunk: &mut Vec<u8>| {
        if let Some(at) = 1000_usize.checked_sub(position).filter(|at| *at < chunk.len()) {
            chunk.remove(at);
        }
    };
    let chatty = |position, chunk: &mut Vec<u8>| chunk.extend((position >= 1000).then_some(0));
    for corrupt in [lossy as fn(usize, &mut Vec<u8>), chatty] {
        let target = serve(move |_, stream| echo_with(stream, corrupt));
        // It ends when all three have failed.
        let outcome = run("auto", target, "-c 3 -s 128 -d 20s --warmup 0s --depth 2");
        outcome.expect(1, &[("mismatch", 3)]);
    }
}

fn connections_that_the_server_ends_are_counted_by_kind(engine: &str) {
    for kind in ["closed_early", "reset"] {
        let target = serve(move |number, mut stream| {
            if number % 4 != 1 {
                return echo(stream);
            }
            // The third of three messages is not answered.
            let mut message = [0; 128];
            for answered in 0..3 {
                stream.read_exact(&mut message).unwrap();
                if answered < 2 {
                    stream.write_all(&message).unwrap();
                }
            }
            if kind == "reset" {
                reset(stream);
            }
        });
        let outcome = run(engine, target, "-c 4 -s 128 -d 600ms --warmup 0s");
        outcome.expect(1, &[(kind, 1)]);
        assert!(outcome.stderr.contains("requests failed"), "{}", outcome.stderr);
        outcome.has(&[("/whole_run/failed", 1), ("/connections/min_answered", 2)]);
    }
}

fn a_server_that_never_answers_is_a_timeout() {
    let target = serve(|_, mut stream| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let outcome = run("auto", target, "-c 5 -d 30s --warmup 0s --timeout 200ms");
    outcome.expect(1, &[("timeout", 5)]);
    outcome.has(&[("/whole_run/failed", 5), ("/connections/served", 0)]);
    // The window ends before the timeout: no error is reported, and nothing is hidden.
    let outcome = run("auto", target, "-c 5 -d 1200ms --warmup 0s");
    outcome.expect(1, &[]);
    outcome.has(&[("/whole_run/abandoned", 5)]);
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
        thread::sleep(PATIENCE);
    });
    let outcome = run("auto", target, "-c 80 -d 1200ms --warmup 100ms");
    outcome.expect(4, &[]);
    assert!(outcome.stderr.contains("NOT ANSWERED: 16 requests"), "{}", outcome.stderr);
    outcome.has(&[
        ("/connections/established", 80),
        ("/connections/served", 64),
        ("/connections/served_at_once_max", 64),
        ("/connections/min_answered", 0),
        ("/whole_run/abandoned", 16),
    ]);
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
    let due = |how| Schedule::new(0, 500_000_000, 1, how).due(0, 500_000_000 - 1);
    let (due, periodic) = (due(Arrivals::Poisson), due(Arrivals::Periodic));
    assert_ne!(due, periodic);
    let outcome = run("auto", target, "-c 1 -d 500ms --warmup 0s --rate 500 --arrivals poisson");
    outcome.expect(0, &[]);
    assert_eq!(outcome.number("/whole_run/sent") + outcome.number("/requests/unsent"), due);
    outcome.has(&[("/requests/due", due)]);
    assert_eq!(outcome.result["settings"]["arrivals"], "poisson");
}

fn an_interrupt_reports_the_result_so_far(engine: &str) {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let heard = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&heard);
        let target = serve(move |_, stream| {
            echo_with(stream, |_, chunk| {
                counted.fetch_add(chunk.len(), Ordering::Relaxed);
            });
        });
        let target = target.to_string();
        let mut load = command_by(twinring(), engine, "tcp", &target, "-c 4 -d 1h --warmup 0s");
        let mut run = load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(run.stdout.take().unwrap());
        let mut text = String::new();
        // The window has begun.
        stdout.read_line(&mut text).unwrap();
        // Four messages may be in flight: the fifth is behind an answer.
        wait_until("it is answered", || heard.load(Ordering::Relaxed) > 4 * 128);
        kill(Pid::from_raw(run.id() as i32), signal).unwrap();
        stdout.read_to_string(&mut text).unwrap();
        let output = run.wait_with_output().unwrap();
        let outcome = sound(Output { stdout: text.into_bytes(), ..output });
        outcome.expect(code, &[]);
        assert_eq!(outcome.result["interrupted"], true);
        assert!(outcome.result["window"]["seconds"].as_f64() < Some(60.0), "{}", outcome.result);
        assert!(outcome.number("/requests/answered") > 0);
    }
}

fn a_closed_port_names_the_address_and_a_fix() {
    // Bound and not listening: connecting is refused, and no other program can take the port.
    let socket = socket_from(Ipv4Addr::LOCALHOST);
    let target = socket.local_addr().unwrap().as_socket().unwrap();
    let words = [&target.to_string(), "Connection refused", "check that the server is running"];
    assert_ended(&mut command("auto", target, "-c 3"), 1, &words);
    // The size of its buffers overflowed.
    let longest = format!("-c 1 --expect-length {}", u64::MAX);
    assert_ended(&mut http("auto", target, &longest), 1, &words[..2]);
}
