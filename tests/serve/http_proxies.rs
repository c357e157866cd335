//! `twinring serve http` behind proxies: the PROXY protocol, and header fields that name the client.

use crate::support::http::*;
use crate::support::http2::{self, open, run_client};
use crate::support::tls::*;
use crate::support::*;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    proxies_name_their_clients_however_the_header_arrives,
    the_header_comes_before_tls,
    limits_per_address_count_the_clients_of_a_proxy,
    fields_are_believed_from_trusted_proxies_only,
    requests_that_a_trusted_proxy_got_over_tls_are_not_redirected_to_https,
    without_the_option_the_header_is_an_invalid_request
];

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n";

/// `[2001:db8::7]:4711`, with an extension behind the addresses.
fn v2() -> Vec<u8> {
    let mut addresses = [0; 36];
    addresses[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
    (addresses[15], addresses[32], addresses[33]) = (7, 0x12, 0x67);
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x28".as_slice(), &addresses, &[4, 0, 1, 0]].concat()
}

/// A server that logs, with these arguments.
struct Logging {
    server: Server,
    logs: Site,
}

impl Logging {
    fn new(engine: &str, site: &Site, arguments: &[&str]) -> Logging {
        let logs = Site::new();
        let log = logs.path().join("log");
        let log = ["--access-log", log.to_str().expect("UTF-8"), "--access-log-format", "json"];
        let server = Server::http(engine, site.path(), &[&log, arguments].concat());
        Logging { server, logs }
    }

    /// Ends the server; returns the client, the port and the status of each line, and a counter.
    fn end(self, counter: &str) -> (Vec<(String, u64, u64)>, u64) {
        let ended = self.server.terminate();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let text = std::fs::read_to_string(self.logs.path().join("log")).expect("a log");
        let lines = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let number = |name: &str| line[name].as_u64().expect("a number");
            let address = line["remote_address"].as_str().expect("an address").to_owned();
            (address, number("remote_port"), number("status"))
        });
        (lines.collect(), ended.count(counter))
    }
}

fn ended_without_an_answer(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ended = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

fn proxies_name_their_clients_however_the_header_arrives(engine: &str) {
    let site = Site::usual();
    let logging = Logging::new(engine, &site, &["--proxy-protocol-from", "127.0.0.0/8"]);
    let address = logging.server.address();
    let request = get("/hello.txt", "");
    for header in [V1, &v2()] {
        // With the request, and in pieces.
        let whole = [header, request.as_bytes()].concat();
        assert_eq!(responses(&talk(address, &whole))[0].status, 200, "{engine}");
        let mut stream = connect(address);
        stream.set_nodelay(true).expect("an option");
        for byte in &whole {
            stream.write_all(std::slice::from_ref(byte)).expect("the server reads");
        }
        assert_eq!(read_response(&mut stream, false).status, 200, "{engine}");
        // The connection goes on, with the same client.
        assert_eq!(ask_on(&mut stream, &get("/none", "")).status, 404, "{engine}");
    }
    // A health check of the proxy.
    let local = [b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".as_slice(), request.as_bytes()].concat();
    assert_eq!(responses(&talk(address, &local))[0].status, 200, "{engine}");
    // None, another one, and a second one.
    for wrong in [request.as_bytes(), b"PROXY TCP4 x\r\n", b"\r\n\r\n\0\r\nQUIT\n\x22"] {
        let mut stream = connect(address);
        // In one segment, behind which more is wrong too.
        stream.write_all(&[wrong, b"\r\n\r\n0123456789"].concat()).expect("the server reads");
        ended_without_an_answer(stream);
    }
    let twice = [V1, V1, request.as_bytes()].concat();
    assert_eq!(responses(&talk(address, &twice))[0].status, 400, "{engine}");
    // A check of the port is no failure.
    drop(connect(address));
    let (lines, failures) = logging.end("proxy_failures");
    assert_eq!(failures, 3, "{engine}");
    let of = |client: &str| lines.iter().filter(|(address, ..)| address == client).count();
    assert_eq!((of("192.0.2.7"), of("2001:db8::7"), of("127.0.0.1")), (4, 3, 1), "{lines:?}");
    assert!(lines.iter().all(|(address, port, _)| address == "127.0.0.1" || *port == 4711));
}

fn the_header_comes_before_tls(engine: &str) {
    let (site, identity) = (Site::usual(), Identity::new());
    let mut arguments = identity.arguments();
    arguments.extend(["--proxy-protocol-from".to_owned(), "127.0.0.1".to_owned()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let logging = Logging::new(engine, &site, &arguments);
    let config = Arc::new(identity.trust(&VERSIONS));
    for header in [V1, &v2()] {
        let mut stream = connect(encrypted(&logging.server));
        stream.write_all(header).expect("the server reads");
        let mut client = secure_over(stream, &config).expect("a handshake");
        client.write_all(get("/large.bin", "").as_bytes()).expect("the server reads");
        assert_eq!(read_response(&mut client, false).body.len(), 700_001, "{engine}");
    }
    secure(encrypted(&logging.server), &config).expect_err("no header");
    let (lines, failures) = logging.end("proxy_failures");
    let clients: Vec<&str> = lines.iter().map(|(address, ..)| address.as_str()).collect();
    assert_eq!((clients, failures), (vec!["192.0.2.7", "2001:db8::7"], 1), "{engine}");
}

fn limits_per_address_count_the_clients_of_a_proxy(engine: &str) {
    let site = Site::usual();
    let arguments = ["--proxy-protocol-from", "127.0.0.1", "--max-connections-per-address", "1"];
    let logging = Logging::new(engine, &site, &arguments);
    let open = |header: &[u8]| {
        let mut stream = connect(logging.server.address());
        let bytes = [header, get("/hello.txt", "").as_bytes()].concat();
        stream.write_all(&bytes).expect("the server reads");
        stream
    };
    let (mut one, mut other) = (open(V1), open(&v2()));
    for stream in [&mut one, &mut other] {
        assert_eq!(read_response(stream, false).status, 200, "{engine}");
    }
    ended_without_an_answer(open(V1));
    drop(one);
    wait_until("the place is free again", || {
        let mut stream = open(V1);
        let mut first = [0];
        matches!(stream.read(&mut first), Ok(1))
    });
    drop(other);
    let (_, refused) = logging.end("refused_of_address");
    assert!(refused >= 1, "{engine}");
}

fn fields_are_believed_from_trusted_proxies_only(engine: &str) {
    for (trusted, field, lines, expected) in [
        ("127.0.0.1", "x-forwarded-for", "X-Forwarded-For: 192.0.2.7\r\n", "192.0.2.7"),
        (
            "127.0.0.0/8",
            "x-forwarded-for",
            "X-Forwarded-For: 198.51.100.1\r\nx-forwarded-for: 192.0.2.7, 127.0.0.2\r\n",
            "192.0.2.7",
        ),
        ("127.0.0.1", "x-forwarded-for", "X-Forwarded-For: 192.0.2.7, x\"\r\n", "127.0.0.1"),
        ("127.0.0.1", "x-forwarded-for", "Forwarded: for=192.0.2.7\r\n", "127.0.0.1"),
        ("127.0.0.1", "forwarded", "Forwarded: for=\"[2001:db8::7]:1\"\r\n", "2001:db8::7"),
        ("127.0.0.1", "forwarded", "X-Forwarded-For: 192.0.2.7\r\n", "127.0.0.1"),
        ("192.0.2.0/24", "x-forwarded-for", "X-Forwarded-For: 192.0.2.7\r\n", "127.0.0.1"),
    ] {
        let site = Site::usual();
        let arguments = ["--forwarded-from", trusted, "--forwarded-field", field];
        let logging = Logging::new(engine, &site, &arguments);
        let mut stream = connect(logging.server.address());
        assert_eq!(ask_on(&mut stream, &get("/hello.txt", lines)).status, 200);
        // Each request has its own.
        assert_eq!(ask_on(&mut stream, &get("/none", "")).status, 404);
        drop(stream);
        let (lines, _) = logging.end("requests");
        let clients: Vec<&str> = lines.iter().map(|(address, ..)| address.as_str()).collect();
        assert_eq!(clients, [expected, "127.0.0.1"], "{engine} {trusted} {field}");
    }
}

/// Behind a proxy that ends TLS, all requests were redirected to https, for ever.
fn requests_that_a_trusted_proxy_got_over_tls_are_not_redirected_to_https(engine: &str) {
    for (trusted, field, lines, expected) in [
        ("127.0.0.1", "x-forwarded-for", "X-Forwarded-Proto: https\r\n", 200),
        ("127.0.0.1", "x-forwarded-for", "x-forwarded-proto: HTTPS, http\r\n", 200),
        ("127.0.0.1", "x-forwarded-for", "X-Forwarded-Proto: http\r\n", 301),
        ("127.0.0.1", "x-forwarded-for", "Forwarded: for=192.0.2.7;proto=https\r\n", 301),
        ("127.0.0.1", "x-forwarded-for", "", 301),
        ("127.0.0.1", "forwarded", "Forwarded: for=192.0.2.7;Proto=\"https\"\r\n", 200),
        ("127.0.0.1", "forwarded", "Forwarded: for=192.0.2.7;proto=http\r\n", 301),
        ("127.0.0.1", "forwarded", "X-Forwarded-Proto: https\r\n", 301),
        ("192.0.2.0/24", "x-forwarded-for", "X-Forwarded-Proto: https\r\n", 301),
    ] {
        let site = Site::usual();
        let options = ["--redirect-to-https", "--forwarded-from", trusted];
        let options = [&options[..], &["--forwarded-field", field]].concat();
        let server = Server::http(engine, site.path(), &options);
        let request = get("/hello.txt", lines);
        // The first file is read, the others are in the cache.
        for _ in 0..3 {
            assert_eq!(ask(&server, &request).status, expected, "{engine} {field} {lines}");
        }
        let in_http2 = run_client(async {
            let client = open(server.address(), None, &h2::client::Builder::new()).await;
            http2::ask(&client, &request).await
        });
        assert_eq!(in_http2.status, expected, "{engine} {field} {lines}");
        server.terminate();
    }
    // A proxy that names another one by the PROXY protocol.
    let site = Site::usual();
    let options = ["--redirect-to-https", "--proxy-protocol-from", "127.0.0.1"];
    for (trusted, expected) in [("192.0.2.7", 200), ("127.0.0.1", 301)] {
        let options = [&options[..], &["--forwarded-from", trusted]].concat();
        let server = Server::http(engine, site.path(), &options);
        let request = get("/hello.txt", "X-Forwarded-Proto: https\r\n");
        let bytes = [V1, request.as_bytes()].concat();
        assert_eq!(responses(&talk(server.address(), &bytes))[0].status, expected, "{trusted}");
        server.terminate();
    }
}

fn without_the_option_the_header_is_an_invalid_request(engine: &str) {
    let site = Site::usual();
    let logging = Logging::new(engine, &site, &["--proxy-protocol-from", "192.0.2.1"]);
    let bytes = [V1, get("/hello.txt", "").as_bytes()].concat();
    assert_eq!(responses(&talk(logging.server.address(), &bytes))[0].status, 400);
    assert_eq!(ask(&logging.server, &get("/hello.txt", "")).status, 200);
    logging.end("requests");
    let (code, _, told) = run(&["serve", "http", "--root", "/", "--forwarded-from", "any"]);
    assert!(code == Some(2) && told.contains("expected a network such as"), "{told}");
}
