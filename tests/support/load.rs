//! Runs a load generator of the command against servers of known behaviour.

use super::*;
use std::process::Output;
use twinring_wire::udp::Stream;
use twinring_wire::{LoadResult, RequestResult, UdpResult};

/// A server with one thread per connection, each given its number and its stream. It ends with
/// the test process.
pub(crate) fn serve(behave: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let behave = Arc::new(behave);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let _gone = stream.set_nodelay(true);
            let behave = Arc::clone(&behave);
            thread::spawn(move || behave(number, stream));
        }
    });
    address
}

/// `twinring load KIND TARGET --json` with these arguments; a run that hangs is ended after a minute.
pub(crate) fn command(engine: &str, kind: &str, target: &str, arguments: &str) -> Command {
    let mut bounded = Command::new("timeout");
    bounded.args(["-s", "KILL", "60", TWINRING]);
    command_by(bounded, engine, kind, target, arguments)
}

/// The same by another command, such as one with limits.
pub(crate) fn command_by(
    mut command: Command,
    engine: &str,
    kind: &str,
    target: &str,
    arguments: &str,
) -> Command {
    needs(engine);
    command.args(["load", kind, target, "--json", "--engine", engine]);
    command.args(arguments.split_whitespace());
    command
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

    /// These numbers of the result.
    pub(crate) fn has(&self, numbers: &[(&str, u64)]) {
        for (path, expected) in numbers {
            assert_eq!(self.number(path), *expected, "{path} in {}", self.result);
        }
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

    /// A busy machine may not reach a rate; it says so by a code of its own.
    pub(crate) fn was_held_up(&self) -> bool {
        self.code == 4
            && self.result["requests"]["rate_reached"] == false
            && self.result["requests"]["overdue"] == 0
    }

    /// Exit code and errors. A failed request ends with 1, unless the run allows it.
    pub(crate) fn expect(&self, code: i32, errors: &[(&str, u64)]) {
        let expected: Vec<_> = errors.iter().map(|(kind, n)| ((*kind).to_owned(), *n)).collect();
        let found = match self.was_held_up() {
            true => 0,
            false => self.code,
        };
        assert_eq!((found, self.errors()), (code, expected), "{}", self.stderr);
        assert_eq!(self.result["first_error"].is_null(), errors.is_empty());
    }
}

/// The outcome of a run that ends by itself.
pub(crate) fn finished(mut command: Command) -> Outcome {
    sound(command.output().unwrap())
}

/// The outcome of a run. Its marks are those of its window, and its counts balance.
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
    assert_eq!(lines[0]["monotonic_ns"], read.window().start_monotonic_ns);
    assert_eq!(lines[1]["monotonic_ns"], read.window().end_monotonic_ns);
    match &read {
        LoadResult::Udp(udp) => assert_packets_balance(udp),
        LoadResult::Tcp(_) | LoadResult::Http(_) => {
            assert_requests_balance(read.requests().unwrap());
        }
    }
    outcome
}

fn assert_requests_balance(all: &RequestResult) {
    let (inside, whole) = (all.requests, all.whole_run);
    assert_eq!(whole.sent, whole.answered + whole.failed + whole.abandoned, "{whole:?}");
    assert!(inside.answered <= whole.answered, "{inside:?} of {whole:?}");
    assert!(inside.failed <= whole.failed, "{inside:?} of {whole:?}");
    assert!(inside.sent <= whole.sent, "{inside:?} of {whole:?}");
}

fn assert_packets_balance(udp: &UdpResult) {
    let packets = &udp.packets;
    assert_eq!(packets.due, packets.sent + packets.unsent + packets.refused, "{packets:?}");
    assert_eq!(packets.sent, packets.received + packets.lost, "{packets:?}");
    let sum = |count: fn(&Stream) -> u64| udp.streams.all.iter().flatten().map(count).sum::<u64>();
    if udp.streams.all.is_some() {
        assert_eq!(sum(|it| it.sent), packets.sent);
        assert_eq!(sum(|it| it.received), packets.received);
        assert_eq!(sum(|it| it.lost), packets.lost);
        assert_eq!(sum(|it| it.duplicated), packets.duplicated);
        assert_eq!(sum(|it| it.reordered), packets.reordered);
    }
}

/// `twinring load http` of one URL with these arguments.
pub(crate) fn http(engine: &str, target: SocketAddr, arguments: &str) -> Command {
    command(engine, "http", &format!("http://{target}/x"), arguments)
}

/// The outcome of that.
pub(crate) fn run_http(engine: &str, target: SocketAddr, arguments: &str) -> Outcome {
    finished(http(engine, target, arguments))
}

/// The same on any engine, where no request fails and so many are answered.
pub(crate) fn answered(target: SocketAddr, arguments: &str, count: u64) -> Outcome {
    let outcome = run_http("auto", target, arguments);
    outcome.expect(0, &[]);
    outcome.has(&[("/whole_run/answered", count)]);
    outcome
}

/// Serves a connection to its end: `answer` gets the number of each request, from 0, its head, and the stream behind
/// that, and returns whether to continue.
pub(crate) fn answer_each<S: Read + Write>(
    stream: &mut S,
    mut answer: impl FnMut(usize, &str, &mut BufReader<&mut S>) -> bool,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    for number in 0.. {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        if !answer(number, &head, &mut stream) {
            break;
        }
    }
    Ok(())
}

/// A server of such connections; `answer` gets no head.
pub(crate) fn serving_each(
    answer: impl Fn(usize, &mut TcpStream) -> bool + Send + Sync + 'static,
) -> SocketAddr {
    serve(move |_, mut stream| {
        let _ended = answer_each(&mut stream, |number, _, it| answer(number, it.get_mut()));
    })
}

/// Answers every request of every connection with the result of `answer` for its number among all.
pub(crate) fn answering(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> SocketAddr {
    let count = AtomicUsize::new(0);
    serving_each(move |_, stream| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        stream.write_all(answer(number).as_bytes()).is_ok()
    })
}

/// An answer with this content.
pub(crate) fn ok(content: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{content}", content.len())
}
