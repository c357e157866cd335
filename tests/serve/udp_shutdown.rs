//! `twinring serve udp` beginning and ending: lines, signals, failures.

use crate::support::datagrams::*;
use crate::support::*;
use nix::sys::signal::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] =
    tests![failures_state_the_cause_and_a_fix, a_smaller_buffer_than_requested_is_reported];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    sigterm_answers_all_that_was_received_while_more_arrives,
    datagrams_in_the_kernel_at_sigterm_are_answered,
    the_address_is_free_as_soon_as_the_server_has_ended,
    ready_statistics_and_final_lines_keep_the_contract
];

fn sigterm_answers_all_that_was_received_while_more_arrives(engine: &str) {
    for way in [&[][..], &["--workers", "2"]] {
        let server = Server::udp(engine, way);
        let client = client(server.address());
        let ended = Arc::<AtomicBool>::default();
        let (sender, stop) = (client.try_clone().expect("a descriptor"), Arc::clone(&ended));
        let sending = std::thread::spawn(move || {
            // Refused once the socket is closed.
            let mut sent = 0u64;
            while !stop.load(Ordering::Acquire) {
                sent += u64::from(sender.send(&numbered(1, sent as u32, 100)).is_ok());
            }
            sent
        });
        (0..500).for_each(|_| drop(next(&client)));
        let last = server.terminate();
        ended.store(true, Ordering::Release);
        let sent = sending.join().expect("no panic");
        assert_eq!(last.code, Some(0), "{}", last.stderr);
        assert_eq!(last.last["reason"], "SIGTERM");
        assert_eq!((assert_balanced(&last), last.count("waiting")), (last.count("received"), 0));
        // Those beyond came when the socket was closed.
        assert!(last.count("received") + last.count("kernel_drops") <= sent);
        println!("{engine} {way:?}: {} of {sent} received, and answered", last.count("sent"));
    }
}

/// In the kernel when the signal comes, and nothing after it: all are answered.
fn datagrams_in_the_kernel_at_sigterm_are_answered(engine: &str) {
    let server = Server::udp(engine, &[]);
    let client = roomy_client(server.address());
    server.signal(Signal::SIGSTOP);
    burst(&client);
    server.signal(Signal::SIGTERM);
    server.signal(Signal::SIGCONT);
    let ended = server.terminate();
    assert_eq!((ended.code, assert_balanced(&ended)), (Some(0), BURST.into()));
    assert_eq!(numbers(&client), (0..BURST).collect::<Vec<_>>());
    println!("{engine}: {BURST} were answered after the signal");
}

fn the_address_is_free_as_soon_as_the_server_has_ended(engine: &str) {
    // On an address of its own: no other program gets the port in between.
    let first = Server::udp(engine, &["--listen", "127.0.0.9:0"]);
    let address = first.address();
    reflected(&client(address), b"first");
    assert_eq!(first.terminate().code, Some(0));
    let second = Server::udp(engine, &["--listen", &address.to_string()]);
    reflected(&client(address), b"second");
    second.kill();
    let third = Server::udp(engine, &["--listen", &address.to_string(), "--workers", "2"]);
    reflected(&client(address), b"third");
    drop(third);
    println!("{engine}: {address} was bound three times in a row");
}

fn ready_statistics_and_final_lines_keep_the_contract(engine: &str) {
    let arguments = ["--stats", "1", "--workers", "2"];
    let server = Server::udp(engine, &arguments);
    assert_eq!(server.ready["schema"], "twinring.serve/1");
    assert_eq!(server.ready["service"], "udp");
    assert_eq!(server.ready["engine"], engine);
    assert_eq!(server.ready["workers"], 2);
    let udp = &server.ready["udp"];
    assert_eq!(udp["max_datagram_bytes"], 65_535);
    assert!(udp["granted"]["recv_buffer_bytes"].as_u64().unwrap() > 0);
    assert!(udp["granted"]["send_buffer_bytes"].as_u64().unwrap() > 0);
    burst(&client(server.address()));
    let mut stats = serde_json::Value::Null;
    wait_until("all are in the statistics", || {
        stats = server.next_line();
        stats["service_counters"]["received"] == BURST
    });
    assert_eq!(stats["event"], "stats");
    assert_eq!(stats["service_counters"]["received_bytes"], 64 * BURST);
    let ended = server.terminate();
    for group in ["service_counters", "runtime_counters"] {
        let names = |line: &serde_json::Value| -> Vec<String> {
            line[group].as_object().expect("an object").keys().cloned().collect()
        };
        assert_eq!(names(&stats), names(&ended.last));
    }
    assert_eq!(assert_balanced(&ended), u64::from(BURST));
    println!("{engine}: {} counters", ended.last["service_counters"].as_object().unwrap().len());
}

fn failures_state_the_cause_and_a_fix() {
    let server = Server::udp("epoll", &[]);
    let taken = server.address().to_string();
    for workers in ["1", "2"] {
        let (code, out, error) = run(&["serve", "udp", "--listen", &taken, "--workers", workers]);
        assert_eq!((code, out.as_str()), (Some(1), ""));
        assert!(error.contains(&taken) && error.contains("in use"), "{error}");
        assert!(error.contains("ss -lunp") && error.contains("choose another port"), "{error}");
    }
    let (code, _, error) = run(&["serve", "udp", "--listen", "192.0.2.1:7400", "--allow", "any"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("192.0.2.1:7400") && error.contains("ip address"), "{error}");
    let wrong: [&[&str]; 14] = [
        &["--listen", "nonsense"],
        &["--listen", "127.0.0.1:99999"],
        &["--engine", "kqueue"],
        &["--workers", "0"],
        &["--max-datagram", "15"],
        &["--max-datagram", "65536"],
        &["--buffers", "1000"],
        &["--buffers", "65536"],
        &["--rcvbuf", "0"],
        &["--sndbuf", "lots"],
        &["--gro", "perhaps"],
        &["--dscp", "64"],
        &["--pending", "4097"],
        &["--batch", "2"],
    ];
    for arguments in wrong {
        let (code, out, error) = run(&[&["serve", "udp"], arguments].concat());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(error.contains(arguments[0]), "{arguments:?}: {error}");
    }
    println!("3 failures and {} wrong arguments were explained", wrong.len());
}

/// Asked for more than the limit allows without the right to exceed it.
fn a_smaller_buffer_than_requested_is_reported() {
    let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max").expect("a limit");
    let limit: u64 = limit.trim().parse().expect("a number");
    let wish = limit + 1_000_000;
    let server = Server::udp("epoll", &["--rcvbuf", &wish.to_string()]);
    let granted = server.ready["udp"]["granted"]["recv_buffer_bytes"].as_u64().expect("a number");
    // Both the wish and the limit count once more for the kernel's bookkeeping.
    if granted < 2 * wish {
        assert_eq!(granted, 2 * limit);
        wait_until("that is told", || server.stderr().contains("net.core.rmem_max"));
    }
    println!("asked {wish}, limit {limit}, granted {granted}");
}
