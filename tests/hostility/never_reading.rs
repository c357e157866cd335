//! Peers that ask and never read an answer, hundreds at once: their windows shut, and stay shut.

use crate::peers::{Cuts, Peer, attackers, narrow_connection, source, write_until_stuck};
use crate::siege::{Others, Siege};
use crate::support::http::{Site, get};
use crate::support::tls::{self, Identity};
use crate::support::{Server, pattern};
use rustls::version::TLS13;
use std::io::Write;
use std::sync::Arc;
use testing::{Test, engine_tests, long_engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    echo_peers_that_never_read_are_cut_and_leave_nothing,
    https_peers_that_never_read_are_cut_and_leave_nothing
];
pub(crate) const LONG_TESTS: &[Test] =
    long_engine_tests![http_peers_that_never_read_are_cut_and_leave_nothing];

/// What one such peer may cost in memory: 256 KiB may be queued for it, 128 KiB unread from it, and
/// 64 KiB be in between.
const EACH_BYTES_MAX: u64 = 448 << 10;

/// What each of them sends to the echo: one in four more than may be queued for it, the others less.
/// (All of that has to be copied by a debug build, beside which others want to be served.)
const ECHO_BYTES: [usize; 4] = [320 << 10, 16 << 10, 16 << 10, 16 << 10];

fn echo_peers_that_never_read_are_cut_and_leave_nothing(engine: &str) {
    let count = attackers();
    let server = Server::echo(engine, &["--stats", "1", "--idle-timeout", "2s"]);
    let address = server.address();
    let growth_bytes_max = count as u64 * EACH_BYTES_MAX;
    let siege = Siege::new("echo, never reading", server, Others::Echo, growth_bytes_max);
    let block = Arc::from(pattern(1, 64 << 10));
    let cuts = Cuts::counted_by(&["idle_closed"]);
    let (ended, attacks) = siege.withstand(|server| {
        let before = server.descriptors();
        let peer = |number: usize| {
            Peer::narrow(source(number), address).saying(&block, ECHO_BYTES[number % 4])
        };
        let mut peers: Vec<Peer> = (0..count).map(peer).collect();
        write_until_stuck(&mut peers);
        cuts.wait(server, before, count);
    });
    assert_eq!(ended.count("idle_closed"), attacks * count as u64);
}

/// Half of them want a large file, half a hundred answers from memory.
fn http_peers_that_never_read_are_cut_and_leave_nothing(engine: &str) {
    let count = attackers();
    let site = Site::usual();
    site.write("huge.bin", &vec![b'x'; 16 << 20]);
    site.write("cached.bin", &vec![b'y'; 40_000]);
    let server = Server::http(engine, site.path(), &["--stats", "1", "server.send-timeout = '1s'"]);
    let address = server.address();
    let growth_bytes_max = count as u64 * EACH_BYTES_MAX;
    let siege = Siege::new("http, never reading", server, Others::Http, growth_bytes_max);
    let large: Arc<[u8]> = get("/huge.bin", "").into_bytes().into();
    let many: Arc<[u8]> = get("/cached.bin", "").repeat(100).into_bytes().into();
    let cuts = Cuts::counted_by(&["send_timeouts"]);
    let (ended, attacks) = siege.withstand(|server| {
        let before = server.descriptors();
        let peer = |number| {
            let peer = Peer::narrow(source(number), address);
            match number % 2 {
                0 => peer.saying(&large, large.len()),
                _ => peer.saying(&many, many.len()),
            }
        };
        let mut peers: Vec<Peer> = (0..count).map(peer).collect();
        write_until_stuck(&mut peers);
        cuts.wait(server, before, count);
    });
    assert_eq!(ended.count("send_timeouts"), attacks * count as u64);
}

/// Fewer than the others, as shaking hands takes most of the time, but enough that their memory is returned.
fn https_peers_that_never_read_are_cut_and_leave_nothing(engine: &str) {
    let count = (attackers() / 10).max(100);
    let (site, identity) = (Site::usual(), Identity::new());
    site.write("huge.bin", &vec![b'x'; 16 << 20]);
    let config = Arc::new(identity.trust(&[&TLS13]));
    let timeouts =
        ["--stats", "1", "server.send-timeout = '1s'", "server.tls-handshake-timeout = '30s'"];
    let server = tls::serve(engine, site.path(), &identity, &timeouts);
    let encrypted = tls::encrypted(&server);
    // The keys and records of a connection come on top.
    let growth_bytes_max = count as u64 * (EACH_BYTES_MAX + (64 << 10));
    let siege = Siege::new("https, never reading", server, Others::Http, growth_bytes_max);
    let cuts = Cuts::counted_by(&["send_timeouts"]);
    let (ended, attacks) = siege.withstand(|server| {
        let before = server.descriptors();
        let peers: Vec<tls::Client> = (0..count)
            .map(|number| {
                let stream = narrow_connection(source(number), encrypted);
                let mut peer = tls::secure_over(stream, &config).expect("a handshake");
                peer.write_all(get("/huge.bin", "").as_bytes()).expect("the server reads");
                peer
            })
            .collect();
        cuts.wait(server, before, count);
        drop(peers);
    });
    assert_eq!(ended.count("send_timeouts"), attacks * count as u64, "{}", ended.last);
}
