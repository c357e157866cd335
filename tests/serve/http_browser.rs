//! `twinring serve http` as a browser sees it: a page with style, script, images and a video that
//! is sought by ranges, in headless Chromium, with the same outcome on both engines.

use crate::support::http::Site;
use crate::support::*;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

#[path = "../../crates/lab/tests/common/browser.rs"]
#[allow(dead_code, reason = "shared with the reports, which use the rest")]
mod browser;

use browser::{BROWSERS, Browser};
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![a_browser_shows_the_same_page_on_both_engines];

/// As tests/data/browser/make.py has them: bytes of padding in the video, and bytes behind it.
const VIDEO_PAD: usize = 24 << 20;
const VIDEO_INDEX_BYTES: usize = 63;

const LARGE_BYTES: usize = 700_001;

/// The page of tests/data/browser, and what it needs but is too large for a repository.
fn site() -> Site {
    let site = Site::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/browser");
    let read = |name: &str| std::fs::read(data.join(name)).expect("a file of the page");
    for name in ["index.html", "script.js", "style.css", "picture.png", "drawing.svg"] {
        site.write(name, &read(name));
    }
    let video = read("video.webm");
    let (frames, index) = video.split_at(video.len() - VIDEO_INDEX_BYTES);
    site.write("video.webm", &[frames, &vec![0; VIDEO_PAD], index].concat());
    let large: Vec<u8> = (0..LARGE_BYTES).map(|at| (at * 7 + (at >> 8)) as u8).collect();
    site.write("large.bin", &large);
    let script = site.path().join("script.js");
    let packed = Command::new("gzip").arg("--keep").arg(&script).status().expect("gzip starts");
    assert!(packed.success(), "gzip: {packed}");
    site
}

/// Gives a command that loads the page, and returns what its script found.
fn load(browser: &mut Browser, method: &str, parameters: &Value) -> Value {
    browser.load(method, parameters);
    let found =
        browser.evaluate("checked.then(() => document.getElementById('result').textContent)");
    serde_json::from_str(found.as_str().expect("text")).expect("the script writes JSON")
}

/// The expected results of the page's script.
fn expected() -> Value {
    json!({
        "png": [48, 32],
        "svg": [64, 40],
        "heading": ["Grüße", "rgb(1, 102, 203)"],
        "script_is_compressed": true,
        "video": {
            "size": [160, 120, 3.9],
            "frames": [[2.5, "blue"], [0.5, "red"], [3.5, "white"], [1.5, "green"]],
        },
        "ranges": [
            [206, "bytes 1000-1999/700001", 1000, (1000 * 7 + 3) % 256],
            [206, "bytes 700000-700000/700001", 1, (700_000 * 7 + (700_000 >> 8)) % 256],
            [416, "bytes */700001", "416 Range Not Satisfiable\n".len(), b'4'],
        ],
        "unchanged": { "length": LARGE_BYTES, "intact": true, "statuses": [200, 304] },
        "missing": 404,
    })
}

/// Takes what identifies the pixels of each frame out of what the script found: it is the same for
/// the same browser, but not for every browser.
fn take_pixels(found: &mut Value) -> Vec<Value> {
    let frames = found["video"]["frames"].as_array_mut().into_iter().flatten();
    frames.filter_map(|frame| frame.as_array_mut()?.pop()).collect()
}

/// The access log of a page that was loaded and then reloaded.
fn check_log(engine: &str, log: &Path) {
    let text = std::fs::read_to_string(log).expect("a log");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let count = |target: &str, status: u16| {
        let is_meant = |line: &&Value| line["target"] == target && line["status"] == status;
        lines.iter().filter(is_meant).count()
    };
    assert!(count("/", 200) == 1 && count("/", 304) == 1, "{engine}: {text}");
    assert_eq!(count("/large.bin", 304), 2, "{engine}: {text}");
    assert_eq!((count("/large.bin", 206), count("/large.bin", 416)), (4, 2), "{engine}: {text}");
    // The index of the video is behind more bytes than a player buffers: it was fetched separately.
    let is_index = |line: &&Value| {
        line["target"] == "/video.webm"
            && line["status"] == 206
            && line["bytes"].as_u64().is_some_and(|bytes| bytes <= 1 << 20)
    };
    assert!(lines.iter().filter(is_index).count() >= 1, "{engine}: {text}");
    assert_eq!(count("/video.webm", 200), 0, "{engine}: {text}");
    println!(
        "{engine}: {} requests, {} ranges of the video, 2 loads of the page",
        lines.len(),
        count("/video.webm", 206)
    );
}

fn a_browser_shows_the_same_page_on_both_engines() {
    let site = site();
    site.settle();
    let mut pixels = Vec::new();
    for engine in ENGINES {
        let Some(mut browser) = Browser::start() else {
            testing::needs("chromium", format_args!("none at {}", BROWSERS.join(" or ")));
        };
        let logs = tempfile::tempdir().expect("a directory for temporary files");
        let log = logs.path().join("access.log");
        let arguments =
            ["default.precompressed = ['gz']", "server.access-log-format = 'json'", "--access-log"];
        let server = Server::http(
            engine,
            site.path(),
            &[&arguments[..], &[log.to_str().expect("text")]].concat(),
        );
        let url = format!("http://{}/", server.address());
        let address = json!({ "url": url });
        for (method, parameters) in [("Page.navigate", &address), ("Page.reload", &json!({}))] {
            let mut found = load(&mut browser, method, parameters);
            pixels.push(take_pixels(&mut found));
            assert_eq!(found, expected(), "{engine}, {method}");
        }
        drop(browser);
        let ended = server.terminate();
        assert_eq!(ended.code, Some(0), "{engine}: {}", ended.stderr);
        check_log(engine, &log);
    }
    assert_eq!(pixels[0].len(), 4);
    assert!(pixels.iter().all(|frames| *frames == pixels[0]), "{pixels:?}");
}
