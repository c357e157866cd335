//! The examples of the libraries run by the command in their first line, from the root.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long one example may take to start, once it is built.
const PATIENCE: Duration = Duration::from_secs(60);

struct Example {
    name: String,
    package: PathBuf,
    first_line: String,
}

impl Example {
    /// The command, without what is optional.
    fn command(&self) -> Vec<String> {
        let quoted = self.first_line.split('`').nth(1);
        let quoted = quoted.unwrap_or_else(|| panic!("{}: no command in line 1", self.name));
        let mandatory = quoted.split(" [").next().expect("a first part");
        mandatory.split_whitespace().map(str::to_owned).collect()
    }

    /// The command with another address.
    fn command_at(&self, address: &str) -> Vec<String> {
        let place = |word: String| match word.starts_with("127.0.0.1:") {
            true => address.to_owned(),
            false => word,
        };
        self.command().into_iter().map(place).collect()
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn examples() -> Vec<Example> {
    let mut examples = Vec::new();
    for package in ["crates/runtime", "crates/compat", "ecosystem"] {
        let package = root().join(package);
        for entry in std::fs::read_dir(package.join("examples")).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let first_line = text.lines().next().unwrap_or_default().to_owned();
            examples.push(Example { name, package: package.clone(), first_line });
        }
    }
    examples
}

#[test]
fn every_example_begins_with_its_command() {
    let examples = examples();
    assert!(examples.len() >= 10, "{} examples", examples.len());
    for example in examples {
        let package = match example.package.file_name().and_then(|name| name.to_str()) {
            Some("runtime") => "-p twinring",
            Some("compat") => "-p twinring-compat",
            _ => "--manifest-path ecosystem/Cargo.toml",
        };
        let expected = format!("cargo run {package} --example {} -- ", example.name);
        let command = example.command().join(" ") + " ";
        assert!(command.starts_with(&expected), "{command}: expected {expected}");
    }
}

/// Builds what has not been built, which takes minutes: `.ci/long`.
#[test]
#[ignore = "builds the examples with the features that they name"]
fn every_example_runs_by_its_command() {
    let web = Running::start(&find("http_server"), &free_port());
    for example in examples() {
        println!("{}", example.name);
        match example.name.as_str() {
            "http_server" => {}
            "http_client" | "get" => {
                let said = output(&example.command_at(&web.address));
                assert!(said.contains("200") || said.contains("404"), "{}: {said}", example.name);
            }
            "echo" | "workers" => {
                let server = Running::start(&example, &free_port());
                assert_eq!(exchange(server.connect(), b"hello", 5), b"hello");
            }
            "chat" => {
                let server = Running::start(&example, &free_port());
                let (one, other) = (server.connect(), server.connect());
                let heard = exchange(&one, b"", 8);
                assert!(!heard.is_empty(), "of the other");
                drop(other);
            }
            "reflect" => {
                let server = Running::start(&example, &free_port());
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let mut back = [0; 9];
                eventually(|| {
                    // Lost, or refused, until the server is bound.
                    let _sent = client.send_to(b"reflect", &server.address);
                    client.recv(&mut back).ok().filter(|bytes| *bytes == 7)
                });
                assert_eq!(&back[..7], b"reflect");
            }
            "websocket_echo" => {
                let mut server = Running::start(&example, &free_port());
                assert!(server.says("echoed 1000 bytes"), "both messages come back");
            }
            _ => {
                let said = output(&example.command());
                assert!(!said.trim().is_empty(), "{} says nothing", example.name);
            }
        }
    }
}

fn find(name: &str) -> Example {
    examples().into_iter().find(|example| example.name == name).expect("it exists")
}

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn run(command: &[String]) -> Command {
    let mut run = Command::new(&command[0]);
    run.args(&command[1..]).current_dir(root());
    if std::env::var_os("CARGO_TARGET_DIR").is_none() {
        // The other workspace builds nothing again that is built already.
        run.env("CARGO_TARGET_DIR", root().join("target"));
    }
    run
}

/// Runs a command to its end.
fn output(command: &[String]) -> String {
    let done = run(command).stdin(Stdio::null()).output().unwrap();
    let complained = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {complained}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A server, which ends with the test.
struct Running {
    address: String,
    /// Cargo, which leads a process group with the example in it.
    process: Child,
}

impl Running {
    fn start(example: &Example, address: &str) -> Running {
        // Built first, because building takes longer than an example may take to start.
        let mut build = example.command();
        build.truncate(build.iter().position(|word| word == "--").expect("arguments"));
        build[1] = "build".to_owned();
        output(&build);
        let process = run(&example.command_at(address))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        Running { address: address.to_owned(), process }
    }

    fn connect(&self) -> TcpStream {
        eventually(|| TcpStream::connect(&self.address).ok())
    }

    /// Reads its output up to a line with these words.
    fn says(&mut self, words: &str) -> bool {
        let lines = BufReader::new(self.process.stdout.take().expect("once")).lines();
        lines.map_while(Result::ok).any(|line| line.contains(words))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = format!("-{}", self.process.id());
        let _gone = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _reaped = self.process.wait();
    }
}

fn eventually<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(began.elapsed() < PATIENCE, "the example does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends `bytes` and reads as many as are expected.
fn exchange(mut stream: impl Read + Write, bytes: &[u8], expected: usize) -> Vec<u8> {
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; expected];
    stream.read_exact(&mut answer).unwrap();
    answer
}
