//! Peers that vanish: hundreds on another machine, half of them waiting, half in the middle of an
//! answer, when the cable is cut. The server gets neither FIN nor reset.

use crate::peers::{Cuts, Peer, attackers};
use crate::siege::{Others, Siege};
use crate::support::http::{Site, get, set};
use crate::support::namespace::{Machine, in_a_namespace};
use crate::support::{Server, pattern};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use testing::{Test, long_engine_tests};

pub(crate) const LONG_TESTS: &[Test] = long_engine_tests![
    echo_peers_that_vanish_are_closed_and_leave_nothing,
    http_peers_that_vanish_are_closed_and_leave_nothing
];

/// As for those that never read.
const EACH_BYTES_MAX: u64 = 448 << 10;

/// How long they are there. What was begun by then is under way.
const PRESENCE: Duration = Duration::from_millis(200);

/// Longer than the other client, which is served meanwhile, may be kept from the CPU.
const IDLE: &str = "1400ms";

/// The end of the cable that is here, behind the loopback address of the others.
const LISTEN: [&str; 2] = ["--listen", "10.8.8.1:0"];

/// Half of them send `text`, the others nothing; then all vanish, and the server must notice.
fn come_and_vanish(server: &Server, machine: &Machine, text: &Arc<[u8]>, cuts: &Cuts) {
    let (before, address) = (server.descriptors(), server.addresses()[1]);
    let (text, count) = (Arc::clone(text), attackers());
    machine.set_connected(true);
    let peers = machine.run(move || {
        let peer = |number: usize| {
            let mut peer = Peer::narrow(Ipv4Addr::UNSPECIFIED, address);
            if number.is_multiple_of(2) {
                peer = peer.saying(&text, text.len());
                peer.write(usize::MAX);
            }
            peer
        };
        (0..count).map(peer).collect::<Vec<Peer>>()
    });
    thread::sleep(PRESENCE);
    machine.set_connected(false);
    cuts.wait(server, before, count);
    drop(peers);
}

fn echo_peers_that_vanish_are_closed_and_leave_nothing(engine: &str) {
    in_a_namespace(|| {
        let machine = Machine::connected();
        let limits = ["--stats", "1", "--idle-timeout", IDLE, "--allow", "10.8.8.0/24"];
        let server = Server::echo(engine, &[&LISTEN[..], &limits].concat());
        let growth_bytes_max = attackers() as u64 * EACH_BYTES_MAX;
        let siege = Siege::new("echo, vanishing", server, Others::Echo, growth_bytes_max);
        let text = pattern(4, 32 << 10).into();
        let cuts = Cuts::counted_by(&["idle_closed"]);
        let (ended, attacks) =
            siege.withstand(|server| come_and_vanish(server, &machine, &text, &cuts));
        assert_eq!(ended.count("idle_closed"), attacks * attackers() as u64);
    });
}

fn http_peers_that_vanish_are_closed_and_leave_nothing(engine: &str) {
    let site = Site::usual();
    site.write("huge.bin", &vec![b'x'; 16 << 20]);
    in_a_namespace(move || {
        let machine = Machine::connected();
        let limits = ["--stats", "1", &set("idle-timeout", IDLE), "server.send-timeout = '1s'"];
        let server = Server::http(engine, site.path(), &[&LISTEN[..], &limits].concat());
        let growth_bytes_max = attackers() as u64 * EACH_BYTES_MAX;
        let siege = Siege::new("http, vanishing", server, Others::Http, growth_bytes_max);
        let text = get("/huge.bin", "").into_bytes().into();
        let cuts = Cuts::counted_by(&["idle_closed", "send_timeouts"]);
        let (ended, attacks) =
            siege.withstand(|server| come_and_vanish(server, &machine, &text, &cuts));
        let closed = ["idle_closed", "send_timeouts"].map(|name| ended.count(name));
        assert_eq!(closed.iter().sum::<u64>(), attacks * attackers() as u64, "{}", ended.last);
    });
}
