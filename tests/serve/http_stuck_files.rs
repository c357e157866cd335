//! `serve http` ending while something waits for a filesystem that does not answer.

use crate::support::dead_mount::{DeadMount, FILE};
use crate::support::http::{Site, ask, get, set};
use crate::support::tls::Identity;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    a_blocked_certificate_delays_no_signal,
    a_second_signal_does_not_wait_for_a_blocked_log;
    engines:
    a_blocked_file_delays_no_end,
    a_worker_in_a_system_call_keeps_no_server_alive
];

/// The first of two signals. One that is sent before this one was taken would be lost in it, and one
/// right behind it counts as the same request.
fn start_to_drain(server: &Server) {
    server.signal(Signal::SIGTERM);
    wait_until("it drains", || TcpStream::connect(server.address()).is_err());
    thread::sleep(Duration::from_millis(50));
}

/// The drain waited for the request as long as the filesystem did: for ever. And the end of a ring waited 10 s for what
/// cannot be cancelled.
fn a_blocked_file_delays_no_end(engine: &str) {
    for (drain_timeout, signals, code) in [("300ms", 1, 0), ("300s", 2, 143)] {
        let site = Site::new();
        let mut mount = DeadMount::over(site.path());
        let server = Server::http(engine, site.path(), &[&set("drain-timeout", drain_timeout)]);
        let _client = begin(server.address(), get(&format!("/{FILE}"), ""));
        mount.wait_for_a_reader();
        if signals == 2 {
            start_to_drain(&server);
        }
        server.terminate().expect(code, &[]);
    }
}

/// A mount beneath the root is opened on the worker's time. A worker in that system call sees no signal.
fn a_worker_in_a_system_call_keeps_no_server_alive(engine: &str) {
    // Of signals that come before the first was taken, only one counts; here nothing shows when it was.
    // The deadline of the first, which comes at about the same time, ended the process with 1.
    for (signals, code) in [(1, 1), (8, 143)] {
        let site = Site::new();
        let beneath = site.path().join("dead");
        fs::create_dir(&beneath).expect("a directory");
        let mut mount = DeadMount::before_opening(beneath);
        let server = Server::http(engine, site.path(), &["server.drain-timeout = '100ms'"]);
        let _client = begin(server.address(), get(&format!("/dead/{FILE}"), ""));
        mount.wait_for_a_reader();
        for _ in 0..signals {
            server.signal(Signal::SIGTERM);
            thread::sleep(Duration::from_millis(100));
        }
        let ended = server.wait();
        ended.expect(code, &[]);
        assert!(ended.stderr.contains("system call that does not return"), "{}", ended.stderr);
    }
}

/// A server that has been reading its certificate since a SIGHUP, without end.
fn reloading(site: &Site, etc: &Site, drain_timeout: &str) -> (DeadMount, Server) {
    let identity = Identity::new();
    let files = ["live/stuck.bin", "key.pem", "access.log"].map(|name| etc.file(name));
    let [certificate, key, log] = files.each_ref().map(String::as_str);
    let live = etc.path().join("live");
    fs::create_dir(&live).expect("a directory");
    fs::copy(identity.certificate(), certificate).expect("a file");
    // Landlock lets the server reach what is mounted over `live` later, because it may read all of `etc` for this.
    fs::copy(identity.key(), key).expect("a file");
    let keys = [set("drain-timeout", drain_timeout), set("header-timeout", "300s")];
    let more = ["--access-log", log, &keys[0], &keys[1]];
    let tls = ["--listen-tls", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key];
    let server = Server::http(ENGINE, site.path(), &[&tls[..], &more].concat());
    let mut mount = DeadMount::over(&live);
    server.signal(Signal::SIGHUP);
    mount.wait_for_a_reader();
    (mount, server)
}

/// No signal was taken any more, SIGTERM neither.
fn a_blocked_certificate_delays_no_signal() {
    for (drain_timeout, code) in [("300ms", 0), ("300s", 143)] {
        let (site, etc) = (Site::usual(), Site::new());
        let (_mount, server) = reloading(&site, &etc, drain_timeout);
        // Two more of them are one that waits. The log does not wait for the certificate.
        let (log, old) = (etc.path().join("access.log"), etc.path().join("old.log"));
        for signal in [Signal::SIGHUP, Signal::SIGHUP, Signal::SIGUSR1] {
            fs::rename(&log, &old).expect("a log");
            server.signal(signal);
            wait_until("the log is reopened", || log.exists());
        }
        assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
        let _unfinished = begin(server.address(), "GET / HTTP/1.1\r\n");
        if code == 143 {
            start_to_drain(&server);
        }
        assert_eq!(server.terminate().code, Some(code));
    }
}

/// The end waited for the log as long as without the second signal.
fn a_second_signal_does_not_wait_for_a_blocked_log() {
    let (site, etc) = (Site::usual(), Site::new());
    let live = etc.path().join("live");
    fs::create_dir(&live).expect("a directory");
    let log = etc.file(&format!("live/{FILE}"));
    // Landlock does not let it reach what is mounted over a directory later.
    let arguments = ["--access-log", &*log, "--sandbox", "ring,seccomp"];
    let server = Server::http(ENGINE, site.path(), &arguments);
    let mut mount = DeadMount::over(&live);
    server.signal(Signal::SIGUSR1);
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    mount.wait_for_a_reader();
    start_to_drain(&server);
    let ended = server.terminate();
    ended.expect(143, &[]);
    assert!(!ended.stderr.contains("not all lines"), "{}", ended.stderr);
}
