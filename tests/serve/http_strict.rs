//! `twinring serve http` against requests that try it: smuggling, ways out of the root, excess,
//! and every way to cut a request into chunks.

use crate::support::http::*;
use crate::support::*;
use std::io::Write;
use std::net::Shutdown;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![head_has_no_content_whatever_the_status];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    ambiguous_requests_are_refused_and_the_connection_closed,
    chunk_sizes_outside_the_grammar_are_refused_and_nothing_behind_them_is_answered,
    limits_have_their_own_status_and_close,
    the_answer_does_not_depend_on_how_a_request_is_cut,
    no_path_leads_out_of_the_root_or_to_hidden_files,
    unreadable_files_are_403_and_do_not_stop_anything
];

fn ambiguous_requests_are_refused_and_the_connection_closed(engine: &str) {
    let site = Site::usual();
    let host = "GET / HTTP/1.1\r\nHost: h\r\n";
    let requests = [
        format!("{host}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{host}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
        format!("{host}Content-Length: 5, 5\r\n\r\nhello"),
        format!("{host}Content-Length: +5\r\n\r\nhello"),
        format!("{host}Content-Length: 5x\r\n\r\nhello"),
        format!("{host}Content-Length: 18446744073709551616\r\n\r\n"),
        format!("{host}Transfer-Encoding: chunked, chunked\r\n\r\n"),
        format!("{host}Transfer-Encoding: x-chunked\r\n\r\n"),
        format!("{host}Transfer-Encoding : chunked\r\n\r\n"),
        format!("{host}X: a\r\n folded\r\n\r\n"),
        format!("{host}X: a\r\n\tfolded\r\n\r\n"),
        format!("{host}X: a\rb\r\n\r\n"),
        format!("{host}X: a\n\r\n"),
        format!("{host}X: a\0\r\n\r\n"),
        format!("{host}X : a\r\n\r\n"),
        format!("{host}\n"),
        format!("{host}Host: h\r\n\r\n"),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: h h\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: h/\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        "GET /\r\n\r\n".to_owned(),
        "GET  / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET / /x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /\u{e4} HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /?\u{e4} HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /<a> HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET / HTTP/1.x\r\nHost: h\r\n\r\n".to_owned(),
        "\r\n\r\n\r\n".to_owned(),
        "\x16\x03\x01\x02\x00\x01".to_owned(),
    ];
    let server = Server::http(engine, site.path(), &[]);
    for request in &requests {
        // A hidden request behind it must not be answered.
        let hidden = format!("{request}{}", get("/hello.txt", ""));
        let answers = responses(&talk_until_closed(server.address(), hidden.as_bytes()));
        assert_eq!(answers.len(), 1, "{request:?}: {answers:?}");
        assert_eq!(answers[0].status, 400, "{request:?}");
        assert_eq!(answers[0].field("connection"), Some("close"), "{request:?}");
    }
    let ended = server.terminate();
    assert_eq!(ended.count("responses_4xx"), requests.len() as u64);
    println!("{engine}: {} malformed requests refused", requests.len());
}

/// Data behind such a body was answered, although recipients disagree on where the body ends.
fn chunk_sizes_outside_the_grammar_are_refused_and_nothing_behind_them_is_answered(engine: &str) {
    let site = Site::usual();
    let wrong = ["5 ", "5\t", "5;", "5; ", "5;a ", "5;a@b", "5;a=", "5;a=b c", "5;a=\"b", "5;;a"];
    let server = Server::http(engine, site.path(), &[]);
    let sizes = wrong.iter().map(|size| (*size, 400)).chain([("5 ; a = \"b;\" ;c", 200)]);
    for (size, status) in sizes {
        let body = format!("{size}\r\nhello\r\n0\r\n\r\n");
        let request = get("/", "Transfer-Encoding: chunked\r\n") + &body;
        let hidden = request + &get("/hello.txt", "Connection: close\r\n");
        let answers = responses(&talk_until_closed(server.address(), hidden.as_bytes()));
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        let expected = if status == 400 { vec![400] } else { vec![200, 200] };
        assert_eq!(statuses, expected, "{size:?}");
        assert_eq!(answers.last().unwrap().field("connection"), Some("close"), "{size:?}");
    }
    println!("{engine}: {} sizes refused", wrong.len());
}

fn limits_have_their_own_status_and_close(engine: &str) {
    let site = Site::usual();
    let long = "x".repeat(5000);
    let cases = [
        (get(&format!("/{long}"), ""), 414),
        (format!("GET /{long}{long}{long}{long}"), 414),
        (get("/", &format!("X: {long}\r\n")), 431),
        (get("/", &"X: y\r\n".repeat(101)), 431),
        ("GET / HTTP/2.0\r\nHost: h\r\n\r\n".to_owned(), 505),
        ("GET / HTTP/3.1\r\nHost: h\r\n\r\n".to_owned(), 505),
        ("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_owned(), 505),
        ("FOO / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 501),
        (get("/", "Transfer-Encoding: gzip, chunked\r\n"), 501),
        (get("/", "Expect: nothing\r\n"), 417),
        (get("/", "Content-Length: 65537\r\n"), 413),
    ];
    let arguments = ["--max-uri-bytes", "2000", "--max-header-bytes", "4096"];
    let server = Server::http(engine, site.path(), &arguments);
    for (request, status) in &cases {
        let answers = responses(&talk_until_closed(server.address(), request.as_bytes()));
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].status, *status, "{}", &request[..60.min(request.len())]);
        assert_eq!(answers[0].field("connection"), Some("close"));
    }
    // Just inside the bounds.
    let later = get("/hello.txt", "").replace("HTTP/1.1", "HTTP/1.2");
    assert_eq!(ask(&server, &later).status, 200);
    let target = format!("/hello.txt?{}", "x".repeat(1980));
    assert_eq!(ask(&server, &get(&target, &format!("X: {}\r\n", "x".repeat(2000)))).status, 200);
    println!("{engine}: {} limits kept", cases.len());
}

fn the_answer_does_not_depend_on_how_a_request_is_cut(engine: &str) {
    let site = Site::usual();
    let requests = [
        get("/hello.txt", "Range: bytes=1-3\r\n"),
        format!("\r\n{}", get("/large.bin", "If-None-Match: *\r\n")),
        get("/", "Transfer-Encoding: chunked\r\n").to_string() + "3;x\r\nabc\r\n0\r\nT: u\r\n\r\n",
        get("/sub", "Content-Length: 5\r\n") + "hello",
        get("/", "Content-Length: 5\r\nContent-Length: 5\r\n"),
        get("/no", "") + &get("/hello.txt", "Connection: close\r\n"),
    ];
    site.settle();
    let server = Server::http(engine, site.path(), &[]);
    let mut cuts = 0;
    for (number, request) in requests.iter().enumerate() {
        let request = request.as_bytes();
        let whole = undated(&talk(server.address(), request));
        assert!(!whole.is_empty());
        for cut in 1..request.len() {
            let mut stream = connect(server.address());
            stream.write_all(&request[..cut]).unwrap();
            std::thread::yield_now();
            stream.write_all(&request[cut..]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let answer = undated(&read_to_end(&stream).expect("a clean end"));
            assert!(answer == whole, "{engine}: request {number} cut at {cut}");
            cuts += 1;
        }
        // Every byte on its own.
        let mut stream = connect(server.address());
        for byte in request {
            // After a refusal the server may have closed already.
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        let _closed_already = stream.shutdown(Shutdown::Write);
        assert!(undated(&read_to_end(&stream).expect("a clean end")) == whole);
    }
    assert_eq!(server.terminate().count("reset"), 0);
    println!("{engine}: {} requests, {cuts} cuts, always the same answer", requests.len());
}

fn no_path_leads_out_of_the_root_or_to_hidden_files(engine: &str) {
    let outside = Site::new();
    outside.write("passwd", b"root:secret");
    outside.write("www/index.html", b"inside");
    outside.write("www/.hidden", b"secret");
    outside.write("www/.git/config", b"secret");
    outside.write("www/sub/x.txt", b"inside");
    let root = outside.path().join("www");
    let link = |target: &std::path::Path, name: &str| {
        std::os::unix::fs::symlink(target, root.join(name)).expect("a link");
    };
    link("../passwd".as_ref(), "out.txt");
    link("..".as_ref(), "up");
    link(&outside.path().join("passwd"), "absolute.txt");
    link("/".as_ref(), "slash");
    link("/proc/self/root".as_ref(), "magic");
    link("loop".as_ref(), "loop");
    link("sub/x.txt".as_ref(), "in.txt");
    nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket");
    let long = format!("/{}", "x".repeat(300));
    let deep = format!("/{}", "d/".repeat(2000));
    let targets = [
        "/../passwd",
        "/sub/../../passwd",
        "/%2e%2e/passwd",
        "/%2E%2E/passwd",
        "/.%2e/passwd",
        "/..%2fpasswd",
        "/%2e%2e%2fpasswd",
        "/%2e%2e%5cpasswd",
        "/..\\passwd",
        "/..%5cpasswd",
        "/%252e%252e/passwd",
        "/%252e%252e%252fpasswd",
        "/..%252fpasswd",
        "/..%c0%afpasswd",
        "/%c0%ae%c0%ae/passwd",
        "/..;/passwd",
        "/./../passwd",
        "//../passwd",
        "/..//passwd",
        "/sub/..%00/passwd",
        "/index.html%00.txt",
        "/%00",
        "/.hidden",
        "/%2ehidden",
        "/./.hidden",
        "/sub/../.hidden",
        "/.git/config",
        "/.git",
        "/.git/",
        "/sub/%2e%2e/.git/config",
        "/out.txt",
        "/up/passwd",
        "/absolute.txt",
        "/slash/etc/passwd",
        "/magic/etc/passwd",
        "/loop",
        "/loop/x",
        "/fifo",
        "/socket",
        "/sub/x.txt/",
        "/sub/x.txt/..%2f..",
        "/%",
        "/%zz",
        "/dev/null",
        "/proc/self/environ",
        &long,
        &deep,
        "http://h/../passwd",
        "http://h/%2e%2e/passwd",
        "/up/www/index.html",
        "/file:///etc/passwd",
    ];
    for policy in ["beneath", "refuse"] {
        let server = Server::http(engine, &root, &["--symlinks", policy, "--autoindex", "html"]);
        for target in targets {
            let answer = ask(&server, &get(target, ""));
            assert!([400, 404].contains(&answer.status), "{target}: {answer:?}");
            assert!(!answer.text().contains("secret"), "{target}: {answer:?}");
        }
        let followed = ask(&server, &get("/in.txt", "")).status;
        assert_eq!(followed, if policy == "beneath" { 200 } else { 404 });
        assert_eq!(ask(&server, &get("/sub/../index.html", "")).status, 200);
        let listing = ask(&server, &get("/sub/", "")).text();
        assert!(listing.contains("x.txt") && !listing.contains("passwd"));
        let ended = server.terminate();
        assert_eq!((ended.code, ended.count("responses_5xx")), (Some(0), 0));
    }
    println!("{engine}: {} targets refused under both policies", targets.len());
}

fn unreadable_files_are_403_and_do_not_stop_anything(engine: &str) {
    if nix::unistd::geteuid().is_root() {
        println!("root reads everything: nothing to see");
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let site = Site::usual();
    let locked = site.write("locked.txt", b"secret");
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o000)).unwrap();
    let server = Server::http(engine, site.path(), &[]);
    assert_eq!(ask(&server, &get("/locked.txt", "")).status, 403);
    assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
}

/// Refusals of HEAD had content, which a client reads as the next answer (RFC 9110 section 9.3.2).
fn head_has_no_content_whatever_the_status() {
    let site = Site::usual();
    let server = Server::http("epoll", site.path(), &["--max-body-bytes", "10"]);
    let long = "x".repeat(9_000);
    for (request, status) in [
        (format!("HEAD /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        (format!("HEAD / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", long.repeat(4)), 431),
        ("HEAD / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(), 400),
        ("HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n".to_owned(), 413),
        ("HEAD / HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n".to_owned(), 417),
        ("HEAD /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), 404),
    ] {
        let text = String::from_utf8(talk(server.address(), request.as_bytes())).expect("text");
        let (head, content) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert_eq!(content, "", "{status}");
    }
}
