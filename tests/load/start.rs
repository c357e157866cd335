//! Load generators that begin at a moment that they were told.

use crate::support::http::Site;
use crate::support::load::*;
use crate::support::*;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    a_moment_that_has_passed_is_refused,
    two_load_generators_of_each_kind_begin_at_one_moment
];

fn start(engine: &str, kind: &str, target: &str, at_s: f64) -> Bounded {
    let arguments = format!("--start-at {at_s} -d 200ms --warmup 100ms");
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
        let (at_s, now_ns) = (now_s() + 2.0, twinring::measure::monotonic_ns());
        let both = [(); 2].map(|()| start(engine, kind, &target, at_s));
        for run in both {
            let output = run.output();
            assert_eq!(output.status.code(), Some(0), "{kind}: {output:?}");
            let line = output.stdout.split(|byte| *byte == b'\n').next().unwrap();
            let mark: Value = serde_json::from_slice(line).unwrap();
            assert_eq!(mark["event"], "window_start");
            let after_s = (mark["monotonic_ns"].as_u64().unwrap() - now_ns) as f64 / 1e9;
            // Behind the warm-up, to within what the two clocks were read apart.
            assert!((after_s - 2.1).abs() < 0.05, "{kind}: {after_s} s");
        }
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
