//! `twinring serve … --engine both`: two engines on the same addresses.

use crate::support::http::*;
use crate::support::load::{Bounded, command, sound};
use crate::support::*;
use serde_json::Value;
use std::net::SocketAddr;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![
    both_engines_serve_files_and_metrics_and_json_agree,
    datagrams_are_reflected_by_both,
    seconds_of_work_on_both_engines_are_compared,
    comparisons_that_make_no_sense_are_refused
];
pub(crate) const ENGINE_TESTS: &[Test] =
    engine_tests![servers_without_a_comparison_have_no_page_and_no_field];

/// An address of its own: no other program gets the port when it is free again.
const ADMIN: [&str; 2] = ["--admin", "127.0.0.7:0"];

fn engines_json(admin: SocketAddr) -> Value {
    let answer = ask_last(admin, &get("/engines.json", ""));
    assert_eq!(answer.field("content-type"), Some("application/json"));
    serde_json::from_str(&answer.text()).expect("JSON")
}

/// The sum of a field over both engines; both have some of it.
fn sum(engines: &Value, field: &str) -> f64 {
    let of = |engine: &str| engines[engine][field].as_f64().expect("a number");
    let (uring, epoll) = (of("io_uring"), of("epoll"));
    assert!(uring > 0.0 && epoll > 0.0, "{field}: {engines}");
    uring + epoll
}

fn both_engines_serve_files_and_metrics_and_json_agree() {
    testing::needs_io_uring();
    let (site, logs) = (Site::usual(), Site::new());
    let log = logs.path().join("log");
    let log = ["--access-log", log.to_str().expect("text")];
    let server = Server::http("both", site.path(), &[&ADMIN[..], &log].concat());
    assert_eq!(server.ready["engine"], "io_uring+epoll");
    assert_eq!(server.ready["workers"], 2);
    assert_eq!(server.ready["engines"]["io_uring_workers"], 1);
    let admin = server.admin();
    let answer = ask(&server, &get("/hello.txt", "")).body;
    for _ in 1..60 {
        assert_same(&ask(&server, &get("/hello.txt", "")).body, &answer);
    }
    // Workers read themselves a few times in a slice.
    let mut engines = Value::Null;
    wait_until("all requests are read", || {
        engines = engines_json(admin);
        let units = |engine: &str| engines[engine]["units"].as_f64().expect("a number");
        units("io_uring") + units("epoll") == 60.0
    });
    assert_eq!(sum(&engines, "connections"), 60.0);
    let latency = engines["epoll"]["latency_us_mean"].as_f64();
    assert!(latency.is_some_and(|us| us > 0.0), "{engines}");
    let metrics = ask_last(admin, &get("/metrics", "")).text();
    for engine in ["io_uring", "epoll"] {
        let units = &engines[engine]["units"];
        let sample = format!("twinring_engine_units_total{{engine=\"{engine}\"}} {units}");
        let sample = sample.strip_suffix(".0").unwrap_or(&sample);
        assert!(metrics.lines().any(|line| line == sample), "{sample} in {metrics}");
    }
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("requests")), (Some(0), 60));
    assert_eq!(sum(&ended.last["engines"], "units"), 60.0);
    assert_eq!(ended.stderr.matches("engines:").count(), 0, "JSON has it: {}", ended.stderr);
}

fn datagrams_are_reflected_by_both() {
    testing::needs_io_uring();
    let server = Server::udp("both", &ADMIN);
    let admin = server.admin();
    // Between two sockets the kernel chooses by a hash of the addresses.
    for source in 0..40 {
        let client = datagrams::client(server.address());
        (0..5).for_each(|number| {
            datagrams::reflected(&client, &datagrams::numbered(source, number, 100));
        });
    }
    wait_until("all datagrams are read", || {
        let engines = engines_json(admin);
        let units = |engine: &str| engines[engine]["units"].as_f64().expect("a number");
        units("io_uring") + units("epoll") == 200.0
    });
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0));
    assert_eq!(sum(&ended.last["engines"], "units"), 200.0);
}

/// With enough work in a second there is a ratio.
fn seconds_of_work_on_both_engines_are_compared() {
    testing::needs_io_uring();
    let server = Server::echo("both", &[]);
    let address = server.address().to_string();
    let load = command("epoll", "tcp", &address, "-c 30 -s 4K -d 3s");
    let load = Bounded(Some({ load }.spawn().expect("the command starts")));
    sound(load.output()).expect(0, &[]);
    let engines = server.terminate().last["engines"].clone();
    assert!(engines["slices_compared"].as_u64() > Some(0), "{engines}");
    assert!(engines["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{engines}");
}

fn servers_without_a_comparison_have_no_page_and_no_field(engine: &str) {
    let server = Server::echo(engine, &ADMIN);
    let admin = server.admin();
    assert_eq!(ask_last(admin, &get("/engines.json", "")).status, 404);
    let metrics = ask_last(admin, &get("/metrics", "")).text();
    assert!(metrics.contains("\ntwinring_echo_accepted_total 0\n"), "{metrics}");
    assert!(!metrics.contains("twinring_engine_"), "{metrics}");
    let ended = server.terminate();
    assert_eq!(ended.last.get("engines"), None);
}

fn comparisons_that_make_no_sense_are_refused() {
    testing::needs_io_uring();
    let tried = [
        (&["echo", "--engine", "both", "--workers", "1"][..], 1, "needs --workers 2"),
        (&["echo", "--engine", "both", "--uring", "sqpoll_idle_ms=50"], 1, "sqpoll"),
        (&["echo", "--engine", "all"], 2, "expected auto, io_uring, epoll or both"),
    ];
    for (arguments, code, told) in tried {
        let all = [&["serve"], arguments, &["--listen", "127.0.0.1:0"]].concat();
        let (ended, _, stderr) = run(&all);
        assert_eq!(ended, Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(told), "{arguments:?}: {stderr}");
    }
}
