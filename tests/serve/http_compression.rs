//! `serve http --compress`: what clients get is the file, whatever its coding.

use crate::support::http::Is::*;
use crate::support::http::*;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    the_content_is_the_file_in_every_coding,
    what_gains_nothing_stays_as_it_is,
    what_does_not_fit_in_the_cache_is_tried_once,
    a_changed_file_is_compressed_again_and_no_old_form_follows_the_new_one
];

const ALL: [&str; 3] = ["default.compress = ['br', 'zst', 'gz']", "--workers", "1"];
const PLAIN: Is<'_> = Without("content-encoding");
const VARIES: Is<'_> = Field("vary", "Accept-Encoding");

fn serve(site: &Site, arguments: &[&str]) -> Server {
    Server::http(ENGINE, site.path(), &[&ALL[..], arguments].concat())
}

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
        check(&answer, &(request.to_owned(), 200, &[VARIES]));
        assert!(decoded(&answer) == content, "{request}");
        let is_there = answer.field("content-encoding") == Some(coding);
        last = Some(answer);
        is_there
    });
    last.expect("an answer")
}

fn the_content_is_the_file_in_every_coding() {
    let site = Site::new();
    // One that is kept in memory, and one that is kept open.
    let files = [("/small.html", text(1, 400)), ("/large.css", text(2, 9000))];
    files.iter().for_each(|(name, content)| drop(site.write(&name[1..], content)));
    site.settle();
    let server = serve(&site, &[]);
    for (name, content) in &files {
        let plain = ask(&server, &get(name, ""));
        assert_eq!((plain.field("content-encoding"), &plain.body), (None, content));
        let strong = plain.field("etag").expect("a tag");
        let kind = plain.field("content-type").expect("a type");
        for (accepted, coding) in
            [("gzip", "gzip"), ("gzip, deflate, br, zstd", "br"), ("br;q=0, *", "zstd")]
        {
            let request = accepting(name, accepted);
            let answer = wait_for_coding(&server, &request, coding, content);
            assert!(answer.body.len() < content.len() / 2, "{name} {coding}");
            let tag = answer.field("etag").expect("a tag");
            assert!(tag.starts_with("W/") && !tag.contains(strong) && tag.contains(coding));
            let compressed = [
                Field("content-encoding", coding),
                Field("content-type", kind),
                Field("last-modified", MODIFIED),
                Field("etag", tag),
                Without("accept-ranges"),
                Length(answer.body.len()),
            ];
            let head = request.replacen("GET", "HEAD", 1);
            let with = |more| accepting(name, &format!("{accepted}\r\n{more}"));
            let rows: [Row<'_>; 5] = [
                (request, 200, &compressed),
                (head, 200, &compressed[..5]),
                (with(format!("If-None-Match: {tag}")), 304, &[VARIES, Field("etag", tag)]),
                (with(format!("If-None-Match: {strong}")), 200, &[]),
                (
                    with("Range: bytes=5-104".into()),
                    206,
                    &[PLAIN, Length(100), Field("etag", strong)],
                ),
            ];
            server.check_both(&rows);
            assert_eq!(ask(&server, &rows[4].0).body, content[5..105]);
        }
        for refused in ["", "*;q=0"] {
            let is = [PLAIN, Length(content.len())];
            server.check_both(&[(accepting(name, refused), 200, &is)]);
        }
    }
    server.end_with(&[("compressions", 6), ("compression_failures", 0)]);
}

fn what_gains_nothing_stays_as_it_is() {
    let site = Site::new();
    site.write("short.txt", &text(1, 10));
    site.write("picture.png", &text(1, 400));
    // Noise: the compressed form is larger.
    site.write("noise.txt", &pattern(7, 20_000));
    site.write("settled.txt", &text(1, 400));
    let server = serve(&site, &[]);
    let noise = accepting("/noise.txt", "gzip");
    server.check_both(&[
        (accepting("/short.txt", "gzip"), 200, &[PLAIN, Without("vary")]),
        (accepting("/picture.png", "gzip"), 200, &[PLAIN, Without("vary")]),
        (noise.clone(), 200, &[PLAIN, VARIES]),
    ]);
    wait_for_coding(&server, &accepting("/settled.txt", "gzip"), "gzip", &text(1, 400));
    for _ in 0..20 {
        server.check_http1(&[(noise.clone(), 200, &[PLAIN, Length(20_000)])]);
    }
    // The noise, once.
    server.end_with(&[("compressions", 2)]);
}

/// Without room in the cache, each request would compress the file again.
fn what_does_not_fit_in_the_cache_is_tried_once() {
    let site = Site::new();
    let noise = pattern(7, 30_000);
    let half: Vec<u8> = noise.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect();
    site.write("half.txt", &half);
    site.write("fits.txt", &text(1, 200));
    site.settle();
    let server = serve(&site, &["server.cache-bytes = '65536'", "server.sendfile-above = '0'"]);
    for _ in 0..20 {
        let is = [PLAIN, Length(half.len())];
        server.check_http1(&[(accepting("/half.txt", "gzip"), 200, &is)]);
    }
    wait_for_coding(&server, &accepting("/fits.txt", "gzip"), "gzip", &text(1, 200));
    let ended = server.end();
    assert!(ended.count("compressions") == 2 && ended.count("cache_bytes") <= 65_536);
}

fn a_changed_file_is_compressed_again_and_no_old_form_follows_the_new_one() {
    let site = Site::new();
    for lines in [300, 9000] {
        site.replace("a.html", &text(0, lines), MODIFIED_S);
        let server = serve(&site, &["server.cache-valid = '20ms'"]);
        let request = accepting("/a.html", "gzip");
        wait_for_coding(&server, &request, "gzip", &text(0, lines));
        for version in 1..4 {
            let (before, after) = (text(version - 1, lines), text(version, lines));
            site.replace("a.html", &after, MODIFIED_S + u64::from(version));
            let mut is_new = false;
            wait_until("the new content, compressed", || {
                let answer = ask(&server, &request);
                let content = decoded(&answer);
                assert!(content == after || !is_new && content == before);
                is_new = content == after;
                is_new && answer.field("content-encoding") == Some("gzip")
            });
        }
    }
}
