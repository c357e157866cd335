//! How servers start: what each prints, and why one does not.

use crate::support::http::Site;
use crate::support::tls::Identity;
use crate::support::*;
use std::path::PathBuf;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![
    wrong_arguments_are_named,
    failures_state_the_cause_and_a_fix,
    certificates_that_cannot_be_used_are_named
];
pub(crate) const ENGINE_TESTS: &[Test] =
    engine_tests![ready_statistics_and_final_lines_keep_the_contract];

/// `serve` with these arguments, split at spaces, ends with this code and these words.
fn assert_ends(arguments: &str, code: i32, words: &str) {
    let all: Vec<&str> = arguments.split_whitespace().collect();
    let (found, stdout, stderr) = run(&[&["serve"], &all[..]].concat());
    assert_eq!((found, stdout.as_str()), (Some(code), ""), "{arguments}: {stderr}");
    assert!(stderr.contains(words), "{arguments}: {words:?} is not in {stderr}");
}

fn wrong_arguments_are_named() {
    for service in ["echo", "udp"] {
        for wrong in [
            "--listen nonsense",
            "--listen 127.0.0.1:99999",
            "--engine kqueue",
            "--workers 0",
            "--workers 1025",
            "--pin 3-1",
            "--uring multishot=perhaps",
            "--epoll trigger=edge",
            "--drain-timeout soon",
        ] {
            let option = wrong.split(' ').next().expect("an option");
            assert_ends(&format!("{service} {wrong}"), 2, option);
        }
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7000"] {
            let arguments = format!("{service} --listen 127.0.0.1:0 --listen {address}");
            assert_ends(&arguments, 2, address);
            assert_ends(&arguments, 2, "--allow CIDR");
        }
        assert_ends(&format!("{service} --allow 10.0.0.0/33"), 2, "expected a network such as");
        for parts in ["rings", "off,ring"] {
            let arguments = format!("{service} --sandbox {parts}");
            assert_ends(&arguments, 2, "expected off, or some of ring, seccomp");
        }
    }
    for (arguments, words) in [
        ("echo --max-connections 0", "--max-connections"),
        ("echo --idle-timeout 0s", "--idle-timeout"),
        ("echo --engine all", "expected auto, io_uring, epoll or both"),
        ("udp --max-datagram 15", "--max-datagram"),
        ("udp --max-datagram 65536", "--max-datagram"),
        ("udp --buffers 1000", "--buffers"),
        ("udp --buffers 65536", "--buffers"),
        ("udp --rcvbuf 0", "--rcvbuf"),
        ("udp --sndbuf lots", "--sndbuf"),
        ("udp --gro perhaps", "--gro"),
        ("udp --dscp 64", "--dscp"),
        ("udp --pending 4097", "--pending"),
        ("udp --batch 2", "--batch"),
        ("http", "--root"),
        ("http --root / --listing xml", "expected html, json or off"),
        ("http --root / --listen fd:", "expected fd:NAME"),
        ("http --root / --listen-tls 127.0.0.1:0", "--tls-cert"),
    ] {
        assert_ends(arguments, 2, words);
    }
}

fn failures_state_the_cause_and_a_fix() {
    let site = Site::usual();
    let root = site.path().display();
    let (echo, reflector) = (Server::echo("epoll", &[]), Server::udp("epoll", &[]));
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = holder.local_addr().expect("bound");
    for (arguments, words) in [
        (format!("http --root {root} --listen {taken}"), "ss -ltnp"),
        (format!("http --root {root} --listen 127.0.0.1:0 --admin {taken}"), "another socket"),
        (format!("http --root {root}/hello.txt"), "hello.txt"),
        (format!("http --root {root} --listen systemd"), "no sockets were passed"),
        ("http --root /no/such/directory".to_owned(), "/no/such/directory"),
        ("echo --listen 192.0.2.1:7400 --allow any".to_owned(), "ip address"),
        ("udp --listen 192.0.2.1:7400 --allow any".to_owned(), "ip address"),
    ] {
        assert_ends(&arguments, 1, words);
    }
    for workers in [1, 2] {
        for (service, address, command) in
            [("echo", echo.address(), "ss -ltnp"), ("udp", reflector.address(), "ss -lunp")]
        {
            let arguments = format!("{service} --listen {address} --workers {workers}");
            for words in [&address.to_string(), "in use", command, "choose another port"] {
                assert_ends(&arguments, 1, words);
            }
        }
    }
}

fn certificates_that_cannot_be_used_are_named() {
    let (site, identity, other) = (Site::usual(), Identity::new(), Identity::new());
    let path = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
    let (certificate, key) = (path(identity.certificate()), path(identity.key()));
    let page = path(site.path().join("index.html"));
    // An address that is in use: had it been bound first, that would be the complaint.
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = holder.local_addr().expect("bound");
    let http = format!("http --root {} --listen-tls {address}", site.path().display());
    for (certificate, key, words) in [
        (&certificate, &path(other.key()), "it is not that of the certificate"),
        (&page, &key, "the file has none in PEM format"),
        (&key, &key, "the file has none in PEM format"),
        (&certificate, &certificate, "the file has none in PEM format"),
        (&"/nowhere".to_owned(), &key, "No such file"),
        (&certificate, &"/proc".to_owned(), "is a directory"),
    ] {
        assert_ends(&format!("{http} --tls-cert {certificate} --tls-key {key}"), 1, words);
    }
    assert_ends(&format!("{http} --tls-cert {certificate}"), 2, "tls-key is missing");
    let unused =
        format!("http --root {} --tls-cert {certificate} --tls-key {key}", site.path().display());
    assert_ends(&unused, 2, "--listen-tls");
}

fn ready_statistics_and_final_lines_keep_the_contract(engine: &str) {
    let site = Site::usual();
    let stats = ["--stats", "1", "--workers", "2"];
    for (service, server) in [
        ("echo", Server::echo(engine, &stats)),
        ("udp", Server::udp(engine, &stats)),
        ("http", Server::http(engine, site.path(), &stats)),
    ] {
        let ready = server.ready.clone();
        let found = ["schema", "service", "engine"].map(|name| ready[name].as_str());
        assert_eq!(found, ["twinring.serve/1", service, engine].map(Some));
        assert!(ready["workers"] == 2 && ready["features"].is_object(), "{ready}");
        assert!(ready["why_not"].is_null(), "{ready}");
        let stats = server.next_line();
        let ended = server.end();
        assert_eq!((&stats["event"], &ended.last["event"]), (&"stats".into(), &"final".into()));
        for group in ["service_counters", "runtime_counters"] {
            let names = |line: &serde_json::Value| -> Vec<String> {
                line[group].as_object().expect("an object").keys().cloned().collect()
            };
            assert_eq!(names(&stats), names(&ended.last), "{service} {group}");
        }
    }
}
