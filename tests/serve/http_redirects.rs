//! Redirects of `twinring serve http`: paths, hosts, and http to https.

use crate::support::http::*;
use crate::support::tls::*;
use crate::support::*;
use nix::sys::signal::Signal;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![check_finds_rules_that_are_wrong];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    http_is_redirected_to_https_and_https_is_not,
    a_server_may_only_redirect_and_a_reload_replaces_the_rules,
    paths_and_hosts_are_redirected_before_files_are_looked_for
];

/// Files with a configuration beside them, in which `ROOT` stands for the directory of the files.
fn configured(text: &str) -> (Site, Site, PathBuf) {
    let (site, etc) = (Site::usual(), Site::new());
    let text = text.replace("ROOT", site.path().to_str().expect("UTF-8"));
    let path = etc.write("twinring.toml", text.as_bytes());
    (site, etc, path)
}

fn serve_by(path: &Path, engine: &str) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
    command.args(["serve", "http", "--json", "--engine", engine, "--config"]).arg(path);
    Server::spawn(command)
}

fn of_host(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// Status and location of the answer on a connection that stays.
fn location(stream: &mut std::net::TcpStream, request: &str) -> (u16, Option<String>) {
    let answer = ask_on(stream, request);
    (answer.status, answer.field("location").map(str::to_owned))
}

const RULES: &str = r#"
    listen = "127.0.0.1:0"
    root = "ROOT"
    header = "*=X-Rule: yes"
    redirect = [
        "/hello.txt=/moved.txt",
        "/old/*=302:/new/*",
        "/old/here.txt=307:https://example.org:8443/there?a=b",
        "/all/*=308:http://other.example/",
    ]
    [[host]]
    names = "www.example.org"
    redirect = "/*=308:https://example.org/*"
    [[host]]
    names = "example.org"
"#;

fn paths_and_hosts_are_redirected_before_files_are_looked_for(engine: &str) {
    let (_site, _etc, path) = configured(RULES);
    let server = serve_by(&path, engine);
    let mut stream = connect(server.address());
    for (host, target, status, expected) in [
        ("x", "/hello.txt", 301, "/moved.txt"),
        ("x", "/%68ello.txt?q=1&r", 301, "/moved.txt?q=1&r"),
        ("x", "/old/", 302, "/new/"),
        ("x", "/old/a%20b/%0d%0aSet-Cookie:x?%0d%0a", 302, "/new/a%20b/%0D%0ASet-Cookie:x?%0d%0a"),
        ("x", "/old//evil.example/%2e%2e", 302, "/new/"),
        ("x", "/old/here.txt", 307, "https://example.org:8443/there?a=b"),
        ("x", "/old/here.txt?c", 307, "https://example.org:8443/there?a=b&c"),
        ("x", "/all/of/it", 308, "http://other.example/"),
        ("WWW.example.org:80", "/a/b?c", 308, "https://example.org/a/b?c"),
        // Inherited.
        ("example.org", "/hello.txt", 301, "/moved.txt"),
    ] {
        let (found, location) = location(&mut stream, &of_host(host, target));
        assert_eq!((found, location.as_deref()), (status, Some(expected)), "{engine} {target}");
    }
    // Not of a rule.
    for (target, status) in
        [("/old", 404), ("/index.html", 200), ("/old/%2fx", 404), ("/old/../..", 400)]
    {
        let found = location(&mut stream, &of_host("x", target));
        assert_eq!(found, (status, None), "{engine} {target}");
    }
    let answer = ask_on(&mut stream, &of_host("x", "/all/"));
    assert_eq!(answer.text(), "308 Permanent Redirect\n");
    assert_eq!(answer.field("x-rule"), Some("yes"));
    let head = ask_on(&mut stream, "HEAD /old/x HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((head.status, head.field("location")), (302, Some("/new/x")));
    let body = "GET /old/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab";
    assert_eq!(location(&mut stream, body), (302, Some("/new/x".to_owned())));
    let options = ask_on(&mut stream, "OPTIONS /old/x HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(options.status, 204);
    // Many at once, between files.
    let pipelined = [
        of_host("x", "/old/1"),
        of_host("x", "/large.bin"),
        of_host("x", "/old/2"),
        of_host("www.example.org", "/3"),
    ];
    let bytes = undated(&talk(server.address(), pipelined.concat().as_bytes()));
    let status: Vec<u16> = responses(&bytes).iter().map(|answer| answer.status).collect();
    assert_eq!(status, [302, 200, 302, 308], "{engine}");
    drop(stream);
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.count("responses_3xx"), 16);
}

fn http_is_redirected_to_https_and_https_is_not(engine: &str) {
    let (site, identity) = (Site::usual(), Identity::new());
    let more = ["--redirect-to-https", "--redirect", "/old/*=/new/*"];
    let server = serve(engine, site.path(), &identity, &more);
    let mut stream = connect(server.address());
    for (host, target, expected) in [
        ("a.example:8080", "/hello.txt?x=%0d%0a", "https://a.example/hello.txt?x=%0d%0a"),
        ("[::1]:80", "/old/x", "https://[::1]/old/x"),
        ("a", "//evil.example/..", "https://a//evil.example/.."),
    ] {
        let found = location(&mut stream, &of_host(host, target));
        assert_eq!(found, (301, Some(expected.to_owned())), "{engine}");
    }
    // A location needs the host.
    assert_eq!(location(&mut stream, &of_host("", "/")), (400, None));
    let http_1_0 = talk(server.address(), b"GET / HTTP/1.0\r\n\r\n");
    assert_eq!(responses(&http_1_0)[0].status, 400);
    let config = Arc::new(identity.trust(&VERSIONS));
    let mut client = secure(encrypted(&server), &config).expect("a handshake");
    for (target, status) in [("/hello.txt", 200), ("/old/x", 301)] {
        client.write_all(get(target, "").as_bytes()).expect("the server reads");
        assert_eq!(read_response(&mut client, false).status, status, "{engine}");
    }
    drop((stream, client));
    assert_eq!(server.terminate().code, Some(0));
    let more = ["--redirect-to-https=b.example:8443"];
    let server = serve(engine, site.path(), &identity, &more);
    let answer = ask(&server, &of_host("a", "/x"));
    assert_eq!(answer.field("location"), Some("https://b.example:8443/x"));
    assert_eq!(server.terminate().code, Some(0));
}

fn a_server_may_only_redirect_and_a_reload_replaces_the_rules(engine: &str) {
    let (_site, etc, path) = configured("listen = \"127.0.0.1:0\"\nredirect-to-https = true\n");
    let server = serve_by(&path, engine);
    let mut stream = connect(server.address());
    let found = location(&mut stream, &of_host("a", "/x"));
    assert_eq!(found, (301, Some("https://a/x".to_owned())), "{engine}");
    let reload = |text: &str, words: &str| {
        let text = format!("listen = \"127.0.0.1:0\"\n{text}");
        std::fs::write(etc.path().join("twinring.toml"), text).expect("a file");
        let before = server.stderr().matches(words).count();
        server.signal(Signal::SIGHUP);
        wait_until(words, || server.stderr().matches(words).count() > before);
    };
    reload("redirect = [\"/a=/b\", \"/a=/c\"]\n", "two redirects are for the same paths");
    let found = location(&mut stream, &of_host("a", "/x"));
    assert_eq!(found, (301, Some("https://a/x".to_owned())), "{engine}");
    reload("redirect-to-https = false\nredirect = \"/x=302:/y\"\n", "were reloaded");
    let found = location(&mut stream, &of_host("a", "/x"));
    assert_eq!(found, (302, Some("/y".to_owned())), "{engine}");
    assert_eq!(location(&mut stream, &of_host("a", "/z")), (404, None), "{engine}");
    drop(stream);
    assert_eq!(server.terminate().code, Some(0));
}

fn check_finds_rules_that_are_wrong() {
    for (text, words) in [
        ("redirect = [\"/a=/b\", \"/a=/c\"]\n", "two redirects are for the same paths"),
        ("redirect = \"/a=//evil.example/\"\n", "is no target of a redirect"),
        ("redirect = \"/a=/b\\r\\nX: y\"\n", "is no target of a redirect"),
        ("redirect = \"/a=303:/b\"\n", "`303` is no status of a redirect"),
        ("redirect-to-https = \"a/b\"\n", "is neither a port, nor HOST or HOST:PORT"),
        ("redirect-to-https = 5\n", "expected a string, found integer"),
    ] {
        let (_site, _etc, path) = configured(&format!("root = \"ROOT\"\n{text}"));
        let config = path.to_str().expect("UTF-8");
        let (code, _, told) = run(&["serve", "http", "--check", "--config", config]);
        assert!(code != Some(0) && told.contains(words), "{text}: {told}");
    }
    let rules: Vec<String> = (0..1001).map(|number| format!("\"/{number}=/x\"")).collect();
    let (_site, _etc, path) =
        configured(&format!("root = \"ROOT\"\nredirect = [{}]\n", rules.join(", ")));
    let config = path.to_str().expect("UTF-8");
    let (code, _, told) = run(&["serve", "http", "--check", "--config", config]);
    assert!(code == Some(1) && told.contains("1001 redirects are more than 1000"), "{told}");
}
