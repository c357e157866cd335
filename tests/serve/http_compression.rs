//! `twinring serve http --compress`: what clients get is the file, whatever its coding.

use crate::support::http::*;
use crate::support::http2::{self, open, run_client};
use crate::support::*;
use std::io::Read;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    the_content_is_the_file_in_every_coding_and_version_of_http,
    what_gains_nothing_stays_as_it_is,
    the_cache_keeps_its_bound_and_what_does_not_fit_is_tried_once,
    many_clients_at_once_compress_a_file_once,
    a_changed_file_is_compressed_again_and_no_old_form_follows_the_new_one
];

const ALL: [&str; 4] = ["--compress", "br,zst,gz", "--workers", "1"];

fn text(seed: u32, lines: u32) -> Vec<u8> {
    (0..lines).flat_map(|line| format!("line {line} of text {seed}\n").into_bytes()).collect()
}

/// The content without its coding.
fn decoded(answer: &Response) -> Vec<u8> {
    let mut content = Vec::new();
    let body = answer.body.as_slice();
    match answer.field("content-encoding") {
        None => content.extend_from_slice(body),
        Some("gzip") => {
            flate2::read::GzDecoder::new(body).read_to_end(&mut content).expect("gzip");
        }
        Some("br") => brotli::BrotliDecompress(&mut &*body, &mut content).expect("brotli"),
        Some("zstd") => {
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(body).expect("zstd");
            decoder.read_to_end(&mut content).expect("zstd");
        }
        Some(other) => panic!("{other}"),
    }
    content
}

fn accepting(target: &str, codings: &str) -> String {
    get(target, &format!("Accept-Encoding: {codings}\r\n"))
}

/// Asks until the answer has this coding. All answers until then must have the content.
fn wait_for_coding(server: &Server, request: &str, coding: &str, content: &[u8]) -> Response {
    let mut last = None;
    wait_until(coding, || {
        let answer = ask(server, request);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("vary"), Some("Accept-Encoding"));
        assert!(decoded(&answer) == content, "{request}");
        let is_there = answer.field("content-encoding") == Some(coding);
        last = Some(answer);
        is_there
    });
    last.expect("an answer")
}

fn the_content_is_the_file_in_every_coding_and_version_of_http(engine: &str) {
    let site = Site::new();
    // One that is kept in memory, and one that is kept open.
    let files = [("/small.html", text(1, 400)), ("/large.css", text(2, 9000))];
    files.iter().for_each(|(name, content)| drop(site.write(&name[1..], content)));
    site.settle();
    let server = Server::http(engine, site.path(), &ALL);
    for (name, content) in &files {
        let plain = ask(&server, &get(name, ""));
        assert_eq!((plain.field("content-encoding"), &plain.body), (None, content));
        let strong = plain.field("etag").expect("a tag").to_owned();
        for (accepted, coding) in [
            ("gzip", "gzip"),
            ("zstd", "zstd"),
            ("gzip, deflate, br, zstd", "br"),
            ("br;q=0.5, gzip", "gzip"),
            ("br;q=0, *", "zstd"),
        ] {
            let request = accepting(name, accepted);
            let answer = wait_for_coding(&server, &request, coding, content);
            assert!(answer.body.len() < content.len() / 2, "{engine} {name} {coding}");
            let length = answer.body.len().to_string();
            assert_eq!(answer.field("content-length"), Some(length.as_str()));
            assert_eq!(answer.field("content-type"), plain.field("content-type"));
            assert_eq!(answer.field("last-modified"), plain.field("last-modified"));
            assert_eq!(answer.field("accept-ranges"), None);
            let tag = answer.field("etag").expect("a tag");
            assert!(tag.starts_with("W/") && !tag.contains(&strong) && tag.contains(coding));

            let fields = format!("Accept-Encoding: {accepted}\r\nIf-None-Match: {tag}\r\n");
            let known = ask(&server, &get(name, &fields));
            assert_eq!((known.status, known.field("etag")), (304, Some(tag)));
            assert_eq!(known.field("vary"), Some("Accept-Encoding"));
            let other = format!("Accept-Encoding: {accepted}\r\nIf-None-Match: {strong}\r\n");
            assert_eq!(ask(&server, &get(name, &other)).status, 200);

            let head = request.replacen("GET", "HEAD", 1);
            let to_head = ask_on(&mut connect(server.address()), &head);
            assert_eq!(undated(to_head.head.as_bytes()), undated(answer.head.as_bytes()));

            let fields = format!("Accept-Encoding: {accepted}\r\nRange: bytes=5-104\r\n");
            let part = ask(&server, &get(name, &fields));
            assert_eq!((part.status, part.field("content-encoding")), (206, None));
            assert_eq!((&part.body[..], part.field("etag")), (&content[5..105], Some(&*strong)));

            let in_http2 = run_client(async {
                let client = open(server.address(), None, &h2::client::Builder::new()).await;
                http2::ask(&client, &request).await
            });
            assert_eq!(in_http2.field("content-encoding"), Some(coding), "{engine}");
            assert_eq!((&in_http2.body, in_http2.field("etag")), (&answer.body, Some(tag)));
        }
        for refused in ["", "identity", "gzip;q=0, br;q=0, zstd;q=0", "*;q=0", "deflate"] {
            let answer = ask(&server, &accepting(name, refused));
            assert_eq!(answer.field("content-encoding"), None, "{refused}");
            assert_eq!(&answer.body, content);
        }
    }
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("compressions")), (Some(0), 6), "{}", ended.stderr);
    assert_eq!(ended.count("compression_failures"), 0);
    assert!(ended.count("compression_saved_bytes") > 0);
}

fn what_gains_nothing_stays_as_it_is(engine: &str) {
    let site = Site::new();
    site.write("short.txt", &text(1, 10));
    site.write("picture.png", &text(1, 400));
    // Noise: the compressed form is larger.
    site.write("noise.txt", &pattern(7, 20_000));
    site.write("settled.txt", &text(1, 400));
    let server = Server::http(engine, site.path(), &ALL);
    for (name, varies) in [("/short.txt", false), ("/picture.png", false), ("/noise.txt", true)] {
        for _ in 0..2 {
            let answer = ask(&server, &accepting(name, "gzip"));
            assert_eq!(answer.field("content-encoding"), None, "{engine} {name}");
            assert_eq!(answer.field("vary"), varies.then_some("Accept-Encoding"));
        }
    }
    wait_for_coding(&server, &accepting("/settled.txt", "gzip"), "gzip", &text(1, 400));
    for _ in 0..20 {
        let answer = ask(&server, &accepting("/noise.txt", "gzip"));
        assert_eq!((answer.field("content-encoding"), answer.body.len()), (None, 20_000));
    }
    let ended = server.terminate();
    assert_eq!(ended.count("compressions"), 2, "{engine}: the noise, once");
}

/// Without room in the cache, each request would compress the file again.
fn the_cache_keeps_its_bound_and_what_does_not_fit_is_tried_once(engine: &str) {
    let site = Site::new();
    let noise = pattern(7, 30_000);
    let half: Vec<u8> = noise.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect();
    site.write("half.txt", &half);
    site.write("fits.txt", &text(1, 200));
    site.settle();
    let arguments = ["--cache-bytes", "65536", "--sendfile-above", "0"];
    let server = Server::http(engine, site.path(), &[&ALL[..], &arguments].concat());
    for _ in 0..20 {
        let answer = ask(&server, &accepting("/half.txt", "gzip"));
        assert!(answer.body == half && answer.field("content-encoding").is_none());
    }
    wait_for_coding(&server, &accepting("/fits.txt", "gzip"), "gzip", &text(1, 200));
    let ended = server.terminate();
    assert_eq!(ended.count("compressions"), 2, "{engine}");
    assert!(ended.count("cache_bytes") <= 65536, "{engine}");
}

fn many_clients_at_once_compress_a_file_once(engine: &str) {
    let site = Site::new();
    let content = text(1, 20_000);
    site.write("app.js", &content);
    let server = Server::http(engine, site.path(), &ALL);
    let request = accepting("/app.js", "br");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| wait_for_coding(&server, &request, "br", &content));
        }
    });
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("compressions")), (Some(0), 1), "{engine}");
}

fn a_changed_file_is_compressed_again_and_no_old_form_follows_the_new_one(engine: &str) {
    let site = Site::new();
    let arguments = [&ALL[..], &["--cache-valid", "20ms"]].concat();
    for lines in [300, 9000] {
        site.replace("a.html", &text(0, lines), MODIFIED_S);
        let server = Server::http(engine, site.path(), &arguments);
        let request = accepting("/a.html", "gzip");
        wait_for_coding(&server, &request, "gzip", &text(0, lines));
        for version in 1..4 {
            let (before, after) = (text(version - 1, lines), text(version, lines));
            site.replace("a.html", &after, MODIFIED_S + u64::from(version));
            let mut is_new = false;
            wait_until("the new content, compressed", || {
                let answer = ask(&server, &request);
                let content = decoded(&answer);
                assert!(content == after || !is_new && content == before, "{engine}");
                is_new = content == after;
                is_new && answer.field("content-encoding") == Some("gzip")
            });
        }
        assert_eq!(server.terminate().code, Some(0), "{engine}");
    }
}
