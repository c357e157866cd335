//! What `serve http` answers, by the letter of RFC 9110: tables of requests, over HTTP/1.1 and HTTP/2.

use crate::support::http::Is::*;
use crate::support::http::*;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    files_come_with_their_type_length_and_validators,
    methods_are_get_head_and_options,
    conditions_and_ranges_select_what_is_sent,
    files_with_equal_times_have_tags_of_their_own,
    directories_have_an_index_a_redirect_or_a_listing,
    precompressed_files_go_to_clients_that_accept_them,
    operators_add_fields_and_pages_by_path
];

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
    let (site, server) = served(&[]);
    site.settle();
    for (target, content, kind) in [
        ("/", Text("<h1>home</h1>\n"), HTML),
        ("/hello.txt", Text(HELLO), TEXT),
        ("/empty.txt", Length(0), TEXT),
        ("/large.bin", Length(700_001), BINARY),
        ("/hello.txt?query", Text(HELLO), TEXT),
        ("/list/a%20b.txt", Text("spaced"), TEXT),
    ] {
        let is = [content, kind, DATED, RANGES, Without("connection")];
        server.check_both(&[(get(target, ""), 200, &is)]);
        tag_of(&server, target);
    }
    let large = ask(&server, &get("/large.bin", ""));
    assert_same(&large.body, &pattern(7, 700_001));
    assert!(large.field("date").expect("a date").ends_with(" GMT"));
    server.end();
}

fn methods_are_get_head_and_options() {
    let (_site, server) = served(&[]);
    for target in ["/hello.txt", "/large.bin", "/nothing", "/sub"] {
        let (full, head) = (ask(&server, &of("GET", target)), ask(&server, &of("HEAD", target)));
        assert_eq!(undated(head.head.as_bytes()), undated(full.head.as_bytes()), "{target}");
    }
    let options = ["*", "/hello.txt", "/no"].map(|target| of("OPTIONS", target));
    let rows = options.map(|it| (it, 204, &[METHODS, Without("content-length"), Length(0)][..]));
    server.check_both(&rows);
    let others = ["POST", "PUT", "DELETE", "PATCH", "TRACE"].map(|method| of(method, "/"));
    server.check_both(&others.map(|it| (it, 405, &[METHODS][..])));
    server.check_http1(&[(of("CONNECT", "/"), 405, &[METHODS])]);
    server.check_both(&[(of("BREW", "/"), 501, &[])]);
    assert_eq!(ask_last(server.address(), &of("BREW", "/")).field("connection"), Some("close"));
}

/// (Each condition by itself is in the tables of `conditional`.)
fn conditions_and_ranges_select_what_is_sent() {
    let (site, server) = served(&[]);
    date(&site.write("future.txt", HELLO.as_bytes()), 4_102_444_800);
    site.settle();
    for (target, content, is_dated) in [
        ("/hello.txt", HELLO.as_bytes(), true),
        ("/large.bin", &pattern(7, 700_001), true),
        // Files from the future had a weak tag for ever, and were never resumed.
        ("/future.txt", HELLO.as_bytes(), false),
    ] {
        let (length, tag) = (content.len(), tag_of(&server, target));
        let (modified, status, dated) = match is_dated {
            true => (MODIFIED, 304, DATED),
            // Without a date, conditions on it do not count.
            false => ("Fri, 01 Jan 2100 00:00:00 GMT", 200, Without("last-modified")),
        };
        let known: &[Is<'_>] = &[Field("etag", &tag), Without("content-length"), Length(0)];
        let whole: &[Is<'_>] = &[Length(length), dated];
        let (two, none) = (format!("bytes 1-2/{length}"), format!("bytes */{length}"));
        let two: &[Is<'_>] = &[Length(2), Field("content-range", &two)];
        let none: &[Is<'_>] = &[Field("content-range", &none)];
        let row = |fields: String, status, is| (get(target, &(fields + "\r\n")), status, is);
        let rows = [
            row(format!("If-None-Match: {tag}"), 304, known),
            row(format!("If-Modified-Since: {modified}"), status, &[]),
            row("If-Match: \"x\"".to_owned(), 412, &[]),
            row("Range: bytes=1-2\r\nIf-Range: \"x\"".to_owned(), 200, whole),
            row(format!("Range: bytes=1-2\r\nIf-Range: {tag}"), 206, two),
            row(format!("Range: bytes={length}-"), 416, none),
            row("Range: bytes=1-2,4-5".to_owned(), 200, whole),
        ];
        server.check_both(&rows);
        assert_same(&ask(&server, &get(target, "Range: bytes=5-\r\n")).body, &content[5..]);
        let head = get(target, "Range: bytes=0-0\r\n").replacen("GET", "HEAD", 1);
        server.check_both(&[(head, 200, &[])]);
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
    fs::rename(site.path().join("g"), site.path().join("f")).expect("a file");
    site.settle();
    let server = Server::http(ENGINE, site.path(), &[]);
    assert_ne!(before, tag_of(&server, "/f"));
    let part = format!("Range: bytes=2-3\r\nIf-Range: {before}\r\n");
    let known = format!("If-None-Match: {before}\r\n");
    server.check_both(&[(get("/f", &known), 200, &[Text("bbbb")]), (get("/f", &part), 200, &[])]);
}

fn directories_have_an_index_a_redirect_or_a_listing() {
    let (site, server) = served(&[]);
    server.check_both(&[
        (get("/sub/", ""), 200, &[Text("<h1>sub</h1>\n")]),
        (get("/sub", ""), 301, &[Field("location", "/sub/")]),
        (get("/sub?a=b", ""), 301, &[Field("location", "/sub/?a=b")]),
        (get("/list/", ""), 404, &[]),
        (get("/hello.txt/", ""), 404, &[]),
        (get("/nothing/", ""), 404, &[]),
    ]);
    // Never another host.
    server.check_http1(&[(get("//sub", ""), 301, &[Field("location", "/sub/")])]);
    let rule = "default.rule = [{ listing = 'html' }, { match = '/sub/**', listing = 'off' }]";
    let server =
        Server::http(ENGINE, site.path(), &[rule, "default.index = ['none', 'index.htm']"]);
    let link = Holds("<a href=\"./a%20b.txt\">a b.txt</a>");
    server.check_both(&[(get("/list/", ""), 200, &[HTML, link])]);
    assert!(!ask(&server, &get("/", "")).text().contains("hidden"));
    assert_eq!(ask(&server, &get("/sub/", "")).status, 404);
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
    let script = Field("content-type", "text/javascript; charset=utf-8");
    let gzip = [Text("gzipped"), Field("content-encoding", "gzip"), varies, script];
    let accepting = |target, codings| get(target, &format!("Accept-Encoding: {codings}\r\n"));
    let rows: [Row<'_>; 5] = [
        (get("/app.js", ""), 200, &plain),
        (accepting("/app.js", "gzip, deflate, br, zstd"), 200, &brotli),
        (accepting("/app.js", "gzip"), 200, &gzip),
        (accepting("/old.js", "gzip"), 200, &[Text("new"), Without("vary")]),
        (
            get("/app.js", "Accept-Encoding: br\r\nRange: bytes=0-2\r\n"),
            206,
            &[Text("bro"), Field("content-encoding", "br")],
        ),
    ];
    server.check_both(&rows);
    let tags = rows[..4].iter().map(|row| ask(&server, &row.0).field("etag").map(str::to_owned));
    let tags: std::collections::HashSet<_> = tags.collect();
    assert_eq!(tags.len(), 4, "each representation has a tag of its own");
}

fn operators_add_fields_and_pages_by_path() {
    let site = Site::usual();
    site.write("gone.html", b"<h1>gone</h1>\n");
    site.write("notes.md", b"# Notes");
    site.write("both.html", b"page");
    site.write("both/index.html", b"directory");
    let rules = "default.rule = [
        { headers.X-A = 'b', listing = 'html', error-pages = { 403 = 'hello.txt', 404 = '/gone.html' } },
        { match = '*.txt', cache-control = 'max-age=60' },
        { match = '/sub/**', headers.X-Sub = 'yes' },
        { match = '/office/**', allow = '192.0.2.1' },
        { match = '/app/**', fallback = 'index.html', cache-control = 'no-store', headers.X-A = 'c' },
    ]";
    let keys = [
        "default.types.md = 'text/markdown'",
        "default.charset = 'iso-8859-1'",
        "default.clean-urls = true",
        rules,
    ];
    let server = Server::http(ENGINE, site.path(), &keys);
    let (a, charset) = (Field("x-a", "b"), Field("content-type", "text/html; charset=iso-8859-1"));
    let (minute, none) = (Field("cache-control", "max-age=60"), Without("cache-control"));
    let (sub, no_sub) = (Field("x-sub", "yes"), Without("x-sub"));
    let home = Text("<h1>home</h1>\n");
    let app = [home, Field("x-a", "c"), Field("cache-control", "no-store"), charset];
    let gone = [Text("<h1>gone</h1>\n"), a, none, Without("etag"), Without("last-modified")];
    let markdown = Field("content-type", "text/markdown; charset=iso-8859-1");
    // Twice, so that the second answers come from the cache.
    for _ in 0..2 {
        server.check_both(&[
            (get("/hello.txt", ""), 200, &[Text(HELLO), a, minute, no_sub]),
            (get("/sub/", ""), 200, &[a, none, sub]),
            (get("/list/", ""), 200, &[a, no_sub]),
            (get("/sub", ""), 301, &[a, none, no_sub]),
            (get("/sub/none", ""), 404, &[a, none, sub]),
            (get("/notes.md", ""), 200, &[markdown]),
            (get("/both", ""), 200, &[Text("page"), a, none]),
            // Refusals, too, or a browser could not read them.
            (get("/hello.txt", "Range: bytes=99-\r\n"), 416, &[a]),
            (get("/hello.txt", "If-Match: \"x\"\r\n"), 412, &[a]),
            (get("/office/plan.html", ""), 403, &[Text(HELLO), a]),
            // It was answered, and counted for no rate.
            (of("OPTIONS", "/office/plan.html"), 403, &[Text(HELLO), a]),
            (get("/none", ""), 404, &gone),
            (get("/.hidden", ""), 404, &gone),
            // Rules match what was asked for, not the file behind it.
            (get("/app/deep", ""), 200, &app),
            (get("/app/deep/", ""), 200, &app),
            (get("/app/no.js", ""), 404, &[Field("x-a", "c")]),
            (get("/index.html", ""), 200, &[home, a, none]),
            (get("/app/deep", "Range: bytes=0-1\r\n"), 206, &[Text("<h"), Field("x-a", "c")]),
        ]);
    }
}
