//! Datagrams arrive whole, in order, from and to every kind of address, with the kernel's ancillary data; several in one
//! buffer, cut by the kernel (GSO) or, where it will not, by the runtime, and coalesced by the kernel (GRO), too.

use super::peers::*;
use crate::support::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use twinring::net::{Ecn, UdpOptions};
use twinring::{Datagram, Received};

pub(crate) const RULES: &[Rule] = rules![
    what_each_source_sends_comes_back_in_order,
    empty_datagrams_are_datagrams_and_long_ones_truncated,
    sockets_come_from_the_standard_library,
    the_local_address_is_reported_and_can_be_chosen,
    dscp_and_ecn_pass_both_ways,
    a_buffer_is_cut_into_datagrams,
    unsegmented_buffers_keep_their_place,
    coalesced_datagrams_are_reflected_unchanged,
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
    let sockets = [&options, &told].map(|it| [bind(it), connect(it, address_of(&peer))]);
    for socket in sockets.into_iter().flatten() {
        for bytes in [0, 100, 101, 9000, 99, 0] {
            peer.send_to(&pattern(1, 0..bytes), socket.local_addr()).expect("room");
            let received = socket.recv_from().await.expect("a datagram");
            assert_eq!((received.data.len(), received.datagrams()), (bytes.min(100), 1));
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

async fn sockets_come_from_the_standard_library() {
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
    let unbound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None);
    let refused = UdpOptions::default().from_std(unbound.expect("a socket").into());
    let refused = refused.expect_err("it is not bound");
    assert!(refused.to_string().contains("not bound"), "{refused}");
}

async fn the_local_address_is_reported_and_can_be_chosen(options: UdpOptions) {
    let options = UdpOptions { pktinfo: true, ..options };
    let everywhere = bind_to(&options, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    let port = everywhere.local_addr().port();
    for last in [1, 2, 77] {
        let ip = Ipv4Addr::new(127, 0, 0, last);
        let peer = peer_at(on_loopback(9));
        // Connected: it would not hear an answer from another address.
        peer.connect((ip, port)).expect("a route");
        peer.send(b"where am I").expect("room");
        let received = everywhere.recv_from().await.expect("a datagram");
        assert_eq!(received.to, Some(IpAddr::V4(ip)));
        assert_eq!(received.from, address_of(&peer));
        everywhere.send_batch(&mut vec![received.into_reply()]).await.expect("room");
        everywhere.flush().await.expect("sent");
        assert_eq!(next(&peer), b"where am I");
    }
    // A source address of the sender's choice, on an unconnected socket of either family.
    let any_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let localhost = IpAddr::V6(Ipv6Addr::LOCALHOST);
    for (from, to, source) in
        [(any_v4, loopback(), on_loopback(5).ip()), (any_v6(), any_v6(), localhost)]
    {
        let (from, to) = (bind_to(&options, from), bind_to(&options, to));
        let mut datagram = Datagram::to(to.local_addr(), "chosen");
        datagram.from = Some(source);
        from.send_batch(&mut vec![datagram]).await.expect("room");
        let received = to.recv_from().await.expect("a datagram");
        assert_eq!(received.from.ip(), source);
        assert_eq!(received.to, Some(to.local_addr().ip()));
    }
}

/// With all that the kernel can report beside them.
async fn dscp_and_ecn_pass_both_ways(options: UdpOptions) {
    for local in [loopback, any_v6] {
        let local = local();
        let (pktinfo, traffic_class, gro, buffer_count) = (true, true, true, 64);
        let all = UdpOptions { pktinfo, traffic_class, gro, buffer_count, ..options.clone() };
        let to = bind_to(&all, local);
        let marked = UdpOptions { dscp: 46, ..all };
        let connected = connect(&marked, to.local_addr());
        assert_eq!(connected.peer_addr(), Some(to.local_addr()));
        let unconnected = bind_to(&marked, local);
        let plain = bind_to(&options, local);
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            for (socket, dscp) in [(&connected, 46), (&unconnected, 46), (&plain, 0)] {
                let mut datagram = datagram(socket, to.local_addr(), pattern(7, 0..500));
                datagram.ecn = Some(ecn);
                socket.send_batch(&mut vec![datagram]).await.expect("room");
                let received = to.recv_from().await.expect("a datagram");
                let class = received.traffic_class.map(|class| class >> 2);
                assert_eq!((class, received.ecn()), (Some(dscp), Some(ecn)));
                assert_whole(7, 500, &received.data);
                assert_eq!(received.from.port(), socket.local_addr().port());
                assert_eq!((received.to, received.truncated), (Some(local.ip()), false));
            }
        }
        // Without a wish of its own a datagram carries the socket's DSCP.
        connected.send("default").await.expect("room");
        let received = to.recv_from().await.expect("a datagram");
        assert_eq!(received.traffic_class, Some(46 << 2));
        to.send_batch(&mut vec![received.into_reply()]).await.expect("room");
        let back = connected.recv_from().await.expect("a datagram");
        assert_eq!((&*back.data, back.from), (&b"default"[..], to.local_addr()));
        assert_eq!(back.to, Some(connected.local_addr().ip()));
    }
}

/// Bytes of segment and of the whole: even, with a short last one, more than one buffer may hold,
/// more than 64 segments, one segment only, and no cut at all.
const CUTS: [(u16, usize); 7] =
    [(100, 1000), (100, 950), (1400, 100_000), (10, 1000), (500, 500), (500, 100), (0, 300)];

fn datagrams(segment: u16, data: &[u8]) -> Vec<&[u8]> {
    let size = if segment == 0 { data.len() } else { segment.into() };
    data.chunks(size).collect()
}

async fn a_buffer_is_cut_into_datagrams(options: UdpOptions) {
    let to = UdpOptions { recv_buffer_bytes: Some(4 << 20), ..UdpOptions::default() };
    for local in [loopback, any_v6] {
        let local = local();
        let to = bind_to(&to, local);
        for socket in [bind_to(&options, local), connect(&options, to.local_addr())] {
            let mut sent = 0;
            for (segment, bytes) in CUTS {
                let data = pattern(8, 0..bytes);
                let expected = datagrams(segment, &data);
                let mut datagram = datagram(&socket, to.local_addr(), data.clone());
                datagram.segment_bytes = Some(segment);
                assert_eq!(datagram.datagrams(), expected.len());
                socket.send_batch(&mut vec![datagram]).await.expect("room");
                let received = receive(&to, expected.len()).await;
                let received: Vec<_> = received.iter().map(|it| &*it.data).collect();
                assert!(received == expected, "{bytes} bytes by {segment}");
                sent += expected.len() as u64;
            }
            let stats = socket.stats().expect("SO_MEMINFO");
            assert_eq!((stats.sent, stats.gso_fallbacks, stats.send_errors.total()), (sent, 0, 0));
        }
    }
}

/// Segments that are longer than the path takes are refused by the kernel and cut by the runtime. On
/// io_uring the datagrams behind them, handed over in the same enter, came first.
fn unsegmented_buffers_keep_their_place(configuration: Configuration) {
    const SEGMENT: usize = 2000;
    const ROUNDS: usize = 20;
    on_a_slow_path(|| {
        in_all_ways(configuration, async move |options, _| {
            let to = bind(&UdpOptions { recv_buffer_bytes: Some(32 << 20), ..Default::default() });
            let from = bind(&options);
            let address = to.local_addr();
            let mut sent = 0;
            for _ in 0..ROUNDS {
                let mut next = |bytes| {
                    sent += 1;
                    numbered(12, sent - 1, bytes)
                };
                let mut cut = Datagram::to(address, [next(SEGMENT), next(SEGMENT)].concat());
                cut.segment_bytes = Some(SEGMENT as u16);
                let plain = Datagram::to(address, next(300));
                from.send_batch(&mut vec![cut, plain]).await.expect("room");
            }
            from.flush().await.expect("sent");
            let received = receive(&to, sent).await;
            assert_all(12, &received, sent, &UdpOptions::default());
            assert!(from.stats().expect("SO_MEMINFO").gso_fallbacks > 0, "all was cut");
        });
    });
}

/// Coalesced on the way in, if the kernel granted that, and cut again on the way out: a reflector never
/// touches the segments.
async fn coalesced_datagrams_are_reflected_unchanged(options: UdpOptions) {
    let (gro, pktinfo, buffer_count, recv_buffer_bytes) = (true, true, 64, Some(4 << 20));
    let options = UdpOptions { gro, pktinfo, buffer_count, recv_buffer_bytes, ..options };
    for local in [loopback, any_v6] {
        let bound = options.bind(local()).expect("a free port");
        let (granted, address) = (bound.granted(), bound.local_addr());
        spawn(reflect(UdpSocket::from_bound(bound).expect("room")));
        let socket = connect(&options, address);
        for (segment, bytes) in CUTS {
            let data = pattern(10, 0..bytes);
            let expected = datagrams(segment, &data);
            let mut datagram = Datagram::new(data.clone());
            datagram.segment_bytes = Some(segment);
            socket.send_batch(&mut vec![datagram]).await.expect("room");
            let mut received = receive(&socket, expected.len()).await;
            if granted.gro && granted.gso && (segment, bytes) == (100, 1000) {
                // Loopback never cuts: the buffer arrives as it was sent.
                assert_eq!((received.len(), received[0].segment_bytes), (1, Some(100)));
            }
            if options.pending > 0 {
                // Buffers of one batch may have changed places; their contents may not.
                received.sort_by_key(|r| data.windows(4).position(|w| w == &r.data[..4]));
            }
            let segments: Vec<_> = received.iter().flat_map(Received::segments).collect();
            if options.pending == 0 {
                assert!(segments == expected, "{bytes} bytes by {segment}");
            } else {
                assert_eq!(segments.concat().len(), bytes);
            }
        }
        let sent = CUTS.iter().map(|&(segment, bytes)| datagrams(segment, &vec![0; bytes]).len());
        assert_eq!(socket.stats().expect("SO_MEMINFO").received, sent.sum::<usize>() as u64);
    }
}
