//! A Chromium without a window, spoken to over its DevTools protocol.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

/// Where browsers of this kind are found.
pub(crate) const BROWSERS: [&str; 2] = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];

/// Longest wait for anything that it says.
const PATIENCE: Duration = Duration::from_secs(120);

/// The browser with one page; killed when dropped.
pub(crate) struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    session: String,
    commands: u64,
    /// What the page did since it was last asked for.
    events: Vec<Value>,
    /// Holds all that it writes, and is empty at first: no cache, no settings.
    _profile: tempfile::TempDir,
}

impl Browser {
    /// `None` where there is none.
    pub(crate) fn start() -> Option<Browser> {
        let binary = BROWSERS.into_iter().find(|path| Path::new(path).exists())?;
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new(binary)
            .args(["--headless", "--remote-debugging-port=0", "--hide-scrollbars"])
            // Root gets no sandbox from it; the only pages it sees here are our own.
            .args([
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--mute-audio",
                "--disable-quic",
            ])
            .args(["--disable-background-networking", "--disable-component-update"])
            // Colours of pixels are those of the style sheet on every machine.
            .args(["--force-color-profile=srgb", "--disable-lcd-text", "--disable-sync"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = told
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("DevTools listening on ").map(str::to_owned))
            .expect("the browser can be spoken to");
        // What else it says must not fill the pipe.
        std::thread::spawn(move || told.count());
        let address = url.strip_prefix("ws://").and_then(|rest| rest.split('/').next()).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(&url, stream).unwrap();
        let (session, events) = (String::new(), Vec::new());
        let mut browser =
            Browser { child, socket, session, commands: 0, events, _profile: profile };
        let page = browser.command("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.command("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Network", "Log", "Runtime"] {
            browser.command(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// What the browser answers to a command.
    pub(crate) fn command(&mut self, method: &str, parameters: &Value) -> Value {
        self.commands += 1;
        let id = self.commands;
        let mut command = json!({"id": id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            command["sessionId"] = self.session.as_str().into();
        }
        self.socket.send(Message::text(command.to_string())).unwrap();
        let answer = self.find(method, |message| message["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The next message of this kind; others are kept as events.
    fn find(&mut self, what: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = match self.socket.read() {
                Ok(message) => message.into_text().unwrap(),
                Err(error) => panic!("waited for {what}: {error}"),
            };
            let message: Value = serde_json::from_str(&message).unwrap_or(Value::Null);
            let found = is_meant(&message);
            if message["method"].is_string() {
                self.events.push(message.clone());
            }
            if found {
                return message;
            }
        }
    }

    /// Opens a page as a screen of this width sees it.
    pub(crate) fn open(&mut self, url: &str, width: u32, scheme: &str) {
        let screen =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600});
        self.command("Emulation.setDeviceMetricsOverride", &screen);
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.command("Emulation.setEmulatedMedia", &json!({"media": "", "features": features}));
        self.navigate("about:blank");
        self.navigate(url);
    }

    fn navigate(&mut self, url: &str) {
        self.load("Page.navigate", &json!({"url": url}));
    }

    /// Gives a command that loads a page, and waits for the page, which is there before or after the
    /// answer to the command.
    pub(crate) fn load(&mut self, method: &str, parameters: &Value) {
        self.events.clear();
        self.command(method, parameters);
        let is_there = |message: &Value| message["method"] == "Page.loadEventFired";
        if !self.events.iter().any(is_there) {
            self.find("the page", is_there);
        }
    }

    /// The value of an expression of the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let evaluate =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.command("Runtime.evaluate", &evaluate);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// The page as PNG, down to this many pixels from its top.
    pub(crate) fn screenshot(&mut self, width: u32, most_high: u32) -> Vec<u8> {
        let high = self.evaluate("document.documentElement.scrollHeight").as_u64().unwrap();
        let high = high.min(most_high.into());
        let clip = json!({"x": 0, "y": 0, "width": width, "height": high, "scale": 1});
        let part = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let taken = self.command("Page.captureScreenshot", &part);
        STANDARD.decode(taken["data"].as_str().unwrap()).unwrap()
    }

    /// The page as it is printed on A4.
    pub(crate) fn pdf(&mut self) -> Vec<u8> {
        let paper = json!({"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": false});
        let printed = self.command("Page.printToPDF", &paper);
        STANDARD.decode(printed["data"].as_str().unwrap()).unwrap()
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str) {
        let code = if key == "Tab" { 9 } else { 13 };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key, "text": text,
                "windowsVirtualKeyCode": code});
            self.command("Input.dispatchKeyEvent", &event);
        }
    }

    /// What went wrong since the page was opened: errors, exceptions, dialogs, what the console was
    /// told, and every request but that for the page itself.
    pub(crate) fn complaints(&mut self, page: &str) -> Vec<String> {
        // Every event of before has come when this is answered.
        self.evaluate("0");
        let complaint = |event: &Value| {
            let method = event["method"].as_str().unwrap_or_default();
            match method {
                "Log.entryAdded"
                | "Runtime.exceptionThrown"
                | "Runtime.consoleAPICalled"
                | "Page.javascriptDialogOpening" => Some(event.to_string()),
                "Network.requestWillBeSent" => {
                    let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
                    let own = url.split('#').next() == Some(page) || url.starts_with("data:");
                    (!own).then(|| format!("a request for {url}"))
                }
                _ => None,
            }
        };
        self.events.iter().filter_map(complaint).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for. Its children end with it.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}
