//! How load generators start: what they refuse, and those that begin at a moment that they were told.

use crate::support::http::Site;
use crate::support::load::*;
use crate::support::*;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const TESTS: &[Test] = tests![
    senseless_arguments_are_named_and_end_with_2,
    a_moment_that_has_passed_is_refused,
    two_load_generators_of_each_kind_begin_at_one_moment
];

fn starting_at(at_s: f64, kind: &str, target: &str) -> Command {
    command(ENGINE, kind, target, &format!("--start-at {at_s} -d 500ms --warmup 100ms"))
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn two_load_generators_of_each_kind_begin_at_one_moment() {
    let site = Site::usual();
    for (kind, server) in [
        ("tcp", Server::echo(ENGINE, &[])),
        ("http", Server::http(ENGINE, site.path(), &[])),
        ("udp", Server::udp(ENGINE, &[])),
    ] {
        let address = server.address();
        let target = match kind {
            "http" => format!("http://{address}/index.html"),
            _ => address.to_string(),
        };
        let (now_ns, at_s) = (twinring::measure::monotonic_ns(), now_s() + 2.0);
        let both = [(); 2].map(|()| starting_at(at_s, kind, &target));
        let both = both.map(|load| thread::spawn(|| finished(load)));
        let windows = both.map(|load| {
            let load = load.join().expect("a result");
            assert_eq!(load.code, 0, "{kind}: {}", load.stderr);
            ["start", "end"].map(|it| load.number(&format!("/window/{it}_monotonic_ns")))
        });
        // Neither window begins before the moment and the warm-up, nor after the other has ended. A moment in seconds
        // is exact to a microsecond.
        let [[one, one_ends], [other, other_ends]] = windows;
        assert!(one.min(other) + 1000 >= now_ns + 2_100_000_000, "{kind}: {windows:?}");
        assert!(one < other_ends && other < one_ends, "{kind}: {windows:?}");
        server.end();
    }
}

fn a_moment_that_has_passed_is_refused() {
    let server = Server::echo(ENGINE, &[]);
    let target = server.address().to_string();
    assert_ended(&mut starting_at(now_s() - 1.0, "tcp", &target), 1, &["--start-at"]);
}

fn senseless_arguments_are_named_and_end_with_2() {
    // Arguments, and what the message names.
    for (arguments, named) in [
        ("tcp ADDR -s 0", "--size 0"),
        ("tcp ADDR --depth 0", "--depth 0"),
        ("tcp ADDR -c 0", "--connections 0"),
        ("tcp ADDR --rate 0", "--rate 0"),
        ("tcp ADDR -c 2 -t 4", "--threads 4"),
        ("tcp ADDR --arrivals poisson", "--rate"),
        ("tcp ADDR -d 0s", "--duration 0"),
        ("tcp ADDR --engine kqueue", "'kqueue'"),
        ("tcp ADDR --uring nonsense=on", "nonsense=on"),
        ("tcp ADDR --pin 3-1", "'3-1'"),
        ("tcp ADDR --local ::1", "--local ::1"),
        ("udp ADDR -s 11", "--size 11"),
        ("udp ADDR --streams 0", "--streams 0"),
        ("udp ADDR --pps 0", "--pps 0"),
        ("udp ADDR --pps nan", "--pps"),
        ("udp ADDR --streams 2 -t 3", "--threads 3"),
        ("udp ADDR -d 0s", "--duration 0"),
        ("udp ADDR --tick 1us", "--tick 1"),
        ("udp ADDR --pending 5000", "--pending 5000"),
        ("udp ADDR --local ::1", "--local ::1"),
        ("http URL --pipeline 0", "--pipeline 0"),
        ("http URL -c 0", "--connections 0"),
        ("http URL -c 2 -t 4", "--threads 4"),
        ("http URL --pipeline 2 --no-keepalive", "--no-keepalive"),
        ("http URL --http2 --no-keepalive", "--http2 excludes --no-keepalive"),
        ("http URL --http2 --pipeline 20000", "--http2 20000"),
        ("http URL --http2 -H Upgrade:x", "'upgrade: ...'"),
        ("http URL --http2 -H Host:a/b", "http://127.0.0.1:9/"),
        ("http URL http://127.0.0.1:8/", "not at the same server"),
        ("http URL https://127.0.0.1:9/", "not at the same server"),
        ("http URL --weights 1,2", "--weights"),
        ("http URL --weights 0", "weight"),
        ("http URL -H nonsense", "NAME: VALUE"),
        ("http URL -H Content-Length:5", "content-length"),
        ("http URL -X CONNECT", "CONNECT"),
        ("http URL --max-error-rate 2", "'2'"),
        ("http URL --insecure", "https"),
        ("http URL --connect-to nowhere", "expected IP:PORT"),
        ("http URL --rate 12KB", "`12KB` is a size, not a rate"),
        ("http URL --max-error-rate 1", "write 1% or 100%"),
        ("http URL --any-length --verify-body", "--verify-body"),
        ("http ftp://127.0.0.1/", "neither http nor https"),
        ("http 127.0.0.1:9", "127.0.0.1:9"),
        ("http", "<URL>"),
    ] {
        let arguments = arguments.replace("URL", "http://ADDR/").replace("ADDR", "127.0.0.1:9");
        assert_ends(&format!("load {arguments}"), 2, &[named]);
    }
}
