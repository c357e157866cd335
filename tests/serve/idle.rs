//! A server to which nothing comes does nothing: no thread of it runs.

use crate::support::datagrams::{client, reflected};
use crate::support::http::{Site, ask_on, get};
use crate::support::tls::Identity;
use crate::support::*;
use std::net::TcpStream;
use std::time::Duration;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![a_server_without_traffic_sleeps];

/// What happened last has its echoes: a worker ticks for a moment, idle sockets are checked once for a lost
/// reset, and once for what their peers took.
const SETTLING: Duration = Duration::from_secs(4);
const WATCHED: Duration = Duration::from_secs(4);
const WINDOWS: usize = 3;
const RUNS_MAX: u64 = 2;
const CONNECTIONS: usize = 100;

/// How often threads of a server were given a CPU so far.
fn runs(server: &Server) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
    let runs = |task: std::fs::DirEntry| {
        let stat =
            std::fs::read_to_string(task.path().join("schedstat")).expect("CONFIG_SCHED_INFO");
        let count = stat.split_whitespace().nth(2).expect("time slices");
        count.parse::<u64>().expect("a number")
    };
    tasks.flatten().map(runs).sum()
}

/// `serve udp` woke 1,000 times a second for its ticks, `serve http` once a second to sweep over its
/// connections, also without any.
fn a_server_without_traffic_sleeps(engine: &str) {
    let site = Site::usual();
    let log = site.path().join("access.log");
    let log = log.to_str().expect("a path of this test");
    let identity = Identity::new();
    let tls = identity.arguments();
    let all = ["--admin", "127.0.0.1:0", "--access-log", log];
    let all: Vec<&str> = all.into_iter().chain(tls.iter().map(String::as_str)).collect();
    let mut servers = Vec::new();
    let mut connections: Vec<TcpStream> = Vec::new();
    for workers in ["1", "2"] {
        let workers = ["--workers", workers];
        servers.push(("udp", Server::udp(engine, &workers)));
        servers.push(("echo", Server::echo(engine, &workers)));
        servers.push(("http", Server::http(engine, site.path(), &workers)));
    }
    let timed = ["--idle-timeout", "1s"];
    servers.push(("echo with a timeout", Server::echo(engine, &timed)));
    servers.push(("http with all", Server::http(engine, site.path(), &all)));
    let loaded = Server::echo(engine, &[]);
    for _ in 0..CONNECTIONS {
        connections.push(connect(loaded.address()));
        ping(&connections[connections.len() - 1], b"once");
    }
    servers.push(("echo with connections", loaded));
    let loaded = Server::http(engine, site.path(), &all);
    for _ in 0..CONNECTIONS {
        let mut connection = connect(loaded.address());
        assert_eq!(ask_on(&mut connection, &get("/", "")).status, 200);
        connections.push(connection);
    }
    servers.push(("http with connections", loaded));
    for (service, server) in &servers {
        if *service == "udp" {
            reflected(&client(server.address()), b"once");
        }
    }
    std::thread::sleep(SETTLING);
    // Preempted once more, a thread counts as run; on a busy machine that says nothing. What wakes up
    // by itself does so in every window.
    let mut awake: Vec<_> = servers.iter().collect();
    for _ in 0..WINDOWS {
        let before: Vec<u64> = awake.iter().map(|(_, server)| runs(server)).collect();
        std::thread::sleep(WATCHED);
        let watched = awake.into_iter().zip(before);
        awake =
            watched.filter(|(it, before)| runs(&it.1) - before > RUNS_MAX).map(|it| it.0).collect();
        if awake.is_empty() {
            break;
        }
    }
    let awake: Vec<_> = awake.iter().map(|(service, _)| service).collect();
    assert!(awake.is_empty(), "{engine}: threads ran in each window: {awake:?}");
    for (service, server) in &servers {
        if *service == "udp" {
            reflected(&client(server.address()), b"and again");
        }
    }
}
