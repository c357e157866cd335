//! `twinring serve http` ending while a request waits for a filesystem that does not answer.

use crate::support::dead_mount::{DeadMount, FILE};
use crate::support::http::{Site, get};
use crate::support::*;
use std::io::Write;
use std::time::{Duration, Instant};

/// A server with one request that waits for ever, and its connection.
fn stuck(
    engine: &str,
    files: &str,
    drain_timeout: &str,
) -> (DeadMount, Server, std::net::TcpStream) {
    let mut mount = DeadMount::new();
    let arguments = ["--drain-timeout", drain_timeout, "--uring", files];
    let arguments = if engine == "io_uring" { &arguments[..] } else { &arguments[..2] };
    let server = Server::http(engine, mount.path(), arguments);
    let mut client = connect(server.address());
    client.write_all(get(&format!("/{FILE}"), "").as_bytes()).expect("the server reads");
    mount.wait_for_a_reader();
    (mount, server, client)
}

/// The drain waited for the request as long as the filesystem did: for ever.
#[test]
fn a_drain_ends_in_time_while_a_file_does_not_come() {
    for (engine, files) in
        [("io_uring", "files=ring"), ("io_uring", "files=threads"), ("epoll", "")]
    {
        let (_mount, server, _client) = stuck(engine, files, "300ms");
        let ended = server.terminate();
        assert_eq!(ended.code, Some(0), "{engine} {files}: {}", ended.stderr);
        println!("{engine} {files}: ended, {}", ended.stderr.trim());
    }
}

/// The end of a ring waited 10 s for what cannot be cancelled.
#[test]
fn a_second_signal_ends_the_server_while_a_file_does_not_come() {
    for (engine, files) in
        [("io_uring", "files=ring"), ("io_uring", "files=threads"), ("epoll", "")]
    {
        let (_mount, server, _client) = stuck(engine, files, "300s");
        server.signal(Signal::SIGTERM);
        // Sooner it would count as the same request.
        std::thread::sleep(Duration::from_millis(50));
        let signalled = Instant::now();
        server.signal(Signal::SIGTERM);
        let ended = server.wait();
        assert_eq!(ended.code, Some(143), "{engine} {files}: {}", ended.stderr);
        // A bound of what counts as hung, not of how fast this is.
        assert!(signalled.elapsed() < Duration::from_secs(8), "{engine} {files}: waited");
        println!("{engine} {files}: ended");
    }
}

/// A mount beneath the root is opened on the worker's time. A worker in that system call sees no signal.
#[test]
fn a_worker_in_a_system_call_keeps_no_server_alive() {
    for engine in ENGINES {
        for (signals, code) in [(1, 1), (2, 143)] {
            let site = Site::new();
            let beneath = site.path().join("dead");
            std::fs::create_dir(&beneath).expect("a directory");
            let mut mount = DeadMount::beneath(beneath);
            let server = Server::http(engine, site.path(), &["--drain-timeout", "100ms"]);
            let mut client = connect(server.address());
            let request = get(&format!("/dead/{FILE}"), "");
            client.write_all(request.as_bytes()).expect("the server reads");
            mount.wait_for_a_reader();
            for _ in 0..signals {
                server.signal(Signal::SIGTERM);
                std::thread::sleep(Duration::from_millis(50));
            }
            let ended = server.wait();
            assert_eq!(ended.code, Some(code), "{engine}: {}", ended.stderr);
            assert!(ended.stderr.contains("system call that does not return"), "{}", ended.stderr);
        }
    }
}
