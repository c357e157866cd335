//! Runs a load generator of the command against servers of known behaviour.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use twinring::{EngineChoice, Runtime};
use twinring_wire::LoadResult;

/// Longest that any run may take.
pub(crate) const RUN_MAX: Duration = Duration::from_secs(60);

/// The engines that this machine allows.
pub(crate) fn engines() -> Vec<&'static str> {
    match Runtime::builder().engine(EngineChoice::IoUring).build() {
        Ok(_) => vec!["io_uring", "epoll"],
        Err(why) => {
            super::missing::missing("io_uring", why);
            vec!["epoll"]
        }
    }
}

/// A server with one thread per connection, each given its number and its stream. It ends with
/// the test process.
pub(crate) fn serve(behave: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let behave = Arc::new(behave);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let behave = Arc::clone(&behave);
            thread::spawn(move || behave(number, stream));
        }
    });
    address
}

/// `twinring load KIND TARGET --json` with these arguments.
pub(crate) fn command(engine: &str, kind: &str, target: &str, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
    command.args(["load", kind, target, "--json", "--engine", engine]);
    command.args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ends a run that hangs, by its own handle.
pub(crate) struct Bounded(pub(crate) Option<Child>);

impl Bounded {
    pub(crate) fn output(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        let deadline = Instant::now() + RUN_MAX;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("still running: {:?}", child.wait_with_output());
            }
            thread::sleep(Duration::from_millis(5));
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Exit code, result line and standard error of a run whose result has to be sound.
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) result: Value,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn number(&self, path: &str) -> u64 {
        let value = self.result.pointer(path);
        value.and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {}", self.result))
    }

    pub(crate) fn latency_us(&self, name: &str) -> f64 {
        self.result["latency_us"][name].as_f64().unwrap()
    }

    /// All errors by kind that are not zero.
    pub(crate) fn errors(&self) -> Vec<(String, u64)> {
        let errors = self.result["errors"].as_object().unwrap();
        let counts = errors.iter().map(|(kind, count)| (kind.clone(), count.as_u64().unwrap()));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn expect(&self, code: i32, errors: &[(&str, u64)]) {
        let expected: Vec<_> = errors.iter().map(|(kind, n)| ((*kind).to_owned(), *n)).collect();
        assert_eq!((self.code, self.errors()), (code, expected), "{}{}", self.result, self.stderr);
        assert_eq!(self.result["first_error"].is_null(), errors.is_empty());
    }
}

pub(crate) fn sound(output: Output) -> Outcome {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let result = lines.last().unwrap_or_else(|| panic!("no result: {stderr}")).clone();
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["window_start", "window_end", "result"]);
    let outcome = Outcome { code: output.status.code().unwrap(), result, stderr };
    let read = LoadResult::read(&outcome.result).unwrap();
    let all = read.requests().unwrap();
    assert_eq!(lines[0]["monotonic_ns"], all.window.start_monotonic_ns);
    assert_eq!(lines[1]["monotonic_ns"], all.window.end_monotonic_ns);
    let (inside, whole) = (all.requests, all.whole_run);
    assert_eq!(whole.sent, whole.answered + whole.failed + whole.abandoned, "{whole:?}");
    assert!(inside.answered <= whole.answered, "{inside:?} of {whole:?}");
    assert!(inside.failed <= whole.failed, "{inside:?} of {whole:?}");
    assert!(inside.sent <= whole.sent, "{inside:?} of {whole:?}");
    outcome
}

/// `twinring load http` of one URL with these arguments.
pub(crate) fn http(engine: &str, target: SocketAddr, arguments: &str) -> Command {
    command(engine, "http", &format!("http://{target}/x"), arguments)
}

/// The outcome of that.
pub(crate) fn run_http(engine: &str, target: SocketAddr, arguments: &str) -> Outcome {
    sound(Bounded(Some(http(engine, target, arguments).spawn().unwrap())).output())
}

/// Serves a connection: `answer` gets the number of each request, from 0, its head, and the stream,
/// and returns whether to continue.
pub(crate) fn answer_each(
    stream: TcpStream,
    mut answer: impl FnMut(usize, &str, &mut TcpStream) -> bool,
) {
    let _ = stream.set_nodelay(true);
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    for number in 0.. {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if !matches!(reader.read_line(&mut head), Ok(1..)) {
                return;
            }
        }
        if !answer(number, &head, &mut writer) {
            return;
        }
    }
}

/// Answers every request of every connection with the result of `answer` for its number among all.
pub(crate) fn answering(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> SocketAddr {
    let count = AtomicUsize::new(0);
    serve(move |_, stream| {
        answer_each(stream, |_, _, stream| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            stream.write_all(answer(number).as_bytes()).is_ok()
        });
    })
}

/// An answer with this content.
pub(crate) fn ok(content: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{content}", content.len())
}
