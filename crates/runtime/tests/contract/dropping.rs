//! Rules 2 and 3: a future may be dropped at any await point, and leaves nothing behind; `cancel` ends what is
//! pending, each operation once, and nothing else. Debug builds poison released buffers and check the
//! poison before they are used again, so a kernel that writes too late fails a test.

use crate::support::*;

pub(crate) const RULES: &[Rule] = rules![
    a_send_that_is_given_up_sends_nothing_and_gives_its_buffer_back,
    dropped_accepts_and_connects_lose_nothing,
    aborted_tasks_drop_streams_with_everything_pending,
    each_pending_operation_ends_once_with_ecanceled,
    both_directions_stay_whole_whatever_is_dropped_and_cancelled,
];

/// Of 200 sends with a timeout 136 had not been queued, and their bytes were gone.
async fn a_send_that_is_given_up_sends_nothing_and_gives_its_buffer_back() {
    let (stream, peer) = narrow_pair().await;
    let sent = 1_000_000;
    stream.send(pattern(1, 0..sent)).await.expect("one buffer of any size is taken");
    for _ in 0..5 {
        assert!(poll_once(stream.flush()).await.is_none(), "flushed to a deaf peer");
        assert!(poll_once(stream.send(vec![0xee; 5000])).await.is_none());
        yield_now().await;
    }
    let parts = [sent..sent + 50, sent..sent, sent + 50..sent + 100];
    let mut send = stream.send_vectored(parts.map(|part| pattern(1, part)));
    let late = timeout(Duration::from_millis(5), &mut send).await;
    assert!(late.is_err(), "taken beyond the bound");
    let buffer = send.into_buffer().expect("it was not queued");
    let reader = reading(peer);
    let mut send = stream.send(buffer);
    (&mut send).await.expect("the peer reads");
    assert!(send.into_buffer().is_none(), "queued, and given back");
    stream.shutdown().await.expect("finished");
    assert_whole(1, sent + 100, &reader.await);
}

async fn dropped_accepts_and_connects_lose_nothing() {
    let listener = listen();
    let (mut peers, mut streams) = (Vec::new(), Vec::new());
    for round in 0..20 {
        streams.extend(poll_once(listener.accept()).await);
        peers.push(Peer::connect(listener.local_addr()).expect("the backlog has room"));
        if round % 3 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    while streams.len() < peers.len() {
        streams.push(listener.accept().await);
    }
    let accepted = streams.into_iter().map(|stream| stream?.peer_addr());
    let mut accepted: Vec<_> = accepted.map(|address| address.expect("an end")).collect();
    let mut connected: Vec<_> = peers.iter().map(|p| p.local_addr().expect("an end")).collect();
    accepted.sort();
    connected.sort();
    assert_eq!(accepted, connected);
    let (busy, _listener, _fillers) = full_backlog();
    let address = echo_service();
    for round in 0..30 {
        let pending = timeout(Duration::from_micros(100), TcpStream::connect(busy)).await;
        assert!(pending.is_err(), "connected through a full backlog");
        drop(TcpStream::connect(busy));
        drop(TcpStream::connect(address));
        let _either = poll_once(TcpStream::connect(address)).await;
        if round % 10 == 0 {
            let stream = TcpStream::connect(address).await.expect("a connection");
            stream.send(pattern(round, 0..100)).await.expect("sent");
            assert_pattern(round, 0, &recv_exactly(&stream, 100).await);
        }
    }
}

async fn aborted_tasks_drop_streams_with_everything_pending() {
    for round in 0..15 {
        let (stream, peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        let tasks = busy_tasks(&stream);
        for _ in 0..round {
            yield_now().await;
        }
        tasks.iter().for_each(JoinHandle::abort);
        assert_eq!(Rc::strong_count(&stream), 1, "an aborted task still owns something");
        for task in tasks {
            assert!(task.await.is_err());
        }
        stream.set_reset_on_close().expect("a socket");
        drop((stream, peer));
    }
    // Operations pending there must not affect this runtime.
    another_is_served().await;
}

async fn each_pending_operation_ends_once_with_ecanceled() {
    let (stream, mut peer) = narrow_pair().await;
    let stream = Rc::new(stream);
    let sent = 1_000_000;
    stream.send(pattern(4, 0..sent)).await.expect("one buffer of any size is taken");
    let mut pending = Vec::new();
    for number in 0..8 {
        let stream = Rc::clone(&stream);
        pending.push(spawn(async move {
            match number % 4 {
                0 => stream.recv().await.map(|_| ()),
                1 => stream.send(vec![0; 10]).await,
                2 => stream.send_vectored(["one", "two"]).await,
                _ => stream.flush().await,
            }
        }));
    }
    settle().await;
    assert!(pending.iter().all(|task| !task.is_finished()), "something did not wait");
    stream.cancel();
    for ended in join_all(pending).await {
        assert_eq!(errno(&ended), libc::ECANCELED);
    }
    // The stream works on, in both directions; without a pending operation, nothing is cancelled.
    peer.write_all(b"still here").expect("room");
    let reader = reading(peer);
    stream.cancel();
    assert_eq!(recv_exactly(&stream, 10).await, b"still here");
    stream.send(pattern(4, sent..sent + 10)).await.expect("sent");
    stream.cancel();
    stream.shutdown().await.expect("finished");
    assert_whole(4, sent + 10, &reader.await);
}

/// Operations are awaited, polled once and cancelled at random, on both halves of a stream; what arrives
/// at either end is exactly what was taken for sending.
async fn both_directions_stay_whole_whatever_is_dropped_and_cancelled() {
    const TOTAL: usize = 300_000;
    for seed in 0..4 {
        let (stream, peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        let mut writer = peer.try_clone().expect("a descriptor");
        let writing = on_thread(move || {
            for start in (0..TOTAL).step_by(500) {
                writer.write_all(&pattern(seed, start..start + 500)).expect("the other reads");
            }
            finish(&writer);
        });
        let reader = reading(peer);
        let (cancelled, own) = (Rc::clone(&stream), Rc::clone(&stream));
        let cancelling = spawn(async move {
            loop {
                cancelled.cancel();
                yield_now().await;
                sleep(Duration::from_micros(seed * 100)).await;
            }
        });
        let sending = spawn(async move {
            let (mut random, mut sent) = (Random::new(seed + 1), 0);
            while sent < TOTAL {
                let next = sent + random.below(20_000);
                let send = own.send(pattern(seed + 100, sent..next));
                let taken = match random.below(2) {
                    0 => poll_once(send).await,
                    _ => Some(send.await),
                };
                match taken {
                    Some(Ok(())) => sent = next,
                    Some(error) => assert_eq!(errno(&error), libc::ECANCELED),
                    None => drop(poll_once(own.flush()).await),
                }
                yield_now().await;
            }
            sent
        });
        let (mut random, mut received) = (Random::new(seed + 2), 0);
        loop {
            let patience = Duration::from_micros(random.below(300) as u64);
            let chunk = match random.below(3) {
                0 => poll_once(stream.recv()).await,
                1 => timeout(patience, stream.recv()).await.ok(),
                _ => Some(stream.recv().await),
            };
            match chunk {
                Some(Ok(chunk)) if chunk.is_empty() => break,
                Some(Ok(chunk)) => {
                    assert_pattern(seed, received, &chunk);
                    received += chunk.len();
                }
                Some(error) => assert_eq!(errno(&error), libc::ECANCELED),
                None => yield_now().await,
            }
        }
        assert_eq!(received, TOTAL);
        writing.await;
        let sent = sending.await.expect("no panic");
        cancelling.abort();
        stream.shutdown().await.expect("finished");
        assert_whole(seed + 100, sent, &reader.await);
    }
}
