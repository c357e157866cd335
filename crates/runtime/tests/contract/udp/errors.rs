//! Errors are counted and survived: they end neither receiving nor sending, and cost no datagram
//! that could have been sent.

use super::peers::*;
use crate::support::*;
use std::rc::Rc;
use twinring::{Datagram, net::UdpOptions};

pub(crate) const RULES: &[Rule] = rules![
    a_peer_that_is_not_there_yet_costs_nothing_later,
    a_datagram_that_is_too_big_fails_alone,
    invalid_addresses_fail_alone,
    options_out_of_range_are_refused_by_name,
];

/// Sends to a closed port bring ICMP errors back, which surface in later sends and receives. Once
/// the port is open, everything sent arrives, and the socket hears the peer.
async fn a_peer_that_is_not_there_yet_costs_nothing_later(options: UdpOptions) {
    let address = address_of(&peer());
    let socket = Rc::new(connect(&options, address));
    let receiver = Rc::clone(&socket);
    let receiving = twinring::spawn(async move { receiver.recv_from().await });
    for _ in 0..5 {
        socket.send("is anybody there").await.expect("room");
        socket.flush().await.expect("sent or counted");
    }
    settle().await;
    assert!(!receiving.is_finished());
    let peer = peer_at(address);
    // The last ICMP error may still be pending: the datagram in whose place it is reported is
    // sent again, perhaps behind others.
    for number in 0..20 {
        socket.send(numbered(12, number, 30)).await.expect("room");
    }
    socket.flush().await.expect("sent");
    let mut numbers: Vec<_> = (0..20).map(|_| assert_numbered(12, &next(&peer))).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    peer.send_to(b"here now", socket.local_addr()).expect("room");
    let received = receiving.await.expect("not aborted").expect("a datagram");
    assert_eq!(&*received.data, b"here now");
    let stats = socket.stats().expect("SO_MEMINFO");
    assert!(stats.icmp_errors > 0, "{stats:?}");
    assert_eq!(stats.send_errors.total() + stats.sent, 25, "{stats:?}");
    assert!(stats.send_errors.total() <= stats.icmp_errors && stats.receive_errors == 0);
}

async fn a_datagram_that_is_too_big_fails_alone(options: UdpOptions) {
    let to = bind(&options);
    let target = to.local_addr();
    for socket in [bind(&options), connect(&options, target)] {
        for number in 0..10 {
            let datas = [numbered(13, number, 50), vec![0; 65_508], vec![0; 1 << 20]];
            let mut batch = datas.map(|data| datagram(&socket, target, data)).into();
            socket.send_batch(&mut batch).await.expect("room");
        }
        socket.flush().await.expect("sent or counted");
        assert_all(13, &receive(&to, 10).await, 10, &options);
        let stats = socket.stats().expect("SO_MEMINFO");
        assert_eq!((stats.sent, stats.send_errors.too_big), (10, 20), "{stats:?}");
        assert_eq!(stats.send_errors.total(), 20);
    }
}

async fn invalid_addresses_fail_alone(options: UdpOptions) {
    let to = bind(&options);
    let socket = bind(&options);
    let mut foreign_source = Datagram::to(to.local_addr(), "from elsewhere");
    foreign_source.from = Some("192.0.2.1".parse().expect("an address"));
    let batch = vec![
        Datagram::new("nowhere"),
        Datagram::to("[::1]:9".parse().expect("an address"), "another family"),
        Datagram::to("127.0.0.1:0".parse().expect("an address"), "no port"),
        foreign_source,
        Datagram::to("255.255.255.255:9".parse().expect("an address"), "broadcast"),
        Datagram::to(to.local_addr(), "somewhere"),
    ];
    let senseless = batch.len() as u64 - 1;
    socket.send_batch(&mut { batch }).await.expect("room");
    socket.flush().await.expect("sent or counted");
    assert_eq!(&*to.recv_from().await.expect("a datagram").data, b"somewhere");
    let stats = socket.stats().expect("SO_MEMINFO");
    let errors = stats.send_errors;
    assert_eq!((stats.sent, errors.total()), (1, senseless), "{stats:?}");
    assert_eq!(errors.bad_address + errors.unreachable + errors.forbidden, senseless);
    // A connected socket takes datagrams for its peer by name, too; IPv4 sends to others.
    let connected = connect(&options, to.local_addr());
    connected.send_to("by name", to.local_addr()).await.expect("room");
    assert_eq!(&*to.recv_from().await.expect("a datagram").data, b"by name");
}

async fn options_out_of_range_are_refused_by_name() {
    let default = UdpOptions::default();
    for (options, name) in [
        (UdpOptions { buffer_bytes: 15, ..default.clone() }, "buffer_bytes 15"),
        (UdpOptions { buffer_bytes: 1 << 16, ..default.clone() }, "buffer_bytes 65536"),
        (UdpOptions { buffer_count: 1000, ..default.clone() }, "buffer_count 1000"),
        (UdpOptions { buffer_count: 1 << 16, ..default.clone() }, "buffer_count 65536"),
        (UdpOptions { pending: 5000, ..default.clone() }, "pending 5000"),
        (UdpOptions { dscp: 64, ..default.clone() }, "dscp 64"),
    ] {
        let error = options.bind(loopback()).expect_err(name);
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with(name), "{error}");
    }
}
