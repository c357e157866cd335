//! Dropping and cancelling at every point: nothing received is lost, nothing handed over is forgotten, no
//! descriptor and no memory of the kernel's is left behind, and nothing is written into a buffer that was released,
//! or that has a reader.

use super::peers::*;
use crate::support::*;
use twinring::{Datagram, Received, net::UdpOptions};

pub(crate) const RULES: &[Rule] = rules![
    a_dropped_receive_loses_nothing,
    cancelling_ends_each_wait_once,
    a_socket_that_stops_receiving_delivers_queued_datagrams,
    queued_datagrams_outlive_their_send_and_their_socket,
    a_dropped_socket_frees_its_port_at_once,
    blocked_datagrams_outlive_the_socket_for_the_linger_time,
    sockets_closed_with_everything_pending_leave_nothing,
    everything_pending_ends_with_its_runtime,
    nothing_is_written_late_while_sockets_and_runtimes_go,
];

/// Futures are polled a random number of times and dropped; every datagram comes exactly once.
async fn a_dropped_receive_loses_nothing(options: UdpOptions) {
    const SENT: usize = 500;
    let socket = bind(&UdpOptions { recv_buffer_bytes: Some(4 << 20), ..options.clone() });
    let peer = peer();
    let mut random = Random::new(27);
    let mut received = Vec::new();
    let mut sent = 0;
    while received.len() < SENT {
        for _ in 0..random.below(8) {
            if sent < SENT {
                peer.send_to(&numbered(26, sent, 60), socket.local_addr()).expect("room");
                sent += 1;
            }
        }
        match random.below(3) {
            0 => drop(poll_once(socket.recv_batch(&mut received)).await),
            1 => received.extend(poll_once(socket.recv_from()).await.map(|r| r.expect("one"))),
            _ => {
                let wait = socket.recv_batch(&mut received);
                let _or_not = timeout(Duration::from_micros(100), wait).await;
            }
        }
        if random.below(4) == 0 {
            yield_now().await;
        }
    }
    assert_all(26, &received, SENT, &options);
}

async fn queued_datagrams_outlive_their_send_and_their_socket(options: UdpOptions) {
    const SENT: usize = 3000;
    let to = bind(&UdpOptions { recv_buffer_bytes: Some(16 << 20), ..options.clone() });
    let from = connect(&options, to.local_addr());
    let mut batch = sequence(28, SENT, 60);
    while poll_once(from.send_batch(&mut batch)).await.is_none() {
        assert!(!batch.is_empty());
        yield_now().await;
    }
    from.flush().await.expect("sent");
    assert_all(28, &receive(&to, SENT).await, SENT, &options);
    assert_eq!(from.stats().expect("SO_MEMINFO").sent, SENT as u64);
    from.send_batch(&mut sequence(29, 900, 60)).await.expect("room");
    drop(from);
    assert_all(29, &receive(&to, 900).await, 900, &options);
}

async fn cancelling_ends_each_wait_once(options: UdpOptions) {
    let socket = Rc::new(bind(&options));
    let waiting = |number| {
        let socket = Rc::clone(&socket);
        spawn(async move {
            match number % 2 {
                0 => socket.recv_from().await.map(drop),
                _ => socket.recv_batch(&mut Vec::new()).await.map(drop),
            }
        })
    };
    let waiting: Vec<_> = (0..5).map(waiting).collect();
    settle().await;
    socket.cancel();
    for ended in join_all(waiting).await {
        assert_eq!(errno(&ended), libc::ECANCELED);
    }
    // Later operations are not affected.
    peer().send_to(b"later", socket.local_addr()).expect("room");
    assert_eq!(&*socket.recv_from().await.expect("a datagram").data, b"later");
}

/// So that a service can end with everything answered or counted: what came before is delivered,
/// what comes after is among the kernel's drops, and sending goes on.
///
/// A datagram has come when it is in the socket. Before Linux 6.5, loopback may deliver it later than its send returns:
/// a thread of the kernel (ksoftirqd) that runs already is left to do it, in the order of the sends.
async fn a_socket_that_stops_receiving_delivers_queued_datagrams(options: UdpOptions) {
    let (socket, peer) = (bind(&options), peer());
    let send = |number| {
        peer.send_to(&numbered(33, number, 60), socket.local_addr()).expect("room");
    };
    (0..50).for_each(send);
    peer.send_to(b"behind", address_of(&peer)).expect("room");
    assert_eq!(next(&peer), b"behind");
    socket.stop_receiving().expect("memory for a filter");
    (50..80).for_each(send);
    assert_all(33, &receive(&socket, 50).await, 50, &options);
    let drops = || socket.stats().expect("SO_MEMINFO").kernel_drops;
    while drops() < 30 {
        settle().await;
    }
    settle().await;
    assert!(poll_once(socket.recv_from()).await.is_none());
    assert_eq!(drops(), 30);
    socket.send_to("goodbye", address_of(&peer)).await.expect("room");
    socket.flush().await.expect("sent");
    assert_eq!(next(&peer), b"goodbye");
}

/// On io_uring a single datagram that had just been queued kept it until the next turn.
fn a_dropped_socket_frees_its_port_at_once(configuration: Configuration) {
    if configuration.name == "sqpoll" || configuration.has_faults() {
        // The send may be under way for longer.
        return;
    }
    let rule = async |options: UdpOptions, _| {
        let peer = peer();
        for armed in [false, true] {
            let socket = bind(&options);
            let address = socket.local_addr();
            if armed {
                assert!(poll_once(socket.recv_from()).await.is_none());
                settle().await;
            }
            socket.send_to("the last one", address_of(&peer)).await.expect("room");
            drop(socket);
            options.bind(address).expect("it is free");
            assert_eq!(next(&peer), b"the last one");
        }
    };
    // Alone: a program that another test starts has a copy of the socket for a moment.
    alone(&[], 1000, || in_all_ways(configuration, rule));
}

/// Blocked behind a full send buffer when the socket is dropped, all of it still goes out; unless
/// the linger limit is shorter than that takes, and then the rest goes without a trace.
fn blocked_datagrams_outlive_the_socket_for_the_linger_time(configuration: Configuration) {
    const SENT: usize = 150;
    on_a_slow_path(|| {
        for linger in [Duration::from_secs(20), MS] {
            let before = open_descriptors();
            let peer = peer();
            let target = address_of(&peer);
            run_on(configuration.builder().linger(linger), async move |_| {
                let narrow = UdpOptions { send_buffer_bytes: Some(8192), ..UdpOptions::default() };
                let socket = connect(&narrow, target);
                socket.send_batch(&mut sequence(32, SENT, 100)).await.expect("room");
            });
            assert_eq!(open_descriptors(), before + 1, "only the peer is left");
            let patience = if linger > MS { 20_000 * MS } else { 300 * MS };
            peer.set_read_timeout(Some(patience)).expect("a socket");
            let mut arrived = 0;
            while arrived < SENT {
                let mut bytes = [0; 2000];
                match peer.recv(&mut bytes) {
                    Ok(length) => {
                        assert_numbered(32, &bytes[..length]);
                        arrived += 1;
                    }
                    // The end of a ring interrupts its thread.
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            // How much gets out in a millisecond is the machine's business.
            assert!(linger == MS || arrived == SENT, "{arrived}");
        }
    });
}

fn sockets_closed_with_everything_pending_leave_nothing(configuration: Configuration) {
    alone(&[], 2000, || {
        configuration.run(async {
            let before = open_descriptors();
            for options in std::iter::repeat_with(ways).take(10).flatten() {
                let sockets: Vec<_> = (0..20).map(|_| bind(&options)).collect();
                let peer = peer();
                for socket in &sockets {
                    assert!(poll_once(socket.recv_from()).await.is_none());
                    peer.send_to(b"unread", socket.local_addr()).expect("room");
                    socket.send_to("queued", address_of(&peer)).await.expect("room");
                }
            }
            // Closes are submitted with the next enter, after the receives were cancelled.
            while open_descriptors() != before {
                settle().await;
            }
        });
    });
}

/// Receives armed, datagrams unread, sends queued, a pool exhausted, tasks waiting.
async fn leave_everything_pending() -> Vec<std::net::UdpSocket> {
    let mut peers = Vec::new();
    for number in 0..120 {
        let options = UdpOptions {
            buffer_count: 8,
            buffer_bytes: 256,
            pktinfo: number % 2 == 0,
            send_buffer_bytes: Some(2304),
            ..ways()[number / 4 % 2].clone()
        };
        let peer = peer();
        let to = address_of(&peer);
        let socket = match number % 4 {
            0 | 1 => bind(&options),
            _ => connect(&options, to),
        };
        for datagram in 0..number % 30 {
            peer.send_to(&numbered(31, datagram, 100), socket.local_addr()).expect("room");
        }
        let socket = Rc::new(socket);
        for task in 0..3 {
            let socket = Rc::clone(&socket);
            spawn(async move {
                match task {
                    0 => drop(socket.recv_from().await),
                    1 => loop {
                        let one = |_| Datagram::to(to, vec![1; 1000]);
                        let mut batch = (0..50).map(one).collect();
                        socket.send_batch(&mut batch).await.expect("room");
                        sleep(MS).await;
                    },
                    _ => sleep(3_600_000 * MS).await,
                }
            });
        }
        peers.push(peer);
    }
    settle().await;
    peers
}

fn everything_pending_ends_with_its_runtime(configuration: Configuration) {
    ends_without_a_trace(configuration, Duration::ZERO, leave_everything_pending);
}

/// Receives without end, and keeps the last batch, which must not change.
async fn receive_and_keep(socket: Rc<UdpSocket>) {
    let (mut kept, mut received) = (Vec::new(), Vec::new());
    while socket.recv_batch(&mut received).await.is_ok() {
        assert_intact(&kept);
        std::mem::swap(&mut kept, &mut received);
        received.clear();
    }
    assert_intact(&kept);
}

fn assert_intact(received: &[Received]) {
    for received in received {
        assert_numbered(40, &received.data);
    }
}

fn nothing_is_written_late_while_sockets_and_runtimes_go(configuration: Configuration) {
    for (options, seed) in
        ways().into_iter().flat_map(|way| (0..4).map(move |seed| (way.clone(), seed)))
    {
        let options = UdpOptions { buffer_count: 16, buffer_bytes: 256, ..options };
        let (kept, flood) = configuration.run(async move {
            let mut random = Random::new(seed);
            let sockets: Vec<_> = (0..6).map(|_| Rc::new(bind(&options))).collect();
            let targets: Vec<_> = sockets.iter().map(|socket| socket.local_addr()).collect();
            let peer = peer();
            // For longer than this runtime is there.
            let flood = on_thread(move || {
                for number in 0..300 {
                    for target in &targets {
                        // Refused where a socket is gone.
                        let _or_refused = peer.send_to(&numbered(40, number, 200), target);
                    }
                    std::thread::sleep(MS / 20);
                }
            });
            let first = sockets[0].recv_from().await.expect("a datagram");
            for (number, socket) in sockets.into_iter().enumerate() {
                let task = spawn(receive_and_keep(Rc::clone(&socket)));
                for _ in 0..random.below(6) {
                    yield_now().await;
                }
                match number % 3 {
                    // Closed with its receives armed, cancelled, or left to the runtime's end.
                    0 => task.abort(),
                    1 => socket.cancel(),
                    _ => {}
                }
            }
            sleep(2 * MS).await;
            (first, flood)
        });
        assert_intact(&[kept]);
        configuration.run(flood);
    }
}
