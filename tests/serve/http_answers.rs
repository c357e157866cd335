//! What `serve http` answers, by the letter of RFC 9110: tables of requests, over HTTP/1.1 and HTTP/2.

use crate::support::http::Is::*;
use crate::support::http::*;
use crate::support::*;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    files_come_with_their_type_length_and_validators,
    methods_are_get_head_and_options,
    conditions_are_evaluated_in_the_order_of_the_standard,
    ranges_select_parts_of_small_and_of_large_files,
    several_ranges_come_in_parts_and_never_amplify,
    files_with_equal_times_have_tags_of_their_own,
    files_from_the_future_have_a_tag_and_no_date,
    directories_have_an_index_a_redirect_or_a_listing,
    fallback_and_not_found_pages,
    precompressed_files_go_to_clients_that_accept_them,
    operators_add_fields_by_path,
    server_timing_is_sent_only_on_request
];

/// By which the tables are answered: engines know no HTTP.
const ENGINE: &str = "auto";

const HELLO: &str = "0123456789abcdefghijklmnopqrstuvwxyz";
const TEXT: Is<'_> = Field("content-type", "text/plain; charset=utf-8");
const HTML: Is<'_> = Field("content-type", "text/html; charset=utf-8");
const BINARY: Is<'_> = Field("content-type", "application/octet-stream");
const DATED: Is<'_> = Field("last-modified", MODIFIED);
const RANGES: Is<'_> = Field("accept-ranges", "bytes");
const METHODS: Is<'_> = Field("allow", "GET, HEAD, OPTIONS");

/// A request without fields but Host.
fn of(method: &str, target: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: test\r\n\r\n")
}

fn tag_of(server: &Server, target: &str) -> String {
    let answer = ask(server, &get(target, ""));
    let tag = answer.field("etag").expect("a tag").to_owned();
    assert!(tag.starts_with('"') && tag.ends_with('"'), "strong: {tag}");
    tag
}

fn files_come_with_their_type_length_and_validators() {
    let site = Site::usual();
    site.settle();
    let server = Server::http(ENGINE, site.path(), &[]);
    let file = |target, content, kind, length| {
        let mut is = vec![kind, DATED, RANGES, Length(length), Without("connection")];
        is.extend((length < 100).then_some(Text(content)));
        (target, is)
    };
    let files = [
        file("/", "<h1>home</h1>\n", HTML, 14),
        file("/hello.txt", HELLO, TEXT, 36),
        file("/empty.txt", "", TEXT, 0),
        file("/large.bin", "", BINARY, 700_001),
        file("/hello.txt?query", HELLO, TEXT, 36),
        file("/list/a%20b.txt", "spaced", TEXT, 6),
    ];
    let rows = files.iter().map(|(target, is)| (get(target, ""), 200, &is[..]));
    check_both(&server, &rows.collect::<Vec<_>>());
    for (target, _) in &files {
        tag_of(&server, target);
    }
    let large = ask(&server, &get("/large.bin", ""));
    assert_same(&large.body, &pattern(7, 700_001));
    assert!(large.field("date").expect("a date").ends_with(" GMT"));
    server.end();
}

fn methods_are_get_head_and_options() {
    let site = Site::usual();
    let server = Server::http(ENGINE, site.path(), &[]);
    for target in ["/hello.txt", "/large.bin", "/nothing", "/sub"] {
        let (full, head) = (ask(&server, &of("GET", target)), ask(&server, &of("HEAD", target)));
        assert_eq!(undated(head.head.as_bytes()), undated(full.head.as_bytes()), "{target}");
    }
    let options = ["*", "/hello.txt", "/no"].map(|target| of("OPTIONS", target));
    let rows = options.map(|it| (it, 204, &[METHODS, Without("content-length"), Length(0)][..]));
    check_both(&server, &rows);
    let others = ["POST", "PUT", "DELETE", "PATCH", "TRACE"].map(|method| of(method, "/"));
    check_both(&server, &others.map(|it| (it, 405, &[METHODS][..])));
    check_http1(&server, &[(of("CONNECT", "/"), 405, &[METHODS])]);
    check_both(&server, &[(of("BREW", "/"), 501, &[])]);
    assert_eq!(ask_last(server.address(), &of("BREW", "/")).field("connection"), Some("close"));
}

fn conditions_are_evaluated_in_the_order_of_the_standard() {
    let site = Site::usual();
    site.settle();
    let server = Server::http(ENGINE, site.path(), &[]);
    let tag = tag_of(&server, "/hello.txt");
    let (before, after) = (MODIFIED.replace("37", "36"), MODIFIED.replace("37", "38"));
    let known: &[Is<'_>] = &[Field("etag", &tag), Without("content-length"), Length(0)];
    let rows = [
        (format!("If-None-Match: {tag}\r\n"), 304),
        (format!("If-None-Match: \"x\", W/{tag}\r\n"), 304),
        ("If-None-Match: *\r\n".to_owned(), 304),
        ("If-None-Match: \"x\"\r\n".to_owned(), 200),
        (format!("If-Modified-Since: {MODIFIED}\r\n"), 304),
        (format!("If-Modified-Since: {before}\r\n"), 200),
        (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {after}\r\n"), 200),
        (format!("If-Match: {tag}\r\n"), 200),
        (format!("If-Match: W/{tag}\r\n"), 412),
        ("If-Match: \"x\"\r\n".to_owned(), 412),
        (format!("If-Unmodified-Since: {before}\r\n"), 412),
        (format!("If-Unmodified-Since: {MODIFIED}\r\n"), 200),
        (format!("If-Match: {tag}\r\nIf-Unmodified-Since: {before}\r\n"), 200),
        (format!("If-Match: \"x\"\r\nIf-None-Match: {tag}\r\n"), 412),
        (format!("If-None-Match: {tag}\r\nRange: bytes=0-1\r\n"), 304),
    ];
    let rows = rows.map(|(fields, status)| {
        (get("/hello.txt", &fields), status, if status == 304 { known } else { &[] })
    });
    check_both(&server, &rows);
}

fn ranges_select_parts_of_small_and_of_large_files() {
    let site = Site::usual();
    site.settle();
    let server = Server::http(ENGINE, site.path(), &[]);
    for (target, content) in
        [("/hello.txt", HELLO.as_bytes().to_vec()), ("/large.bin", pattern(7, 700_001))]
    {
        let length = content.len();
        let tag = tag_of(&server, target);
        let rows = [
            ("Range: bytes=0-0\r\n".to_owned(), Some(0..1)),
            ("Range: bytes=10-19\r\n".to_owned(), Some(10..20)),
            ("Range: bytes=5-\r\n".to_owned(), Some(5..length)),
            ("Range: bytes=-7\r\n".to_owned(), Some(length - 7..length)),
            ("Range: bytes=0-99999999\r\n".to_owned(), Some(0..length)),
            (format!("Range: bytes=1-2\r\nIf-Range: {tag}\r\n"), Some(1..3)),
            (format!("Range: bytes=1-2\r\nIf-Range: {MODIFIED}\r\n"), Some(1..3)),
            ("Range: bytes=1-2\r\nIf-Range: \"x\"\r\n".to_owned(), None),
            ("Range: bytes=2-1\r\n".to_owned(), None),
        ];
        for (fields, part) in rows {
            let request = get(target, &fields);
            let Some(part) = part else {
                check_both(&server, &[(request, 200, &[Length(length)])]);
                continue;
            };
            let range = format!("bytes {}-{}/{length}", part.start, part.end - 1);
            let is = [Field("content-range", &range), Length(part.len())];
            check_both(&server, &[(request.clone(), 206, &is)]);
            assert_same(&ask(&server, &request).body, &content[part]);
        }
        let outside = get(target, &format!("Range: bytes={length}-\r\n"));
        let range = format!("bytes */{length}");
        check_both(&server, &[(outside, 416, &[Field("content-range", &range)])]);
        let head = get(target, "Range: bytes=0-0\r\n").replacen("GET", "HEAD", 1);
        check_both(&server, &[(head, 200, &[])]);
    }
}

fn several_ranges_come_in_parts_and_never_amplify() {
    let site = Site::usual();
    let server = Server::http(ENGINE, site.path(), &[]);
    for (target, own_type, content) in [
        ("/hello.txt", "text/plain; charset=utf-8", HELLO.as_bytes().to_vec()),
        ("/large.bin", "application/octet-stream", pattern(7, 700_001)),
    ] {
        let length = content.len();
        let answer = ask(&server, &get(target, "Range: bytes=3-5,-2,0-0\r\n"));
        assert_eq!(answer.status, 206);
        let content_type = answer.field("content-type").expect("a type");
        let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").expect("parts");
        let mut expected = Vec::new();
        for (number, part) in [3..6, length - 2..length, 0..1].into_iter().enumerate() {
            let newline = if number == 0 { "" } else { "\r\n" };
            let range = format!("bytes {}-{}/{length}", part.start, part.end - 1);
            let head = format!(
                "{newline}--{boundary}\r\nContent-Type: {own_type}\r\nContent-Range: {range}\r\n\r\n"
            );
            expected.extend_from_slice(head.as_bytes());
            expected.extend_from_slice(&content[part]);
        }
        expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        assert_same(&answer.body, &expected);
        let excess = ["0-,0-".to_owned(), "0-,1-,2-".to_owned(), vec!["0-0"; 17].join(",")];
        let excess = excess.map(|it| get(target, &format!("Range: bytes={it}\r\n")));
        let whole = [Length(length)];
        check_both(&server, &excess.map(|it| (it, 200, &whole[..])));
    }
}

/// Archives, images and package stores give all files one time: a file of the same length that took another's place
/// was answered with 304, and If-Range joined the two.
fn files_with_equal_times_have_tags_of_their_own() {
    let site = Site::new();
    site.write("f", b"aaaa");
    site.settle();
    let server = Server::http(ENGINE, site.path(), &[]);
    let before = tag_of(&server, "/f");
    server.end();
    site.write("g", b"bbbb");
    std::fs::rename(site.path().join("g"), site.path().join("f")).expect("a file");
    site.settle();
    let server = Server::http(ENGINE, site.path(), &[]);
    assert_ne!(before, tag_of(&server, "/f"));
    let part = format!("Range: bytes=2-3\r\nIf-Range: {before}\r\n");
    let known = format!("If-None-Match: {before}\r\n");
    check_both(&server, &[(get("/f", &known), 200, &[Text("bbbb")]), (get("/f", &part), 200, &[])]);
}

/// They had a weak tag for ever, and were never resumed.
fn files_from_the_future_have_a_tag_and_no_date() {
    let site = Site::new();
    let path = site.write("f", b"0123456789");
    date(&path, 4_102_444_800);
    site.settle();
    let server = Server::http(ENGINE, site.path(), &[]);
    let tag = tag_of(&server, "/f");
    let with = |name: &str, value: &str| get("/f", &format!("{name}: {value}\r\n"));
    let resumed = get("/f", &format!("Range: bytes=2-3\r\nIf-Range: {tag}\r\n"));
    let by_date = get("/f", &format!("Range: bytes=2-3\r\nIf-Range: {MODIFIED}\r\n"));
    check_both(
        &server,
        &[
            (get("/f", ""), 200, &[Without("last-modified"), Text("0123456789")]),
            (with("If-None-Match", &tag), 304, &[]),
            (with("If-Match", &tag), 200, &[]),
            (with("If-Match", "\"other\""), 412, &[]),
            // Without a date, conditions on it do not count.
            (with("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"), 200, &[]),
            (with("If-Unmodified-Since", MODIFIED), 200, &[]),
            (resumed, 206, &[Text("23")]),
            (by_date, 200, &[Text("0123456789")]),
        ],
    );
}

fn directories_have_an_index_a_redirect_or_a_listing() {
    let site = Site::usual();
    let server = Server::http(ENGINE, site.path(), &[]);
    check_both(
        &server,
        &[
            (get("/sub/", ""), 200, &[Text("<h1>sub</h1>\n")]),
            (get("/sub", ""), 301, &[Field("location", "/sub/")]),
            (get("/sub?a=b", ""), 301, &[Field("location", "/sub/?a=b")]),
            (get("/list/", ""), 404, &[]),
            (get("/list", ""), 301, &[]),
            (get("/hello.txt/", ""), 404, &[]),
            (get("/nothing/", ""), 404, &[]),
        ],
    );
    check_http1(
        &server,
        &[
            (get("//evil.example/%2f..", ""), 404, &[]),
            (get("/\\x", ""), 400, &[]),
            // Never another host.
            (get("//sub", ""), 301, &[Field("location", "/sub/")]),
        ],
    );
    let listing = |arguments: &[&str], target, is: &[Is<'_>]| {
        let server = Server::http(ENGINE, site.path(), arguments);
        check_both(&server, &[(get(target, ""), 200, is)]);
        ask(&server, &get(target, "")).text()
    };
    let link = Holds("<a href=\"./a%20b.txt\">a b.txt</a>");
    listing(&["default.rule = [{ listing = 'html' }]"], "/list/", &[HTML, link]);
    let json = listing(&["default.rule = [{ listing = 'json' }]"], "/list/", &[]);
    let listed: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&listed["complete"], &listed["entries"][0]["name"]),
        (&true.into(), &"deeper".into())
    );
    assert_eq!(
        listed["entries"][1],
        serde_json::json!({"name": "a b.txt", "type": "file", "size_bytes": 6,
                           "modified_s": MODIFIED_S, "href": "./a%20b.txt"})
    );
    let root = listing(
        &["default.rule = [{ listing = 'json' }]", "default.index = 'none'"],
        "/",
        &[Holds("large.bin")],
    );
    assert!(!root.contains("hidden"), "{root}");
    listing(&["default.index = ['none', 'index.html']"], "/sub/", &[Text("<h1>sub</h1>\n")]);
}

fn fallback_and_not_found_pages() {
    let site = Site::usual();
    site.write("gone.html", b"<h1>gone</h1>\n");
    let arguments =
        ["default.rule = [{ fallback = 'index.html', error-pages = { 404 = '/gone.html' } }]"];
    let server = Server::http(ENGINE, site.path(), &arguments);
    let home: &[Is<'_>] = &[Text("<h1>home</h1>\n")];
    let gone = &[Text("<h1>gone</h1>\n"), Without("etag"), Without("last-modified")];
    check_both(
        &server,
        &[
            (get("/no/such/page", ""), 200, home),
            (get("/no/such.js", ""), 404, gone),
            (get("/no/", ""), 200, home),
            (get("/hello.txt", ""), 200, &[Text(HELLO)]),
            (get("/.hidden", ""), 404, gone),
        ],
    );
}

fn precompressed_files_go_to_clients_that_accept_them() {
    let site = Site::usual();
    site.write("app.js", b"plain script");
    site.write("app.js.br", b"brotli");
    site.write("app.js.gz", b"gzipped");
    site.write("old.js", b"new");
    site.write("old.js.gz", b"of an older version");
    date(&site.path().join("old.js.gz"), MODIFIED_S - 1);
    let server =
        Server::http(ENGINE, site.path(), &["default.precompressed = ['br', 'gz', 'zst']"]);
    let varies = Field("vary", "Accept-Encoding");
    let plain = [Text("plain script"), Without("content-encoding"), varies];
    let brotli = [Text("brotli"), Field("content-encoding", "br"), varies];
    let gzip = [Text("gzipped"), Field("content-encoding", "gzip"), varies];
    let script = [Field("content-type", "text/javascript; charset=utf-8")];
    let accepting = |target, codings| get(target, &format!("Accept-Encoding: {codings}\r\n"));
    let rows: [Row<'_>; 9] = [
        (get("/app.js", ""), 200, &plain),
        (accepting("/app.js", "gzip, deflate, br, zstd"), 200, &brotli),
        (accepting("/app.js", "gzip"), 200, &gzip),
        (accepting("/app.js", "br;q=0.5, gzip;q=0.8"), 200, &gzip),
        (accepting("/app.js", "zstd"), 200, &plain),
        (accepting("/app.js", "br;q=0, gzip;q=0"), 200, &plain),
        (accepting("/app.js", "gzip"), 200, &script),
        (accepting("/old.js", "gzip"), 200, &[Text("new"), Without("vary")]),
        (
            get("/app.js", "Accept-Encoding: br\r\nRange: bytes=0-2\r\n"),
            206,
            &[Text("bro"), Field("content-encoding", "br")],
        ),
    ];
    check_both(&server, &rows);
    let tags = rows[..8].iter().map(|row| ask(&server, &row.0).field("etag").map(str::to_owned));
    let tags: std::collections::HashSet<_> = tags.collect();
    assert_eq!(tags.len(), 4, "each representation has a tag of its own");
}

fn operators_add_fields_by_path() {
    let site = Site::usual();
    let rules = "default.rule = [
        { cache-control = 'no-cache', headers.X-Content-Type-Options = 'nosniff', listing = 'json' },
        { match = '*.txt', cache-control = 'max-age=60' },
        { match = '/sub/**', headers.X-Sub = 'yes' },
    ]";
    let server = Server::http(ENGINE, site.path(), &[rules]);
    let nosniff = Field("x-content-type-options", "nosniff");
    let (minute, none) = (Field("cache-control", "max-age=60"), Field("cache-control", "no-cache"));
    let (sub, no_sub) = (Field("x-sub", "yes"), Without("x-sub"));
    check_both(
        &server,
        &[
            (get("/hello.txt", ""), 200, &[nosniff, minute, no_sub]),
            (get("/sub/", ""), 200, &[nosniff, none, sub]),
            (get("/large.bin", ""), 200, &[nosniff, none, no_sub]),
            (get("/list/", ""), 200, &[nosniff, none, no_sub]),
            (get("/sub", ""), 301, &[nosniff, Without("cache-control"), no_sub]),
            (get("/sub/none", ""), 404, &[nosniff, Without("cache-control"), sub]),
            // Refusals, too, or a browser could not read them.
            (get("/hello.txt", "Range: bytes=99-\r\n"), 416, &[nosniff]),
            (get("/hello.txt", "If-Match: \"x\"\r\n"), 412, &[nosniff]),
        ],
    );
}

fn server_timing_is_sent_only_on_request() {
    let site = Site::usual();
    for arguments in [&[][..], &["server.server-timing = true"]] {
        let server = Server::http(ENGINE, site.path(), arguments);
        // Twice, so that the second answers come from the cache.
        for target in ["/hello.txt", "/hello.txt", "/large.bin", "/large.bin", "/none", "/sub"] {
            for method in ["GET", "HEAD"] {
                let answer = ask(&server, &of(method, target));
                let timing = answer.field("server-timing");
                let ms = timing.map(|it| it.strip_prefix("total;dur=").map(str::parse::<f64>));
                let is_right = match ms {
                    None => arguments.is_empty(),
                    Some(ms) => !arguments.is_empty() && matches!(ms, Some(Ok(0.0..))),
                };
                assert!(is_right, "{arguments:?} {method} {target}: {timing:?}");
            }
        }
    }
}
