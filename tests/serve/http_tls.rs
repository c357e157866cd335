//! `serve http` over TLS: the same answers, encrypted, with an end that differs from a cut.

use crate::support::http::*;
use crate::support::tls::*;
use crate::support::*;
use rustls::HandshakeKind;
use rustls::client::Resumption;
use rustls::version::{TLS12, TLS13};
use std::io::ErrorKind;

pub(crate) const TESTS: &[Test] = tests![
    versions_and_protocols_are_agreed_on,
    sessions_are_resumed,
    invalid_handshakes_are_refused,
    connections_outlive_their_certificate
];
pub(crate) const ENGINE_TESTS: &[Test] =
    engine_tests![answers_are_the_same_with_tls_and_without, an_end_differs_from_a_cut,];

fn answers_are_the_same_with_tls_and_without(engine: &str) {
    let (site, identity, server) = usual(engine, &["default.rule = [{ listing = 'html' }]"]);
    site.settle();
    let requests = [
        get("/hello.txt", ""),
        get("/large.bin", ""),
        get("/large.bin", "Range: bytes=100-600000\r\n"),
        get("/large.bin", "Range: bytes=0-9,300000-500000,-100000\r\n"),
        get("/nothing", ""),
        get("/sub", ""),
        get("/list/", ""),
        get("/large.bin", "").replacen("GET", "HEAD", 1),
        get("/hello.txt", "Content-Length: 5\r\n") + "hello",
        "GET /hello.txt HTTP/1.0\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
    ];
    for versions in [&VERSIONS[..1], &VERSIONS[1..]] {
        let config = Arc::new(identity.trust(versions));
        for request in requests.iter().chain([&requests.concat()]) {
            let plain = talk(server.address(), request.as_bytes());
            let secret = talk_secure(encrypted(&server), &config, request.as_bytes());
            assert_same(&undated(&secret.expect("an orderly end")), &undated(&plain));
        }
    }
    let ended = server.end();
    assert_eq!(ended.count("tls_handshakes"), 2 * (requests.len() as u64 + 1));
    assert_eq!((ended.count("tls_failures"), ended.count("tls_truncated")), (0, 0));
    assert_eq!(ended.count("reset"), 0, "{engine}");
}

fn versions_and_protocols_are_agreed_on() {
    let (_site, identity, server) = usual(ENGINE, &["server.http2 = false"]);
    for (version, name) in VERSIONS.iter().zip(["TLSv1_3", "TLSv1_2"]) {
        let config = Arc::new(identity.trust(&[version]));
        let mut client = secure(encrypted(&server), &config).expect("a handshake");
        assert_eq!(format!("{:?}", client.conn.protocol_version().expect("agreed on")), name);
        assert_eq!(client.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(ask_on(&mut client, &get("/hello.txt", "")).body.len(), 36);
    }
    for (protocols, agreed) in [(vec![], true), (vec!["h2", "http/1.1"], true), (vec!["h2"], false)]
    {
        let mut config = identity.trust(&VERSIONS);
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let client = secure(encrypted(&server), &Arc::new(config));
        assert_eq!(client.is_ok(), agreed, "{protocols:?}");
    }
    let ended = server.terminate();
    assert_eq!((ended.count("tls_handshakes"), ended.count("tls_failures")), (4, 1));

    let (_site, identity, server) = usual(ENGINE, &["server.tls-min-version = '1.3'"]);
    secure(encrypted(&server), &Arc::new(identity.trust(&[&TLS13]))).expect("a handshake");
    let refused = secure(encrypted(&server), &Arc::new(identity.trust(&[&TLS12])));
    let refused = refused.expect_err("too old").to_string();
    assert!(refused.contains("ProtocolVersion"), "{refused}");
}

fn sessions_are_resumed() {
    let (_site, identity, server) = usual(ENGINE, &["--workers", "2"]);
    for version in VERSIONS {
        let mut config = identity.trust(&[version]);
        config.resumption = Resumption::in_memory_sessions(8);
        let config = Arc::new(config);
        for round in 0..6 {
            let mut client = secure(encrypted(&server), &config).expect("a handshake");
            let resumed = client.conn.handshake_kind() == Some(HandshakeKind::Resumed);
            assert_eq!(resumed, round > 0, "{version:?}, {round}");
            // Tickets come with the first answer at the latest.
            assert_eq!(ask_on(&mut client, &get("/hello.txt", "")).status, 200);
            end(&mut client);
            client.read_to_end(&mut Vec::new()).expect("an orderly end");
        }
    }
    let ended = server.terminate();
    assert_eq!((ended.count("tls_handshakes"), ended.count("tls_resumed")), (12, 10));
}

fn an_end_differs_from_a_cut(engine: &str) {
    let (site, identity, server) = usual(engine, &["server.cache-valid = '20ms'"]);
    let config = Arc::new(identity.trust(&VERSIONS));
    // The server ends first, with close_notify; later data of the client is not awaited.
    let mut client = secure(encrypted(&server), &config).expect("a handshake");
    let request = get("/large.bin", "Connection: close\r\n");
    client.write_all(request.as_bytes()).expect("the server reads");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an orderly end");
    assert_same(&responses(&answer)[0].body, &pattern(7, 700_001));
    // The client ends without saying so: what it asked for in full it gets, to the end.
    let mut client = secure(encrypted(&server), &config).expect("a handshake");
    client.write_all(get("/large.bin", "").repeat(3).as_bytes()).expect("the server reads");
    client.write_all(b"GET /half HTTP/1.1\r\n").expect("the server reads");
    client.sock.shutdown(Shutdown::Write).expect("the server reads");
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).expect("an orderly end");
    assert_eq!(responses(&answers).len(), 3);
    // The server cannot complete an answer: there is no end that could be taken for one.
    site.write("shrinks.bin", &pattern(3, 9_000_000));
    let mut client = secure(encrypted(&server), &config).expect("a handshake");
    client.write_all(get("/shrinks.bin", "").as_bytes()).expect("the server reads");
    client.read_exact(&mut [0; 1000]).expect("a beginning");
    std::fs::File::create(site.path().join("shrinks.bin")).expect("a file to empty");
    let cut = client.read_to_end(&mut Vec::new()).expect_err("a cut");
    assert!([ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof].contains(&cut.kind()), "{cut}");
    let ended = server.end();
    assert_eq!((ended.count("tls_truncated"), ended.count("broken_off")), (1, 1));
}

fn invalid_handshakes_are_refused() {
    // Longer than clients that complete the handshake may be kept from the CPU.
    let options = ["server.tls-handshake-timeout = '2s'", "--stats", "1"];
    let (_site, identity, server) = usual(ENGINE, &options);
    let address = encrypted(&server);
    // A client that uses http instead of https gets a message.
    let answer = talk_until_closed(address, get("/", "").as_bytes());
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    // A fatal alert, and the end.
    for garbage in
        [&b"\x16\x03\x01\xff\xffgarbage"[..], &[22; 5000], b"\x16\x03\x01\x00\x05\x01\x00\x00\x01h"]
    {
        let answer = talk_until_closed(address, garbage);
        assert_eq!(answer.get(..2), Some(&[21, 3][..]), "an alert to {:?}", &garbage[..8]);
    }
    assert_eq!(talk_until_closed(address, &[0; 100]), b"");
    // Nothing at all, a part and then the end, or a part and then nothing.
    assert_eq!(talk(address, b""), b"");
    assert_eq!(talk(address, b"\x16\x03\x01"), b"");
    let mut dawdler = connect(address);
    dawdler.write_all(b"\x16\x03\x01\x02").expect("the server reads");
    let mut silent = connect(address);
    for stream in [&mut dawdler, &mut silent] {
        assert_eq!(stream.read(&mut [0; 10]).unwrap_or(0), 0);
    }
    // A record that was tampered with, after the handshake.
    let config = Arc::new(identity.trust(&VERSIONS));
    let mut client = secure(address, &config).expect("a handshake");
    client.sock.write_all(b"\x17\x03\x03\x00\x20tampered with, and 32 bytes long.").unwrap();
    let told = client.read_to_end(&mut Vec::new()).expect_err("an alert").to_string();
    assert!(told.contains("BadRecordMac"), "{told}");
    // All other clients are served.
    let fine = talk_secure(address, &config, get("/hello.txt", "").as_bytes());
    assert_eq!(responses(&fine.expect("an orderly end"))[0].status, 200);
    wait_for_count(&server, "handshake_timeouts", 2);
    let ended = server.end();
    assert_eq!((ended.count("tls_handshakes"), ended.count("tls_failures")), (2, 7));
}

/// (How a reload replaces certificates is in `http_reload`.)
fn connections_outlive_their_certificate() {
    let (_site, identity, server) = usual(ENGINE, &["--workers", "2"]);
    let address = encrypted(&server);
    let old = Arc::new(identity.trust(&VERSIONS));
    let mut stays = secure(address, &old).expect("a handshake");
    // One whose key is another's.
    let other = Identity::new();
    std::fs::copy(other.key(), identity.key()).expect("a file");
    reload(&server, "it is not that of the certificate");
    secure(address, &old).expect("the certificate in use");
    identity.renew();
    reload(&server, "sites, certificates were reloaded");
    secure(address, &Arc::new(identity.trust(&VERSIONS))).expect("the new certificate");
    secure(address, &old).expect_err("the old one is not shown any more");
    assert_eq!(ask_on(&mut stays, &get("/hello.txt", "")).status, 200);
    server.terminate();
}
