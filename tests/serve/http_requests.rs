//! Which requests `serve http` refuses, by tables: ambiguous ones, ways out of the root, excess; and that no
//! answer depends on how the bytes of a request arrive.

use crate::support::http::*;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    ambiguous_requests_are_refused_and_the_connection_closed,
    limits_have_their_own_status_and_close,
    bodies_are_read_and_dropped_within_their_bound,
    no_path_leads_out_of_the_root_or_to_hidden_files,
    the_answer_does_not_depend_on_how_a_request_is_cut
];

fn ambiguous_requests_are_refused_and_the_connection_closed() {
    const HOST: &str = "GET / HTTP/1.1\r\nHost: h\r\n";
    let (_site, server) = served(&[]);
    // One of each kind: the tables of the parser have the others.
    let requests = [
        format!("{HOST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{HOST}X: a\r\n folded\r\n\r\n"),
        format!("{HOST}\n"),
        get("/", "Transfer-Encoding: chunked\r\n") + "5;;a\r\nhello\r\n0\r\n\r\n",
        "GET / /x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "\x16\x03\x01\x02\x00\x01".to_owned(),
    ];
    for request in requests {
        // A hidden request behind it must not be answered.
        let hidden = request.clone() + &get("/hello.txt", "");
        let answer = ask_last(server.address(), &hidden);
        assert_eq!(answer.status, 400, "{request:?}");
        assert_eq!(answer.field("connection"), Some("close"), "{request:?}");
    }
    server.end();
}

fn limits_have_their_own_status_and_close() {
    let long = "x".repeat(5000);
    let limits = ["server.max-uri-bytes = '2000'", "server.max-header-bytes = '4096'"];
    let (_site, server) = served(&limits);
    for (request, status) in [
        (format!("GET /{long}{long}{long}{long}"), 414),
        (get("/", &format!("X: {long}\r\n")), 431),
        (get("/", "Transfer-Encoding: gzip, chunked\r\n"), 501),
        (get("/", "Expect: nothing\r\n"), 417),
        (get("/", "Content-Length: 65537\r\n"), 413),
        (get("/", "Content-Length: 65537\r\nExpect: 100-continue\r\n"), 413),
        (get("/", "Transfer-Encoding: chunked\r\n") + "10001\r\n", 413),
        (get("/", "Transfer-Encoding: chunked\r\n") + "x\r\n", 400),
        // A request body that is not needed is not awaited.
        ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n".to_owned(), 405),
    ] {
        let answer = ask_last(server.address(), &request);
        assert_eq!((answer.status, answer.field("connection")), (status, Some("close")));
    }
    // Refusals of HEAD had content, which a client reads as the next answer (RFC 9110 section 9.3.2).
    for (line, status) in [
        (format!("/{long} HTTP/1.1\r\nHost: a"), 414),
        ("/ HTTP/1.1\r\nHost: a\r\nHost: b".to_owned(), 400),
        ("/ HTTP/1.1\r\nHost: a\r\nContent-Length: 65537".to_owned(), 413),
    ] {
        server.check_http1(&[(format!("HEAD {line}\r\n\r\n"), status, &[])]);
    }
    assert!(talk(server.address(), "\r\nHEAD / HTTP/1.1\r\n\r\n").ends_with(b"\r\n\r\n"));
    // Just inside the bounds.
    let target = format!("/hello.txt?{}", "x".repeat(1980));
    let fields = format!("X: {}\r\n", "x".repeat(2000));
    let later = get("/hello.txt", "").replace("HTTP/1.1", "HTTP/1.2");
    server.check_http1(&[(later, 200, &[]), (get(&target, &fields), 200, &[])]);
}

fn bodies_are_read_and_dropped_within_their_bound() {
    let (_site, server) = served(&["server.max-body-bytes = '100'"]);
    let mut stream = connect(server.address());
    for body in [
        "Content-Length: 5\r\n\r\nhello".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nT: u\r\n\r\n".to_owned(),
        format!("Content-Length: 100\r\n\r\n{}", "x".repeat(100)),
    ] {
        let answer = ask_on(&mut stream, &format!("GET / HTTP/1.1\r\nHost: h\r\n{body}"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "<h1>home</h1>\n"));
    }
    // The body comes only after the interim answer, which asks for it.
    let expecting = get("/", "Expect: 100-continue\r\nContent-Length: 5\r\n");
    assert_eq!(ask_on(&mut stream, &expecting).status, 100);
    assert_eq!(ask_on(&mut stream, "hello").status, 200);
    drop(stream);
    server.end();
}

/// Sends `request` in two parts, of which the server has read the first before the second is sent: in front of
/// the first is another request, whose answer has come by then. Returns all that comes behind that answer.
fn ask_in_two(server: &Server, request: &[u8], cut: usize) -> Vec<u8> {
    let before = get("/empty.txt", "");
    let mut stream = begin(server.address(), [before.as_bytes(), &request[..cut]].concat());
    assert_eq!(read_response(&mut stream, false).status, 200);
    say(&mut stream, &request[cut..]);
    stream.shutdown(Shutdown::Write).expect("the server reads");
    undated(&read_to_end(&stream).expect("a clean end"))
}

fn the_answer_does_not_depend_on_how_a_request_is_cut() {
    let (site, server) = served(&[]);
    site.settle();
    for request in [
        get("/hello.txt", "Range: bytes=1-3\r\n"),
        format!("\r\n{}", get("/large.bin", "If-None-Match: *\r\n")),
        get("/", "Transfer-Encoding: chunked\r\n") + "3;x\r\nabc\r\n0\r\nT: u\r\n\r\n",
        get("/sub", "Content-Length: 5\r\n") + "hello",
        get("/no", "") + &get("/hello.txt", "Connection: close\r\n"),
    ] {
        let request = request.as_bytes();
        let whole = undated(&talk(server.address(), request));
        assert!(!whole.is_empty());
        for cut in 1..request.len() {
            let answer = ask_in_two(&server, request, cut);
            assert!(answer == whole, "cut at {cut}");
        }
    }
    server.end_with(&[("reset", 0)]);
}

fn no_path_leads_out_of_the_root_or_to_hidden_files() {
    let outside = Site::new();
    for secret in ["passwd", "www/.hidden", "www/.git/config"] {
        outside.write(secret, b"secret");
    }
    outside.write("www/index.html", b"inside");
    outside.write("www/sub/x.txt", b"inside");
    let root = outside.path().join("www");
    for (name, target) in [("out.txt", "../passwd"), ("up", ".."), ("in.txt", "sub/x.txt")] {
        std::os::unix::fs::symlink(target, root.join(name)).expect("a link");
    }
    nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let long = format!("/{}", "x".repeat(300));
    // How names are written is a table of the parser, and which links lead where one of the runtime.
    let targets = "/../passwd /%2e%2e/passwd /..%2fpasswd /index.html%00.txt /.hidden /out.txt \
        /sub/%2e%2e/.git/config /up/passwd /fifo /sub/x.txt/ /up/www/index.html";
    for policy in ["beneath", "refuse"] {
        let server = Server::http(
            ENGINE,
            &root,
            &[&format!("default.symlinks = '{policy}'"), "default.rule = [{ listing = 'html' }]"],
        );
        for target in targets.split_whitespace().chain([&*long]) {
            let answer = ask(&server, &get(target, ""));
            assert!([400, 404].contains(&answer.status), "{target}: {answer:?}");
            assert!(!answer.text().contains("secret"), "{target}: {answer:?}");
        }
        let followed = if policy == "beneath" { 200 } else { 404 };
        server.check_both(&[
            (get("/in.txt", ""), followed, &[]),
            (get("/sub/../index.html", ""), 200, &[]),
            (get("/sub/", ""), 200, &[Is::Holds("x.txt")]),
        ]);
        assert!(!ask(&server, &get("/sub/", "")).text().contains("passwd"));
        server.end_with(&[("responses_5xx", 0)]);
    }
}
