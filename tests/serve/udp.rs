//! `serve udp`: the same datagrams on both engines, for any behaviour of peers, to allowed clients and no others,
//! and all that was received is answered at the end.

use crate::support::datagrams::*;
use crate::support::namespace::in_a_namespace;
use crate::support::*;
use socket2::Protocol;
use std::net::SocketAddrV4;
use twinring::Datagram;
use twinring::net::{Ecn, UdpOptions};

pub(crate) const TESTS: &[Test] = tests![
    both_engines_answer_with_the_same_bytes_and_the_same_counts,
    a_smaller_buffer_than_requested_is_reported;
    engines:
    a_burst_larger_than_the_buffer_is_answered_or_counted,
    longer_datagrams_than_agreed_are_dropped_and_counted,
    answers_come_from_the_address_of_the_request_on_every_listener,
    datagrams_claiming_to_come_from_the_reflector_are_not_answered,
    answers_carry_the_configured_dscp_and_no_ecn,
    others_are_dropped_or_closed_and_counted,
    a_source_beyond_its_rate_is_not_answered,
    sigterm_answers_all_that_was_received_while_more_arrives,
    datagrams_in_the_kernel_at_sigterm_are_answered
];

/// Ways of receiving and sending that all keep the same promises. What belongs to the other engine
/// changes nothing.
const WAYS: [&[&str]; 4] =
    [&[], &["--gro", "on"], &["--pending", "8"], &["--workers", "2", "--buffers", "4"]];

/// The results of a fixed set of datagrams on one engine: all answers, and all counters. Their sizes: empty, small
/// ones, around pages and buffers, and up to the longest. Other senders have gone before the answer.
fn transcript(engine: &str, way: &[&str]) -> (Vec<Vec<u8>>, Value) {
    let around = [1472, 1473, 2047, 2048, 2049, 4095, 4096, 4097, 65_507];
    let sizes: Vec<usize> = (0..300).chain((300..65_507).step_by(1709)).chain(around).collect();
    let server = Server::udp(engine, way);
    let clients: Vec<UdpSocket> = (0..5).map(|_| client(server.address())).collect();
    let mut came_back = Vec::new();
    for (number, size) in sizes.iter().enumerate() {
        client(server.address()).send(b"this socket is closed at once").expect("room");
        reflected(&clients[number % clients.len()], &pattern(number as u64, *size));
    }
    // Several on their way at once, of different sizes.
    for round in 0..20 {
        for client in &clients {
            for number in 0..8 {
                client.send(&numbered(round, number, 40 * number as usize)).expect("room");
            }
        }
        came_back.extend(clients.iter().flat_map(|client| (0..8).map(|_| next(client))));
    }
    let ended = server.end();
    assert_eq!(assert_balanced(&ended), 2 * sizes.len() as u64 + 20 * 5 * 8);
    (came_back, ended.last["service_counters"].clone())
}

fn both_engines_answer_with_the_same_bytes_and_the_same_counts() {
    for way in WAYS {
        let (ring, ring_counters) = transcript("io_uring", way);
        let (epoll, epoll_counters) = transcript("epoll", way);
        if !way.contains(&"--pending") {
            assert!(ring == epoll, "{way:?}: the transcripts differ");
        }
        assert_eq!(ring_counters, epoll_counters, "{way:?}");
    }
}

fn a_burst_larger_than_the_buffer_is_answered_or_counted(engine: &str) {
    const SENT: u64 = 20_000;
    let server = Server::udp(engine, &["--rcvbuf", "20000"]);
    assert_eq!(server.ready["udp"]["granted"]["recv_buffer_bytes"], 40_000);
    let client = client(server.address());
    // While it stands still, it cannot keep up.
    server.signal(Signal::SIGSTOP);
    for number in 0..SENT {
        client.send(&numbered(1, number as u32, 300)).expect("room");
    }
    server.signal(Signal::SIGCONT);
    let ended = server.terminate();
    let (drops, received) = (ended.count("kernel_drops"), assert_balanced(&ended));
    assert!(drops > 0 && received == ended.count("received"), "{}", ended.last);
    assert_eq!(received + drops, SENT);
}

fn longer_datagrams_than_agreed_are_dropped_and_counted(engine: &str) {
    for way in [&[][..], &["--pending", "4"]] {
        let server = Server::udp(engine, &[&["--max-datagram", "1000"], way].concat());
        let client = client(server.address());
        for (number, size) in (0..).zip([999, 1000, 1001, 65_507, 1000, 0]) {
            let bytes = pattern(number, size);
            match size {
                ..=1000 => reflected(&client, &bytes),
                _ => drop(client.send(&bytes).expect("room")),
            }
        }
        let ended = server.terminate();
        assert_eq!((ended.count("truncated"), assert_balanced(&ended)), (2, 4));
    }
}

fn answers_come_from_the_address_of_the_request_on_every_listener(engine: &str) {
    testing::needs_ipv6();
    let listen = ["--listen", "0.0.0.0:0", "--listen", "[::]:0", "--listen", "[::1]:0"];
    let server =
        Server::udp(engine, &[&listen[..], &["--workers", "2", "--allow", "any"]].concat());
    let [four, six, one] = server.addresses()[..] else { panic!("{}", server.ready) };
    let mut targets = vec![one, SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, six.port()))];
    targets.extend((1..=3).map(|n| SocketAddr::from(([127, 0, 0, n], four.port()))));
    for target in &targets {
        // Connected: an answer from another address would not be heard.
        let client = client(*target);
        (0..10).for_each(|number| reflected(&client, &numbered(1, number, 50)));
    }
    assert_eq!(assert_balanced(&server.end()), 10 * targets.len() as u64);
}

/// A datagram whose sender is the reflector itself would loop for ever; with a socket on all addresses, so would one
/// from another of them.
fn datagrams_claiming_to_come_from_the_reflector_are_not_answered(engine: &str) {
    let two = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--workers", "2"];
    let all = ["--listen", "0.0.0.0:0", "--allow", "127.0.0.0/8", "--workers", "2"];
    for arguments in [two, all] {
        let server = Server::udp(engine, &arguments);
        let at = |last| SocketAddr::from(([127, 0, 0, last], server.address().port()));
        let (mine, asked) = match server.addresses()[..] {
            [mine, asked] => (mine, asked),
            _ => (at(2), at(1)),
        };
        // Workers share a port, and any process of the same user may join them.
        let impostor = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        impostor.set_reuse_port(true).expect("a socket");
        impostor.bind(&mine.into()).expect("a shared port");
        for _ in 0..10 {
            impostor.send_to(b"to myself", &asked.into()).expect("room");
        }
        drop(impostor);
        let ended = server.end();
        assert_eq!((ended.count("from_self"), assert_balanced(&ended)), (10, 0), "{arguments:?}");
    }
}

fn answers_carry_the_configured_dscp_and_no_ecn(engine: &str) {
    let server = Server::udp(engine, &["--dscp", "46", "--stats", "1"]);
    let target = server.address();
    let options = UdpOptions { traffic_class: true, dscp: 10, ..UdpOptions::default() };
    http2::run_client(async move {
        let bound = options.connect(None, target).expect("a route");
        let client = twinring::UdpSocket::from_bound(bound).expect("room");
        for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
            let datagram = Datagram { ecn: Some(ecn), ..Datagram::new("marked") };
            client.send_batch(&mut vec![datagram]).await.expect("room");
            let answer = client.recv_from().await.expect("an answer");
            assert_eq!(answer.traffic_class, Some(46 << 2));
        }
    });
    // Counters are there while it runs.
    server.wait_for_count("sent", 4);
}

/// Sends a datagram with any source address; needs CAP_NET_RAW.
fn forge(raw: &Socket, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
    let length = 28 + payload.len() as u16;
    // Version and length of the header; length, identification and checksum are the kernel's.
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    for number in [from.port(), to.port(), length - 20, 0] {
        packet.extend(number.to_be_bytes());
    }
    packet.extend(payload);
    raw.send_to(&packet, &SocketAddr::V4(to).into()).expect("room");
}

/// Of the reflector and of the echo.
fn others_are_dropped_or_closed_and_counted(engine: &str) {
    const OPEN: [&str; 4] = ["--listen", "10.9.9.1:0", "--allow", "10.9.9.2/32"];
    in_a_namespace(|| {
        let server = Server::udp(engine, &OPEN);
        let [named, other] =
            [2, 3].map(|last| client_from(Ipv4Addr::new(10, 9, 9, last).into(), server.address()));
        for number in 0..20 {
            other.send(&pattern(number, 100)).expect("room");
            reflected(&named, &pattern(number, 100));
        }
        // One from nowhere: it has no port.
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)));
        let SocketAddr::V4(address) = server.address() else { panic!("IPv4") };
        let nowhere = SocketAddrV4::new([10, 9, 9, 2].into(), 0);
        forge(&raw.expect("CAP_NET_RAW"), nowhere, address, b"to nobody");
        let ended = server.end();
        let dropped = ["not_allowed", "bad_source"].map(|name| ended.count(name));
        assert_eq!((dropped, assert_balanced(&ended)), ([20, 1], 20));
        other.set_nonblocking(true).expect("a socket");
        assert!(other.recv(&mut [0; 2000]).is_err(), "another client was answered");
        let server = Server::echo(engine, &OPEN);
        let from = |last| {
            let socket = socket_from([10, 9, 9, last].into());
            socket.connect(&server.address().into()).expect("the server accepts");
            patient(socket.into())
        };
        let named = from(2);
        for _ in 0..5 {
            assert!(matches!(from(3).read(&mut [0]), Ok(0) | Err(_)));
        }
        ping(&named, b"served all along");
        drop(named);
        server.end_with(&[("not_allowed", 5), ("accepted", 1)]);
    });
}

/// A burst is a tenth of a second, and 64 datagrams at least.
fn a_source_beyond_its_rate_is_not_answered(engine: &str) {
    let server = Server::udp(engine, &["--max-rate-per-source", "1"]);
    let client = burst(&server);
    let ended = server.terminate();
    let (answered, all) = (numbers(&client).len() as u64, u64::from(BURST));
    assert!((64..all / 2).contains(&answered), "{engine}: {answered}");
    assert_eq!((ended.count("over_rate"), assert_balanced(&ended)), (all - answered, answered));
}

/// Datagrams of a burst.
const BURST: u32 = 250;

/// Sends numbered datagrams, and returns their client, whose buffer holds all answers, and twice at that: 512
/// datagrams of less than 832 bytes with the kernel's bookkeeping, at the default net.core.rmem_max.
fn burst(server: &Server) -> UdpSocket {
    let client = client(server.address());
    socket2::SockRef::from(&client).set_recv_buffer_size(212_992).expect("a socket");
    (0..BURST).for_each(|number| {
        client.send(&numbered(1, number, 64)).expect("room");
    });
    client
}

/// The numbers of all datagrams that have come; for when the server has ended.
fn numbers(client: &UdpSocket) -> Vec<u32> {
    client.set_nonblocking(true).expect("a socket");
    let mut bytes = [0; 2000];
    let next = || {
        let length = client.recv(&mut bytes).ok()?;
        Some(number_of(1, &bytes[..length]))
    };
    std::iter::from_fn(next).collect()
}

fn sigterm_answers_all_that_was_received_while_more_arrives(engine: &str) {
    for way in [&[][..], &["--workers", "2"]] {
        let server = Server::udp(engine, way);
        let client = client(server.address());
        let has_ended = AtomicBool::new(false);
        let (ended, sent) = thread::scope(|scope| {
            let at_the_end = AtTheEnd(&has_ended);
            let sending = scope.spawn(|| {
                // Refused once the socket is closed.
                let mut sent = 0u64;
                while !has_ended.load(Ordering::Relaxed) {
                    sent += u64::from(client.send(&numbered(1, sent as u32, 100)).is_ok());
                }
                sent
            });
            (0..500).for_each(|_| drop(next(&client)));
            let ended = server.end();
            drop(at_the_end);
            (ended, sending.join().expect("no panic"))
        });
        assert_eq!(ended.last["reason"], "SIGTERM");
        assert_eq!((assert_balanced(&ended), ended.count("waiting")), (ended.count("received"), 0));
        // Those beyond came when the socket was closed.
        assert!(ended.count("received") + ended.count("kernel_drops") <= sent);
    }
}

/// In the kernel when the signal comes, and nothing after it: all are answered.
fn datagrams_in_the_kernel_at_sigterm_are_answered(engine: &str) {
    let server = Server::udp(engine, &[]);
    server.signal(Signal::SIGSTOP);
    let client = burst(&server);
    server.signal(Signal::SIGTERM);
    server.signal(Signal::SIGCONT);
    // A second signal would stop it at once.
    let ended = server.wait();
    assert_eq!((ended.code, assert_balanced(&ended)), (Some(0), u64::from(BURST)));
    assert_eq!(numbers(&client), (0..BURST).collect::<Vec<_>>());
}

/// Asked for more than the limit allows without the right to exceed it.
fn a_smaller_buffer_than_requested_is_reported() {
    let limit = fs::read_to_string("/proc/sys/net/core/rmem_max").expect("a limit");
    let limit: u64 = limit.trim().parse().expect("a number");
    let wish = limit + 1_000_000;
    let server = Server::udp("epoll", &["--rcvbuf", &wish.to_string()]);
    // Both the wish and the limit count once more for the kernel's bookkeeping.
    let granted = &server.ready["udp"]["granted"]["recv_buffer_bytes"];
    if *granted != 2 * wish {
        assert_eq!(*granted, 2 * limit);
        wait_until("that is told", || server.stderr().contains("net.core.rmem_max"));
    }
}
