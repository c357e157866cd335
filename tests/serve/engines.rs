//! `twinring serve … --engine both`: two engines on the same addresses.

use crate::support::http::*;
use crate::support::*;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    both_engines_serve_files_and_the_end_has_the_counters_of_each,
    datagrams_are_reflected_by_both,
    arguments_that_make_no_sense_are_refused
];

/// The sum of a counter over both engines; both have some of it.
fn sum(ended: &Ended, field: &str) -> f64 {
    let engines = &ended.last["engines"];
    let of = |engine: &str| engines[engine][field].as_f64().expect("a number");
    let (uring, epoll) = (of("io_uring"), of("epoll"));
    assert!(uring > 0.0 && epoll > 0.0, "{field}: {engines}");
    uring + epoll
}

fn both_engines_serve_files_and_the_end_has_the_counters_of_each() {
    testing::needs_io_uring();
    let site = Site::usual();
    let server = Server::http("both", site.path(), &["--stats", "1"]);
    assert_eq!(server.ready["engine"], "io_uring+epoll");
    assert_eq!(server.ready["workers"], 2);
    let answer = ask(&server, &get("/hello.txt", "")).body;
    for _ in 1..60 {
        assert_same(&ask(&server, &get("/hello.txt", "")).body, &answer);
    }
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("requests")), (Some(0), 60));
    assert_eq!(ended.last["engines"]["io_uring"]["workers"], 1);
    for (counter, value) in [("units", 60.0), ("connections", 60.0)] {
        assert_eq!(sum(&ended, counter), value, "{}", ended.last);
    }
    let calls = ended.last["runtime_counters"]["syscalls"].as_f64();
    assert_eq!(Some(sum(&ended, "syscalls")), calls, "{}", ended.last);
    let bytes = (ended.count("received_bytes") + ended.count("sent_bytes")) as f64;
    assert_eq!(sum(&ended, "bytes"), bytes, "{}", ended.last);
    let cpu = |engine: &str, mode: &str| ended.last["engines"][engine][mode].as_f64();
    for engine in ["io_uring", "epoll"] {
        let all = cpu(engine, "cpu_user_s").zip(cpu(engine, "cpu_system_s"));
        assert!(all.is_some_and(|(user, system)| user + system > 0.0), "{}", ended.last);
    }
}

fn datagrams_are_reflected_by_both() {
    testing::needs_io_uring();
    let server = Server::udp("both", &[]);
    // Between two sockets the kernel chooses by a hash of the addresses.
    for source in 0..40 {
        let client = datagrams::client(server.address());
        (0..5).for_each(|number| {
            datagrams::reflected(&client, &datagrams::numbered(source, number, 100));
        });
    }
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0));
    assert_eq!(sum(&ended, "units"), 200.0);
}

fn arguments_that_make_no_sense_are_refused() {
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
