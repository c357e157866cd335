//! `twinring serve … --engine both` and `adaptive`: two engines on the same addresses.

use crate::support::http::*;
use crate::support::load::{Bounded, command, sound};
use crate::support::*;
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![
    moves_lose_no_connection_and_no_byte,
    datagrams_are_reflected_by_both_and_adaptive_has_a_page,
    comparisons_that_make_no_sense_are_refused
];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    servers_without_a_comparison_have_no_page_and_no_field,
    both_engines_serve_files_and_page_metrics_and_json_agree,
    busy_time_of_pinned_cpus_is_shown_if_it_can_be_read
];

/// Slices short enough for a test to have some.
const SLICE: [&str; 2] = ["--compare-slice", "100ms"];
/// An address of its own: no other program gets the port when it is free again.
const ADMIN: [&str; 2] = ["--admin", "127.0.0.7:0"];

fn admin_of(server: &Server) -> SocketAddr {
    server.ready["admin"].as_str().expect("an address").parse().expect("an address")
}

fn page(admin: SocketAddr, path: &str) -> Response {
    let answers = responses(&talk_until_closed(admin, get(path, "").as_bytes()));
    answers.into_iter().next().expect("one")
}

fn engines_json(admin: SocketAddr) -> Value {
    let answer = page(admin, "/engines.json");
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

fn both_engines_serve_files_and_page_metrics_and_json_agree(engine: &str) {
    let (site, logs) = (Site::usual(), Site::new());
    let log = logs.path().join("log");
    let log = ["--access-log", log.to_str().expect("text")];
    let server = Server::http("both", site.path(), &[&SLICE[..], &ADMIN, &log].concat());
    assert_eq!(server.ready["engine"], "io_uring+epoll");
    assert_eq!(server.ready["workers"], 2);
    assert_eq!(server.ready["engines"]["io_uring_workers"], 1);
    let admin = admin_of(&server);
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
    let metrics = page(admin, "/metrics").text();
    let units = &engines[engine]["units"];
    let sample = format!("twinring_engine_units_total{{engine=\"{engine}\"}} {units}");
    let sample = sample.strip_suffix(".0").unwrap_or(&sample);
    assert!(metrics.lines().any(|line| line == sample), "{sample} in {metrics}");
    let html = page(admin, "/engines");
    assert_eq!(html.field("content-type"), Some("text/html; charset=utf-8"));
    let row = format!("<td>units (request)</td><td>{}</td>", engines["io_uring"]["units"]);
    let row = row.replace(".0<", "<");
    assert!(html.text().contains(&row), "{row} in {}", html.text());
    assert!(!html.text().contains("<script"));
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("requests")), (Some(0), 60));
    assert_eq!(sum(&ended.last["engines"], "units"), 60.0);
    assert!(ended.last["engines"]["adaptive"].is_null());
    assert_eq!(ended.stderr.matches("engines:").count(), 0, "JSON has it: {}", ended.stderr);
}

/// With one worker the engines take turns: new connections move every 50 ms, while others are served
/// and wait in accept queues.
fn moves_lose_no_connection_and_no_byte() {
    for mode in ["both", "adaptive"] {
        let server = Server::echo(mode, &[&SLICE[..], &["--workers", "1"]].concat());
        assert_eq!(server.ready["engines"]["in_turns"], true);
        let address = server.address();
        let stay: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
        // Checks every byte; each connection ends after five messages.
        let load = command("epoll", "tcp", &address.to_string(), "-c 20 -s 600 -d 1s --churn 5");
        let load = Bounded(Some({ load }.spawn().expect("the command starts")));
        let outcome = sound(load.output());
        outcome.expect(0, &[]);
        assert!(outcome.number("/connections/reconnects") > 0);
        for (stream, client) in (0..).zip(&stay) {
            ping(client, &pattern(stream, 10_000));
        }
        drop(stay);
        let ended = server.terminate();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(ended.count("reset") + ended.count("cut"), 0, "{mode}: {}", ended.last);
        let engines = &ended.last["engines"];
        assert_eq!(sum(engines, "connections"), ended.count("accepted") as f64);
        assert_eq!(sum(engines, "units") * 1024.0, ended.count("received_bytes") as f64);
        let not_steered = &engines["adaptive"]["not_steered"];
        assert!(not_steered.is_null(), "{not_steered}");
        assert_eq!(engines["adaptive"].is_null(), mode == "both");
    }
}

fn datagrams_are_reflected_by_both_and_adaptive_has_a_page() {
    let server = Server::udp("adaptive", &[&SLICE[..], &ADMIN].concat());
    let admin = admin_of(&server);
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
    let adaptive = &engines_json(admin)["adaptive"];
    assert_eq!(
        (&adaptive["evidence_needed"], &adaptive["error_rate"]),
        (&40.0.into(), &0.05.into())
    );
    assert!(page(admin, "/engines").text().contains("New connections go to"));
    let metrics = page(admin, "/metrics").text();
    assert!(metrics.contains("\ntwinring_udp_received_total 200\n"), "{metrics}");
    assert!(metrics.contains("\ntwinring_engine_trials_total "), "{metrics}");
    assert_eq!(page(admin, "/readyz").status, 200);
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0));
    assert_eq!(sum(&ended.last["engines"], "units"), 200.0);
}

/// Root may read the idle clocks, and the server has opened them before it gave up that right.
fn busy_time_of_pinned_cpus_is_shown_if_it_can_be_read(engine: &str) {
    let readable = std::fs::File::open("/proc/timer_list").is_ok();
    for (cpus, expected) in [("0,1", readable), ("0", false)] {
        let server = Server::echo("both", &[&SLICE[..], &ADMIN, &["--pin", cpus]].concat());
        let engines = engines_json(admin_of(&server));
        let busy_s = engines[engine]["cpu_busy_s"].as_f64();
        assert_eq!(busy_s.is_some(), expected, "{cpus}: {engines}");
        assert_eq!(server.terminate().code, Some(0));
    }
}

fn servers_without_a_comparison_have_no_page_and_no_field(engine: &str) {
    let server = Server::echo(engine, &ADMIN);
    let admin = admin_of(&server);
    assert_eq!(page(admin, "/engines").status, 404);
    assert_eq!(page(admin, "/engines.json").status, 404);
    let metrics = page(admin, "/metrics").text();
    assert!(metrics.contains("\ntwinring_echo_accepted_total 0\n"), "{metrics}");
    assert!(!metrics.contains("twinring_engine_"), "{metrics}");
    let ended = server.terminate();
    assert_eq!(ended.last.get("engines"), None);
}

fn comparisons_that_make_no_sense_are_refused() {
    let tried = [
        (&["udp", "--engine", "both", "--workers", "1"][..], 1, "use --workers 2"),
        (&["echo", "--engine", "both", "--uring", "sqpoll_idle_ms=50"], 1, "sqpoll"),
        (&["echo", "--engine", "all"], 2, "expected auto, io_uring, epoll, both or adaptive"),
        (&["echo", "--engine", "both", "--compare-slice", "1ms"], 2, "from 100ms to 60s"),
    ];
    for (arguments, code, told) in tried {
        let all = [&["serve"], arguments, &["--listen", "127.0.0.1:0"]].concat();
        let (ended, _, stderr) = run(&all);
        assert_eq!(ended, Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(told), "{arguments:?}: {stderr}");
    }
}
