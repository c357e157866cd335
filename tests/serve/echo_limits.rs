//! `twinring serve echo` at its limits: descriptors, connections, time, and idleness.

use crate::support::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    out_of_descriptors_it_neither_spins_nor_exits_and_recovers,
    beyond_the_maximum_connections_are_closed_at_once,
    idle_connections_are_closed_after_the_timeout_and_busy_ones_are_not,
    idle_connections_cost_no_cpu,
    resets_at_every_stage_leak_nothing,
    a_peer_that_stops_reading_is_cut_by_the_idle_timeout_with_a_reset
];

/// True if the server answers on this connection soon; `false` if it just stays silent.
fn answers(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let answered = match (&*stream).read(&mut [0; 5]) {
        Ok(bytes) => bytes > 0,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
        Err(error) => panic!("{error}"),
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    answered
}

fn out_of_descriptors_it_neither_spins_nor_exits_and_recovers(engine: &str) {
    let server = Server::echo_with_descriptors(engine, 64);
    let mut early: Vec<TcpStream> = (0..20).map(|_| connect(server.address())).collect();
    early.iter().for_each(|peer| ping(peer, b"early"));
    let late: Vec<TcpStream> = (0..80).map(|_| connect(server.address())).collect();
    late.iter().for_each(|mut peer| peer.write_all(b"later").unwrap());
    wait_until("it says that descriptors ran out", || !server.stderr().is_empty());
    let share = server.cpu_share_while_idle();
    assert!(share < 0.02, "{engine}: {share} of a CPU while out of descriptors");
    early.iter().for_each(|peer| ping(peer, b"still served"));
    let accepted = server.sockets() - SOCKETS_WITHOUT_CONNECTIONS;
    assert!((21..64).contains(&accepted), "{engine}: {accepted} connections, 64 descriptors");
    // Served clients disconnect, so that others get a descriptor: in the end all were served.
    early.clear();
    let mut waiting = late;
    let deadline = Instant::now() + PATIENCE;
    while !waiting.is_empty() && Instant::now() < deadline {
        waiting.retain(|peer| !answers(peer));
    }
    assert_eq!(waiting.len(), 0, "{engine}: connections in the backlog were lost");
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.stderr.lines().count(), 1, "said once: {}", ended.stderr);
    assert!(ended.stderr.contains("ulimit -n"), "{}", ended.stderr);
    println!("{engine}: {accepted} of 100 accepted at first, all in the end; CPU {share:.5}");
}

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

fn idle_connections_cost_no_cpu(engine: &str) {
    testing::needs_descriptors(2_000);
    let server = Server::echo(engine, &[]);
    let idle: Vec<TcpStream> = (0..1000).map(|_| connect(server.address())).collect();
    idle.iter().for_each(|peer| ping(peer, b"awake"));
    let share = server.cpu_share_while_idle();
    assert!(share < 0.02, "{engine}: {share} of a CPU for 1000 idle connections");
    println!("{engine}: {share:.5} of a CPU for 1000 idle connections");
}

fn resets_at_every_stage_leak_nothing(engine: &str) {
    let server = Server::echo(engine, &[]);
    ping(&connect(server.address()), b"warm");
    server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
    let (descriptors, memory) = (server.descriptors(), server.memory_bytes());
    let block = pattern(2, 200_000);
    for round in 0..1500 {
        let stream = connect(server.address());
        match round % 5 {
            0 => {}
            1 => (&stream).write_all(b"unread").unwrap(),
            2 => ping(&stream, b"read"),
            3 => {
                // As much as fits, in both directions: the server is in the middle of it.
                stream.set_nonblocking(true).unwrap();
                let _as_much_as_fits = (&stream).write(&block);
            }
            _ => {
                (&stream).write_all(b"half closed").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            }
        }
        reset(stream);
    }
    // Connections are accepted in order: when this one is served, all of them were.
    ping(&connect(server.address()), b"after");
    server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
    assert_eq!(server.descriptors(), descriptors, "{engine}: descriptors leak");
    let growth = server.memory_bytes().saturating_sub(memory);
    assert!(growth < ONCE_BYTES + server.pool_bytes(), "{engine}: {growth} bytes leak");
    let ended = server.terminate();
    assert_eq!(ended.count("accepted"), ended.count("closed"));
    println!("{engine}: 1500 resets, {} noticed, {growth} bytes grown", ended.count("reset"));
}
