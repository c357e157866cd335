//! How load generators start: what they refuse, and those that begin at a moment that they were told.

use crate::support::http::Site;
use crate::support::load::*;
use crate::support::*;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const TESTS: &[Test] = tests![senseless_arguments_are_named_and_end_with_2];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    a_moment_that_has_passed_is_refused,
    two_load_generators_of_each_kind_begin_at_one_moment
];

fn start(engine: &str, kind: &str, target: &str, at_s: f64) -> Bounded {
    let arguments = format!("--start-at {at_s} -d 500ms --warmup 100ms");
    Bounded(Some(command(engine, kind, target, &arguments).spawn().unwrap()))
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn two_load_generators_of_each_kind_begin_at_one_moment(engine: &str) {
    let site = Site::usual();
    let servers = [
        ("tcp", Server::echo(engine, &[])),
        ("http", Server::http(engine, site.path(), &[])),
        ("udp", Server::udp(engine, &[])),
    ];
    for (kind, server) in servers {
        let address = server.address();
        let target = match kind {
            "http" => format!("http://{address}/index.html"),
            _ => address.to_string(),
        };
        let (now_ns, at_s) = (twinring::measure::monotonic_ns(), now_s() + 2.0);
        let both = [(); 2].map(|()| start(engine, kind, &target, at_s));
        let windows = both.map(|run| {
            let output = run.output();
            assert_eq!(output.status.code(), Some(0), "{kind}: {output:?}");
            let mut lines = output.stdout.split(|byte| *byte == b'\n');
            ["window_start", "window_end"].map(|event| {
                let mark: Value = serde_json::from_slice(lines.next().unwrap()).unwrap();
                assert_eq!(mark["event"], event);
                mark["monotonic_ns"].as_u64().unwrap()
            })
        });
        // Neither window begins before the moment and the warm-up, nor after the other has ended. A moment in seconds
        // is exact to a microsecond.
        let [[one, one_ends], [other, other_ends]] = windows;
        assert!(one.min(other) + 1000 >= now_ns + 2_100_000_000, "{kind}: {windows:?}");
        assert!(one < other_ends && other < one_ends, "{kind}: {windows:?}");
        assert_eq!(server.terminate().code, Some(0));
    }
}

fn a_moment_that_has_passed_is_refused(engine: &str) {
    let server = Server::echo(engine, &[]);
    let target = server.address().to_string();
    let output = start(engine, "tcp", &target, now_s() - 1.0).output();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--start-at"), "{stderr}");
}

fn senseless_arguments_are_named_and_end_with_2() {
    // Arguments, and what the message names.
    for (beginning, cases) in [
        (
            "tcp 127.0.0.1:9",
            &[
                ("-s 0", "--size 0"),
                ("--depth 0", "--depth 0"),
                ("-c 0", "--connections 0"),
                ("--rate 0", "--rate 0"),
                ("-c 2 -t 4", "--threads 4"),
                ("-d 0s", "--duration 0"),
                ("-d soon", "'soon'"),
                ("--engine kqueue", "'kqueue'"),
                ("--uring nonsense=on", "nonsense=on"),
                ("--pin 3-1", "'3-1'"),
                ("--local ::1", "--local ::1"),
            ][..],
        ),
        (
            "udp 127.0.0.1:9",
            &[
                ("-s 11", "--size 11"),
                ("--streams 0", "--streams 0"),
                ("--pps 0", "--pps 0"),
                ("--pps fast", "'fast'"),
                ("--pps nan", "--pps"),
                ("--streams 2 -t 3", "--threads 3"),
                ("-d 0s", "--duration 0"),
                ("--tick 1us", "--tick 1"),
                ("--pending 5000", "--pending 5000"),
                ("--batch maybe", "'maybe'"),
                ("--local ::1", "--local ::1"),
            ],
        ),
        (
            "http http://127.0.0.1:9/",
            &[
                ("--pipeline 0", "--pipeline 0"),
                ("-c 0", "--connections 0"),
                ("-c 2 -t 4", "--threads 4"),
                ("--pipeline 2 --no-keepalive", "--no-keepalive"),
                ("--http2 --no-keepalive", "--http2 excludes --no-keepalive"),
                ("--http2 --pipeline 20000", "--http2 20000"),
                ("--http2 -H Upgrade:x", "'upgrade: ...'"),
                ("--http2 -H Host:a/b", "http://127.0.0.1:9/"),
                ("http://127.0.0.1:8/", "not at the same server"),
                ("https://127.0.0.1:9/", "not at the same server"),
                ("--weights 1,2", "--weights"),
                ("--weights 0", "weight"),
                ("-H nonsense", "NAME: VALUE"),
                ("-H Content-Length:5", "content-length"),
                ("-X CONNECT", "CONNECT"),
                ("--expect-status 2xx", "2xx"),
                ("--max-error-rate 2", "'2'"),
                ("--insecure", "https"),
                ("--connect-to nowhere", "expected IP:PORT"),
                ("--rate 12KB", "`12KB` is a size, not a rate"),
                ("--slo p99", "p99=20ms"),
                ("--max-error-rate 1", "write 1% or 100%"),
                ("--any-length --verify-body", "--verify-body"),
            ],
        ),
        (
            "http",
            &[
                ("ftp://127.0.0.1/", "neither http nor https"),
                ("127.0.0.1:9", "127.0.0.1:9"),
                ("", "<URL>"),
            ],
        ),
    ] {
        for (arguments, named) in cases {
            let arguments = format!("load {beginning} {arguments}");
            let (code, _, stderr) = run(&arguments.split_whitespace().collect::<Vec<_>>());
            assert_eq!(code, Some(2), "{arguments}: {stderr}");
            assert!(stderr.contains(named), "{arguments}: {stderr}");
        }
    }
}
