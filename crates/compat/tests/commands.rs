//! The examples of the libraries run by the command in their first line, from the root.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long one example may take, once it is built.
const PATIENCE: Duration = Duration::from_secs(60);

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of the examples, each with its command, without what is optional.
fn examples() -> Vec<(String, Vec<String>)> {
    let mut examples = Vec::new();
    for (directory, package) in [
        ("crates/runtime", "-p twinring"),
        ("crates/compat", "-p twinring-compat"),
        ("ecosystem", "--manifest-path ecosystem/Cargo.toml"),
    ] {
        for entry in std::fs::read_dir(root().join(directory).join("examples")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            let quoted = text.lines().next().and_then(|line| line.split('`').nth(1));
            let command = quoted.unwrap_or_default().split(" [").next().unwrap_or_default();
            let expected = format!("cargo run {package} --example {name} -- ");
            assert!(format!("{command} ").starts_with(&expected), "{name}: no {expected}");
            examples.push((name, command.split_whitespace().map(str::to_owned).collect()));
        }
    }
    examples
}

#[test]
fn every_example_begins_with_its_command() {
    assert!(examples().len() >= 7);
}

/// Builds what has not been built, which takes minutes: `.ci/long`.
#[test]
#[ignore = "builds the examples with the features that they name"]
fn every_example_runs_by_its_command() {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (mut examples, web_address, mut running) = (examples(), free(), Vec::new());
    // The clients need it.
    examples.sort_by_key(|(name, _)| name != "http_server");
    for (name, command) in examples {
        println!("{name}");
        // Built first, because building takes longer than an example may take to start.
        let words = command.iter().position(|word| word == "--").expect("arguments");
        let build = cargo(&[&["build".to_owned()], &command[2..words]].concat()).status();
        assert!(build.unwrap().success(), "{name}");
        let client = matches!(&*name, "http_client" | "get");
        let address = if client || name == "http_server" { web_address.clone() } else { free() };
        let is_address = |word: &String| word.starts_with("127.0.0.1:");
        let place = |word: &String| if is_address(word) { address.clone() } else { word.clone() };
        let command: Vec<String> = command[1..].iter().map(place).collect();
        running.push(Running(cargo(&command).spawn().unwrap()));
        let address = Some(&*address).filter(|_| !client);
        running.last_mut().expect("just started").serves_or_ends(address);
    }
}

fn cargo(arguments: &[String]) -> Command {
    let mut run = Command::new("cargo");
    run.args(arguments).current_dir(root()).stdin(Stdio::piped()).process_group(0);
    if std::env::var_os("CARGO_TARGET_DIR").is_none() {
        // The other workspace builds nothing again that is built already.
        run.env("CARGO_TARGET_DIR", root().join("target"));
    }
    run
}

/// Cargo, which leads a process group with the example in it. Ends with the test.
struct Running(Child);

impl Running {
    /// Waits until it has ended well, or answers at its address, by TCP or UDP.
    fn serves_or_ends(&mut self, address: Option<&str>) {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let answers = |address: &str| {
            // Refused until the server is bound.
            let _maybe = client.send_to(b"reflect", address);
            client.recv(&mut [0; 9]).is_ok() || TcpStream::connect(address).is_ok()
        };
        let began = Instant::now();
        while !address.is_some_and(answers) {
            if let Some(status) = self.0.try_wait().unwrap() {
                return assert!(status.success(), "{status}");
            }
            assert!(began.elapsed() < PATIENCE, "the example neither answers nor ends");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _gone = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _reaped = self.0.wait();
    }
}
