//! The kernel's ancillary data of a datagram, and the options of a send.

use super::peers::*;
use crate::support::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use twinring::Datagram;
use twinring::net::{Ecn, UdpOptions};

pub(crate) const RULES: &[Rule] =
    rules![the_local_address_is_reported_and_can_be_chosen, dscp_and_ecn_pass_both_ways,];

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
    let chosen = [
        (any_v4, loopback(), on_loopback(5).ip()),
        (any_v6(), any_v6(), IpAddr::V6(Ipv6Addr::LOCALHOST)),
    ];
    for (from, to, source) in chosen {
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
                assert_eq!(
                    (received.from.port(), received.truncated),
                    (socket.local_addr().port(), false)
                );
                assert_eq!(received.to, Some(local.ip()));
            }
        }
        // Without a wish of its own a datagram carries the socket's DSCP.
        connected.send("default").await.expect("room");
        let received = to.recv_from().await.expect("a datagram");
        assert_eq!(received.traffic_class, Some(46 << 2));
        to.send_batch(&mut vec![received.into_reply()]).await.expect("room");
        let back = connected.recv_from().await.expect("a datagram");
        let here = connected.local_addr().ip();
        assert_eq!(
            (&*back.data, back.from, back.to),
            (&b"default"[..], to.local_addr(), Some(here))
        );
    }
}
