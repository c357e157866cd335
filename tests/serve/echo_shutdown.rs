//! `twinring serve echo` ending: draining, stopping at once, and failing with a reason.

use crate::support::*;
use nix::fcntl::{FcntlArg, fcntl};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] =
    tests![a_drain_closes_idle_connections_and_stops_accepting, failures_state_the_cause_and_a_fix];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    a_drain_delivers_received_data_to_a_slow_reader,
    a_busy_connection_continues_during_the_drain_until_it_pauses,
    ready_statistics_and_final_lines_keep_the_contract,
    the_drain_timeout_resets_remaining_connections,
    a_second_signal_stops_at_once,
    unread_final_lines_block_no_server
];

/// For tests of closed listeners: no other program listens on this address, so a free port stays
/// free.
const OWN_ADDRESS: &str = "127.0.0.8:0";

/// A connection that is silent for this long during a drain is closed.
const DRAIN_PAUSE: Duration = Duration::from_millis(100);

fn a_drain_closes_idle_connections_and_stops_accepting() {
    for (engine, signal) in [("io_uring", Signal::SIGTERM), ("epoll", Signal::SIGINT)] {
        // A drain that waited for these peers would exceed the patience of the test.
        let server = Server::echo_on(OWN_ADDRESS, engine, &["--drain-timeout", "300s"]);
        let address = server.address();
        let peers: Vec<TcpStream> = (0..50).map(|_| connect(address)).collect();
        peers.iter().for_each(|peer| ping(peer, b"before"));
        server.signal(signal);
        for peer in &peers {
            assert_eq!(read_to_end(peer).expect("FIN, no reset"), b"");
        }
        assert!(TcpStream::connect(address).is_err(), "{engine}: still accepting");
        let ended = server.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(ended.last["event"], "final");
        assert_eq!(ended.last["reason"], signal.as_str());
        assert_eq!((ended.count("closed"), ended.count("cut")), (50, 0));
        println!("{engine}: {signal} closed 50 idle connections");
    }
}

fn a_drain_delivers_received_data_to_a_slow_reader(engine: &str) {
    let server = Server::echo(engine, &["--drain-timeout", "300s"]);
    let sent = pattern(1, 32 << 20);
    let slow = connect(server.address());
    // All before the signal: a writer that is kept from the CPU would pause, and a pause ends
    // the drain. The peer does not read, so most of it is still to be delivered.
    let written = write_until_stuck(&slow, &sent);
    assert!(written < sent.len(), "{engine}: not stuck");
    slow.shutdown(Shutdown::Write).unwrap();
    server.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(300));
    let received = read_to_end(&slow).expect("FIN, no reset");
    assert_same(&received, &sent[..written]);
    let ended = server.wait();
    assert_eq!((ended.code, ended.count("cut")), (Some(0), 0));
    println!("{engine}: {} bytes delivered during the drain", received.len());
}

fn a_busy_connection_continues_during_the_drain_until_it_pauses(engine: &str) {
    wait_until("50 round trips without a pause", || is_served_during_a_drain(engine));
    println!("{engine}: 50 round trips after the signal");
}

/// False if it was this end that paused: it may be kept from the CPU.
fn is_served_during_a_drain(engine: &str) -> bool {
    let server = Server::echo(engine, &["--drain-timeout", "300s"]);
    let peer = connect(server.address());
    let mut asked = Instant::now();
    ping(&peer, b"before");
    server.signal(Signal::SIGTERM);
    for number in 0..50 {
        // The last answer cannot have left before its question.
        let silent_since = std::mem::replace(&mut asked, Instant::now());
        if let Err(error) = try_ping(&peer, &pattern(number, 1000)) {
            let silent = silent_since.elapsed();
            assert!(silent >= DRAIN_PAUSE, "{engine}: {error} after {silent:?} at most");
            return false;
        }
    }
    assert_eq!(read_to_end(&peer).unwrap(), b"");
    assert_eq!(server.wait().code, Some(0));
    true
}

fn the_drain_timeout_resets_remaining_connections(engine: &str) {
    let bytes = pattern(2, 48 << 20);
    let server = Server::echo(engine, &["--drain-timeout", "500ms"]);
    let stuck = connect(server.address());
    write_until_stuck(&stuck, &bytes);
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.count("cut"), 1);
    assert!(read_to_end(&stuck).is_err(), "{engine}: a truncated stream ended cleanly");
    println!("{engine}: cut after the timeout");
}

fn a_second_signal_stops_at_once(engine: &str) {
    let bytes = pattern(3, 48 << 20);
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let arguments = ["--drain-timeout", "300s", "--workers", "2"];
        let server = Server::echo_on(OWN_ADDRESS, engine, &arguments);
        let address = server.address();
        let stuck = connect(address);
        write_until_stuck(&stuck, &bytes);
        server.signal(signal);
        // It has been heard: two signals that wait to be heard are one.
        wait_until("no connection is accepted", || TcpStream::connect(address).is_err());
        // Not the same moment: that would be one request sent twice, as timeout(1) does.
        std::thread::sleep(Duration::from_millis(200));
        server.signal(signal);
        let ended = server.wait();
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert_eq!(ended.last["reason"], format!("second signal: {signal}"));
        drop(stuck);
        println!("{engine}: {signal} twice gives {code}");
    }
}

fn failures_state_the_cause_and_a_fix() {
    let server = Server::echo("epoll", &[]);
    let taken = server.address().to_string();
    for workers in ["1", "2"] {
        let (code, out, error) = run(&["serve", "echo", "--listen", &taken, "--workers", workers]);
        assert_eq!((code, out.as_str()), (Some(1), ""));
        assert!(error.contains(&taken) && error.contains("in use"), "{error}");
        assert!(error.contains("choose another port"), "{error}");
    }
    let (code, _, error) = run(&["serve", "echo", "--listen", "192.0.2.1:7400", "--allow", "any"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("192.0.2.1:7400") && error.contains("ip address"), "{error}");
    let wrong: [&[&str]; 11] = [
        &["--listen", "nonsense"],
        &["--listen", "127.0.0.1:99999"],
        &["--engine", "kqueue"],
        &["--workers", "0"],
        &["--workers", "1025"],
        &["--pin", "3-1"],
        &["--uring", "multishot=perhaps"],
        &["--epoll", "trigger=edge"],
        &["--max-connections", "0"],
        &["--idle-timeout", "0s"],
        &["--drain-timeout", "soon"],
    ];
    for arguments in wrong {
        let (code, out, error) = run(&[&["serve", "echo"], arguments].concat());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(error.contains(arguments[0]), "{arguments:?}: {error}");
    }
    println!("3 failures and {} wrong arguments were explained", wrong.len());
}

fn ready_statistics_and_final_lines_keep_the_contract(engine: &str) {
    let server = Server::echo(engine, &["--stats", "1"]);
    assert_eq!(server.ready["schema"], "twinring.serve/1");
    assert_eq!(server.ready["service"], "echo");
    assert_eq!(server.ready["engine"], engine);
    assert!(server.ready["features"].is_object());
    assert!(server.ready["why_not"].is_null());
    ping(&connect(server.address()), &pattern(4, 10_000));
    let stats = server.next_line();
    assert_eq!(stats["event"], "stats");
    let ended = server.terminate();
    let names = |line: &serde_json::Value, group: &str| -> Vec<String> {
        line[group].as_object().expect("an object").keys().cloned().collect()
    };
    for group in ["service_counters", "runtime_counters"] {
        assert_eq!(names(&stats, group), names(&ended.last, group));
    }
    assert_eq!(ended.count("received_bytes"), 10_000);
    assert_eq!(ended.count("sent_bytes"), 10_000);
    let syscalls = &ended.last["runtime_counters"]["syscalls"];
    assert!(syscalls.as_u64().unwrap() > 0);
    println!("{engine}: {syscalls} system calls for one connection");
}

/// The process waited for an unread pipe, and could only be ended by SIGKILL.
fn unread_final_lines_block_no_server(engine: &str) {
    const PIPE_BYTES: usize = 4096;
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES as i32)).expect("a small pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
    command.args(["serve", "echo", "--json", "--listen", "127.0.0.1:0", "--engine", engine]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(writer.try_clone().expect("a descriptor"));
    let mut child = command.spawn().expect("the command starts");
    let mut ready = String::new();
    let mut lines = BufReader::new(reader);
    lines.read_line(&mut ready).expect("the ready line");
    assert!(ready.contains("ready"), "{ready}");
    writer.write_all(&[b' '; PIPE_BYTES]).expect("an empty pipe");
    let process = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(process, Signal::SIGTERM).expect("a process");
    wait_until("it ended", || child.try_wait().expect("a child").is_some());
    assert_eq!(child.wait().expect("a child").code(), Some(0), "{engine}");
}
