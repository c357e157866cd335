//! Peers with a window of hardly more than a byte, which read a byte now and then, hundreds at
//! once. They get what they asked for, byte by byte, until they leave in the middle of it.

use crate::peers::{Peer, attackers, source, write_until_stuck};
use crate::siege::{Others, Siege};
use crate::support::http::{Site, get};
use crate::support::{Server, pattern, wait_until};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    echo_peers_that_read_byte_by_byte_get_their_bytes_and_leave_nothing,
    http_peers_that_read_byte_by_byte_get_their_bytes_and_leave_nothing
];

/// Bytes that each of them reads in an attack, and the pause after each.
const SIPS: usize = 30;
const PAUSE: Duration = Duration::from_millis(10);

/// As for those that never read.
const EACH_BYTES_MAX: u64 = 448 << 10;

/// Makes each peer read a byte, and another, and checks those that `expected` returns for the peer
/// and the position.
fn sip(peers: &mut [Peer], expected: impl Fn(usize, usize) -> Option<u8>) {
    let mut read = vec![0; peers.len()];
    wait_until("all have read enough", || {
        for (number, peer) in peers.iter_mut().enumerate() {
            if read[number] == SIPS {
                continue;
            }
            if let [byte] = peer.read(&mut [0]) {
                let wanted = expected(number, read[number]);
                assert!(wanted.is_none_or(|wanted| wanted == *byte), "peer {number}");
                read[number] += 1;
            }
            assert!(!peer.is_gone(), "who reads is not cut");
        }
        thread::sleep(PAUSE);
        read.iter().all(|read| *read == SIPS)
    });
}

fn echo_peers_that_read_byte_by_byte_get_their_bytes_and_leave_nothing(engine: &str) {
    let count = attackers();
    let server = Server::echo(engine, &["--stats", "1"]);
    let address = server.address();
    let growth_bytes_max = count as u64 * EACH_BYTES_MAX;
    let siege = Siege::new("echo, reading bytes", server, Others::Echo, growth_bytes_max);
    let texts: Vec<Arc<[u8]>> = (0..16).map(|text| Arc::from(pattern(text, 8 << 10))).collect();
    siege.withstand(|_| {
        let peer = |number: usize| {
            let text = &texts[number % texts.len()];
            Peer::narrow(source(number), address).saying(text, 64 << 10)
        };
        let mut peers: Vec<Peer> = (0..count).map(peer).collect();
        write_until_stuck(&mut peers);
        sip(&mut peers, |number, at| texts[number % texts.len()].get(at).copied());
    });
}

fn http_peers_that_read_byte_by_byte_get_their_bytes_and_leave_nothing(engine: &str) {
    let count = attackers();
    let site = Site::usual();
    site.write("huge.bin", &vec![b'x'; 16 << 20]);
    let server = Server::http(engine, site.path(), &["--stats", "1"]);
    let address = server.address();
    let growth_bytes_max = count as u64 * EACH_BYTES_MAX;
    let siege = Siege::new("http, reading bytes", server, Others::Http, growth_bytes_max);
    let request: Arc<[u8]> = get("/huge.bin", "").into_bytes().into();
    let status = b"HTTP/1.1 200 OK\r\n";
    siege.withstand(|_| {
        let peer = |number| Peer::narrow(source(number), address).saying(&request, request.len());
        let mut peers: Vec<Peer> = (0..count).map(peer).collect();
        write_until_stuck(&mut peers);
        sip(&mut peers, |_, at| status.get(at).copied());
    });
}
