//! Sockets of the standard library, and descriptors for other code.

use crate::peers::*;
use crate::support::*;
use socket2::SockRef;
use std::net::UdpSocket as StdUdp;
use std::time::Duration;
use twinring::{UdpSocket, net::UdpOptions};

pub(crate) const RULES: &[Rule] =
    rules![sockets_come_from_the_standard_library, a_duplicate_gets_what_comes_after_the_drop,];

fn sockets_come_from_the_standard_library(configuration: Configuration) {
    configuration.run(async {
        let peer = peer();
        let socket = StdUdp::bind(loopback()).expect("a free port");
        let address = socket.local_addr().expect("bound");
        let socket = UdpSocket::from_std(socket).expect("a socket");
        assert_eq!((socket.local_addr(), socket.peer_addr()), (address, None));
        socket.send_to("there", address_of(&peer)).await.expect("room");
        socket.flush().await.expect("sent");
        let mut bytes = [0; 10];
        let (length, from) = peer.recv_from(&mut bytes).expect("a datagram");
        assert_eq!((&bytes[..length], from), (&b"there"[..], address));
        peer.send_to(b"and back", address).expect("room");
        assert_eq!(&socket.recv_from().await.expect("a datagram").data[..], b"and back");

        let connected = StdUdp::bind(loopback()).expect("a free port");
        connected.connect(address_of(&peer)).expect("a route");
        let options = UdpOptions { pktinfo: true, ..UdpOptions::default() };
        let connected = options.from_std(connected).expect("a bound socket");
        let connected = UdpSocket::from_bound(connected).expect("room");
        assert_eq!(connected.peer_addr(), Some(address_of(&peer)));
        connected.send("to the peer").await.expect("room");
        connected.flush().await.expect("sent");
        let (length, from) = peer.recv_from(&mut [0; 20]).expect("a datagram");
        assert_eq!((length, from), (11, connected.local_addr()));
        peer.send_to(b"x", from).expect("room");
        let received = connected.recv_from().await.expect("a datagram");
        assert_eq!(received.to, Some(from.ip()), "options are set");
    });
    let unbound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None);
    let refused = UdpOptions::default().from_std(unbound.expect("a socket").into());
    let refused = refused.expect_err("it is not bound");
    assert!(refused.to_string().contains("not bound"), "{refused}");
}

fn a_duplicate_gets_what_comes_after_the_drop(configuration: Configuration) {
    configuration.run_with_handle(|handle| async move {
        let socket = bind(&UdpOptions::default());
        socket.with_fd(|fd| SockRef::from(&fd).set_broadcast(true)).expect("SO_BROADCAST");
        let address = socket.local_addr();
        let duplicate = socket.with_fd(|fd| fd.try_clone_to_owned()).expect("a descriptor");
        assert!(poll_once(socket.recv_from()).await.is_none());
        settle().await;
        drop(socket);
        settle().await;
        peer().send_to(b"for the duplicate", address).expect("room");
        settle().await;
        let before = handle.counters().waits;
        twinring::sleep(Duration::from_millis(20)).await;
        let waits = handle.counters().waits - before;
        assert!(waits < 100, "{waits} waits while nothing happens");
        let duplicate = StdUdp::from(duplicate);
        assert!(SockRef::from(&duplicate).broadcast().expect("a socket"), "the same socket");
        duplicate.set_nonblocking(false).expect("a socket");
        duplicate.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        let mut bytes = [0; 20];
        assert_eq!(duplicate.recv(&mut bytes).expect("a datagram"), 17);
        assert_eq!(&bytes[..17], b"for the duplicate");
    });
}
