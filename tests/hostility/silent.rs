//! Half-open floods: peers that connect and say nothing, hundreds at once.

use crate::peers::{Peer, attackers, source};
use crate::siege::{Others, Siege};
use crate::support::http::Site;
use crate::support::tls::{self, Identity};
use crate::support::{Server, wait_until};
use std::net::SocketAddr;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    silent_echo_peers_are_closed_and_leave_nothing,
    silent_http_peers_are_closed_and_leave_nothing
];

/// The memory of a silent connection; with TLS, its state.
const EACH_BYTES_MAX: u64 = 4 << 10;
const EACH_TLS_BYTES_MAX: u64 = 24 << 10;

/// Longer than the other client, which is served meanwhile, may be kept from the CPU.
const IDLE: &str = "1400ms";

/// Connects to `addresses` in turn, and waits to be thrown out.
fn keep_silent(count: usize, addresses: &[SocketAddr]) {
    let peer = |number| Peer::narrow(source(number), addresses[number % addresses.len()]);
    let mut peers: Vec<Peer> = (0..count).map(peer).collect();
    wait_until("all are thrown out", || peers.iter_mut().all(Peer::has_heard_the_end));
}

fn silent_echo_peers_are_closed_and_leave_nothing(engine: &str) {
    let count = attackers();
    let server = Server::echo(engine, &["--stats", "1", "--idle-timeout", IDLE]);
    let address = server.address();
    let growth_bytes_max = (count as u64 * EACH_BYTES_MAX) + (1 << 20);
    let siege = Siege::new("echo, silent", server, Others::Echo, growth_bytes_max);
    let (ended, attacks) = siege.withstand(|_| keep_silent(count, &[address]));
    assert_eq!(ended.count("idle_closed"), attacks * count as u64);
}

/// Half of them where TLS is spoken, half where it is not.
fn silent_http_peers_are_closed_and_leave_nothing(engine: &str) {
    let count = attackers() / 2 * 2;
    let (site, identity) = (Site::usual(), Identity::new());
    let timeouts = ["--stats", "1", "--idle-timeout", IDLE, "--tls-handshake-timeout", "1s"];
    let server = tls::serve(engine, site.path(), &identity, &timeouts);
    let (plain, encrypted) = (server.address(), tls::encrypted(&server));
    let growth_bytes_max = (count as u64 * EACH_TLS_BYTES_MAX) + (1 << 20);
    let siege = Siege::new("http and https, silent", server, Others::Http, growth_bytes_max);
    let (ended, attacks) = siege.withstand(|_| keep_silent(count, &[plain, encrypted]));
    let closed = ["idle_closed", "handshake_timeouts"].map(|name| ended.count(name));
    assert_eq!(closed, [attacks * count as u64 / 2; 2], "{}", ended.last);
}
