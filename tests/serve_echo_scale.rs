//! `twinring serve echo` with many connections at once.

mod support;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use support::*;
use testing::{Test, engine_tests};

const ENGINE_TESTS: &[Test] = engine_tests![fifteen_thousand_connections_at_once_all_echo];

fn main() -> std::process::ExitCode {
    testing::run(&[ENGINE_TESTS])
}

/// 15,000, or what the hard limit of descriptors allows.
fn connections_possible() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    15_000.min(hard as usize - 200)
}

/// One after the other: each takes most of the descriptors of this process.
static ALONE: Mutex<()> = Mutex::new(());

fn fifteen_thousand_connections_at_once_all_echo(engine: &str) {
    testing::needs_descriptors(5_000);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let count = connections_possible();
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
    drop(peers);
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.count("accepted"), count as u64 + 1);
    println!("{engine}: {count} connections, {each} bytes each");
}
