//! `twinring serve http` ending while a request waits for a filesystem that does not answer.

use crate::support::dead_mount::{DeadMount, FILE};
use crate::support::http::get;
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
