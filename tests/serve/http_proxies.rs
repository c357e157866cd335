//! `serve http` behind proxies: the PROXY protocol, and header fields that name the client.

use crate::support::http::*;
use crate::support::tls::*;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    proxies_name_their_clients_however_the_header_arrives,
    limits_per_address_count_the_clients_of_a_proxy,
    requests_that_a_trusted_proxy_got_over_tls_are_not_redirected_to_https
];

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n";

/// `[2001:db8::7]:4711`, with an extension behind the addresses.
fn v2() -> Vec<u8> {
    let mut addresses = [0; 36];
    addresses[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
    (addresses[15], addresses[32], addresses[33]) = (7, 0x12, 0x67);
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x28".as_slice(), &addresses, &[4, 0, 1, 0]].concat()
}

fn ended_without_an_answer(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ended = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

fn proxies_name_their_clients_however_the_header_arrives() {
    let logs = Site::new();
    let from = "server.proxy-protocol-from = '127.0.0.0/8'";
    let format = "server.access-log-format = 'json'";
    let options = ["--access-log", &logs.file("log"), format, from];
    let (_site, identity, server) = usual(ENGINE, &options);
    let (address, config) = (server.address(), Arc::new(identity.trust(&VERSIONS)));
    let request = get("/hello.txt", "");
    for header in [V1, &v2()] {
        // With the request, and in pieces.
        let whole = [header, request.as_bytes()].concat();
        assert_eq!(responses(&talk(address, &whole))[0].status, 200);
        let mut stream = connect(address);
        whole.chunks(1).for_each(|byte| say(&mut stream, byte));
        assert_eq!(read_response(&mut stream, false).status, 200);
        // The connection goes on, with the same client.
        assert_eq!(ask_on(&mut stream, &get("/none", "")).status, 404);
        // The header comes before TLS.
        let stream = begin(encrypted(&server), header);
        let mut client = secure_for("localhost", stream, &config).expect("a handshake");
        assert_eq!(ask_on(&mut client, &request).body.len(), 36);
    }
    secure(encrypted(&server), &config).expect_err("no header");
    // A health check of the proxy.
    let local = [b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".as_slice(), request.as_bytes()].concat();
    assert_eq!(responses(&talk(address, &local))[0].status, 200);
    // None, another one, and a second one.
    for wrong in [request.as_bytes(), b"PROXY TCP4 x\r\n", b"\r\n\r\n\0\r\nQUIT\n\x22"] {
        // In one segment, behind which more is wrong too.
        ended_without_an_answer(begin(address, [wrong, b"\r\n\r\n0123456789"].concat()));
    }
    let twice = [V1, V1, request.as_bytes()].concat();
    assert_eq!(responses(&talk(address, &twice))[0].status, 400);
    // A check of the port is no failure.
    drop(connect(address));
    server.end_with(&[("proxy_failures", 4)]);
    let text = fs::read_to_string(logs.file("log")).expect("a log");
    for (client, requests) in [
        (r#""remote_address":"127.0.0.1","#, 1),
        (r#""remote_address":"192.0.2.7","remote_port":4711,"#, 5),
        (r#""remote_address":"2001:db8::7","remote_port":4711,"#, 4),
    ] {
        assert_eq!(text.matches(client).count(), requests, "{client}: {text}");
    }
    assert_eq!(text.lines().count(), 10);
}

fn limits_per_address_count_the_clients_of_a_proxy() {
    let from = "server.proxy-protocol-from = '127.0.0.1'";
    let (_site, server) = served(&[from, "server.max-connections-per-address = '1'"]);
    let open = |header: &[u8]| {
        let bytes = [header, get("/hello.txt", "").as_bytes()].concat();
        begin(server.address(), bytes)
    };
    let (mut one, mut other) = (open(V1), open(&v2()));
    for stream in [&mut one, &mut other] {
        assert_eq!(read_response(stream, false).status, 200);
    }
    ended_without_an_answer(open(V1));
    drop(one);
    wait_until("the place is free again", || matches!(open(V1).read(&mut [0]), Ok(1)));
    drop(other);
    assert!(server.end().count("refused_of_address") >= 1);
}

/// Behind a proxy that ends TLS, all requests were redirected to https, for ever.
fn requests_that_a_trusted_proxy_got_over_tls_are_not_redirected_to_https() {
    let proto = |proto| format!("X-Forwarded-Proto: {proto}\r\n");
    for (trusted, lines, status) in [
        ("127.0.0.1", proto("HTTPS, http"), 200),
        ("127.0.0.1", proto("http"), 301),
        ("127.0.0.1", String::new(), 301),
        ("192.0.2.0/24", proto("https"), 301),
    ] {
        let (_site, server) =
            served(&["default.redirect-to-https = true", &set("forwarded-from", trusted)]);
        server.check_both(&[(get("/hello.txt", &lines), status, &[])]);
    }
    // From others that protocol is an invalid request.
    let (_site, server) = served(&["server.proxy-protocol-from = '192.0.2.1'"]);
    server.check_both(&[(get("/hello.txt", ""), 200, &[])]);
    let bytes = [V1, get("/hello.txt", "").as_bytes()].concat();
    assert_eq!(responses(&talk(server.address(), bytes))[0].status, 400);
    // A proxy that names another one by the PROXY protocol.
    let options = ["default.redirect-to-https = true", "server.proxy-protocol-from = '127.0.0.1'"];
    for (trusted, expected) in [("192.0.2.7", 200), ("127.0.0.1", 301)] {
        let (_site, server) = served(&[&options[..], &[&set("forwarded-from", trusted)]].concat());
        let bytes = [V1, get("/hello.txt", &proto("https")).as_bytes()].concat();
        assert_eq!(responses(&talk(server.address(), &bytes))[0].status, expected, "{trusted}");
    }
}
