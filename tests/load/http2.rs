//! `twinring load http --http2`: against nginx, and servers that go wrong frame by frame.

use crate::http::NOTHING_LOST;
use crate::support::http::Site;
use crate::support::http2::*;
use crate::support::load::*;
use crate::support::nginx::nginx;
use crate::support::tls::Identity;
use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    nginx_is_asked_in_the_same_way,
    no_more_streams_are_used_than_the_server_allows,
    answers_come_in_any_order,
    bodies_are_sent_within_the_windows,
    a_server_that_never_answers_is_a_timeout,
    servers_that_do_not_speak_it_are_named
];

const ACK: u8 = 1;

fn load(urls: &[String], arguments: &str) -> Outcome {
    let mut command = command("auto", "http", &urls[0], arguments);
    command.args(&urls[1..]).arg("--http2");
    finished(command)
}

/// Requests of every kind, to a site as [`Site::usual`] has it.
fn ask_everything(origin: &str, site: &Path, more: &str) {
    let large = site.join("large.bin").display().to_string();
    // Paths, arguments, the length of the content.
    let cases = [
        ("/hello.txt", "-c 4 -t 2", 36),
        ("/hello.txt", "-c 2 --pipeline 16", 36),
        ("/hello.txt", "-c 4 --depth 3 --rate 3000 --arrivals poisson", 36),
        ("/hello.txt", "-c 2 -X HEAD", 0),
        ("/hello.txt", "-c 2 -H Range:bytes=5-9 --expect-status 206", 5),
        ("/nothing", "-c 2 --expect-status 404 --any-length", 0),
        // More than a window of any stream, and together more than that of the connection.
        ("/huge.bin", "-c 1 --pipeline 8 --verify-body --timeout 60s", 3_000_000),
        ("/large.bin", "-c 2 --pipeline 3 --verify-body=LARGE --timeout 60s", 700_001),
        ("/empty.txt", "-c 2 --verify-body", 0),
    ];
    for (path, arguments, bytes) in cases {
        let count = if bytes > 500_000 { 16 } else { 300 };
        let arguments = format!("-n {count} {more} {}", arguments.replace("LARGE", &large));
        let outcome = load(&[format!("{origin}{path}")], &arguments);
        outcome.expect(0, &[]);
        assert_eq!(outcome.result["settings"]["http"], "2");
        outcome.has(&[("/whole_run/answered", count)]);
        outcome.has(&NOTHING_LOST);
        if path != "/nothing" {
            outcome.has(&[("/bytes/bodies", count * bytes)]);
        }
    }
    let urls = ["/", "/hello.txt", "/sub/"].map(|path| format!("{origin}{path}"));
    let mixed = format!("-c 3 -t 2 -n 900 --pipeline 5 --weights 1,4,1 --verify-body {more}");
    load(&urls, &mixed).expect(0, &[]);
}

/// With prior knowledge, and with TLS.
fn nginx_is_asked_in_the_same_way() {
    let (site, identity) = (Site::usual(), Identity::new());
    site.write("huge.bin", &pattern(5, 3_000_000));
    let secret = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!(
        "server {{ listen 8080 default_server http2; listen {secret} ssl http2; root {}; \
         ssl_certificate {}; ssl_certificate_key {}; }}",
        site.path().display(),
        identity.certificate().display(),
        identity.key().display()
    );
    let directory = Site::new();
    fs::set_permissions(site.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let nginx = nginx(&text, directory.path());
    let plain = nginx.address;
    ask_everything(&format!("http://{plain}"), site.path(), "");
    ask_everything(&format!("https://{secret}"), site.path(), "--insecure");
    let outcome = load(&[format!("http://{plain}/hello.txt")], "-c 1 -n 9");
    // The default of nginx.
    outcome.has(&[("/settings/streams_max", 128)]);
}

/// A server that answers frame by frame: it is given the number of the request on its connection
/// and the stream. It stops when told to.
pub(crate) fn serve_frames(
    settings: &'static [u8],
    answer: impl Fn(usize, u32, &mut TcpStream) -> bool + Send + Sync + 'static,
) -> SocketAddr {
    serve(move |_, mut stream| {
        let mut preface = [0; PREFACE.len()];
        if stream.read_exact(&mut preface).is_err() {
            return;
        }
        assert_eq!(preface, PREFACE);
        put(&mut stream, &[Frame::new(SETTINGS, 0, 0, settings)]);
        let mut number = 0;
        while let Some(frame) = next_frame(&mut stream) {
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => {
                    put(&mut stream, &[Frame::new(SETTINGS, ACK, 0, b"")]);
                }
                HEADERS => {
                    if !answer(number, frame.stream, &mut stream) {
                        return;
                    }
                    number += 1;
                }
                _ => {}
            }
        }
    })
}

/// Sends frames; a client that has gone is noticed by reading.
pub(crate) fn put(stream: &mut TcpStream, frames: &[Frame]) -> bool {
    let bytes: Vec<u8> = frames.iter().flat_map(Frame::bytes).collect();
    stream.write_all(&bytes).is_ok()
}

/// Status 200 of the static table, and content.
pub(crate) fn answer(stream: u32, content: &[u8]) -> [Frame; 2] {
    [
        Frame::new(HEADERS, END_HEADERS, stream, &[0x88]),
        Frame::new(DATA, END_STREAM, stream, content),
    ]
}

/// Of five streams, the server answers the last first.
fn answers_come_in_any_order() {
    let target = serve_frames(b"", |number, id, stream| {
        let all = (0..5).flat_map(|back| answer(id - 2 * back, b"hello"));
        number % 5 < 4 || put(stream, &all.collect::<Vec<_>>())
    });
    answered(target, "-c 1 -n 500 --pipeline 5 --http2 --verify-body", 500);
}

/// The body goes in parts, as far as the server's windows allow: 65,535 bytes at first.
fn bodies_are_sent_within_the_windows() {
    const BODY_BYTES: usize = 300_000;
    let body = pattern(3, BODY_BYTES);
    let expected = body.clone();
    let target = serve_frames(b"", move |_, id, stream| {
        let mut received = Vec::new();
        loop {
            let Some(frame) = next_frame(stream) else { return false };
            if frame.kind == SETTINGS && frame.flags & ACK == 0 {
                put(stream, &[Frame::new(SETTINGS, ACK, 0, b"")]);
            }
            if frame.kind != DATA {
                continue;
            }
            received.extend_from_slice(&frame.payload);
            if frame.flags & END_STREAM != 0 {
                break;
            }
            let more = u32::try_from(frame.payload.len()).unwrap().to_be_bytes();
            if !frame.payload.is_empty() {
                let update = |stream| Frame::new(WINDOW_UPDATE, 0, stream, &more);
                put(stream, &[update(0), update(id)]);
            }
        }
        // The last bytes of the connection's window.
        put(stream, &[Frame::new(WINDOW_UPDATE, 0, 0, &16_384_u32.to_be_bytes())]);
        // 500 of the static table.
        match received == expected {
            true => put(stream, &answer(id, b"hello")),
            false => put(stream, &[Frame::new(HEADERS, END_HEADERS | END_STREAM, id, &[0x8e])]),
        }
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &body).unwrap();
    answered(target, &format!("-c 2 -n 20 --http2 --body @{}", file.path().display()), 20);
}

fn a_server_that_never_answers_is_a_timeout() {
    let target = serve_frames(b"", |_, _, _| true);
    let outcome = run_http("auto", target, "-c 2 -n 8 --pipeline 2 --timeout 200ms --http2");
    outcome.expect(1, &[("timeout", 4)]);
    outcome.has(&[("/whole_run/failed", 8)]);
}

fn servers_that_do_not_speak_it_are_named() {
    let of_1_1 = answering(|_| ok("hello"));
    let silent = serve(|_, mut stream| drop(std::io::copy(&mut stream, &mut std::io::sink())));
    for (target, more, named) in [
        (of_1_1, "", "prior knowledge"),
        (silent, "--connect-timeout 300ms", "not done within 300ms"),
    ] {
        assert_ended(&mut http("auto", target, &format!("-c 1 --http2 {more}")), 1, &[named]);
    }
}

/// SETTINGS_MAX_CONCURRENT_STREAMS of 3.
const THREE_STREAMS: &[u8] = &[0, 3, 0, 0, 0, 3];

/// Three streams are answered together, and a fourth is never asked for before.
fn no_more_streams_are_used_than_the_server_allows() {
    let target = serve_frames(THREE_STREAMS, |number, id, stream| {
        let all = (0..3).flat_map(|back| answer(id - 2 * back, b"hello"));
        number % 3 < 2 || put(stream, &all.collect::<Vec<_>>())
    });
    let outcome = answered(target, "-c 2 -n 1200 --pipeline 64 --http2", 1200);
    outcome.has(&[("/settings/streams_max", 3)]);
}
