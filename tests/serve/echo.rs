//! `serve echo`: the same bytes on both engines, with any behaviour of peers, at their limits
//! and while they end.

use crate::support::*;

pub(crate) const TESTS: &[Test] = tests![
    connections_are_limited_in_all_and_by_address,
    idle_connections_are_closed_after_the_timeout_and_busy_ones_are_not;
    engines:
    every_byte_comes_back_in_order,
    a_drain_closes_idle_connections_and_stops_accepting,
    a_busy_connection_continues_during_the_drain,
    timeouts_reset_connections_that_are_stuck,
    a_second_signal_stops_at_once
];

/// One byte, around the buffer sizes of both engines, and far above them; nothing at all: FIN is answered by FIN.
fn every_byte_comes_back_in_order(engine: &str) {
    let server = Server::echo(engine, &[]);
    let lengths = [0, 1, 2, 127, 2047, 2048, 2049, 65_535, 65_536, 65_537, 1_000_003, 8 << 20];
    for (number, length) in (0..).zip(lengths) {
        let sent = pattern(number, length);
        let stream = connect(server.address());
        thread::scope(|scope| {
            scope.spawn(|| {
                say(&mut &stream, &sent);
                stream.shutdown(Shutdown::Write).expect("connected");
            });
            assert_same(&read_to_end(&stream).expect("a clean end"), &sent);
        });
    }
    // Many chunks of uneven size on one connection, three of them on their way at any time.
    let mut stream = connect(server.address());
    let chunks: Vec<Vec<u8>> =
        (0..300).map(|number| pattern(1000 + number, 1 + (number as usize * 37) % 3000)).collect();
    for (number, chunk) in chunks.iter().enumerate() {
        stream.write_all(chunk).expect("the server reads");
        if let Some(earlier) = number.checked_sub(2) {
            let mut back = vec![0; chunks[earlier].len()];
            stream.read_exact(&mut back).expect("an echo");
            assert_same(&back, &chunks[earlier]);
        }
    }
    stream.shutdown(Shutdown::Write).expect("connected");
    assert_same(&read_to_end(&stream).expect("a clean end"), &chunks[298..].concat());
    drop(stream);
    let ended = server.end();
    let received = ended.count("received_bytes");
    ended.expect(0, &[("sent_bytes", received), ("accepted", 13), ("reset", 0)]);
}

fn connections_are_limited_in_all_and_by_address() {
    for (limit, counter, other) in [
        ("--max-connections", "refused", "refused_of_address"),
        ("--max-connections-per-address", "refused_of_address", "refused"),
    ] {
        let server = Server::echo(ENGINE, &[limit, "5", "--workers", "2"]);
        let served: Vec<TcpStream> = (0..5).map(|_| connect(server.address())).collect();
        served.iter().for_each(|peer| ping(peer, b"inside"));
        for _ in 0..10 {
            assert_eq!(read_to_end(&connect(server.address())).expect("closed"), b"");
        }
        served.iter().for_each(|peer| ping(peer, b"undisturbed"));
        drop(served);
        // Places that were given back can be taken again.
        let admitted = || try_ping(&connect(server.address()), b"next").is_ok();
        wait_until("a place is free", admitted);
        let ended = server.end();
        assert!(ended.count(counter) >= 10 && ended.count(other) == 0, "{}", ended.last);
    }
}

fn idle_connections_are_closed_after_the_timeout_and_busy_ones_are_not() {
    // Longer than the busy one may be kept from the CPU.
    let server = Server::echo(ENGINE, &["--idle-timeout", "1500ms"]);
    let busy = connect(server.address());
    // Before the first idle one is there: none has been idle for longer than is measured.
    let started = Instant::now();
    let idle: Vec<TcpStream> = (0..20).map(|_| connect(server.address())).collect();
    idle.iter().take(10).for_each(|peer| ping(peer, b"once"));
    wait_until("idle connections are closed", || {
        ping(&busy, b"alive");
        // All sockets of the idle ones are gone when only the busy one is left.
        server.sockets() <= SOCKETS_WITHOUT_CONNECTIONS + 1
    });
    let closed_after = started.elapsed();
    ping(&busy, b"still there");
    idle.iter().for_each(|peer| assert_eq!(read_to_end(peer).unwrap(), b""));
    assert!(closed_after >= Duration::from_millis(1400), "too early: {closed_after:?}");
    server.terminate().expect(0, &[("idle_closed", 20)]);
}

/// For tests of closed listeners: no other program listens on this address, so a free port stays free.
const OWN_ADDRESS: [&str; 4] = ["--listen", "127.0.0.8:0", "--drain-timeout", "300s"];

fn a_drain_closes_idle_connections_and_stops_accepting(engine: &str) {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        // A drain that waited for these peers would exceed the patience of the test.
        let server = Server::echo(engine, &OWN_ADDRESS);
        let address = server.address();
        let peers: Vec<TcpStream> = (0..50).map(|_| connect(address)).collect();
        peers.iter().for_each(|peer| ping(peer, b"before"));
        server.signal(signal);
        for peer in &peers {
            assert_eq!(read_to_end(peer).expect("FIN, no reset"), b"");
        }
        assert!(TcpStream::connect(address).is_err(), "{engine}: still accepting");
        let ended = server.wait();
        ended.expect(0, &[("closed", 50), ("cut", 0)]);
        let told = ["event", "reason"].map(|name| ended.last[name].as_str());
        assert_eq!(told, [Some("final"), Some(signal.as_str())]);
    }
}

/// One that is silent for 100 ms is closed; it may be this end that pauses, kept from the CPU.
fn a_busy_connection_continues_during_the_drain(engine: &str) {
    wait_until("50 round trips without a pause", || {
        let server = Server::echo(engine, &["--drain-timeout", "300s"]);
        let peer = connect(server.address());
        ping(&peer, b"before");
        server.signal(Signal::SIGTERM);
        if (0..50).any(|number| try_ping(&peer, &pattern(number, 1000)).is_err()) {
            return false;
        }
        assert_eq!(read_to_end(&peer).unwrap(), b"");
        assert_eq!(server.wait().code, Some(0));
        true
    });
}

/// A truncated stream must not look complete.
fn timeouts_reset_connections_that_are_stuck(engine: &str) {
    // Made before the connection: that may take longer than the timeout on a busy machine.
    let bytes = pattern(2, 48 << 20);
    for (arguments, counter) in [
        (["--drain-timeout", "500ms", "--idle-timeout", "300s"], "cut"),
        (["--drain-timeout", "300s", "--idle-timeout", "2s"], "idle_closed"),
    ] {
        let server = Server::echo(engine, &arguments);
        let stuck = connect(server.address());
        write_until_stuck(&stuck, &bytes);
        if counter == "idle_closed" {
            server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS);
        }
        server.terminate().expect(0, &[(counter, 1)]);
        assert!(read_to_end(&stuck).is_err(), "{engine}: {counter}: a clean end");
    }
}

fn a_second_signal_stops_at_once(engine: &str) {
    let bytes = pattern(3, 48 << 20);
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let server = Server::echo(engine, &[&OWN_ADDRESS[..], &["--workers", "2"]].concat());
        let address = server.address();
        let stuck = connect(address);
        write_until_stuck(&stuck, &bytes);
        server.signal(signal);
        // It has been heard: two signals that wait to be heard are one.
        wait_until("no connection is accepted", || TcpStream::connect(address).is_err());
        // Not the same moment: that would be one request sent twice, as timeout(1) does.
        thread::sleep(Duration::from_millis(200));
        server.signal(signal);
        let ended = server.wait();
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert_eq!(ended.last["reason"], format!("second signal: {signal}"));
        drop(stuck);
    }
}
