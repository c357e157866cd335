//! Every queue is bounded, running out of buffers is a pause and not an error, and what the
//! kernel had to drop is counted.

use super::peers::*;
use crate::support::*;
use std::rc::Rc;
use twinring::{RecvBuf, net::UdpOptions, spawn};

pub(crate) const RULES: &[Rule] = rules![
    unread_datagrams_are_bounded_and_drops_are_counted,
    readers_that_keep_buffers_starve_no_other_socket,
    a_small_pool_delivers_a_flood_in_order,
    a_full_send_buffer_is_waited_for,
];

/// The socket is not read while far more arrives than any queue holds. The kept datagrams are the
/// first ones, in order; the kernel has counted the missing ones; afterwards everything arrives
/// again.
async fn unread_datagrams_are_bounded_and_drops_are_counted(options: UdpOptions) {
    const SENT: usize = 4000;
    let options = UdpOptions {
        recv_buffer_bytes: Some(64 * 1024),
        buffer_count: 64,
        buffer_bytes: 256,
        ..options
    };
    let socket = bind(&options);
    let peer = peer();
    // Armed, where the engine arms anything, and then not read.
    assert!(poll_once(socket.recv_from()).await.is_none());
    for number in 0..SENT {
        peer.send_to(&numbered(14, number, 200), socket.local_addr()).expect("room");
        if number % 500 == 0 {
            settle().await;
        }
    }
    settle().await;
    let mut received = Vec::new();
    let kernel_drops = || socket.stats().expect("SO_MEMINFO").kernel_drops as usize;
    while received.len() + kernel_drops() < SENT {
        if poll_once(socket.recv_batch(&mut received)).await.is_none() {
            settle().await;
        }
    }
    let mut numbers: Vec<_> = received.iter().map(|r| assert_numbered(14, &r.data)).collect();
    if options.pending > 0 {
        numbers.sort_unstable();
    }
    assert!(numbers.is_sorted() && numbers[0] == 0, "{numbers:?}");
    numbers.dedup();
    assert_eq!(numbers.len() + kernel_drops(), SENT);
    assert!(kernel_drops() > 0, "all fit into 64 KiB?");
    assert_eq!(socket.stats().expect("SO_MEMINFO").received as usize, numbers.len());
    drop(received);
    for number in 0..100 {
        peer.send_to(&numbered(15, number, 200), socket.local_addr()).expect("room");
        assert_numbered(15, &socket.recv_from().await.expect("a datagram").data);
    }
}

/// One task keeps all it ever got; sockets that share its buffers go on.
async fn readers_that_keep_buffers_starve_no_other_socket(options: UdpOptions) {
    let options = UdpOptions { buffer_count: 16, buffer_bytes: 512, ..options };
    let (hoarder, other) = (bind(&options), bind(&options));
    let peer = peer();
    let mut kept: Vec<RecvBuf> = Vec::new();
    for number in 0..60 {
        let sent = numbered(16, number, 100);
        peer.send_to(&sent, hoarder.local_addr()).expect("room");
        kept.push(hoarder.recv_from().await.expect("a datagram").data);
        peer.send_to(&sent, other.local_addr()).expect("room");
        assert!(*other.recv_from().await.expect("a datagram").data == *sent);
    }
    for (number, data) in kept.iter().enumerate() {
        assert_eq!(assert_numbered(16, data), number);
    }
}

fn a_small_pool_delivers_a_flood_in_order(configuration: Configuration) {
    const SENT: usize = 1000;
    in_all_ways(configuration, |options, handle| async move {
        let options = UdpOptions {
            recv_buffer_bytes: Some(8 << 20),
            buffer_count: 4,
            buffer_bytes: 128,
            ..options
        };
        let socket = bind(&options);
        let address = socket.local_addr();
        assert!(poll_once(socket.recv_from()).await.is_none());
        let peer = peer();
        for number in 0..SENT {
            peer.send_to(&numbered(17, number, 100), address).expect("room");
        }
        let received = receive(&socket, SENT).await;
        assert_all(17, &received, SENT, &options);
        // Waiting for a buffer is not spinning for one: each armed receive fails once at most for
        // each buffer that returns.
        let armed = u64::from(options.pending.max(1));
        let counters = handle.counters();
        let most = armed * (SENT as u64 + 100) * if configuration.has_faults() { 2 } else { 1 };
        assert!(counters.enobufs <= most, "{counters:?}");
        assert_eq!(socket.stats().expect("SO_MEMINFO").kernel_drops, 0);
    });
}

/// A send buffer for a handful of datagrams, on a path that holds them: sends are refused again
/// and again, and all are delivered, in order.
fn a_full_send_buffer_is_waited_for(configuration: Configuration) {
    const SENT: usize = 500;
    on_a_slow_path(|| {
        in_all_ways(configuration, |options, _| async move {
            let to = bind(&UdpOptions { recv_buffer_bytes: Some(32 << 20), ..options.clone() });
            let narrow = UdpOptions { send_buffer_bytes: Some(8192), ..options.clone() };
            let from = Rc::new(connect(&narrow, to.local_addr()));
            let sender = Rc::clone(&from);
            let sending = spawn(async move {
                sender.send_batch(&mut sequence(18, SENT, 1000)).await.expect("room");
                sender.flush().await.expect("sent");
            });
            let received = receive(&to, SENT).await;
            sending.await.expect("not aborted");
            assert_all(18, &received, SENT, &options);
            let stats = from.stats().expect("SO_MEMINFO");
            assert_eq!((stats.sent, stats.send_errors.total()), (SENT as u64, 0), "{stats:?}");
            // io_uring hands over no more than fits, so it may never find the buffer full.
            assert!(stats.blocked > 0 || !configuration.is_epoll(), "{stats:?}");
        });
    });
}
