//! `serve http` over TLS: the same answers, encrypted, with an end that differs from a cut.

use crate::support::http::*;
use crate::support::tls::*;
use crate::support::*;
use rustls::HandshakeKind;
use rustls::client::Resumption;
use rustls::version::{TLS12, TLS13};

pub(crate) const TESTS: &[Test] = tests![
    versions_and_protocols_are_agreed_on,
    sessions_are_resumed,
    invalid_handshakes_are_refused,
    answers_are_the_same_with_tls_and_without,
    an_end_differs_from_a_cut
];

fn answers_are_the_same_with_tls_and_without() {
    let (site, identity, server) = usual(ENGINE, &["default.rule = [{ listing = 'html' }]"]);
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
            let plain = talk(server.address(), request);
            let secret = talk_secure(encrypted(&server), &config, request);
            assert_same(&undated(&secret.expect("an orderly end")), &undated(&plain));
        }
    }
    let handshakes = ("tls_handshakes", 2 * (requests.len() as u64 + 1));
    server.end_with(&[handshakes, ("tls_failures", 0), ("tls_truncated", 0), ("reset", 0)]);
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
    // HTTP/2 is off without TLS, too.
    assert_eq!(ask_last(server.address(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").status, 505);
    let handshakes = [("tls_handshakes", 4), ("tls_failures", 1)];
    server.terminate().expect(0, &[&handshakes[..], &[("http2_connections", 0)]].concat());

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
    server.terminate().expect(0, &[("tls_handshakes", 12), ("tls_resumed", 10)]);
}

fn an_end_differs_from_a_cut() {
    let (site, identity, server) = usual(ENGINE, &["server.cache-valid = '20ms'"]);
    let config = Arc::new(identity.trust(&VERSIONS));
    // The server ends first, with close_notify; later data of the client is not awaited.
    let mut client = secure(encrypted(&server), &config).expect("a handshake");
    say(&mut client, get("/large.bin", "Connection: close\r\n"));
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an orderly end");
    assert_same(&responses(&answer)[0].body, &pattern(7, 700_001));
    // The client ends without saying so: what it asked for in full it gets, to the end.
    let mut client = secure(encrypted(&server), &config).expect("a handshake");
    say(&mut client, get("/large.bin", "").repeat(3) + "GET /half HTTP/1.1\r\n");
    client.sock.shutdown(Shutdown::Write).expect("the server reads");
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).expect("an orderly end");
    assert_eq!(responses(&answers).len(), 3);
    // The server cannot complete an answer: there is no end that could be taken for one.
    site.write("shrinks.bin", &pattern(3, 9_000_000));
    let mut client = secure(encrypted(&server), &config).expect("a handshake");
    say(&mut client, get("/shrinks.bin", ""));
    client.read_exact(&mut [0; 1000]).expect("a beginning");
    File::create(site.path().join("shrinks.bin")).expect("a file to empty");
    let cut = client.read_to_end(&mut Vec::new()).expect_err("a cut");
    assert!([ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof].contains(&cut.kind()), "{cut}");
    server.end_with(&[("tls_truncated", 1), ("broken_off", 1)]);
}

fn invalid_handshakes_are_refused() {
    // Longer than clients that complete the handshake may be kept from the CPU.
    let options = ["server.tls-handshake-timeout = '2s'", "--stats", "1"];
    let (_site, identity, server) = usual(ENGINE, &options);
    let address = encrypted(&server);
    // A client that uses http instead of https gets a message.
    assert_eq!(ask_last(address, &get("/", "")).status, 400);
    // A fatal alert, and the end.
    for garbage in
        [&b"\x16\x03\x01\xff\xffgarbage"[..], &[22; 5000], b"\x16\x03\x01\x00\x05\x01\x00\x00\x01h"]
    {
        let answer = talk_until_closed(address, garbage);
        assert_eq!(answer.get(..2), Some(&[21, 3][..]), "an alert to {:?}", &garbage[..8]);
    }
    assert_eq!(talk_until_closed(address, [0_u8; 100]), b"");
    // Nothing at all, a part and then the end, or a part and then nothing.
    assert_eq!(talk(address, b""), b"");
    assert_eq!(talk(address, b"\x16\x03\x01"), b"");
    for mut stream in [begin(address, b"\x16\x03\x01\x02"), connect(address)] {
        assert_eq!(stream.read(&mut [0; 10]).unwrap_or(0), 0);
    }
    // A record that was tampered with, after the handshake.
    let config = Arc::new(identity.trust(&VERSIONS));
    let mut client = secure(address, &config).expect("a handshake");
    client.sock.write_all(b"\x17\x03\x03\x00\x20tampered with, and 32 bytes long.").unwrap();
    let told = client.read_to_end(&mut Vec::new()).expect_err("an alert").to_string();
    assert!(told.contains("BadRecordMac"), "{told}");
    // All other clients are served.
    let fine = talk_secure(address, &config, &get("/hello.txt", ""));
    assert_eq!(responses(&fine.expect("an orderly end"))[0].status, 200);
    server.wait_for_count("handshake_timeouts", 2);
    server.end_with(&[("tls_handshakes", 2), ("tls_failures", 7)]);
}
