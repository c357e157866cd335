//! Datagrams arrive whole, in order, from and to every kind of address.

use super::peers::*;
use crate::support::*;
use std::net::SocketAddr;
use twinring::{UdpSocket, net::UdpOptions, spawn};

pub(crate) const RULES: &[Rule] = rules![
    what_each_source_sends_comes_back_in_order,
    empty_datagrams_are_datagrams_and_long_ones_truncated,
    workers_share_a_port,
    sockets_come_from_the_standard_library,
];

/// Several sources at once, each with some datagrams under way: what one sends comes back in order, byte for byte.
/// Single-shot receives may swap datagrams: there is one under way at a time.
async fn what_each_source_sends_comes_back_in_order(options: UdpOptions) {
    const DATAGRAMS: usize = 1000;
    const SIZES: [usize; 8] = [0, 1, 2, 172, 1199, 1472, 2047, 2048];
    let socket = bind(&options);
    let address = socket.local_addr();
    spawn(reflect(socket));
    let under_way = if options.pending > 0 { 1 } else { 16 };
    let source = |seed: u64| {
        on_thread(move || {
            let peer = peer();
            peer.connect(address).expect("a route");
            let datagram = |number| pattern(seed, number..number + SIZES[number % 8]);
            let mut sent = 0;
            for number in 0..DATAGRAMS {
                while sent < DATAGRAMS.min(number + under_way) {
                    peer.send(&datagram(sent)).expect("room");
                    sent += 1;
                }
                assert!(next(&peer) == datagram(number), "{number} of {seed}");
            }
        })
    };
    let sources: Vec<_> = (0..4).map(source).collect();
    for source in sources {
        source.await;
    }
}

async fn empty_datagrams_are_datagrams_and_long_ones_truncated(options: UdpOptions) {
    let options = UdpOptions { buffer_bytes: 100, ..options };
    let told = UdpOptions { pktinfo: true, ..options.clone() };
    let peer = peer();
    for socket in [
        bind(&options),
        connect(&options, address_of(&peer)),
        bind(&told),
        connect(&told, address_of(&peer)),
    ] {
        for bytes in [0, 100, 101, 9000, 99, 0] {
            peer.send_to(&pattern(1, 0..bytes), socket.local_addr()).expect("room");
            let received = socket.recv_from().await.expect("a datagram");
            assert_eq!(received.data.len(), bytes.min(100));
            assert_eq!(received.truncated, bytes > 100, "{bytes} bytes");
            assert_eq!(received.from, address_of(&peer));
            assert_pattern(1, 0, &received.data);
        }
        let stats = socket.stats().expect("SO_MEMINFO");
        assert_eq!((stats.received, stats.truncated), (6, 2));
        socket.send_to("", address_of(&peer)).await.expect("room");
        socket.flush().await.expect("sent");
        assert_eq!(next(&peer), b"");
    }
}

/// Each source lands on one of the workers, and all answer from the shared port.
fn workers_share_a_port(configuration: Configuration) {
    let bound = UdpOptions::default().bind_shared(loopback(), 2).expect("a free port");
    let address: SocketAddr = bound[0].local_addr();
    assert!(bound.iter().all(|socket| socket.local_addr() == address));
    let error = UdpOptions::default().bind_shared(address, 2).expect_err("taken").to_string();
    assert!(error.contains("in use"), "{error}");
    let bound: Vec<_> = bound.into_iter().map(|b| std::sync::Mutex::new(Some(b))).collect();
    let runtime = configuration.builder().workers(2).build().expect("tried before");
    let handle = runtime.handle();
    let peers = std::thread::spawn(move || {
        for number in 0..40 {
            let peer = peer();
            let sent = numbered(5, number, 50);
            peer.send_to(&sent, address).expect("room");
            assert!(next(&peer) == sent);
        }
        handle.shutdown();
    });
    let served = runtime.run(|worker| {
        let bound = bound[worker].lock().expect("not poisoned").take().expect("taken once");
        async move {
            let socket = UdpSocket::from_bound(bound).expect("room");
            spawn(reflect(socket));
            twinring::shutdown_requested().await;
        }
    });
    peers.join().expect("all were answered");
    assert_eq!(served.expect("the engine works").len(), 2);
}

fn sockets_come_from_the_standard_library(configuration: Configuration) {
    configuration.run(async {
        let peer = peer();
        for connected in [false, true] {
            let socket = std::net::UdpSocket::bind(loopback()).expect("a free port");
            if connected {
                socket.connect(address_of(&peer)).expect("a route");
            }
            let address = address_of(&socket);
            let options = UdpOptions { pktinfo: true, ..UdpOptions::default() };
            let bound = options.from_std(socket).expect("a bound socket");
            let socket = UdpSocket::from_bound(bound).expect("room");
            let other = connected.then(|| address_of(&peer));
            assert_eq!((socket.local_addr(), socket.peer_addr()), (address, other));
            socket.send_to("there", address_of(&peer)).await.expect("room");
            socket.flush().await.expect("sent");
            assert_eq!(next(&peer), b"there");
            peer.send_to(b"and back", address).expect("room");
            let received = socket.recv_from().await.expect("a datagram");
            assert_eq!(&received.data[..], b"and back");
            assert_eq!(received.to, Some(address.ip()), "options are set");
        }
    });
    let unbound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None);
    let refused = UdpOptions::default().from_std(unbound.expect("a socket").into());
    let refused = refused.expect_err("it is not bound");
    assert!(refused.to_string().contains("not bound"), "{refused}");
}
