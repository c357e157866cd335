//! `serve udp`: the same datagrams on both engines, for any behaviour of peers, to allowed clients and no others,
//! and all that was received is answered at the end.

use crate::support::datagrams::*;
use crate::support::namespace::in_a_namespace;
use crate::support::*;
use socket2::{Domain, Socket, Type};
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testing::{Test, engine_tests, tests};
use twinring::{
    Datagram,
    net::{Ecn, UdpOptions},
};

pub(crate) const TESTS: &[Test] = tests![
    both_engines_answer_with_the_same_bytes_and_the_same_counts,
    the_ready_line_lists_allowed_clients,
    a_smaller_buffer_than_requested_is_reported
];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    the_order_of_each_of_many_sources_is_kept_under_load,
    a_burst_larger_than_the_buffer_is_answered_or_counted,
    senders_that_are_gone_do_not_disturb_the_others,
    longer_datagrams_than_agreed_are_dropped_and_counted,
    answers_come_from_the_address_of_the_request_on_every_listener,
    datagrams_claiming_to_come_from_the_reflector_are_not_answered,
    segmented_flows_come_back_whole,
    answers_carry_the_configured_dscp_and_ecn_only_on_request,
    others_are_dropped_or_closed_and_counted,
    a_source_beyond_its_rate_is_not_answered,
    sigterm_answers_all_that_was_received_while_more_arrives,
    datagrams_in_the_kernel_at_sigterm_are_answered,
    the_address_is_free_as_soon_as_the_server_has_ended
];

/// Ways of receiving and sending that all keep the same promises. What belongs to the other engine
/// changes nothing.
const WAYS: [&[&str]; 5] = [
    &[],
    &["--gro", "on"],
    &["--pending", "8"],
    &["--batch", "off"],
    &["--workers", "2", "--buffers", "4"],
];

/// Empty, every size of small frames, around pages and buffers, and up to the longest.
fn sizes() -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..=300).chain((301..=3000).step_by(13)).collect();
    sizes.extend((3000..65_507).step_by(1709));
    sizes.extend([1471, 1472, 1473, 2047, 2048, 2049, 4095, 4096, 4097, 65_506, 65_507]);
    sizes
}

/// The results of a fixed set of datagrams on one engine: all answers, and all counters.
fn transcript(engine: &str, way: &[&str]) -> (Vec<Vec<u8>>, serde_json::Value) {
    let server = Server::udp(engine, way);
    let clients: Vec<UdpSocket> = (0..5).map(|_| client(server.address())).collect();
    let mut came_back = Vec::new();
    for (number, size) in sizes().into_iter().enumerate() {
        let client = &clients[number % clients.len()];
        reflected(client, &pattern(number as u64, size));
    }
    // Several on their way at once, of different sizes.
    for round in 0..20 {
        for client in &clients {
            (0..8).for_each(|number| {
                drop(client.send(&numbered(round, number, 40 * number as usize)))
            });
        }
        came_back.extend(clients.iter().flat_map(|client| (0..8).map(|_| next(client))));
    }
    let ended = server.end();
    assert_eq!(assert_balanced(&ended), sizes().len() as u64 + 20 * 5 * 8);
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

fn the_order_of_each_of_many_sources_is_kept_under_load(engine: &str) {
    const SOURCES: usize = 200;
    const ROUNDS: u32 = 10;
    const IN_FLIGHT: u32 = 20;
    for way in [&[][..], &["--workers", "2"], &["--gro", "on"]] {
        let server = Server::udp(engine, way);
        let clients: Vec<UdpSocket> = (0..SOURCES).map(|_| client(server.address())).collect();
        for round in 0..ROUNDS {
            for number in 0..IN_FLIGHT {
                for (source, client) in clients.iter().enumerate() {
                    let number = round * IN_FLIGHT + number;
                    client.send(&numbered(source as u64, number, 100)).expect("room");
                }
            }
            for (source, client) in clients.iter().enumerate() {
                for number in 0..IN_FLIGHT {
                    let came = number_of(source as u64, &next(client));
                    assert_eq!(came, round * IN_FLIGHT + number, "{engine} {way:?}");
                }
            }
        }
        let ended = server.terminate();
        assert_eq!(assert_balanced(&ended), SOURCES as u64 * u64::from(ROUNDS * IN_FLIGHT));
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
    let drops = ended.count("kernel_drops");
    assert!(drops > 0, "{}", ended.last);
    assert_eq!(ended.count("received") + drops, SENT);
    assert_eq!(assert_balanced(&ended), ended.count("received"));
}

fn senders_that_are_gone_do_not_disturb_the_others(engine: &str) {
    let server = Server::udp(engine, &[]);
    let stays = client(server.address());
    for number in 0..200 {
        let gone = client(server.address());
        (0..3).for_each(|_| drop(gone.send(b"this socket is closed before the answer")));
        drop(gone);
        reflected(&stays, &numbered(2, number, 200));
    }
    let ended = server.terminate();
    assert_eq!((ended.code, assert_balanced(&ended)), (Some(0), 800));
}

fn longer_datagrams_than_agreed_are_dropped_and_counted(engine: &str) {
    for way in [&[][..], &["--pending", "4"], &["--batch", "off"]] {
        let server = Server::udp(engine, &[&["--max-datagram", "1000"], way].concat());
        let client = client(server.address());
        for (number, size) in [999, 1000, 1001, 65_507, 1000, 0].into_iter().enumerate() {
            let bytes = pattern(number as u64, size);
            if size > 1000 {
                client.send(&bytes).expect("room");
            } else {
                reflected(&client, &bytes);
            }
        }
        let ended = server.terminate();
        assert_eq!((ended.count("truncated"), assert_balanced(&ended)), (2, 4));
    }
}

fn answers_come_from_the_address_of_the_request_on_every_listener(engine: &str) {
    testing::needs_ipv6();
    let listen = ["0.0.0.0:0", "[::]:0", "127.0.0.1:0", "[::1]:0"];
    let listen: Vec<&str> = listen.iter().flat_map(|address| ["--listen", address]).collect();
    let server =
        Server::udp(engine, &[&listen[..], &["--workers", "2", "--allow", "any"]].concat());
    let asked: Vec<SocketAddr> = server.addresses();
    assert_eq!(asked.len(), 4);
    let mut targets = asked[2..].to_vec();
    targets.push(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], asked[1].port())));
    targets.extend((1..=3).map(|n| SocketAddr::from(([127, 0, 0, n], asked[0].port()))));
    for (number, target) in targets.iter().enumerate() {
        // Connected: an answer from another address would not be heard.
        let client = client(*target);
        (0..10).for_each(|more| reflected(&client, &numbered(number as u64, more, 50)));
    }
    let ended = server.terminate();
    assert_eq!(assert_balanced(&ended), 10 * targets.len() as u64);
}

/// A datagram whose sender is the reflector itself would loop for ever; with a socket on all addresses, so would one
/// from another of them.
fn datagrams_claiming_to_come_from_the_reflector_are_not_answered(engine: &str) {
    let two = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--workers", "2"];
    let all = ["--listen", "0.0.0.0:0", "--allow", "127.0.0.0/8", "--workers", "2"];
    for arguments in [two, all] {
        let server = Server::udp(engine, &arguments);
        let (mine, asked) = match server.addresses()[..] {
            [mine, asked] => (mine, asked),
            _ => {
                let port = server.address().port();
                let at = |last| SocketAddr::from(([127, 0, 0, last], port));
                (at(2), at(1))
            }
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

/// Segments sent in one buffer come back each for itself, coalesced on the way or not.
fn segmented_flows_come_back_whole(engine: &str) {
    const BUFFERS: usize = 40;
    for gro in ["on", "off"] {
        let server = Server::udp(engine, &["--gro", gro]);
        let target = server.address();
        let sent: Vec<Vec<u8>> = (0..BUFFERS).map(|n| pattern(n as u64, 9000)).collect();
        let expected = sent.clone();
        let runtime = twinring::Runtime::builder().build().expect("an engine");
        let came = runtime.block_on(async move {
            let options = UdpOptions { buffer_bytes: 2048, ..UdpOptions::default() };
            let bound = options.connect(None, target).expect("a route");
            let client = twinring::UdpSocket::from_bound(bound).expect("room");
            let mut came = Vec::new();
            for data in sent {
                let segment_bytes = Some(700);
                let datagram = Datagram { segment_bytes, ..Datagram::new(data) };
                client.send_batch(&mut vec![datagram]).await.expect("room");
                let mut bytes = Vec::new();
                while bytes.len() < 9000 {
                    let answer = client.recv_from().await.expect("an answer");
                    assert!([700, 9000 % 700].contains(&answer.data.len()));
                    bytes.extend_from_slice(&answer.data);
                }
                came.push(bytes);
            }
            came
        });
        assert!(came.expect("the engine works") == expected);
        let ended = server.terminate();
        assert_eq!(assert_balanced(&ended), (BUFFERS * 9000usize.div_ceil(700)) as u64);
    }
}

fn answers_carry_the_configured_dscp_and_ecn_only_on_request(engine: &str) {
    let ways = [(&["--dscp", "46"][..], false), (&["--dscp", "46", "--copy-ecn"], true)];
    for address in ["127.0.0.1:0", "[::1]:0"] {
        if address == "[::1]:0" {
            testing::needs_ipv6();
        }
        for (way, echoed) in ways {
            let server = Server::udp(engine, &[way, &["--listen", address]].concat());
            let target = server.address();
            let runtime = twinring::Runtime::builder().build().expect("an engine");
            runtime
                .block_on(async move {
                    let options =
                        UdpOptions { traffic_class: true, dscp: 10, ..UdpOptions::default() };
                    let bound = options.connect(None, target).expect("a route");
                    let client = twinring::UdpSocket::from_bound(bound).expect("room");
                    for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
                        let datagram = Datagram { ecn: Some(ecn), ..Datagram::new("marked") };
                        client.send_batch(&mut vec![datagram]).await.expect("room");
                        let answer = client.recv_from().await.expect("an answer");
                        let expected = if echoed { ecn } else { Ecn::NotEct };
                        let class = Some(46 << 2 | expected as u8);
                        assert_eq!(answer.traffic_class, class);
                    }
                })
                .expect("the engine works");
        }
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

/// Of the reflector and of the echo.
fn others_are_dropped_or_closed_and_counted(engine: &str) {
    const OPEN: [&str; 4] = ["--listen", "10.9.9.1:0", "--allow", "10.9.9.2/32"];
    in_a_namespace(|| {
        for mode in [&[][..], &["--gro", "on"]] {
            let server = Server::udp(engine, &[&OPEN[..], mode].concat());
            let from = |source: &str| {
                let client = UdpSocket::bind((source, 0)).expect("a free port");
                client.connect(server.address()).expect("a route");
                client.set_read_timeout(Some(PATIENCE)).expect("a socket");
                client
            };
            let (named, other) = (from("10.9.9.2"), from("10.9.9.3"));
            for number in 0..20 {
                other.send(&pattern(number, 100)).expect("room");
                reflected(&named, &pattern(number, 100));
            }
            let ended = server.end();
            assert_eq!((ended.count("not_allowed"), assert_balanced(&ended)), (20, 20));
            other.set_nonblocking(true).expect("a socket");
            assert!(other.recv(&mut [0; 2000]).is_err(), "another client was answered");
        }
        let server = Server::echo(engine, &OPEN);
        let from = |last| connect_from([10, 9, 9, last].into(), server.addresses()[1]);
        let named = from(2);
        for _ in 0..5 {
            assert!(matches!(from(3).read(&mut [0]), Ok(0) | Err(_)));
        }
        ping(&named, b"served all along");
        drop(named);
        let ended = server.end();
        assert_eq!((ended.count("not_allowed"), ended.count("accepted")), (5, 1));
    });
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
}

fn sigterm_answers_all_that_was_received_while_more_arrives(engine: &str) {
    for way in [&[][..], &["--workers", "2"]] {
        let server = Server::udp(engine, way);
        let client = client(server.address());
        let has_ended = AtomicBool::new(false);
        let (ended, sent) = std::thread::scope(|scope| {
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
    let client = roomy_client(server.address());
    server.signal(Signal::SIGSTOP);
    burst(&client);
    server.signal(Signal::SIGTERM);
    server.signal(Signal::SIGCONT);
    let ended = server.terminate();
    assert_eq!((ended.code, assert_balanced(&ended)), (Some(0), BURST.into()));
    assert_eq!(numbers(&client), (0..BURST).collect::<Vec<_>>());
}

fn the_address_is_free_as_soon_as_the_server_has_ended(engine: &str) {
    // On an address of its own: no other program gets the port in between.
    let first = Server::udp(engine, &["--listen", "127.0.0.9:0"]);
    let address = first.address();
    reflected(&client(address), b"first");
    first.end();
    let second = Server::udp(engine, &["--listen", &address.to_string()]);
    reflected(&client(address), b"second");
    second.kill();
    let third = Server::udp(engine, &["--listen", &address.to_string(), "--workers", "2"]);
    reflected(&client(address), b"third");
    drop(third);
}

/// Asked for more than the limit allows without the right to exceed it.
fn a_smaller_buffer_than_requested_is_reported() {
    let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max").expect("a limit");
    let limit: u64 = limit.trim().parse().expect("a number");
    let wish = limit + 1_000_000;
    let server = Server::udp("epoll", &["--rcvbuf", &wish.to_string()]);
    let granted = server.ready["udp"]["granted"]["recv_buffer_bytes"].as_u64().expect("a number");
    // Both the wish and the limit count once more for the kernel's bookkeeping.
    if granted < 2 * wish {
        assert_eq!(granted, 2 * limit);
        wait_until("that is told", || server.stderr().contains("net.core.rmem_max"));
    }
}
