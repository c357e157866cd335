//! What a process inherits does not change what the command does: blocked and ignored signals, limits of files,
//! standard output and error that are non-blocking, full or closed.

use crate::support::http::{Site, ask, ask_on, get, talk_until_closed};
use crate::support::tls::Identity;
use crate::support::*;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

pub(crate) const TESTS: &[Test] = tests![
    commands_end_on_signals_that_the_parent_blocked_or_ignored,
    the_lab_waits_for_its_children_though_sigchld_was_ignored,
    a_limit_of_file_sizes_costs_log_lines_and_no_server,
    a_result_is_printed_whole_to_a_non_blocking_pipe,
    a_log_is_written_whole_to_a_non_blocking_pipe,
    a_server_goes_on_without_output,
    an_unprintable_result_is_an_error_unless_the_reader_left,
];

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

/// SIGTERM, and how the process ends.
fn end(child: &mut Child) -> ExitStatus {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
    let mut status = None;
    wait_until("it ends", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    status.expect("an end")
}

/// A JVM, .NET and Ruby block signals in their children: only SIGKILL ended a server.
fn commands_end_on_signals_that_the_parent_blocked_or_ignored() {
    for (option, signal) in [
        ("--block-signal=HUP,INT,TERM", Signal::SIGTERM),
        ("--block-signal=HUP,INT,TERM", Signal::SIGINT),
        ("--ignore-signal=TERM", Signal::SIGTERM),
    ] {
        let mut command = by_env(option);
        command.args(["serve", "echo", "--json", "--listen", "127.0.0.1:0"]);
        let server = Server::spawn(command);
        server.signal(signal);
        let ended = server.wait();
        assert_eq!((ended.code, &ended.last["reason"]), (Some(0), &signal.as_str().into()));
        // Without a handler of its own; this takes seconds.
        let mut command = by_env(option);
        command.args(["probe", "--measure"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        // Until the command is itself, and not env(1), which blocks and ignores the signal as well.
        wait_until("SIGTERM arrives", || {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id()));
            let status = status.expect("it runs");
            let mask = |field| u64::from_str_radix(&field_of(&status, field), 16).expect("a mask");
            field_of(&status, "Name:") == "twinring"
                && (mask("SigBlk:") | mask("SigIgn:")) & 1 << 14 == 0
        });
        assert_eq!(end(&mut child).signal(), Some(Signal::SIGTERM as i32));
    }
}

/// With SIG_IGN there is no exit status to wait for (wait(2)): all runs were void, "unknown end".
fn the_lab_waits_for_its_children_though_sigchld_was_ignored() {
    let out = tempfile::tempdir().expect("a directory");
    let mut command = by_env("--ignore-signal=CHLD");
    let quick = "lab run quick --protocol tcp --set bytes=128 --set connections=2 --pairs 1 --window 0.1 \
                 --warmup 0.05 --no-prices --out";
    command.args(quick.split_whitespace());
    let (_, stdout, stderr) = run_to_its_end(command.arg(out.path()));
    let told = stdout + &stderr;
    assert!(!told.contains("unknown end") && told.contains("quick"), "{told}");
}

/// SIGXFSZ ended the server when its log reached the limit.
fn a_limit_of_file_sizes_costs_log_lines_and_no_server() {
    let (site, logs) = (Site::usual(), Site::new());
    let arguments = ["--root", &site.file("."), "--access-log", &logs.file("log")];
    let server = Server::start(limited("-f 1"), "http", "epoll", &arguments);
    for _ in 0..100 {
        assert_eq!(ask(&server, &get("/hello.txt", "")).status, 200);
    }
    let ended = server.terminate();
    let [lines, lost] = ["log_lines", "log_dropped"].map(|name| ended.count(name));
    ended.expect(0, &[("requests", 100)]);
    assert!(lost > 0 && lines > 0 && lines + lost == 100, "{lines} lines, {lost} lost");
}

/// A small pipe; a non-blocking one is like those that are shared with node, bun or ssh.
fn pipe(flags: OFlag) -> (std::io::PipeReader, OwnedFd) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(flags)).expect("a pipe");
    fcntl(writer.as_fd(), FcntlArg::F_SETPIPE_SZ(4096)).expect("a pipe");
    (reader, writer.into())
}

/// What a reader gets that begins late and reads slowly.
fn read_slowly(mut reader: std::io::PipeReader) -> String {
    let mut text = Vec::new();
    let mut chunk = [0; 1000];
    thread::sleep(Duration::from_millis(200));
    while let length @ 1.. = reader.read(&mut chunk).expect("a pipe") {
        text.extend_from_slice(&chunk[..length]);
        thread::sleep(Duration::from_millis(2));
    }
    String::from_utf8(text).expect("text")
}

/// EAGAIN was taken for a failure: half of the result, and exit code 1.
fn a_result_is_printed_whole_to_a_non_blocking_pipe() {
    for arguments in [["lab", "show", "quick"], ["load", "http", "--help"]] {
        let (_, expected, _) = run(&arguments);
        let (reader, writer) = pipe(OFlag::O_NONBLOCK);
        let mut child = twinring().args(arguments).stdout(writer).spawn().expect("it starts");
        assert_eq!(read_slowly(reader), expected, "{arguments:?}");
        assert_eq!(child.wait().expect("a child").code(), Some(0));
    }
}

fn a_log_is_written_whole_to_a_non_blocking_pipe() {
    let site = Site::usual();
    let (mut reader, writer) = pipe(OFlag::O_NONBLOCK);
    let mut command = twinring();
    command.args(["serve", "http", "--listen", "127.0.0.8:0", "--access-log", "-", "--root"]);
    let mut child = command.arg(site.path()).stdout(writer).spawn().expect("it starts");
    // The pipe ends when nobody else can write to it.
    drop(command);
    let mut head = [0; 400];
    let length = reader.read(&mut head).expect("a pipe");
    let ready = String::from_utf8_lossy(&head[..length]).into_owned();
    let address = ready.split_once(" on ").and_then(|(_, rest)| rest.split([',', ';']).next());
    let address = address.expect("an address").parse().expect("an address");
    let reading = thread::spawn(move || read_slowly(reader));
    // More than the pipe holds.
    let last = get("/hello.txt", "Connection: close\r\n");
    let requests = get("/hello.txt", "").repeat(300) + &last;
    let answers = talk_until_closed(address, requests.as_bytes());
    assert_eq!(String::from_utf8_lossy(&answers).matches("HTTP/1.1 200").count(), 301);
    assert_eq!(end(&mut child).code(), Some(0));
    let log = reading.join().expect("no panic");
    assert_eq!(log.lines().filter(|line| line.starts_with("127.")).count(), 301, "{log}");
}

fn full() -> OwnedFd {
    File::options().write(true).open("/dev/full").expect("/dev/full").into()
}

/// A pipe whose reader has left.
fn left() -> OwnedFd {
    std::io::pipe().expect("a pipe").1.into()
}

/// `twinring lab list | head -1` ended in a panic, and so did all of `lab` on a full disk. For a closed output the
/// standard library opens /dev/null in its place.
fn an_unprintable_result_is_an_error_unless_the_reader_left() {
    let server = Server::echo("epoll", &[]);
    let target = server.address().to_string();
    let load = ["load", "tcp", &target, "-n", "100", "--json", "-c", "10"];
    for arguments in [&["probe"][..], &["probe", "--json"], &["lab", "list"], &load] {
        let ends = |stdout: OwnedFd, code: i32, words: &str| {
            let output = twinring().args(arguments).stdout(stdout).output().expect("it starts");
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
            assert!(told.contains(words) && !told.contains("panicked"), "{arguments:?}: {told}");
        };
        ends(full(), 1, "cannot write to standard output: No space left");
        ends(left(), 0, "");
        // No message can be printed then, which is no reason to panic.
        let code = twinring().args(arguments).stdout(full()).stderr(full()).status();
        assert_eq!(code.expect("it starts").code(), Some(1), "{arguments:?}");
    }
    for (redirection, code) in [(">&-", 1), (">/dev/null", 0), ("<>/dev/null >&0 2>&0", 0)] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec \"$@\" {redirection}"), "sh"]);
        shell.args([TWINRING, "lab", "list"]);
        assert_eq!(run_to_its_end(&mut shell).0, Some(code), "{redirection}");
    }
}

/// Neither requests, nor the thread that takes the signals, nor the end of the process wait for output that is full,
/// whose reader has left, or that nobody reads.
fn a_server_goes_on_without_output() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let (site, identity) = (Site::usual(), Identity::new());
    let (_reader, unread) = pipe(OFlag::empty());
    for (number, out) in [full(), left(), unread].into_iter().enumerate() {
        // An otherwise unused address of this machine: the output does not show which one it is.
        let address = format!("127.{}.{low}.{}:7007", 100 + (high & 63), number + 1);
        let (out, errors) = (out.try_clone().expect("a descriptor"), out);
        let mut command = twinring();
        command.args(["serve", "http", "--listen", &address, "--stats", "1", "--json"]);
        command.args(["--access-log", "-", "--root", &site.file(".")]).args(identity.arguments());
        let mut child = command.stdout(out).stderr(errors).spawn().expect("it starts");
        wait_until("it listens", || TcpStream::connect(&address).is_ok());
        let mut peer = connect(address.parse().expect("an address"));
        // Past the first line of statistics, and more lines of the log than the pipe holds.
        for _ in 0..120 {
            assert_eq!(ask_on(&mut peer, &get("/hello.txt", "")).status, 200);
            thread::sleep(Duration::from_millis(10));
        }
        for _ in 0..2 {
            kill(Pid::from_raw(child.id() as i32), Signal::SIGHUP).expect("it runs");
            thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(end(&mut child).code(), Some(0), "{number}");
        assert_eq!(read_to_end(&peer).expect("an orderly end"), b"");
    }
}
