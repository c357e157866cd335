//! Full or closed standard output and standard error end no running server, and cause an exit code
//! if a result is lost.

use crate::clients::{Kind, Setup};
use crate::support::{PATIENCE, Signal, connect, pattern, ping};
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
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

fn twinring(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
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
fn an_unprintable_result_is_an_error_unless_the_reader_left(engine: &str) {
    let setup = Setup::start(Kind::Echo, "epoll", &[]);
    let target = setup.target.address.to_string();
    let ends = |output: &Output, code: i32, told: &str, what: &[&str]| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{what:?}: {said}");
        assert!(said.contains(told) && !said.contains("panicked"), "{what:?}: {said}");
    };
    let load = ["load", "tcp", &target, "-n", "100", "--json", "--engine", engine, "-c", "10"];
    for arguments in SHORT.into_iter().chain([&load[..]]) {
        let output = twinring(arguments).stdout(full()).output().expect("it starts");
        ends(&output, 1, "cannot write to standard output: No space left", arguments);
        let output = twinring(arguments).stdout(left()).output().expect("it starts");
        ends(&output, 0, "", arguments);
        // No message can be printed then, which is no reason to panic.
        let code = twinring(arguments).stdout(full()).stderr(full()).status();
        assert_eq!(code.expect("it starts").code(), Some(1), "{arguments:?}");
    }
    println!("{engine}: {} commands fail when their result cannot be printed", SHORT.len() + 1);
    let arguments = ["lab", "verify", "/nowhere"];
    let code = twinring(&arguments).stdout(full()).stderr(full()).status();
    assert_eq!(code.expect("it starts").code(), Some(1));
}

/// An otherwise unused address of this machine: the output does not show which one it is.
fn own_address() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 100 + (high & 63), low, COUNT.fetch_add(1, Relaxed)], 7007))
}

fn wait_for(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        if Instant::now() > deadline {
            child.kill().expect("it runs");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn a_server_goes_on_without_output(engine: &str) {
    for (name, out) in [("full", full as fn() -> Stdio), ("gone", left)] {
        let address = own_address().to_string();
        let arguments = ["serve", "echo", "--listen", &address, "--engine", engine];
        let mut command = twinring(&[&arguments[..], &["--stats", "1", "--json"]].concat());
        let mut child = command.stdout(out()).stderr(out()).spawn().expect("it starts");
        let began = Instant::now();
        let stream = loop {
            match TcpStream::connect(&address) {
                Ok(stream) => break stream,
                Err(_) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => panic!("{engine}: no listener: {error}"),
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
        assert_eq!(wait_for(&mut child), Some(0), "{engine} {name}");
        assert_eq!((&peer).read(&mut [0; 10]).expect("an orderly end"), 0);
        println!("{engine}: served with standard output and standard error {name}, ended with 0");
    }
}
