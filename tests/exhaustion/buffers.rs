//! The smallest pools of receive buffers, and thousands of connections that all have data: every
//! byte comes back, and those who send little are served among those who send much.

use crate::crowd::{KINDS, Kind, Scene, Witness};
use crate::limits::{Usage, crowds_leave_nothing, make_room_for_crowds};
use crate::support::datagrams::{assert_balanced, client, number_of, numbered};
use crate::support::{ENGINES, Server, assert_same, connect, pattern, wait_until};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

/// Every kind of pool, as small as they go.
const POOLS: [(&str, &str); 4] = [
    ("io_uring", "buffers=ring,buffer_count=4,buffer_bytes=64"),
    ("io_uring", "buffers=incremental,buffer_count=4,buffer_bytes=64"),
    ("io_uring", "buffers=legacy,buffer_count=4,buffer_bytes=64"),
    ("epoll", "buffer_count=4,buffer_bytes=64"),
];

fn flag(engine: &str) -> &'static str {
    if engine == "io_uring" { "--uring" } else { "--epoll" }
}

/// As for descriptors.
const TOLERANCE_BYTES: u64 = 2 << 20;

#[test]
fn thousands_with_data_share_four_small_buffers() {
    const CONNECTIONS: u64 = 2000;
    const BYTES: usize = 640;
    const ROUNDS_MAX: u64 = 5;
    make_room_for_crowds();
    for (engine, pool) in POOLS {
        let scene = Scene::start(Kind::Echo, engine, &[flag(engine), pool]);
        let (server, address) = (&scene.server, scene.target.address);
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
        let witness = Witness::of(&scene.target);
        // A server that was kept from the CPU has more to hold at once; a leak comes in each round.
        let leaves_nothing = |number| {
            let before = server.memory_bytes();
            round(number);
            server.memory_bytes().saturating_sub(before) <= TOLERANCE_BYTES
        };
        let settled = (1..ROUNDS_MAX).any(leaves_nothing);
        let served = witness.end();
        assert!(settled, "{engine} {pool}: each round left more than {TOLERANCE_BYTES} bytes");
        drop(peers);
        let ended = scene.server.terminate();
        assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
        let bytes = ended.count("received_bytes");
        assert_eq!(bytes, ended.count("sent_bytes"), "{}", ended.last);
        let found_none = &ended.last["runtime_counters"]["enobufs"];
        let copied_out = &ended.last["runtime_counters"]["copied_out"];
        println!(
            "{engine} {pool}: {CONNECTIONS} connections, {bytes} bytes there and back; {found_none} \
             receives found no buffer, {copied_out} pieces were copied out; {served}"
        );
    }
}

#[test]
fn files_and_handshakes_need_no_more_than_four_small_buffers() {
    for (engine, pool) in POOLS {
        for kind in KINDS {
            let scene = Scene::start(kind, engine, &[flag(engine), pool]);
            let crowd = |count: u64| {
                std::thread::scope(|scope| {
                    for number in 0..count {
                        let target = &scene.target;
                        scope.spawn(move || {
                            let mut guest = target.visit();
                            (0..3).for_each(|round| assert!(guest.ask(number << 8 | round)));
                            assert!(guest.ask_for_much(number));
                        });
                    }
                });
            };
            let mut served = None;
            let growth = crowds_leave_nothing(TOLERANCE_BYTES, || {
                let witness = Witness::of(&scene.target);
                crowd(60);
                served = Some(witness.end());
                Usage::at_rest(&scene.server, scene.listeners)
            });
            let served = served.expect("crowds came");
            let ended = scene.server.terminate();
            assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
            println!("{engine} {kind:?} {pool}: crowds of 60 connections; {served}; {growth}");
        }
    }
}

/// A reflector may drop datagrams for which there is no room; what it answers is unchanged, and
/// what it takes is answered or counted.
#[test]
fn a_reflector_with_four_buffers_answers_what_it_takes() {
    const SOURCES: u64 = 300;
    for engine in ENGINES {
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
        // Whoever asks one at a time is answered each time.
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
}
