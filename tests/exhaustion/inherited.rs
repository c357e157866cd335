//! What a process inherits does not change what the command does: blocked and ignored signals, limits of files,
//! standard output that is non-blocking or closed.

use crate::support::http::{Site, ask, get, talk_until_closed};
use crate::support::{Server, Signal, wait_until};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    commands_end_on_signals_that_the_parent_blocked,
    commands_end_on_sigterm_that_the_parent_ignored,
    the_lab_waits_for_its_children_though_sigchld_was_ignored,
    a_limit_of_file_sizes_costs_log_lines_and_no_server,
    a_result_is_printed_whole_to_a_non_blocking_pipe,
    a_log_is_written_whole_to_a_non_blocking_pipe,
    a_result_for_a_closed_output_is_an_error,
];

const TWINRING: &str = env!("CARGO_BIN_EXE_twinring");

/// The command, started by env(1) with an option about signals. (The standard library's `Command` unblocks all.)
fn by_env(option: &str) -> Command {
    let tried = Command::new("env").args([option, "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        testing::needs("env of coreutils 8.31", option);
    }
    let mut command = Command::new("env");
    command.args([option, TWINRING]);
    command
}

fn serving(mut command: Command) -> Server {
    command.args(["serve", "echo", "--json", "--listen", "127.0.0.1:0"]);
    Server::spawn(command)
}

/// A JVM, .NET and Ruby block signals in their children: only SIGKILL ended a server.
fn commands_end_on_signals_that_the_parent_blocked() {
    for (signal, reason) in [(Signal::SIGTERM, "SIGTERM"), (Signal::SIGINT, "SIGINT")] {
        let server = serving(by_env("--block-signal=HUP,INT,TERM"));
        server.signal(signal);
        let ended = server.wait();
        assert_eq!((ended.code, &ended.last["reason"]), (Some(0), &reason.into()));
    }
    // Without a handler of its own.
    let mut command = by_env("--block-signal=HUP,INT,TERM");
    assert_ends_on_sigterm(command.args(["probe", "--measure"]));
}

fn commands_end_on_sigterm_that_the_parent_ignored() {
    let server = serving(by_env("--ignore-signal=TERM"));
    assert_eq!(server.terminate().code, Some(0));
    assert_ends_on_sigterm(by_env("--ignore-signal=TERM").args(["probe", "--measure"]));
}

/// `probe --measure` takes seconds.
fn assert_ends_on_sigterm(command: &mut Command) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    // Until the command is itself, and not env(1), which blocks and ignores the signal as well.
    let name = format!("/proc/{}/comm", child.id());
    wait_until("it runs", || {
        fs::read_to_string(&name).is_ok_and(|name| name.starts_with("twinring"))
    });
    let mask = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let of = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            u64::from_str_radix(line.unwrap_or("0").trim(), 16).expect("a mask")
        };
        (of("SigBlk:") | of("SigIgn:")) & 1 << 14
    };
    wait_until("SIGTERM arrives", || mask() == 0);
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, Signal::SIGTERM).expect("it runs");
    let mut status = None;
    wait_until("it ends", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.and_then(|status| status.signal()), Some(Signal::SIGTERM as i32));
}

/// With SIG_IGN there is no exit status to wait for (wait(2)): all runs were void, "unknown end".
fn the_lab_waits_for_its_children_though_sigchld_was_ignored() {
    let out = tempfile::tempdir().expect("a directory");
    let mut command = by_env("--ignore-signal=CHLD");
    command.args(["lab", "run", "quick", "--protocol", "tcp", "--set", "bytes=128"]);
    command.args(["--set", "connections=2"]);
    command.args(["--pairs", "1", "--window", "0.1", "--warmup", "0.05", "--no-prices", "--out"]);
    let output = command.arg(out.path()).output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!told.contains("unknown end") && told.contains("quick"), "{told}");
}

/// SIGXFSZ ended the server when its log reached the limit.
fn a_limit_of_file_sizes_costs_log_lines_and_no_server() {
    let (site, logs) = (Site::usual(), Site::new());
    let log = logs.path().join("log");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 1; exec \"$@\"", "sh", TWINRING, "serve", "http", "--json"]);
    command.args(["--listen", "127.0.0.1:0", "--engine", "epoll", "--root"]).arg(site.path());
    command.arg("--access-log").arg(&log);
    let server = Server::spawn(command);
    for _ in 0..100 {
        assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    }
    let ended = server.terminate();
    let [lines, lost] = ["log_lines", "log_dropped"].map(|name| ended.count(name));
    assert_eq!((ended.code, ended.count("requests")), (Some(0), 100));
    assert!(lost > 0 && lines > 0 && lines + lost == 100, "{lines} lines, {lost} lost");
}

/// Like a pipe that was shared with node, bun or ssh.
fn non_blocking_pipe() -> (std::io::PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a pipe");
    fcntl(writer.as_fd(), FcntlArg::F_SETPIPE_SZ(4096)).expect("a pipe");
    (reader, Stdio::from(writer))
}

/// What a reader gets that begins late and reads slowly.
fn read_slowly(mut reader: std::io::PipeReader) -> String {
    let mut text = Vec::new();
    let mut chunk = [0; 1000];
    std::thread::sleep(Duration::from_millis(200));
    while let length @ 1.. = reader.read(&mut chunk).expect("a pipe") {
        text.extend_from_slice(&chunk[..length]);
        std::thread::sleep(Duration::from_millis(2));
    }
    String::from_utf8(text).expect("text")
}

/// EAGAIN was taken for a failure: half of the result, and exit code 1.
fn a_result_is_printed_whole_to_a_non_blocking_pipe() {
    let arguments = ["lab", "show", "quick"];
    let expected = Command::new(TWINRING).args(arguments).output().expect("it starts").stdout;
    let arguments_of_help = ["load", "http", "--help"];
    let help = Command::new(TWINRING).args(arguments_of_help).output().expect("it starts").stdout;
    assert!(help.len() > 4096, "more than the pipe holds");
    for (arguments, expected) in [(&arguments[..], expected), (&arguments_of_help, help)] {
        let (reader, writer) = non_blocking_pipe();
        let mut command = Command::new(TWINRING);
        let mut child = command.args(arguments).stdout(writer).spawn().expect("it starts");
        // The pipe ends when nobody else can write to it.
        drop(command);
        assert_eq!(read_slowly(reader).as_bytes(), expected, "{arguments:?}");
        assert_eq!(child.wait().expect("a child").code(), Some(0));
    }
}

fn a_log_is_written_whole_to_a_non_blocking_pipe() {
    let site = Site::usual();
    let (reader, writer) = non_blocking_pipe();
    let mut command = Command::new(TWINRING);
    command.args(["serve", "http", "--listen", "127.0.0.8:0", "--access-log", "-"]);
    command.arg("--root").arg(site.path()).stdout(writer).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    drop(command);
    let mut reader = reader;
    let mut head = [0; 400];
    let length = reader.read(&mut head).expect("a pipe");
    let ready = String::from_utf8_lossy(&head[..length]).into_owned();
    let address = ready.split_once(" on ").and_then(|(_, rest)| rest.split([',', ';']).next());
    let address: std::net::SocketAddr = address.expect("an address").parse().expect("an address");
    let reading = std::thread::spawn(move || read_slowly(reader));
    // More than the pipe holds.
    let last = get("/hello.txt", "Connection: close\r\n");
    let requests = get("/hello.txt", "").repeat(300) + &last;
    let answers = talk_until_closed(address, requests.as_bytes());
    assert_eq!(String::from_utf8_lossy(&answers).matches("HTTP/1.1 200").count(), 301);
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, Signal::SIGTERM).expect("it runs");
    assert_eq!(child.wait().expect("a child").code(), Some(0));
    let log = reading.join().expect("no panic");
    assert_eq!(log.lines().filter(|line| line.starts_with("127.")).count(), 301, "{log}");
}

/// The standard library opens /dev/null in its place.
fn a_result_for_a_closed_output_is_an_error() {
    for (redirection, code) in [(">&-", 1), (">/dev/null", 0), ("<>/dev/null >&0 2>&0", 0)] {
        let shell = format!("exec \"$@\" {redirection}");
        let status = Command::new("sh")
            .args(["-c", &shell, "sh", TWINRING, "lab", "list"])
            .stderr(Stdio::null())
            .status();
        assert_eq!(status.expect("it starts").code(), Some(code), "{redirection}");
    }
}
