//! Full or closed standard output and standard error end no running server, and cause an exit code
//! if a result is lost.

use crate::support::{PATIENCE, Server, Signal, connect, pattern, ping, twinring, wait_until};
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    a_server_goes_on_without_output,
    an_unprintable_result_is_an_error_unless_the_reader_left
];

fn full() -> Stdio {
    Stdio::from(File::options().write(true).open("/dev/full").expect("/dev/full"))
}

/// A pipe whose reader has left.
fn left() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    Stdio::from(writer)
}

fn command(arguments: &[&str]) -> Command {
    let mut command = twinring();
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Commands that print a result and need no other program.
const SHORT: [&[&str]; 6] = [
    &["probe"],
    &["probe", "--json"],
    &["lab", "list"],
    &["lab", "show", "quick"],
    &["lab", "peers"],
    &["lab", "peers", "--json"],
];

/// `twinring lab list | head -1` ended in a panic, and so did all of `lab` on a full disk.
fn an_unprintable_result_is_an_error_unless_the_reader_left() {
    let server = Server::echo("epoll", &[]);
    let target = server.address().to_string();
    let ends = |output: &Output, code: i32, told: &str, what: &[&str]| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{what:?}: {said}");
        assert!(said.contains(told) && !said.contains("panicked"), "{what:?}: {said}");
    };
    let load = ["load", "tcp", &target, "-n", "100", "--json", "-c", "10"];
    for arguments in SHORT.into_iter().chain([&load[..]]) {
        let output = command(arguments).stdout(full()).output().expect("it starts");
        ends(&output, 1, "cannot write to standard output: No space left", arguments);
        let output = command(arguments).stdout(left()).output().expect("it starts");
        ends(&output, 0, "", arguments);
        // No message can be printed then, which is no reason to panic.
        let code = command(arguments).stdout(full()).stderr(full()).status();
        assert_eq!(code.expect("it starts").code(), Some(1), "{arguments:?}");
    }
    let arguments = ["lab", "verify", "/nowhere"];
    let code = command(&arguments).stdout(full()).stderr(full()).status();
    assert_eq!(code.expect("it starts").code(), Some(1));
}

/// An otherwise unused address of this machine: the output does not show which one it is.
fn own_address() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 100 + (high & 63), low, COUNT.fetch_add(1, Relaxed)], 7007))
}

fn a_server_goes_on_without_output() {
    for (name, out) in [("full", full as fn() -> Stdio), ("gone", left)] {
        let address = own_address().to_string();
        let arguments = ["serve", "echo", "--listen", &address];
        let mut command = command(&[&arguments[..], &["--stats", "1", "--json"]].concat());
        let mut child = command.stdout(out()).stderr(out()).spawn().expect("it starts");
        let began = Instant::now();
        let stream = loop {
            match TcpStream::connect(&address) {
                Ok(stream) => break stream,
                Err(_) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => panic!("no listener: {error}"),
            }
        };
        drop(stream);
        let peer = connect(address.parse().expect("an address"));
        // Past the first line of statistics.
        for number in 0..12 {
            ping(&peer, &pattern(number, 1000));
            std::thread::sleep(Duration::from_millis(100));
        }
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(pid, Signal::SIGTERM).expect("it runs");
        let mut code = None;
        wait_until("it ends", || {
            code = child.try_wait().expect("a child").map(|status| status.code());
            code.is_some()
        });
        assert_eq!(code, Some(Some(0)), "{name}");
        assert_eq!((&peer).read(&mut [0; 10]).expect("an orderly end"), 0);
    }
}
