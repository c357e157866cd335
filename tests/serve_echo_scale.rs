//! `twinring serve echo` with many connections: at once, and one after the other.
//!
//! One test at a time: each takes most of this process's descriptors.

mod support;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};
use support::*;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// 15,000, or what the hard limit of descriptors allows.
fn connections_possible() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    15_000.min(hard as usize - 200)
}

#[test]
fn fifteen_thousand_connections_at_once_all_echo() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let count = connections_possible();
    for engine in ENGINES {
        let server = Server::echo(engine, &[]);
        ping(&connect(server.address()), b"warm");
        let before = server.memory_bytes();
        let peers: Vec<TcpStream> = (0..count).map(|_| connect(server.address())).collect();
        for round in 0..2_u64 {
            // All are asked before the first answer is read: all are served at once.
            for (number, mut peer) in peers.iter().enumerate() {
                peer.write_all(&(number as u64 ^ round).to_le_bytes()).unwrap();
            }
            for (number, mut peer) in peers.iter().enumerate() {
                let mut back = [0; 8];
                peer.read_exact(&mut back).unwrap();
                assert_eq!(u64::from_le_bytes(back), number as u64 ^ round);
            }
        }
        let each = server.memory_bytes().saturating_sub(before) / count as u64;
        assert!(each <= 1536, "{engine}: {each} bytes of user memory per idle connection");
        let share = server.cpu_share_while_idle();
        assert!(share < 0.02, "{engine}: {share} of a CPU for {count} idle connections");
        drop(peers);
        let ended = server.terminate();
        assert_eq!(ended.code, Some(0));
        assert_eq!(ended.count("accepted"), count as u64 + 1);
        println!("{engine}: {count} connections, {each} bytes each, {share:.5} of a CPU idle");
    }
}

/// A connection from `local`: with several local addresses, ports do not run out.
fn connect_from(local: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((local, 0)).into()).unwrap();
    socket.connect(&address.into()).expect("the server accepts");
    patient(socket.into())
}

#[test]
fn a_hundred_thousand_short_connections_leak_nothing() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const CONNECTIONS: u32 = 100_000;
    for engine in ENGINES {
        let server = Server::echo(engine, &[]);
        let address = server.address();
        let short = |numbers: std::ops::Range<u32>| {
            for number in numbers {
                let stream = connect_from([127, 0, 0, 2 + (number % 20) as u8], address);
                ping(&stream, &number.to_le_bytes());
                // Some close in good order; all of them would leave the ports in TIME-WAIT.
                if number % 16 != 0 {
                    reset(stream);
                }
            }
        };
        short(0..1000);
        server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
        let (descriptors, memory) = (server.descriptors(), server.memory_bytes());
        std::thread::scope(|scope| {
            scope.spawn(|| short(1000..CONNECTIONS / 2));
            scope.spawn(|| short(CONNECTIONS / 2..CONNECTIONS));
        });
        server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
        assert_eq!(server.descriptors(), descriptors, "{engine}: descriptors leak");
        let growth = server.memory_bytes().saturating_sub(memory);
        assert!(growth < 256 << 10, "{engine}: {growth} bytes leak");
        let ended = server.terminate();
        assert_eq!(ended.count("accepted"), u64::from(CONNECTIONS));
        assert_eq!(ended.count("closed"), u64::from(CONNECTIONS));
        println!("{engine}: {CONNECTIONS} short connections, {growth} bytes grown");
    }
}
