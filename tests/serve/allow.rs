//! The reflectors are not an amplifier: they answer listed clients, with no more bytes than
//! received, and at a limited rate.

use crate::support::datagrams::{assert_balanced, client, reflected};
use crate::support::namespace::in_a_namespace;
use crate::support::{Server, connect, pattern, ping, read_to_end, run, try_ping, wait_until};
use std::io::Read;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] =
    tests![only_this_machine_is_answered_by_default, the_ready_line_lists_allowed_clients];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    one_address_has_only_so_many_connections,
    a_source_beyond_its_rate_is_not_answered,
    datagrams_from_others_are_dropped_and_counted,
    connections_of_others_are_closed_and_counted,
    no_answer_is_longer_than_its_datagram_or_sent_twice
];

fn only_this_machine_is_answered_by_default() {
    for service in ["echo", "udp"] {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7000"] {
            let listen = ["--listen", "127.0.0.1:0", "--listen", address];
            let (code, _, stderr) = run(&[&["serve", service], &listen[..]].concat());
            assert_eq!(code, Some(2), "{stderr}");
            assert!(stderr.contains(address) && stderr.contains("--allow CIDR"), "{stderr}");
        }
        let (code, _, stderr) = run(&["serve", service, "--allow", "10.0.0.0/33"]);
        assert_eq!(code, Some(2));
        assert!(stderr.contains("expected a network such as"), "{stderr}");
    }
}

fn the_ready_line_lists_allowed_clients() {
    let all = ["--listen", "0.0.0.0:0"];
    let named = ["--allow", "192.0.2.0/24", "--allow", "2001:db8::1"];
    let server = Server::echo("epoll", &[&all[..], &named].concat());
    let expected = ["loopback", "192.0.2.0/24", "2001:db8::1/128"];
    assert_eq!(server.ready["allow"], serde_json::json!(expected));
    // This machine always is.
    ping(&connect(server.address()), b"here");
    let server = Server::udp("epoll", &["--listen", "0.0.0.0:0", "--allow", "any"]);
    assert_eq!(server.ready["allow"], serde_json::json!(["any"]));
    assert_eq!(Server::echo("epoll", &[]).ready["allow"], serde_json::json!(["loopback"]));
}

const OPEN: [&str; 4] = ["--listen", "10.9.9.1:0", "--allow", "10.9.9.2/32"];

fn udp_from(source: &str, server: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind((source, 0)).expect("a free port");
    client.connect(server).expect("a route");
    client.set_read_timeout(Some(crate::support::PATIENCE)).expect("a socket");
    client
}

fn datagrams_from_others_are_dropped_and_counted(engine: &str) {
    in_a_namespace(|| {
        for mode in [&[][..], &["--gro", "on"]] {
            let server = Server::udp(engine, &[&OPEN[..], mode].concat());
            let named = udp_from("10.9.9.2", server.address());
            let other = udp_from("10.9.9.3", server.address());
            for number in 0..20 {
                other.send(&pattern(number, 100)).expect("room");
                reflected(&named, &pattern(number, 100));
            }
            let ended = server.terminate();
            assert_eq!((ended.count("not_allowed"), assert_balanced(&ended)), (20, 20));
            other.set_nonblocking(true).expect("a socket");
            assert!(other.recv(&mut [0; 2000]).is_err(), "another client was answered");
        }
        println!("{engine}: 20 dropped, 20 answered, in each of 4 modes");
    });
}

fn connections_of_others_are_closed_and_counted(engine: &str) {
    in_a_namespace(|| {
        let server = Server::echo(engine, &OPEN);
        let from = |source: &str| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let socket = socket.expect("a socket");
            let source: SocketAddr = format!("{source}:0").parse().expect("an address");
            socket.bind(&source.into()).expect("a free port");
            socket.connect(&server.address().into()).expect("the kernel accepts");
            crate::support::patient(TcpStream::from(socket))
        };
        let named = from("10.9.9.2");
        for _ in 0..5 {
            assert!(matches!(from("10.9.9.3").read(&mut [0]), Ok(0) | Err(_)));
        }
        ping(&named, b"served all along");
        drop(named);
        let ended = server.terminate();
        assert_eq!((ended.count("not_allowed"), ended.count("accepted")), (5, 1));
        println!("{engine}: 5 closed, 1 served");
    });
}

fn one_address_has_only_so_many_connections(engine: &str) {
    let server = Server::echo(engine, &["--max-connections-per-address", "2"]);
    let (first, second) = (connect(server.address()), connect(server.address()));
    ping(&first, b"one");
    ping(&second, b"two");
    let third = connect(server.address());
    assert!(read_to_end(&third).is_ok_and(|bytes| bytes.is_empty()), "{engine}: not closed");
    drop(first);
    // Its place is free once the server has seen that it is gone.
    wait_until("a place", || try_ping(&connect(server.address()), b"four").is_ok());
    ping(&second, b"unharmed");
    let ended = server.terminate();
    assert!(ended.count("refused_of_address") >= 1);
    assert_eq!(ended.count("refused"), 0);
}

/// A burst is a tenth of a second, and 64 datagrams at least.
fn a_source_beyond_its_rate_is_not_answered(engine: &str) {
    for mode in [&[][..], &["--gro", "on"]] {
        let limit = ["--max-rate-per-source", "1"];
        let server = Server::udp(engine, &[&limit[..], mode].concat());
        let client = client(server.address());
        // One by one, so that none is lost for lack of space.
        let mut answered = 0;
        client.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
        for number in 0..70 {
            client.send(&pattern(number, 64)).expect("room");
            match client.recv(&mut [0; 2000]) {
                Ok(_) => answered += 1,
                Err(_) if answered < 64 => {
                    wait_until("late", || client.recv(&mut [0; 2000]).is_ok());
                    answered += 1;
                }
                Err(_) => {}
            }
        }
        let ended = server.terminate();
        // Late answers count too.
        client.set_nonblocking(true).expect("a socket");
        while client.recv(&mut [0; 2000]).is_ok() {
            answered += 1;
        }
        assert!((64..70).contains(&answered), "{engine} {mode:?}: {answered}");
        assert_eq!(ended.count("over_rate"), 70 - answered, "{engine} {mode:?}");
        assert_eq!(assert_balanced(&ended), answered);
    }
    println!("{engine}: the burst and the rate, and no more");
}

/// For any input and in any mode, no more bytes are sent back than received.
fn no_answer_is_longer_than_its_datagram_or_sent_twice(engine: &str) {
    let modes: [&[&str]; 4] = [&[], &["--gro", "on"], &["--copy-ecn"], &["--max-datagram", "512"]];
    for mode in modes {
        let server = Server::udp(engine, mode);
        let client = client(server.address());
        let lengths = (0..60).map(|number: usize| number * number * 7 % 1400);
        for (number, length) in (0..).zip(lengths) {
            client.send(&pattern(number, length)).expect("room");
        }
        let ended = server.terminate();
        let count = |name| ended.count(name);
        assert!(count("sent") <= count("received"), "{engine} {mode:?}");
        assert!(count("sent_bytes") <= count("received_bytes"), "{engine} {mode:?}");
        assert_eq!(count("received"), 60);
        client.set_nonblocking(true).expect("a socket");
        let mut bytes = [0; 2000];
        let came = std::iter::from_fn(|| client.recv(&mut bytes).ok()).collect::<Vec<_>>();
        assert!(came.len() as u64 <= count("sent"), "{engine} {mode:?}");
    }
}
