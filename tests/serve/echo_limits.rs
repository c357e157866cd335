//! `twinring serve echo` at its limits: descriptors, connections, time, and idleness.

use crate::support::*;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    beyond_the_maximum_connections_are_closed_at_once,
    idle_connections_are_closed_after_the_timeout_and_busy_ones_are_not,
    a_peer_that_stops_reading_is_cut_by_the_idle_timeout_with_a_reset
];

fn beyond_the_maximum_connections_are_closed_at_once(engine: &str) {
    let server = Server::echo(engine, &["--max-connections", "5", "--workers", "2"]);
    let served: Vec<TcpStream> = (0..5).map(|_| connect(server.address())).collect();
    served.iter().for_each(|peer| ping(peer, b"inside"));
    for _ in 0..10 {
        assert_eq!(read_to_end(&connect(server.address())).unwrap(), b"");
    }
    served.iter().for_each(|peer| ping(peer, b"undisturbed"));
    drop(served);
    // Places that were given back can be taken again.
    let admitted = || try_ping(&connect(server.address()), b"next").is_ok();
    wait_until("a place is free", admitted);
    let ended = server.terminate();
    assert!(ended.count("refused") >= 10);
    assert_eq!(ended.count("open"), 0);
    println!("{engine}: 5 served, {} refused", ended.count("refused"));
}

fn idle_connections_are_closed_after_the_timeout_and_busy_ones_are_not(engine: &str) {
    // Longer than the busy one may be kept from the CPU.
    let server = Server::echo(engine, &["--idle-timeout", "1500ms"]);
    let busy = connect(server.address());
    // Before the first idle one is there: none has been idle for longer than is measured.
    let started = Instant::now();
    let idle: Vec<TcpStream> = (0..20).map(|_| connect(server.address())).collect();
    idle.iter().take(10).for_each(|peer| ping(peer, b"once"));
    let mut pings = 0;
    wait_until("idle connections are closed", || {
        ping(&busy, b"alive");
        pings += 1;
        // All sockets of the idle ones are gone when only the busy one is left.
        server.sockets() <= SOCKETS_WITHOUT_CONNECTIONS + 1
    });
    let closed_after = started.elapsed();
    ping(&busy, b"still there");
    idle.iter().for_each(|peer| assert_eq!(read_to_end(peer).unwrap(), b""));
    assert!(closed_after >= Duration::from_millis(1400), "too early: {closed_after:?}");
    let ended = server.terminate();
    assert_eq!(ended.count("idle_closed"), 20);
    println!("{engine}: 20 idle connections closed, one busy kept over {pings} round trips");
}

fn a_peer_that_stops_reading_is_cut_by_the_idle_timeout_with_a_reset(engine: &str) {
    // Made before the connection: that may take longer than the timeout on a busy machine.
    let bytes = pattern(1, 48 << 20);
    let server = Server::echo(engine, &["--idle-timeout", "2s"]);
    let stuck = connect(server.address());
    write_until_stuck(&stuck, &bytes);
    server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
    // A truncated answer must not look complete.
    assert!(read_to_end(&stuck).is_err(), "{engine}: a truncated stream ended cleanly");
    assert_eq!(server.terminate().count("idle_closed"), 1);
    println!("{engine}: cut with a reset");
}
