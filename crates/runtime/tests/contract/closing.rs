//! Rule 9: closing always reaches the wire, in the order things were done.

use crate::support::*;

pub(crate) const RULES: &[Rule] = rules![
    queued_data_and_fin_follow_a_dropped_stream,
    a_short_connection_is_not_registered,
    a_stream_that_is_cut_off_does_not_look_complete,
    the_runtime_ends_after_queued_data_is_sent,
    what_was_sent_last_precedes_the_end,
    a_dropped_listener_frees_its_port_at_once,
    a_refused_send_of_a_closed_stream_is_not_counted,
    what_a_closed_stream_still_sends_is_not_overwritten,
];

async fn queued_data_and_fin_follow_a_dropped_stream() {
    for bytes in [0, 1, 3000, 250_000, 1_500_000] {
        for armed in [true, false] {
            let (stream, peer) = narrow_pair().await;
            if armed {
                arm(&stream).await;
            }
            stream.send(pattern(5, 0..bytes)).await.expect("queued");
            drop(stream);
            // On another thread, so that the runtime is idle: nothing but the close may be needed.
            assert_whole(5, bytes, &reading(peer).await);
        }
    }
}

/// Each short connection used to be registered in epoll, only to be closed before the next wait.
async fn a_short_connection_is_not_registered(configuration: Configuration, handle: Handle) {
    // All of them within what a task may do in a row.
    const CONNECTIONS: u64 = 8;
    if !configuration.is_epoll() || configuration.has_faults() {
        // A ring registers nothing. Faults have calls made again.
        return;
    }
    let listener = listen();
    let mut peers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut peer = Peer::connect(listener.local_addr()).expect("the backlog has room");
        peer.write_all(b"request").expect("room");
        peers.push(peer);
    }
    let before = handle.counters().syscalls;
    for _ in 0..CONNECTIONS {
        let stream = listener.accept().await.expect("a connection");
        assert_eq!(&stream.recv().await.expect("bytes")[..], b"request");
        stream.send("answer").await.expect("room");
    }
    // Accept, receive, send, close; and a look at the memory now and then.
    assert_eq!(handle.counters().syscalls - before, 4 * CONNECTIONS + 2);
    for peer in peers {
        assert_eq!(reading(peer).await, b"answer");
    }
}

/// What a peer sees of a stream that was dropped with this much unsent: a reset, so that it can detect that the
/// stream was cut off. It comes at once if the stream was told so, and else after the time to linger. A send that
/// waits for a peer which never reads holds the connection open until it is cancelled.
fn a_stream_that_is_cut_off_does_not_look_complete(configuration: Configuration) {
    const HOUR: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(20);
    for (bytes, linger, resets) in [
        (0, HOUR, true),
        (10, HOUR, true),
        (1_000_000, HOUR, true),
        (2_000_000, SHORT, true),
        (2_000_000, SHORT, false),
    ] {
        run_on(configuration.builder().linger(linger), async move |handle| {
            for reads in [true, false] {
                let (stream, mut peer) = narrow_pair().await;
                assert!(poll_once(stream.recv()).await.is_none());
                stream.send(vec![1; bytes]).await.expect("queued");
                let expired = handle.counters().lingers_expired;
                settle().await;
                if resets {
                    stream.set_reset_on_close().expect("a socket");
                }
                drop(stream);
                while !resets && handle.counters().lingers_expired == expired {
                    sleep(Duration::from_millis(5)).await;
                }
                if reads {
                    settle().await;
                    let end = on_thread(move || read_to_end(&mut peer)).await;
                    let end = end.map(|read| read.len());
                    assert_eq!(errno(&end), libc::ECONNRESET, "{bytes} bytes: {end:?}");
                    continue;
                }
                loop {
                    match peer.take_error().expect("SO_ERROR") {
                        Some(error) => {
                            break assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
                        }
                        None => sleep(Duration::from_millis(5)).await,
                    }
                }
            }
        });
    }
}

/// The peer takes longer than the end waits for one that takes nothing. On io_uring one send was under way all that
/// time, and its peer got a reset.
fn the_runtime_ends_after_queued_data_is_sent(configuration: Configuration) {
    const PIECE: usize = 14_000;
    let reader = configuration.run(async {
        let (stream, mut peer) = narrow_pair().await;
        stream.send(pattern(8, 0..700_000)).await.expect("queued");
        spawn(async move {
            let _stream = stream;
            std::future::pending::<()>().await;
        });
        yield_now().await;
        std::thread::spawn(move || {
            let (mut received, mut piece) = (Vec::new(), vec![0; PIECE]);
            loop {
                std::thread::sleep(Duration::from_millis(15));
                match peer.read(&mut piece).expect("no reset") {
                    0 => return received,
                    bytes => received.extend_from_slice(&piece[..bytes]),
                }
            }
        })
    });
    let received = reader.join().expect("no panic");
    assert_whole(8, 700_000, &received);
}

/// On io_uring the runtime reset a stream that outlived it instead of submitting its last send.
fn what_was_sent_last_precedes_the_end(configuration: Configuration) {
    if configuration.name == "sqpoll" || configuration.has_faults() {
        // The send may still be under way.
        return;
    }
    let (_kept, mut peer) = configuration.run(async {
        let (stream, peer) = pair().await;
        stream.send("the last words").await.expect("room");
        (stream, peer)
    });
    assert_eq!(read_to_end(&mut peer).expect("no reset"), b"the last words");
}

async fn a_dropped_listener_frees_its_port_at_once(configuration: Configuration, _: Handle) {
    let listener = listen();
    let address = listener.local_addr();
    let _connected = Peer::connect(address).expect("the backlog has room");
    let _stream = listener.accept().await.expect("a connection");
    assert!(poll_once(listener.accept()).await.is_none());
    settle().await;
    drop(listener);
    let again = loop {
        match TcpListener::bind(address) {
            Ok(listener) => break listener,
            // There a kernel thread closes the socket, when it gets to it.
            Err(_) if configuration.name == "sqpoll" => sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("the port is not free: {error}"),
        }
    };
    let connecting = TcpStream::connect(address).await.expect("the new one listens");
    let other = again.accept().await.expect("and accepts");
    connecting.send("hello").await.expect("sent");
    assert_eq!(recv_exactly(&other, 5).await, b"hello");
}

async fn a_refused_send_of_a_closed_stream_is_not_counted(_: Configuration, handle: Handle) {
    // Never received from: nothing else keeps the slot.
    let (stream, peer) = pair().await;
    reset(peer);
    settle().await;
    let before = handle.counters().sent;
    let _found_now_or_later = stream.send("to nobody").await;
    stream.set_reset_on_close().expect("a socket");
    drop(stream);
    settle().await;
    assert_eq!(handle.counters().sent, before);
}

/// The kernel reads what it sends from memory of the stream, also behind its close, until the send is over.
fn what_a_closed_stream_still_sends_is_not_overwritten(configuration: Configuration) {
    // Below what malloc maps by itself: a freed buffer is used again at once.
    const BYTES: usize = 120_000;
    if configuration.name != "io_uring" || configuration.has_faults() {
        return;
    }
    // Without a submission thread the kernel sends only during an enter, and cancels first.
    run_on(configuration.builder_with("sqpoll_idle_ms=50"), async move |handle| {
        let (stream, mut peer) = narrow_pair().await;
        peer.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        stream.send(pattern(6, 0..BYTES)).await.expect("queued");
        while handle.counters().short_sends == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        settle().await;
        stream.set_reset_on_close().expect("a socket");
        drop(stream);
        let reused: Vec<Vec<u8>> = (0..16).map(|_| vec![0xaa; BYTES]).collect();
        // On this thread, so that the worker does not get to cancel the send.
        let mut received = vec![0; BYTES];
        peer.read_exact(&mut received).expect("the kernel sends by itself");
        assert_pattern(6, 0, &received);
        drop(reused);
    });
}
