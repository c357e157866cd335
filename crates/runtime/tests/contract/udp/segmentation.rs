//! Several datagrams in one buffer: cut by the kernel (GSO) or, where it will not, by the runtime,
//! and coalesced by the kernel (GRO). The peer sees the same datagrams in the same order.

use super::peers::*;
use crate::support::*;
use twinring::{Datagram, Received, net::UdpOptions};

pub(crate) const RULES: &[Rule] = rules![
    a_buffer_is_cut_into_datagrams,
    unsegmented_buffers_keep_their_place,
    coalesced_datagrams_are_reflected_unchanged,
];

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
                assert!(
                    received.iter().map(|r| &*r.data).eq(expected.iter().copied()),
                    "{bytes} bytes by {segment}"
                );
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
        in_all_ways(configuration, |options, _| async move {
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
    let options = UdpOptions {
        gro: true,
        pktinfo: true,
        buffer_count: 64,
        recv_buffer_bytes: Some(4 << 20),
        ..options
    };
    for local in [loopback, any_v6] {
        let bound = options.bind(local()).expect("a free port");
        let (granted, address) = (bound.granted(), bound.local_addr());
        twinring::spawn(reflect(twinring::UdpSocket::from_bound(bound).expect("room")));
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
