//! Connecting, addresses and socket options.

use crate::support::*;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use twinring::{TcpListener, TcpStream, spawn};

pub(crate) const RULES: &[Rule] = rules![
    a_refused_connection_is_an_error,
    ipv6_works_like_ipv4,
    both_ends_agree_on_their_addresses,
    a_taken_port_is_named_in_the_error,
    a_worker_that_serves_does_not_sleep_for_a_taken_port,
];

async fn a_refused_connection_is_an_error() {
    for _ in 0..10 {
        let refused = TcpStream::connect(closed_port()).await;
        assert_eq!(errno(&refused), libc::ECONNREFUSED);
    }
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    assert!(TcpStream::connect(nowhere).await.is_err());
    let elsewhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 0));
    let bound_elsewhere = TcpStream::connect_from(Some(elsewhere), closed_port()).await;
    assert_eq!(errno(&bound_elsewhere), libc::EADDRNOTAVAIL);
}

fn ipv6_works_like_ipv4(configuration: Configuration) {
    let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    testing::needs_ipv6();
    configuration.run(async move {
        let listener = TcpListener::bind(loopback).expect("a free port");
        let address = listener.local_addr();
        assert!(address.is_ipv6());
        spawn(echo_server(listener));
        let stream = TcpStream::connect(address).await.expect("a connection");
        assert_eq!(stream.peer_addr().expect("connected"), address);
        stream.send(pattern(1, 0..50_000)).await.expect("sent");
        assert_pattern(1, 0, &recv_exactly(&stream, 50_000).await);
    });
}

async fn both_ends_agree_on_their_addresses() {
    let listener = listen();
    let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), 0));
    let connecting = TcpStream::connect_from(Some(from), listener.local_addr());
    let stream = connecting.await.expect("a connection");
    let accepted = listener.accept().await.expect("its other end");
    assert_eq!(stream.local_addr().expect("bound").ip(), from.ip());
    assert_eq!(stream.local_addr().expect("bound"), accepted.peer_addr().expect("connected"));
    assert_eq!(accepted.local_addr().expect("bound"), listener.local_addr());
    stream.set_nodelay(false).expect("an option");
    assert!(stream.set_recv_buffer_bytes(10_000).expect("an option") >= 10_000);
    assert!(stream.set_send_buffer_bytes(10_000).expect("an option") >= 10_000);
}

async fn a_taken_port_is_named_in_the_error() {
    let taken = std::net::TcpListener::bind(loopback()).expect("a free port");
    let address = taken.local_addr().expect("bound");
    let error = TcpListener::bind(address).expect_err("taken");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

/// Each bind slept for 100 ms, and all connections of the worker with it.
fn a_worker_that_serves_does_not_sleep_for_a_taken_port(configuration: Configuration) {
    /// How often this thread went to sleep.
    fn sleeps() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("/proc");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("the field").trim().parse().expect("a number")
    }
    configuration.run(async {
        let taken = listen();
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let taken_by_datagrams = datagrams.local_addr().expect("bound");
        settle().await;
        let before = sleeps();
        for _ in 0..20 {
            assert!(TcpListener::bind(taken.local_addr()).is_err());
            assert!(twinring::UdpSocket::bind(taken_by_datagrams).is_err());
        }
        let slept = sleeps() - before;
        assert!(slept < 20, "slept {slept} times in 20 attempts");
    });
}
