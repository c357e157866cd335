//! `twinring serve http` over raw sockets: what RFC 9110 and 9112 ask of a server of files, and
//! the same bytes on both engines.

use crate::support::http::*;
use crate::support::*;
use std::io::Write;
use testing::{Test, engine_tests, tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![several_workers_and_addresses_serve_alike];

pub(crate) const TESTS: &[Test] = tests![
    files_come_with_their_type_length_and_validators,
    head_is_get_without_the_content_and_options_lists_methods,
    other_methods_are_405_and_unknown_ones_501,
    connections_stay_and_close_as_they_should,
    connections_closed_on_request_free_their_place,
    pipelined_requests_are_answered_in_order,
    directories_have_an_index_a_redirect_or_a_listing,
    fallback_and_not_found_pages,
    precompressed_files_go_to_clients_that_accept_them,
    operators_add_fields_by_path,
    bodies_are_read_and_dropped_within_their_bound,
    the_last_request_of_a_connection_closes_it,
    a_failed_start_reports_the_reason
];

/// Both engines over the same files.
fn pair(site: &Site, arguments: &[&str]) -> [Server; 2] {
    ENGINES.map(|engine| Server::http(engine, site.path(), arguments))
}

/// The answers to each request, each on a connection of its own: the same on both engines.
pub(crate) fn answers(site: &Site, arguments: &[&str], requests: &[String]) -> Vec<Response> {
    let [ring, epoll] = pair(site, arguments);
    let mut answers = Vec::new();
    for request in requests {
        let by_ring = talk(ring.address(), request.as_bytes());
        let by_epoll = talk(epoll.address(), request.as_bytes());
        assert!(undated(&by_ring) == undated(&by_epoll), "the engines differ for {request:?}");
        let to_head = request.starts_with("HEAD ");
        let mut rest = by_ring.as_slice();
        answers.push(read_response(&mut rest, to_head));
        assert!(rest.is_empty(), "more than one answer to {request:?}");
    }
    for server in [ring, epoll] {
        let ended = server.terminate();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(ended.count("requests"), requests.len() as u64);
        assert_eq!((ended.count("open"), ended.count("reset")), (0, 0));
    }
    println!("{} requests, answered with the same bytes by both engines", requests.len());
    answers
}

pub(crate) fn answer(site: &Site, arguments: &[&str], request: String) -> Response {
    answers(site, arguments, &[request]).remove(0)
}

fn files_come_with_their_type_length_and_validators() {
    let site = Site::usual();
    site.settle();
    let targets =
        ["/", "/hello.txt", "/empty.txt", "/large.bin", "/hello.txt?query", "/list/a%20b.txt"];
    let answers = answers(&site, &[], &targets.map(|target| get(target, "")));
    for (answer, (content, content_type)) in answers.iter().zip([
        (b"<h1>home</h1>\n".to_vec(), "text/html; charset=utf-8"),
        (b"0123456789abcdefghijklmnopqrstuvwxyz".to_vec(), "text/plain; charset=utf-8"),
        (Vec::new(), "text/plain; charset=utf-8"),
        (pattern(7, 700_001), "application/octet-stream"),
        (b"0123456789abcdefghijklmnopqrstuvwxyz".to_vec(), "text/plain; charset=utf-8"),
        (b"spaced".to_vec(), "text/plain; charset=utf-8"),
    ]) {
        assert_eq!(answer.status, 200);
        assert_same(&answer.body, &content);
        assert_eq!(answer.field("content-type"), Some(content_type));
        assert_eq!(answer.field("last-modified"), Some(MODIFIED));
        assert_eq!(answer.field("accept-ranges"), Some("bytes"));
        let tag = answer.field("etag").expect("a tag");
        assert!(tag.starts_with('"') && tag.ends_with('"'), "strong: {tag}");
        assert!(answer.field("date").expect("a date").ends_with(" GMT"));
        assert_eq!(answer.field("connection"), None);
    }
}

fn head_is_get_without_the_content_and_options_lists_methods() {
    let site = Site::usual();
    for target in ["/hello.txt", "/large.bin", "/nothing", "/sub"] {
        let get = get(target, "");
        let head = get.replacen("GET", "HEAD", 1);
        let answers = answers(&site, &[], &[get, head]);
        let (full, head) = (&answers[0], &answers[1]);
        assert_eq!(undated(head.head.as_bytes()), undated(full.head.as_bytes()), "{target}");
    }
    let requests = ["OPTIONS * HTTP/1.1", "OPTIONS /hello.txt HTTP/1.1", "OPTIONS /no HTTP/1.1"];
    for answer in answers(&site, &[], &requests.map(|line| format!("{line}\r\nHost: h\r\n\r\n"))) {
        assert_eq!(answer.status, 204);
        assert_eq!(answer.field("allow"), Some("GET, HEAD, OPTIONS"));
        assert_eq!(answer.field("content-length"), None);
    }
}

fn other_methods_are_405_and_unknown_ones_501() {
    let site = Site::usual();
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT"] {
        let answer = answer(&site, &[], format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert_eq!((answer.status, answer.field("allow")), (405, Some("GET, HEAD, OPTIONS")));
    }
    let answer = answer(&site, &[], "BREW / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned());
    assert_eq!((answer.status, answer.field("connection")), (501, Some("close")));
}

fn connections_stay_and_close_as_they_should() {
    let site = Site::usual();
    for server in pair(&site, &[]) {
        // Without FIN from here: only a server that closes lets these end.
        let closing = [
            get("/hello.txt", "Connection: close\r\n"),
            get("/large.bin", "Connection: close\r\n"),
            get("/nothing", "Connection: close\r\n"),
            "GET /hello.txt HTTP/1.0\r\n\r\n".to_owned(),
            "GET /large.bin HTTP/1.0\r\n\r\n".to_owned(),
        ];
        for request in &closing {
            let answers = responses(&talk_until_closed(server.address(), request.as_bytes()));
            assert_eq!(answers.len(), 1);
            assert_eq!(answers[0].field("connection"), Some("close"), "{request}");
        }
        let mut stream = connect(server.address());
        for round in 0..3 {
            for target in ["/hello.txt", "/large.bin", "/nothing", "/sub", "/empty.txt"] {
                let answer = ask_on(&mut stream, &get(target, ""));
                assert_eq!(answer.field("connection"), None, "{target} in round {round}");
                let head = ask_on(&mut stream, &get(target, "").replacen("GET", "HEAD", 1));
                assert_eq!(head.status, answer.status);
            }
        }
        let kept = "GET /hello.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
        assert_eq!(ask_on(&mut stream, kept).field("connection"), Some("keep-alive"));
        assert_eq!(ask_on(&mut stream, kept).body.len(), 36);
        drop(stream);
        // Data behind the last request is not answered.
        let behind = format!("{}{}", get("/", "Connection: close\r\n"), get("/hello.txt", ""));
        assert_eq!(responses(&talk_until_closed(server.address(), behind.as_bytes())).len(), 1);
        let ended = server.terminate();
        assert_eq!(ended.count("accepted"), 7);
        assert_eq!(ended.count("requests"), 38);
    }
}

/// A client that had announced its last request was awaited, up to 2 s, until it closed as well.
fn connections_closed_on_request_free_their_place() {
    let site = Site::usual();
    for server in pair(&site, &["--max-connections", "1"]) {
        let mut open = Vec::new();
        for target in ["/hello.txt", "/large.bin", "/nothing"].repeat(5) {
            let stream = connect(server.address());
            let mut writing = &stream;
            let request = get(target, "Connection: close\r\n");
            writing.write_all(request.as_bytes()).expect("the server reads");
            assert_eq!(responses(&read_to_end(&stream).expect("a clean end")).len(), 1);
            open.push(stream);
        }
        let ended = server.terminate();
        assert_eq!((ended.count("accepted"), ended.count("refused")), (15, 0));
    }
}

fn pipelined_requests_are_answered_in_order() {
    let site = Site::usual();
    let targets = ["/hello.txt", "/", "/large.bin", "/nothing", "/empty.txt", "/sub"];
    let requests: String =
        (0..200).map(|number| get(targets[number % targets.len()], "")).collect();
    let mut streams = Vec::new();
    for server in pair(&site, &[]) {
        let stream = connect(server.address());
        let writer = write_and_finish(&stream, requests.clone().into_bytes());
        let bytes = read_to_end(&stream).expect("a clean end");
        writer.join().unwrap().expect("all was written");
        let answers = responses(&bytes);
        assert_eq!(answers.len(), 200);
        for (number, answer) in answers.iter().enumerate() {
            let (status, length) =
                [(200, 36), (200, 14), (200, 700_001), (404, 14), (200, 0), (301, 22)]
                    [number % targets.len()];
            assert_eq!((answer.status, answer.body.len()), (status, length), "answer {number}");
        }
        let ended = server.terminate();
        assert_eq!(ended.count("requests"), 200);
        streams.push(undated(&bytes));
    }
    assert!(streams[0] == streams[1], "the engines differ");
    println!("200 pipelined requests, {} bytes back, on both engines", streams[0].len());
}

fn directories_have_an_index_a_redirect_or_a_listing() {
    let site = Site::usual();
    let targets = [
        "/sub/",
        "/sub",
        "/sub?a=b",
        "/list/",
        "/list",
        "//evil.example/%2f..",
        "/\\x",
        "//sub",
        "/hello.txt/",
        "/nothing/",
    ];
    let requests = targets.map(|target| get(target, ""));
    let plain = answers(&site, &[], &requests);
    let statuses: Vec<u16> = plain.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 301, 301, 404, 301, 404, 400, 301, 404, 404]);
    assert_eq!(plain[0].text(), "<h1>sub</h1>\n");
    assert_eq!(plain[1].field("location"), Some("/sub/"));
    assert_eq!(plain[2].field("location"), Some("/sub/?a=b"));
    assert_eq!(plain[7].field("location"), Some("/sub/"), "never another host");
    let html = answer(&site, &["--autoindex", "html"], get("/list/", ""));
    assert_eq!(html.field("content-type"), Some("text/html; charset=utf-8"));
    assert!(html.text().contains("<a href=\"./a%20b.txt\">a b.txt</a>"), "{}", html.text());
    let json = answer(&site, &["--autoindex", "json"], get("/list/", ""));
    let listed: serde_json::Value = serde_json::from_slice(&json.body).unwrap();
    assert_eq!(
        (&listed["complete"], &listed["entries"][0]["name"]),
        (&true.into(), &"deeper".into())
    );
    assert_eq!(
        listed["entries"][1],
        serde_json::json!({"name": "a b.txt", "type": "file", "size_bytes": 6,
                           "modified_s": MODIFIED_S, "href": "./a%20b.txt"})
    );
    let root = answer(&site, &["--autoindex", "json", "--index", "none"], get("/", ""));
    assert!(!root.text().contains("hidden") && root.text().contains("large.bin"));
    let second = answer(&site, &["--index", "none,index.html"], get("/sub/", ""));
    assert_eq!(second.text(), "<h1>sub</h1>\n");
}

fn fallback_and_not_found_pages() {
    let site = Site::usual();
    site.write("gone.html", b"<h1>gone</h1>\n");
    let targets = ["/no/such/page", "/no/such.js", "/no/", "/hello.txt", "/.hidden"];
    let arguments = ["--spa", "index.html", "--not-found", "/gone.html"];
    let answers = answers(&site, &arguments, &targets.map(|target| get(target, "")));
    let told: Vec<(u16, String)> =
        answers.iter().map(|answer| (answer.status, answer.text())).collect();
    let (home, gone) = ("<h1>home</h1>\n".to_owned(), "<h1>gone</h1>\n".to_owned());
    assert_eq!(told[0], (200, home.clone()));
    assert_eq!(told[1], (404, gone.clone()));
    assert_eq!(told[2], (200, home));
    assert_eq!(told[3].0, 200);
    assert_eq!(told[4], (404, gone));
    assert_eq!((answers[1].field("etag"), answers[1].field("last-modified")), (None, None));
}

fn precompressed_files_go_to_clients_that_accept_them() {
    let site = Site::usual();
    site.write("app.js", b"plain script");
    site.write("app.js.br", b"brotli");
    site.write("app.js.gz", b"gzipped");
    site.write("old.js", b"new");
    site.write("old.js.gz", b"of an older version");
    date(&site.path().join("old.js.gz"), MODIFIED_S - 1);
    let arguments = ["--precompressed", "br,gz,zst"];
    let cases = [
        ("/app.js", "", "plain script", None),
        ("/app.js", "gzip, deflate, br, zstd", "brotli", Some("br")),
        ("/app.js", "gzip", "gzipped", Some("gzip")),
        ("/app.js", "br;q=0.5, gzip;q=0.8", "gzipped", Some("gzip")),
        ("/app.js", "zstd", "plain script", None),
        ("/app.js", "br;q=0, gzip;q=0", "plain script", None),
        ("/old.js", "gzip", "new", None),
    ];
    let requests: Vec<String> = cases
        .iter()
        .map(|(target, accepted, ..)| get(target, &format!("Accept-Encoding: {accepted}\r\n")))
        .collect();
    let answers = answers(&site, &arguments, &requests);
    let mut tags = std::collections::HashSet::new();
    for ((target, accepted, content, coding), answer) in cases.iter().zip(&answers) {
        assert_eq!(answer.text(), *content, "{target} {accepted}");
        assert_eq!(answer.field("content-encoding"), *coding);
        assert_eq!(answer.field("content-type"), Some("text/javascript; charset=utf-8"));
        let varies = (*target == "/app.js").then_some("Accept-Encoding");
        assert_eq!(answer.field("vary"), varies, "{target}");
        tags.insert(answer.field("etag").unwrap().to_owned());
    }
    assert_eq!(tags.len(), 4, "each representation has a tag of its own");
    let range = "Accept-Encoding: br\r\nRange: bytes=0-2\r\n";
    let part = answer(&site, &arguments, get("/app.js", range));
    assert_eq!((part.status, part.text().as_str()), (206, "bro"));
    assert_eq!(part.field("content-encoding"), Some("br"));
}

fn operators_add_fields_by_path() {
    let site = Site::usual();
    let arguments = [
        "--cache-control",
        "*.txt=max-age=60",
        "--cache-control",
        "*=no-cache",
        "--header",
        "*=X-Content-Type-Options: nosniff",
        "--header",
        "/sub/*=X-Sub:yes",
        "--autoindex=json",
    ];
    // Files, a listing, a redirect, and nothing.
    let targets = ["/hello.txt", "/sub/", "/large.bin", "/list/", "/sub", "/sub/none"];
    let answers = answers(&site, &arguments, &targets.map(|target| get(target, "")));
    for (answer, (cache_control, sub)) in answers.iter().zip([
        (Some("max-age=60"), None),
        (Some("no-cache"), Some("yes")),
        (Some("no-cache"), None),
        (Some("no-cache"), None),
        (None, None),
        (None, Some("yes")),
    ]) {
        assert_eq!(answer.field("cache-control"), cache_control);
        assert_eq!(answer.field("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.field("x-sub"), sub);
    }
}

fn bodies_are_read_and_dropped_within_their_bound() {
    let site = Site::usual();
    for server in pair(&site, &["--max-body-bytes", "100"]) {
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
        for (fields, status) in [
            ("Content-Length: 101\r\n\r\n", 413),
            ("Content-Length: 101\r\nExpect: 100-continue\r\n\r\n", 413),
            ("Transfer-Encoding: chunked\r\n\r\n65\r\n", 413),
            ("Transfer-Encoding: chunked\r\n\r\nx\r\n", 400),
            ("Expect: something\r\n\r\n", 417),
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}");
            let answers = responses(&talk_until_closed(server.address(), request.as_bytes()));
            assert_eq!(answers.len(), 1, "{fields}");
            assert_eq!(answers[0].status, status, "{fields}");
            assert_eq!(answers[0].field("connection"), Some("close"), "{fields}");
        }
        // A request body that is not needed is not awaited.
        let upload = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n";
        let answers = responses(&talk_until_closed(server.address(), upload.as_bytes()));
        assert_eq!((answers.len(), answers[0].status), (1, 405));
        assert_eq!(server.terminate().count("requests"), 11);
    }
}

fn the_last_request_of_a_connection_closes_it() {
    let site = Site::usual();
    for server in pair(&site, &["--max-requests", "3"]) {
        let requests = get("/hello.txt", "").repeat(5);
        let answers = responses(&talk_until_closed(server.address(), requests.as_bytes()));
        assert_eq!(answers.len(), 3);
        assert_eq!(answers[1].field("connection"), None);
        assert_eq!(answers[2].field("connection"), Some("close"));
    }
}

fn a_failed_start_reports_the_reason() {
    let site = Site::usual();
    let root = site.path().to_str().unwrap();
    let file = site.path().join("hello.txt");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (arguments, code, words) in [
        (vec!["--root", "/no/such/directory"], 1, "/no/such/directory"),
        (vec!["--root", file.to_str().unwrap()], 1, "hello.txt"),
        (vec!["--root", root, "--spa", "no.html"], 1, "--spa no.html"),
        (vec!["--root", root, "--not-found", "sub"], 1, "not a regular file"),
        (vec!["--root", root, "--listen", &address], 1, "ss -ltnp"),
        (vec![], 2, "--root"),
        (vec!["--root", root, "--header", "*=Date:x"], 2, "decides"),
        (vec!["--root", root, "--precompressed", "br,lz4"], 2, "lz4"),
        (vec!["--root", root, "--idle-timeout", "0s"], 2, "timeout of 0"),
    ] {
        let (found, _, stderr) = run(&[&["serve", "http"], arguments.as_slice()].concat());
        assert_eq!(found, Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}

fn several_workers_and_addresses_serve_alike(engine: &str) {
    testing::needs_ipv6();
    let site = Site::usual();
    let arguments = ["--workers", "2", "--listen", "[::1]:0"];
    let server = Server::http(engine, site.path(), &arguments);
    for address in server.addresses() {
        for _ in 0..8 {
            let mut stream = connect(address);
            stream.write_all(get("/large.bin", "").as_bytes()).unwrap();
            assert_same(&read_response(&mut stream, false).body, &pattern(7, 700_001));
        }
    }
    let ended = server.terminate();
    // All but the last bytes of each, which are held back until the file was looked at.
    let by_sendfile = 16 * (700_001 - 1024);
    assert_eq!((ended.count("requests"), ended.count("sent_file_bytes")), (16, by_sendfile));
}
