//! Errors are counted and survived: they end neither receiving nor sending, and cost no datagram that could have been
//! sent. Every queue is bounded, running out of buffers is a pause and not an error, and what the kernel had to drop is
//! counted. Kinds of receives, intervals, and submitting at once.

use super::peers::*;
use crate::support::*;
use std::pin::pin;
use twinring::net::UdpOptions;
use twinring::{Datagram, RecvBuf, time::Interval};

pub(crate) const RULES: &[Rule] = rules![
    a_peer_that_is_not_there_yet_costs_nothing_later,
    a_datagram_that_is_too_big_fails_alone,
    invalid_addresses_fail_alone,
    options_out_of_range_are_refused_by_name,
    unread_datagrams_are_bounded_and_drops_are_counted,
    readers_that_keep_buffers_starve_no_other_socket,
    pending_receives_starve_no_other_socket,
    many_sockets_share_the_most_buffers,
    a_flood_is_delivered_in_order,
    a_full_send_buffer_is_waited_for,
    calls_are_for_many_datagrams,
    bytes_of_datagrams_use_up_the_budget_of_a_task,
    an_interval_keeps_its_moments_and_skips_missed_ones,
    submit_sends_at_once,
];

/// Sends to a closed port bring ICMP errors back, which surface in later sends and receives. Once
/// the port is open, everything sent arrives, and the socket hears the peer.
async fn a_peer_that_is_not_there_yet_costs_nothing_later(options: UdpOptions) {
    let address = address_of(&peer());
    let socket = Rc::new(connect(&options, address));
    let receiver = Rc::clone(&socket);
    let receiving = spawn(async move { receiver.recv_from().await });
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
    assert!(numbers.into_iter().eq(0..20));
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
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

/// The socket is not read while far more arrives than any queue holds. The kept datagrams are the
/// first ones, in order; the kernel has counted the missing ones; afterwards everything arrives
/// again.
async fn unread_datagrams_are_bounded_and_drops_are_counted(options: UdpOptions) {
    const SENT: usize = 4000;
    let (recv_buffer_bytes, buffer_count, buffer_bytes) = (Some(64 * 1024), 64, 256);
    let options = UdpOptions { recv_buffer_bytes, buffer_count, buffer_bytes, ..options };
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

/// One that was woken for nothing 128 times waits in a thread of the kernel and holds a buffer there. Those of many
/// sockets held all: the others waited for ever, with 26,000 system calls a second.
async fn pending_receives_starve_no_other_socket(_: Configuration, handle: Handle) {
    let options =
        UdpOptions { buffer_count: 4, buffer_bytes: 256, pending: 16, ..UdpOptions::default() };
    let peer = peer();
    let sockets: Vec<_> = (0..12).map(|_| bind(&options)).collect();
    let mut random = Random::new(5);
    for number in 0..6000 {
        let socket = &sockets[random.below(sockets.len())];
        peer.send_to(&numbered(41, number, 100), socket.local_addr()).expect("room");
        let received = socket.recv_from().await.expect("a datagram");
        assert_eq!(assert_numbered(41, &received.data), number);
    }
    assert_eq!(handle.counters().enobufs, 0);
}

/// With pending receives, which need some beside them, each socket got a pool of its own, and the 64th was refused.
async fn many_sockets_share_the_most_buffers(options: UdpOptions) {
    let options = UdpOptions { buffer_count: 1 << 15, ..options };
    let sockets: Vec<_> = (0..70).map(|_| bind(&options)).collect();
    for socket in sockets {
        peer().send_to(b"to each", socket.local_addr()).expect("room");
        assert_eq!(&*socket.recv_from().await.expect("a datagram").data, b"to each");
    }
}

/// With few buffers, and with single-shot receives: however many are asked for, they all come back to the kernel, and
/// the socket can be closed and made again with all of them in flight.
fn a_flood_is_delivered_in_order(configuration: Configuration) {
    const SENT: u64 = 1000;
    let small = ways().map(|way| UdpOptions { buffer_count: 4, buffer_bytes: 128, ..way });
    let pending = [1, 2, 100, 4096].map(|pending| UdpOptions { pending, ..UdpOptions::default() });
    for options in small.into_iter().chain(pending) {
        run_on(configuration.builder(), async move |handle| {
            for pktinfo in [false, true] {
                let recv_buffer_bytes = Some(8 << 20);
                let options = UdpOptions { pktinfo, recv_buffer_bytes, ..options.clone() };
                let (socket, peer) = (bind(&options), peer());
                assert!(poll_once(socket.recv_from()).await.is_none());
                settle().await;
                let before = handle.counters();
                for number in 0..SENT as usize {
                    peer.send_to(&numbered(17, number, 100), socket.local_addr()).expect("room");
                }
                let received = receive(&socket, SENT as usize).await;
                assert_all(17, &received, SENT as usize, &options);
                assert!(received.iter().all(|it| it.to.is_some() == pktinfo));
                assert_eq!(socket.stats().expect("SO_MEMINFO").kernel_drops, 0);
                settle().await;
                let after = handle.counters();
                // A multishot receive is submitted once; only io_uring submits anything.
                let submissions = after.submissions - before.submissions;
                assert!(match options.pending {
                    _ if configuration.is_epoll() => submissions == 0,
                    0 => true,
                    _ => submissions >= SENT,
                });
                // Waiting for a buffer is not spinning for one: each armed receive fails once at most for
                // each buffer that returns.
                let armed = u64::from(options.pending.max(1));
                let most = armed * (SENT + 100) * if configuration.has_faults() { 2 } else { 1 };
                assert!(after.enobufs - before.enobufs <= most, "{after:?}");
            }
        });
    }
}

/// A send buffer for a handful of datagrams, on a path that holds them: sends are refused again
/// and again, and all are delivered, in order.
fn a_full_send_buffer_is_waited_for(configuration: Configuration) {
    const SENT: usize = 500;
    on_a_slow_path(|| {
        in_all_ways(configuration, async move |options, _| {
            let to = bind(&UdpOptions { recv_buffer_bytes: Some(32 << 20), ..options.clone() });
            let (send_buffer_bytes, buffer_count) = (Some(8192), 4);
            let narrow = UdpOptions { send_buffer_bytes, buffer_count, ..options.clone() };
            let from = Rc::new(connect(&narrow, to.local_addr()));
            // What is not read pauses the receive, and nothing else.
            assert!(poll_once(from.recv_from()).await.is_none());
            let (to, target) = (Rc::new(to), from.local_addr());
            let talker = Rc::clone(&to);
            let talking = spawn(async move {
                for _ in 0..20 {
                    talker.send_to("unread", target).await.expect("room");
                    sleep(MS).await;
                }
            });
            let sender = Rc::clone(&from);
            let sending = spawn(async move {
                sender.send_batch(&mut sequence(18, SENT, 1000)).await.expect("room");
                sender.flush().await.expect("sent");
            });
            let received = receive(&to, SENT).await;
            sending.await.expect("not aborted");
            talking.await.expect("not aborted");
            assert_all(18, &received, SENT, &options);
            let stats = from.stats().expect("SO_MEMINFO");
            assert_eq!((stats.sent, stats.send_errors.total()), (SENT as u64, 0), "{stats:?}");
            // io_uring hands over no more than fits, so it may never find the buffer full.
            assert!(stats.blocked > 0 || !configuration.is_epoll(), "{stats:?}");
        });
    });
}

/// On epoll: one system call for up to 64 datagrams.
async fn calls_are_for_many_datagrams(configuration: Configuration, handle: Handle) {
    if configuration.has_faults() || !configuration.is_epoll() {
        // Faults change when things happen, and by how many calls.
        return;
    }
    let options = UdpOptions { recv_buffer_bytes: Some(4 << 20), ..UdpOptions::default() };
    let (from, to) = (bind(&options), bind(&options));
    let datagram = |n| Datagram::to(to.local_addr(), numbered(21, n, 50));
    let start = handle.counters().syscalls;
    from.send_batch(&mut (0..640).map(datagram).collect()).await.expect("room");
    let sent = handle.counters().syscalls;
    receive(&to, 640).await;
    let received = handle.counters().syscalls - sent;
    // A task that has received 32 times yields, and the worker checks for events meanwhile.
    assert!(sent - start == 10 && (10..=20).contains(&received), "{received}");
}

/// They cost nothing, and a task moved up to 64 times what it may before others had their turn.
async fn bytes_of_datagrams_use_up_the_budget_of_a_task(options: UdpOptions) {
    let (buffer_bytes, buffer_count, recv_buffer_bytes) = (65_535, 64, Some(4 << 20));
    let options = UdpOptions { buffer_bytes, buffer_count, recv_buffer_bytes, ..options };
    let (from, to) = (bind(&options), bind(&options));
    assert!(poll_once(to.recv_from()).await.is_none());
    settle().await;
    // Of so many operations without bytes, 32 could follow each other.
    let mut sending = pin!(async {
        for _ in 0..10 {
            from.send_to(vec![0; 60_000], to.local_addr()).await.expect("room");
        }
    });
    assert!(poll_once(sending.as_mut()).await.is_none());
    sending.await;
    settle().await;
    let mut receiving = pin!(async {
        for _ in 0..10 {
            assert_eq!(to.recv_from().await.expect("a datagram").data.len(), 60_000);
        }
    });
    assert!(poll_once(receiving.as_mut()).await.is_none());
    receiving.await;
}

async fn an_interval_keeps_its_moments_and_skips_missed_ones() {
    let mut interval = Interval::new(2 * MS);
    let first = interval.tick().await.deadline;
    let mut last = first;
    for _ in 0..20 {
        let next = interval.tick().await.deadline;
        assert!(Instant::now() >= next && next > last);
        assert_eq!((next - first).as_nanos() % (2 * MS).as_nanos(), 0, "no drift");
        last = next;
    }
    // Busy through several: the last of them is reported at once.
    while Instant::now() < last + 11 * MS {}
    let late = interval.tick().await;
    assert!(late.deadline >= last + 10 * MS && late.overrun.is_none(), "{late:?}");
    // Dropped while it waits, it has handed nothing out.
    let early = poll_once(interval.tick()).await;
    assert!(early.is_none_or(|tick| Instant::now() >= tick.deadline));
    let next = interval.tick().await.deadline;
    assert!(next > early.map_or(late.deadline, |tick| tick.deadline));
}

/// Without a wait in between: after `submit` the datagram is at the other socket.
async fn submit_sends_at_once(configuration: Configuration, _: Handle) {
    if configuration.has_faults() {
        // They change when things happen, and by how many calls.
        return;
    }
    let peer = peer();
    peer.set_nonblocking(true).expect("a socket");
    let socket = connect(&UdpOptions::default(), address_of(&peer));
    let mut polls = 0;
    for number in 0..50 {
        socket.send(numbered(25, number, 50)).await.expect("room");
        twinring::submit().expect("the engine works");
        // A submission thread, where there is one, takes its moment, and a datagram then waits for the
        // completion of the one before.
        let mut bytes = [0; 100];
        let length = loop {
            match peer.recv(&mut bytes) {
                Ok(length) => break length,
                Err(_) => polls += 1,
            }
            yield_now().await;
        };
        assert_eq!(assert_numbered(25, &bytes[..length]), number);
    }
    assert!(configuration.name == "sqpoll" || polls == 0, "each was there at once");
}
