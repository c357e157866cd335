//! Conditional requests and ranges of `twinring serve http`.

use crate::http::{answer, answers};
use crate::support::http::*;
use crate::support::*;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    conditions_are_evaluated_in_the_order_of_the_standard,
    ranges_select_parts_of_small_and_of_large_files,
    several_ranges_come_in_parts_and_never_amplify,
    files_with_equal_times_have_tags_of_their_own
];

fn conditions_are_evaluated_in_the_order_of_the_standard() {
    let site = Site::usual();
    site.settle();
    let tag = answer(&site, &[], get("/hello.txt", "")).field("etag").unwrap().to_owned();
    let (before, after) = (MODIFIED.replace("37", "36"), MODIFIED.replace("37", "38"));
    let cases = [
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
    let requests: Vec<String> = cases.iter().map(|(fields, _)| get("/hello.txt", fields)).collect();
    for ((fields, status), answer) in cases.iter().zip(answers(&site, &[], &requests)) {
        assert_eq!(answer.status, *status, "{fields}");
        if *status == 304 {
            assert_eq!(answer.field("etag"), Some(tag.as_str()));
            assert_eq!(answer.field("content-length"), None);
        }
    }
}

fn ranges_select_parts_of_small_and_of_large_files() {
    let site = Site::usual();
    site.settle();
    for (target, content) in [
        ("/hello.txt", b"0123456789abcdefghijklmnopqrstuvwxyz".to_vec()),
        ("/large.bin", pattern(7, 700_001)),
    ] {
        let length = content.len();
        let tag = answer(&site, &[], get(target, "")).field("etag").unwrap().to_owned();
        let cases: [(String, Option<std::ops::Range<usize>>); 9] = [
            ("Range: bytes=0-0\r\n".into(), Some(0..1)),
            ("Range: bytes=10-19\r\n".into(), Some(10..20)),
            ("Range: bytes=5-\r\n".into(), Some(5..length)),
            ("Range: bytes=-7\r\n".into(), Some(length - 7..length)),
            ("Range: bytes=0-99999999\r\n".into(), Some(0..length)),
            (format!("Range: bytes=1-2\r\nIf-Range: {tag}\r\n"), Some(1..3)),
            (format!("Range: bytes=1-2\r\nIf-Range: {MODIFIED}\r\n"), Some(1..3)),
            ("Range: bytes=1-2\r\nIf-Range: \"x\"\r\n".into(), None),
            ("Range: bytes=2-1\r\n".into(), None),
        ];
        let requests: Vec<String> = cases.iter().map(|(fields, _)| get(target, fields)).collect();
        for ((fields, part), answer) in cases.iter().zip(answers(&site, &[], &requests)) {
            match part {
                Some(part) => {
                    let range = format!("bytes {}-{}/{length}", part.start, part.end - 1);
                    assert_eq!(
                        (answer.status, answer.field("content-range")),
                        (206, Some(&*range))
                    );
                    assert_same(&answer.body, &content[part.clone()]);
                }
                None => {
                    assert_eq!((answer.status, answer.body.len()), (200, length), "{fields}");
                }
            }
        }
        let outside = answer(&site, &[], get(target, &format!("Range: bytes={length}-\r\n")));
        let range = format!("bytes */{length}");
        assert_eq!((outside.status, outside.field("content-range")), (416, Some(&*range)));
        let head = get(target, "Range: bytes=0-0\r\n").replacen("GET", "HEAD", 1);
        assert_eq!(answer(&site, &[], head).status, 200);
    }
}

fn several_ranges_come_in_parts_and_never_amplify() {
    let site = Site::usual();
    for (target, content) in [
        ("/hello.txt", b"0123456789abcdefghijklmnopqrstuvwxyz".to_vec()),
        ("/large.bin", pattern(7, 700_001)),
    ] {
        let length = content.len();
        let answer = answer(&site, &[], get(target, "Range: bytes=3-5,-2,0-0\r\n"));
        assert_eq!(answer.status, 206);
        let content_type = answer.field("content-type").unwrap();
        let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").unwrap();
        let mut expected = Vec::new();
        let own_type = if target == "/hello.txt" {
            "text/plain; charset=utf-8"
        } else {
            "application/octet-stream"
        };
        for (number, part) in [3..6, length - 2..length, 0..1].into_iter().enumerate() {
            let newline = if number == 0 { "" } else { "\r\n" };
            let head = format!(
                "{newline}--{boundary}\r\nContent-Type: {own_type}\r\nContent-Range: bytes \
                 {}-{}/{length}\r\n\r\n",
                part.start,
                part.end - 1
            );
            expected.extend_from_slice(head.as_bytes());
            expected.extend_from_slice(&content[part]);
        }
        expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        assert_same(&answer.body, &expected);
        for excess in ["0-,0-", "0-,1-,2-", &vec!["0-0"; 17].join(",")] {
            let whole =
                self::answer(&site, &[], get(target, &format!("Range: bytes={excess}\r\n")));
            assert_eq!((whole.status, whole.body.len()), (200, length), "{excess}");
        }
    }
}

/// Archives, images and package stores give all files one time: a file of the same length that took another's place
/// was answered with 304, and If-Range joined the two.
fn files_with_equal_times_have_tags_of_their_own() {
    let site = Site::new();
    site.write("f", b"aaaa");
    site.settle();
    let tag = |site: &Site| answer(site, &[], get("/f", "")).field("etag").unwrap().to_owned();
    let before = tag(&site);
    assert!(before.starts_with('"'), "strong: {before}");
    site.write("g", b"bbbb");
    std::fs::rename(site.path().join("g"), site.path().join("f")).unwrap();
    site.settle();
    assert_ne!(before, tag(&site));
    let known = answer(&site, &[], get("/f", &format!("If-None-Match: {before}\r\n")));
    assert_eq!((known.status, known.text().as_str()), (200, "bbbb"));
    let part = format!("Range: bytes=2-3\r\nIf-Range: {before}\r\n");
    assert_eq!(answer(&site, &[], get("/f", &part)).status, 200);
}
