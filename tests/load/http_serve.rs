//! `twinring load http` against `twinring serve http`: both count the same.

use crate::support::http::Site;
use crate::support::load::{Bounded, Outcome, sound};
use crate::support::{Server, run, wait_until};
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    client_and_server_count_the_same,
    a_large_request_body_is_sent_before_the_refusal_is_read,
    a_drained_server_ends_connections_without_errors_in_answers,
    a_closed_port_names_the_address_and_a_fix
];

fn load(engine: &str, urls: &[String], arguments: &str) -> Outcome {
    let mut command = crate::support::load::command(engine, "http", &urls[0], arguments);
    sound(Bounded(Some(command.args(&urls[1..]).spawn().unwrap())).output())
}

fn client_and_server_count_the_same(engine: &str) {
    let site = Site::usual();
    let large = site.path().join("large.bin").display().to_string();
    // Paths, arguments, the length of the content.
    let cases = [
        ("/hello.txt", "-c 8 -t 2", 36),
        ("/hello.txt", "-c 4 --pipeline 16", 36),
        ("/hello.txt", "-c 4 --rate 2000", 36),
        ("/hello.txt", "-c 4 --no-keepalive", 36),
        ("/hello.txt", "-c 4 -X HEAD", 0),
        ("/hello.txt", "-c 4 -H Range:bytes=5-9 --expect-status 206", 5),
        ("/nothing", "-c 4 --expect-status 404 --any-length", 0),
        ("/hello.txt", "-c 2 -X OPTIONS --expect-status 204", 0),
        ("/large.bin", "-c 4 --verify-body=LARGE", 700_001),
        ("/large.bin", "-c 2 --pipeline 3 --verify-body", 700_001),
        ("/empty.txt", "-c 4 --verify-body", 0),
    ];
    let mut requests = 0;
    let server = Server::http(engine, site.path(), &[]);
    let target = format!("http://{}", server.address());
    for (path, arguments, bytes) in cases {
        let arguments = arguments.replace("LARGE", &large);
        let url = format!("{target}{path}");
        let outcome = load(engine, &[url], &format!("-n 300 {arguments}"));
        outcome.expect(0, &[]);
        assert_eq!(outcome.number("/whole_run/answered"), 300, "{path} {arguments}");
        if path != "/nothing" {
            assert_eq!(outcome.number("/bytes/bodies"), 300 * bytes, "{path} {arguments}");
        }
        requests += 300;
    }
    let urls: Vec<String> =
        ["/", "/hello.txt", "/sub/"].iter().map(|path| format!("{target}{path}")).collect();
    let outcome = load(engine, &urls, "-c 6 -t 2 -n 900 --weights 1,4,1 --verify-body");
    outcome.expect(0, &[]);
    requests += 900;
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
    assert_eq!(ended.count("requests"), requests);
    println!("{engine}: {requests} requests on both sides");
}

fn a_large_request_body_is_sent_before_the_refusal_is_read(engine: &str) {
    let site = Site::usual();
    let body = site.path().join("large.bin").display().to_string();
    let server = Server::http(engine, site.path(), &[]);
    let url = format!("http://{}/hello.txt", server.address());
    // The server drains a bounded part of it, and may close: a failure at most, never a hang.
    let outcome = load(engine, &[url], &format!("-c 2 -n 20 --body @{body} --expect-status 405"));
    let whole = |name: &str| outcome.number(&format!("/whole_run/{name}"));
    assert_eq!(whole("answered") + whole("failed"), 20, "{}", outcome.result);
    drop(server);
}

fn a_drained_server_ends_connections_without_errors_in_answers(engine: &str) {
    let site = Site::usual();
    let server = Server::http(engine, site.path(), &["--stats", "1"]);
    let url = format!("http://{}/hello.txt", server.address());
    let mut command =
        crate::support::load::command(engine, "http", &url, "-c 8 -d 20s --warmup 0s");
    let run = Bounded(Some(command.spawn().unwrap()));
    // Eight may be in flight: the ninth is behind an answer.
    wait_until("an answer was taken", || {
        server.next_line()["service_counters"]["requests"].as_u64() > Some(8)
    });
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // The server is gone, so the load ends early.
    let outcome = sound(run.output());
    assert!(outcome.number("/requests/answered") > 0);
    assert_eq!(outcome.number("/connections/lost"), 8, "{}", outcome.result);
    for kind in ["malformed", "status", "length", "hash"] {
        assert_eq!(outcome.number(&format!("/errors/{kind}")), 0, "{}", outcome.result);
    }
}

fn a_closed_port_names_the_address_and_a_fix(engine: &str) {
    // Bound and not listening: connecting is refused, and no other program can take the port.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap().as_socket().unwrap());
    let (code, _, stderr) = run(&["load", "http", &url, "-c", "3", "--engine", engine]);
    assert_eq!(code, Some(1), "{stderr}");
    for part in [url.as_str(), "Connection refused", "check that the server is running"] {
        assert!(stderr.contains(part), "{stderr}");
    }
}
