//! `twinring serve http` with virtual hosts.

use crate::support::http::*;
use crate::support::*;
use std::process::Command;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    each_host_has_its_own_files_and_rules_and_shares_no_cache_entry,
    hosts_override_the_default_rules,
    without_a_default_unknown_hosts_are_misdirected
];

/// Three sites: for `a.example.org`, for other hosts under `.example.org`, and a default, if
/// requested.
fn hosts(engine: &str, with_default: bool) -> (Site, Server) {
    let site = Site::new();
    for name in ["default", "exact", "wild"] {
        site.write(&format!("{name}/index.html"), name.as_bytes());
        site.write(&format!("{name}/same.txt"), name.as_bytes());
        site.write(&format!("{name}/large.bin"), name.repeat(30_000).as_bytes());
    }
    site.write("exact/404.html", b"none in exact");
    let root = site.path().display();
    let default = match with_default {
        true => format!("root = \"{root}/default\"\n"),
        false => String::new(),
    };
    let text = format!(
        "listen = \"127.0.0.1:0\"\n{default}header = \"*=X-Whole: yes\"\n\
         [[host]]\nnames = [\"a.example.org\", \"[::1]\"]\nroot = \"{root}/exact\"\n\
         not-found = \"404.html\"\nheader = \"*=X-Exact: yes\"\n\
         [[host]]\nnames = [\"*.example.org\"]\nroot = \"{root}/wild\"\nautoindex = \"json\"\n\
         index = \"none.html\"\n"
    );
    let path = site.write("twinring.toml", text.as_bytes());
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
    command.args(["serve", "http", "--json", "--engine", engine, "--config"]).arg(path);
    (site, Server::spawn(command))
}

fn ask_host(server: &Server, host: &str, target: &str) -> Response {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
}

fn each_host_has_its_own_files_and_rules_and_shares_no_cache_entry(engine: &str) {
    let (_site, server) = hosts(engine, true);
    // Twice, so that the second answers come from the cache.
    for _ in 0..2 {
        for (host, expected) in [
            ("a.example.org", "exact"),
            ("A.Example.ORG:8080", "exact"),
            ("a.example.org.", "exact"),
            ("[::1]:80", "exact"),
            ("b.example.org", "wild"),
            ("c.b.example.org", "wild"),
            ("example.org", "default"),
            ("127.0.0.1", "default"),
            ("", "default"),
        ] {
            assert_eq!(ask_host(&server, host, "/same.txt").text(), expected, "{engine} {host}");
            let large = ask_host(&server, host, "/large.bin").text();
            assert_eq!(large, expected.repeat(30_000), "{engine} {host}");
        }
    }
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("cache_loads")), (Some(0), 6), "{engine}");
}

fn hosts_override_the_default_rules(engine: &str) {
    let (_site, server) = hosts(engine, true);
    let exact = ask_host(&server, "a.example.org", "/none");
    assert_eq!((exact.status, exact.text().as_str()), (404, "none in exact"));
    let exact = ask_host(&server, "a.example.org", "/same.txt");
    assert_eq!((exact.field("x-exact"), exact.field("x-whole")), (Some("yes"), Some("yes")));
    let wild = ask_host(&server, "b.example.org", "/same.txt");
    assert_eq!((wild.field("x-exact"), wild.field("x-whole")), (None, Some("yes")));
    let listing = ask_host(&server, "b.example.org", "/");
    assert!(listing.text().contains("large.bin"), "{}", listing.text());
    assert_eq!(ask_host(&server, "example.org", "/").text(), "default");
    // RFC 9112 section 3.2.2: a target in absolute form counts, not the field.
    let absolute = "GET http://a.example.org/same.txt HTTP/1.1\r\nHost: b.example.org\r\n\r\n";
    assert_eq!(ask(&server, absolute).text(), "exact");
    // Connections are not of a host; requests are.
    let mut stream = connect(server.address());
    for (host, expected) in
        [("a.example.org", "exact"), ("b.example.org", "wild"), ("x", "default")]
    {
        let request = format!("GET /same.txt HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(ask_on(&mut stream, &request).text(), expected);
    }
    assert_eq!(ask(&server, "GET /same.txt HTTP/1.0\r\n\r\n").text(), "default");
    drop(stream);
    assert_eq!(server.terminate().code, Some(0));
}

fn without_a_default_unknown_hosts_are_misdirected(engine: &str) {
    let (_site, server) = hosts(engine, false);
    assert_eq!(ask_host(&server, "a.example.org", "/same.txt").text(), "exact");
    let mut stream = connect(server.address());
    for request in [
        "GET /same.txt HTTP/1.1\r\nHost: unknown\r\n\r\n",
        "HEAD /same.txt HTTP/1.1\r\nHost: unknown\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: example.org\r\n\r\n",
        "GET http://unknown/ HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
    ] {
        assert_eq!(ask_on(&mut stream, request).status, 421, "{request}");
    }
    let request = "GET /same.txt HTTP/1.1\r\nHost: b.example.org\r\n\r\n";
    assert_eq!(ask_on(&mut stream, request).text(), "wild", "the connection stays");
    assert_eq!(ask(&server, "GET / HTTP/1.0\r\n\r\n").status, 421);
    drop(stream);
    assert_eq!(server.terminate().count("responses_4xx"), 5);
}
