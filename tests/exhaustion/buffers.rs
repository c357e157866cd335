//! The smallest pools of receive buffers, and thousands of connections that all have data: every
//! byte comes back, and clients that send little are served among those that send much.

use crate::clients::{KINDS, Kind, OtherClient, Setup};
use crate::limits::{TESTS_DESCRIPTORS, Usage, clients_leave_nothing};
use crate::support::datagrams::{assert_balanced, client, number_of, numbered};
use crate::support::{Server, assert_same, connect, pattern, wait_until};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    a_reflector_with_four_buffers_answers_what_it_takes,
    thousands_with_data_share_four_small_buffers,
    files_and_handshakes_need_no_more_than_four_small_buffers
];

/// A pool as small as they go.
const POOL: &str = "buffer_count=4,buffer_bytes=64";

fn flag(engine: &str) -> &'static str {
    if engine == "io_uring" { "--uring" } else { "--epoll" }
}

/// As for descriptors.
const TOLERANCE_BYTES: u64 = 2 << 20;

fn thousands_with_data_share_four_small_buffers(engine: &str) {
    const CONNECTIONS: u64 = 2000;
    const BYTES: usize = 640;
    const ROUNDS_MAX: u64 = 5;
    testing::needs_descriptors(TESTS_DESCRIPTORS);
    let setup = Setup::start(Kind::Echo, engine, &[flag(engine), POOL]);
    let (server, address) = (&setup.server, setup.target.address);
    let peers: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(address)).collect();
    let round = |round: u64| {
        // All have sent before the first answer is read.
        for (number, mut peer) in (0..).zip(&peers) {
            peer.write_all(&pattern(number ^ round << 32, BYTES)).expect("room in a socket");
        }
        for (number, mut peer) in (0..).zip(&peers) {
            let mut back = [0; BYTES];
            peer.read_exact(&mut back).expect("all of it");
            assert_same(&back, &pattern(number ^ round << 32, BYTES));
        }
    };
    round(0);
    let other = OtherClient::of(&setup.target);
    // A server that was kept from the CPU uses more at once; a leak occurs in each round.
    let leaves_nothing = |number| {
        let before = server.memory_bytes();
        round(number);
        server.memory_bytes().saturating_sub(before) <= TOLERANCE_BYTES
    };
    let settled = (1..ROUNDS_MAX).any(leaves_nothing);
    let served = other.end();
    assert!(settled, "{engine}: each round left more than {TOLERANCE_BYTES} bytes");
    drop(peers);
    let ended = setup.server.terminate();
    assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
    let bytes = ended.count("received_bytes");
    assert_eq!(bytes, ended.count("sent_bytes"), "{}", ended.last);
    let found_none = &ended.last["runtime_counters"]["enobufs"];
    let copied_out = &ended.last["runtime_counters"]["copied_out"];
    println!(
        "{engine}: {CONNECTIONS} connections, {bytes} bytes there and back; {found_none} \
         receives found no buffer, {copied_out} chunks were copied out; {served}"
    );
}

fn files_and_handshakes_need_no_more_than_four_small_buffers(engine: &str) {
    for kind in KINDS {
        let setup = Setup::start(kind, engine, &[flag(engine), POOL]);
        let clients = |count: u64| {
            std::thread::scope(|scope| {
                for number in 0..count {
                    let target = &setup.target;
                    scope.spawn(move || {
                        let mut session = target.connect();
                        (0..3).for_each(|round| assert!(session.ask(number << 8 | round)));
                        assert!(session.request_much(number));
                    });
                }
            });
        };
        let mut served = None;
        let growth = clients_leave_nothing(TOLERANCE_BYTES, || {
            let other = OtherClient::of(&setup.target);
            clients(60);
            served = Some(other.end());
            Usage::at_rest(&setup.server, setup.listeners)
        });
        let served = served.expect("clients were served");
        let ended = setup.server.terminate();
        assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
        println!("{engine} {kind:?}: 60 connections at a time; {served}; {growth}");
    }
}

/// A reflector may drop datagrams without a free buffer; its answers are unchanged, and every
/// datagram that it received is answered or counted.
fn a_reflector_with_four_buffers_answers_what_it_takes(engine: &str) {
    const SOURCES: u64 = 300;
    let server = Server::udp(engine, &["--buffers", "4"]);
    let sources: Vec<UdpSocket> = (0..SOURCES).map(|_| client(server.address())).collect();
    for round in 0..20 {
        for (number, source) in (0..).zip(&sources) {
            source.send(&numbered(number, round, 700)).expect("room in a socket");
        }
    }
    let mut answers = 0_u64;
    for (number, source) in (0..).zip(&sources) {
        source.set_nonblocking(true).expect("a socket");
        let mut bytes = [0; 1000];
        let mut seen = HashSet::new();
        while let Ok(length) = source.recv(&mut bytes) {
            let round = number_of(number, &bytes[..length]);
            assert!(seen.insert(round), "{engine}: {round} came twice");
            answers += 1;
        }
    }
    // A client that sends one at a time is answered each time.
    let own = client(server.address());
    wait_until("it has come to rest", || {
        own.send(b"still there?").expect("room");
        own.set_read_timeout(Some(std::time::Duration::from_millis(200))).expect("a socket");
        own.recv(&mut [0; 100]).is_ok()
    });
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let sent = assert_balanced(&ended);
    let dropped = ended.count("kernel_drops");
    println!(
        "{engine}: {} datagrams, {answers} answers seen by then, {sent} in the end, {dropped} \
         dropped by the kernel",
        SOURCES * 20
    );
}
