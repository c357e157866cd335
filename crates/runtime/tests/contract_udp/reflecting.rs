//! Datagrams arrive whole, in order, from and to every kind of address.

use crate::peers::*;
use crate::support::*;
use std::net::SocketAddr;
use std::rc::Rc;
use twinring::{Datagram, UdpSocket, net::UdpOptions, spawn};

pub(crate) const RULES: &[Rule] = rules![
    every_size_is_reflected_byte_for_byte,
    the_order_of_each_source_is_kept,
    address_families_and_connectedness_combine,
    a_connected_socket_receives_only_from_its_peer,
    empty_datagrams_are_datagrams,
    long_datagrams_are_truncated_and_marked,
    large_batches_pass_through_the_bounded_queue,
    two_tasks_share_a_socket,
    workers_share_a_port,
];

const SIZES: [usize; 8] = [0, 1, 2, 172, 1199, 1472, 2047, 2048];

fn every_size_is_reflected_byte_for_byte(configuration: Configuration) {
    in_all_ways(configuration, |options, _| async move {
        let socket = bind(&options);
        let address = socket.local_addr();
        spawn(reflect(socket));
        on_thread(move || {
            let peer = peer();
            for (seed, size) in SIZES.into_iter().enumerate() {
                let sent = pattern(seed as u64, 0..size);
                peer.send_to(&sent, address).expect("room");
                assert!(next(&peer) == sent, "{size} bytes");
            }
        })
        .await;
    });
}

/// Several sources at once, each with some datagrams under way: what one sends comes back in
/// order. Single-shot receives are left out: keeping many in flight may swap datagrams.
fn the_order_of_each_source_is_kept(configuration: Configuration) {
    const SOURCES: usize = 4;
    const DATAGRAMS: usize = 1000;
    const UNDER_WAY: usize = 16;
    for options in ways().into_iter().filter(|options| options.pending == 0) {
        configuration.run(async move {
            let socket = bind(&options);
            let address = socket.local_addr();
            spawn(reflect(socket));
            let sources: Vec<_> = (0..SOURCES as u64)
                .map(|seed| {
                    on_thread(move || {
                        let peer = peer();
                        peer.connect(address).expect("a route");
                        let mut sent = 0;
                        for number in 0..DATAGRAMS {
                            while sent < DATAGRAMS.min(number + UNDER_WAY) {
                                peer.send(&numbered(seed, sent, 20 + sent % 100)).expect("room");
                                sent += 1;
                            }
                            assert_eq!(assert_numbered(seed, &next(&peer)), number);
                        }
                    })
                })
                .collect();
            for source in sources {
                source.await;
            }
        });
    }
}

fn address_families_and_connectedness_combine(configuration: Configuration) {
    in_all_ways(configuration, |options, _| async move {
        for local in [loopback, any_v6] {
            let local = local();
            // Unconnected to unconnected.
            let (ours, theirs) = (bind_to(&options, local), bind_to(&options, local));
            ours.send_to("one", theirs.local_addr()).await.expect("room");
            let one = theirs.recv_from().await.expect("a datagram");
            assert_eq!((&*one.data, one.from), (&b"one"[..], ours.local_addr()));
            // Connected to unconnected and back.
            let connected = connect(&options, theirs.local_addr());
            assert_eq!(connected.peer_addr(), Some(theirs.local_addr()));
            connected.send("two").await.expect("room");
            let two = theirs.recv_from().await.expect("a datagram");
            assert_eq!((&*two.data, two.from), (&b"two"[..], connected.local_addr()));
            theirs.send_batch(&mut vec![two.into_reply()]).await.expect("room");
            let back = connected.recv_from().await.expect("a datagram");
            assert_eq!((&*back.data, back.from), (&b"two"[..], theirs.local_addr()));
            assert_eq!((back.to, back.segment_bytes, back.received_ns), (None, None, None));
            assert!(!back.truncated);
        }
    });
}

fn a_connected_socket_receives_only_from_its_peer(configuration: Configuration) {
    in_all_ways(configuration, |options, _| async move {
        let (peer, stranger) = (peer(), peer());
        let socket = connect(&options, address_of(&peer));
        stranger.send_to(b"not for you", socket.local_addr()).expect("room");
        peer.send_to(b"for you", socket.local_addr()).expect("room");
        assert_eq!(&*socket.recv_from().await.expect("a datagram").data, b"for you");
        assert!(poll_once(socket.recv_from()).await.is_none());
    });
}

fn empty_datagrams_are_datagrams(configuration: Configuration) {
    in_all_ways(configuration, |options, _| async move {
        let peer = peer();
        for socket in [bind(&options), connect(&options, address_of(&peer))] {
            for bytes in [&b""[..], b"", b"full", b""] {
                peer.send_to(bytes, socket.local_addr()).expect("room");
            }
            let received = receive(&socket, 4).await;
            let lengths: Vec<_> = received.iter().map(|r| r.data.len()).collect();
            let mut expected = [0, 0, 4, 0];
            if options.pending > 0 {
                assert_eq!(lengths.iter().sum::<usize>(), 4);
            } else {
                assert_eq!(lengths, expected);
            }
            assert!(received.iter().all(|r| r.from == address_of(&peer) && !r.truncated));
            // And in the other direction.
            socket.send_to("", address_of(&peer)).await.expect("room");
            expected.fill(0);
            socket.flush().await.expect("sent");
            if socket.peer_addr().is_none() {
                assert_eq!(next(&peer), b"");
            }
        }
    });
}

fn long_datagrams_are_truncated_and_marked(configuration: Configuration) {
    in_all_ways(configuration, |options, _| async move {
        let options = UdpOptions { buffer_bytes: 100, ..options };
        let told = UdpOptions { pktinfo: true, timestamps: true, ..options.clone() };
        let peer = peer();
        for socket in [
            bind(&options),
            connect(&options, address_of(&peer)),
            bind(&told),
            connect(&told, address_of(&peer)),
        ] {
            for bytes in [100, 101, 9000, 99] {
                peer.send_to(&pattern(1, 0..bytes), socket.local_addr()).expect("room");
                let received = socket.recv_from().await.expect("a datagram");
                assert_eq!(received.data.len(), bytes.min(100));
                assert_eq!(received.truncated, bytes > 100, "{bytes} bytes");
                assert_pattern(1, 0, &received.data);
            }
            let stats = socket.stats().expect("SO_MEMINFO");
            assert_eq!((stats.received, stats.truncated), (4, 2));
        }
    });
}

/// More than may be held at once, from one vector: nothing is lost on the way to the kernel.
fn large_batches_pass_through_the_bounded_queue(configuration: Configuration) {
    const DATAGRAMS: usize = 5000;
    in_all_ways(configuration, |options, _| async move {
        let options = UdpOptions { recv_buffer_bytes: Some(8 << 20), ..options };
        let (from, to) = (bind(&options), bind(&options));
        let target = to.local_addr();
        let receiving = spawn(async move { receive(&to, DATAGRAMS).await });
        let datagram = |number| Datagram::to(target, numbered(3, number, 64));
        let mut batch: Vec<_> = (0..DATAGRAMS).map(datagram).collect();
        from.send_batch(&mut batch).await.expect("room");
        assert!(batch.is_empty());
        from.flush().await.expect("sent");
        let received = receiving.await.expect("not aborted");
        let mut numbers: Vec<_> = received.iter().map(|r| assert_numbered(3, &r.data)).collect();
        if options.pending > 0 {
            numbers.sort_unstable();
        }
        assert_eq!(numbers, (0..DATAGRAMS).collect::<Vec<_>>());
        assert_eq!(from.stats().expect("SO_MEMINFO").sent, DATAGRAMS as u64);
    });
}

fn two_tasks_share_a_socket(configuration: Configuration) {
    in_all_ways(configuration, |options, _| async move {
        let peer = bind(&options);
        let target = peer.local_addr();
        spawn(reflect(peer));
        let socket = Rc::new(bind(&options));
        let receiver = Rc::clone(&socket);
        let receiving = spawn(async move { receive(&receiver, 200).await });
        for number in 0..200 {
            socket.send_to(numbered(4, number, 100), target).await.expect("room");
        }
        let received = receiving.await.expect("not aborted");
        assert!(received.iter().all(|received| assert_numbered(4, &received.data) < 200));
    });
}

/// Each source lands on one of the workers, and all answer from the shared port.
fn workers_share_a_port(configuration: Configuration) {
    let bound = UdpOptions::default().bind_shared(loopback(), 2).expect("a free port");
    let address: SocketAddr = bound[0].local_addr();
    assert!(bound.iter().all(|socket| socket.local_addr() == address));
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
