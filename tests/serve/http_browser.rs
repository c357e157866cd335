//! `twinring serve http` as a browser sees it: a page with style, script, images and a video that
//! is sought by ranges, in headless Chromium, with the same outcome on both engines.

use crate::support::http::Site;
use crate::support::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tungstenite::{Message, WebSocket};

/// Where browsers of this kind are found.
const BROWSERS: [&str; 2] = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];

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

/// A Chromium without a window, spoken to over its DevTools protocol; killed when dropped.
struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    session: String,
    commands: u64,
    /// Holds all that it writes, and is empty at first: no cache, no settings.
    _profile: tempfile::TempDir,
}

impl Browser {
    /// `None` without a browser.
    fn start() -> Option<Browser> {
        let binary = BROWSERS.into_iter().find(|path| Path::new(path).exists())?;
        let profile = tempfile::tempdir().expect("a directory for temporary files");
        let mut child = Command::new(binary)
            .args(["--headless", "--remote-debugging-port=0", "--window-size=800,600"])
            // Root gets no sandbox from it; the only pages it sees here are our own.
            .args(["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update"])
            .args(["--disable-sync", "--mute-audio", "about:blank"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the browser starts");
        let mut told = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let listening = "DevTools listening on ";
        let url = told
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix(listening).map(str::to_owned));
        let url = url.expect("the browser can be spoken to");
        // Its further output must not fill the pipe.
        std::thread::spawn(move || told.count());
        let address = url.strip_prefix("ws://").and_then(|rest| rest.split('/').next());
        let address = address.expect("a URL").parse().expect("an address");
        let (socket, _) = tungstenite::client(&url, connect(address)).expect("a WebSocket");
        let mut browser =
            Browser { child, socket, session: String::new(), commands: 0, _profile: profile };
        let page = browser.command("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.command("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        browser.command("Page.enable", &json!({}));
        Some(browser)
    }

    /// The browser's answer to a command.
    fn command(&mut self, method: &str, parameters: &Value) -> Value {
        self.commands += 1;
        let mut command = json!({ "id": self.commands, "method": method, "params": parameters });
        if !self.session.is_empty() {
            command["sessionId"] = self.session.as_str().into();
        }
        self.socket.send(Message::text(command.to_string())).expect("the browser listens");
        let id = self.commands;
        let answer = self.find(method, |message| message["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The next message of this kind; others are passed over.
    fn find(&mut self, what: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = match self.socket.read() {
                Ok(message) => message.into_text().expect("text"),
                Err(error) => panic!("waited for {what}: {error}"),
            };
            let message = serde_json::from_str(&message).unwrap_or(Value::Null);
            if is_meant(&message) {
                return message;
            }
        }
    }

    /// Gives a command that loads a page, waits for the page, and returns what its script found.
    fn load(&mut self, method: &str, parameters: &Value) -> Value {
        self.command(method, parameters);
        self.find("the page", |message| message["method"] == "Page.loadEventFired");
        let found = "checked.then(() => document.getElementById('result').textContent)";
        let evaluate = json!({ "expression": found, "awaitPromise": true });
        let answer = self.command("Runtime.evaluate", &evaluate);
        let text = answer["result"]["value"].as_str().unwrap_or_else(|| panic!("{answer}"));
        serde_json::from_str(text).expect("the script writes JSON")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for. Its children end with it.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
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

#[test]
fn a_browser_shows_the_same_page_on_both_engines() {
    let site = site();
    let mut pixels = Vec::new();
    for engine in ENGINES {
        let Some(mut browser) = Browser::start() else {
            crate::support::missing::missing(
                "chromium",
                format!("none at {}", BROWSERS.join(" or ")),
            );
            return;
        };
        let logs = tempfile::tempdir().expect("a directory for temporary files");
        let log = logs.path().join("access.log");
        let arguments = ["--precompressed", "gz", "--access-log-format", "json", "--access-log"];
        let server = Server::http(
            engine,
            site.path(),
            &[&arguments[..], &[log.to_str().expect("text")]].concat(),
        );
        let url = format!("http://{}/", server.address());
        let address = json!({ "url": url });
        for (method, parameters) in [("Page.navigate", &address), ("Page.reload", &json!({}))] {
            let mut found = browser.load(method, parameters);
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
