//! Rule 2: a future may be dropped at any await point. Debug builds poison released buffers and
//! check the poison before they are used again, so a kernel that writes too late fails a test.

use crate::support::*;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;
use twinring::{TcpStream, sleep, spawn, timeout};

pub(crate) const RULES: &[Rule] = rules![
    a_dropped_send_sends_nothing_and_later_ones_do,
    dropped_accepts_lose_no_connection,
    dropped_connects_leave_nothing_behind,
    aborted_tasks_drop_streams_with_everything_pending,
    streams_survive_operations_dropped_at_random,
];

async fn a_dropped_send_sends_nothing_and_later_ones_do() {
    let (stream, peer) = narrow_pair().await;
    let sent = 1_000_000;
    stream.send(pattern(1, 0..sent)).await.expect("one buffer of any size is taken");
    for _ in 0..5 {
        assert!(poll_once(stream.flush()).await.is_none(), "flushed to a deaf peer");
        assert!(poll_once(stream.send(vec![0xee; 5000])).await.is_none());
        let mut send = stream.send_vectored(["not", "", "sent"]);
        assert!(poll_once(&mut send).await.is_none(), "taken beyond the bound");
        let returned = send.into_buffer().expect("it was not queued");
        assert_eq!(returned.as_slice(), b"notsent");
        yield_now().await;
    }
    let reader = reading(peer);
    let mut send = stream.send_vectored([pattern(1, sent..sent + 100)]);
    (&mut send).await.expect("sent");
    assert!(send.into_buffer().is_none(), "it was queued");
    stream.shutdown().await.expect("finished");
    assert_whole(1, sent + 100, &reader.await);
}

async fn dropped_accepts_lose_no_connection() {
    let listener = listen();
    let mut peers = Vec::new();
    let mut streams = Vec::new();
    for round in 0..20 {
        if let Some(stream) = poll_once(listener.accept()).await {
            streams.push(stream.expect("a connection"));
        }
        peers.push(Peer::connect(listener.local_addr()).expect("the backlog has room"));
        if round % 3 == 0 {
            let _dropped = timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
        }
    }
    while streams.len() < peers.len() {
        streams.push(listener.accept().await.expect("a connection"));
    }
    let mut accepted: Vec<_> = streams.iter().map(|s| s.peer_addr().expect("an end")).collect();
    let mut connected: Vec<_> = peers.iter().map(|p| p.local_addr().expect("an end")).collect();
    accepted.sort();
    connected.sort();
    assert_eq!(accepted, connected);
}

async fn dropped_connects_leave_nothing_behind() {
    let (busy, _listener, _fillers) = full_backlog();
    let listener = listen();
    let address = listener.local_addr();
    spawn(echo_server(listener));
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
    let live = Live::default();
    for round in 0..15 {
        let (stream, peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        let receiver = {
            let (stream, live) = (Rc::clone(&stream), live.clone());
            spawn(async move {
                let _live = live;
                recv_to_end(&stream).await
            })
        };
        let sender = {
            let (stream, live) = (Rc::clone(&stream), live.clone());
            spawn(async move {
                let _live = live;
                loop {
                    stream.send(vec![7; 30_000]).await.expect("the peer is there");
                }
            })
        };
        let (sleeper, live_there) = (sleep(Duration::from_secs(3600)), live.clone());
        let sleeper = spawn(async move {
            let _live = live_there;
            sleeper.await;
        });
        for _ in 0..round {
            yield_now().await;
        }
        receiver.abort();
        sender.abort();
        sleeper.abort();
        assert_eq!(live.count(), 0, "an aborted task still owns something");
        assert!(receiver.await.is_err() && sender.await.is_err() && sleeper.await.is_err());
        stream.set_reset_on_close().expect("a socket");
        drop((stream, peer));
    }
    // Operations pending there must not affect this runtime.
    another_is_served().await;
}

/// Random operations on one stream, each dropped after a random number of polls; what arrives at
/// either end is exactly what was taken for sending.
async fn streams_survive_operations_dropped_at_random() {
    for seed in 0..3 {
        let (stream, peer) = narrow_pair().await;
        let mut writer = peer.try_clone().expect("a descriptor");
        let reader = on_thread(move || {
            let mut peer = peer;
            read_to_end(&mut peer).expect("no reset")
        });
        const TOTAL: usize = 60_000;
        let writing = on_thread(move || {
            for start in (0..TOTAL).step_by(600) {
                writer.write_all(&pattern(seed, start..start + 600)).expect("the other reads");
            }
        });
        let mut random = Random::new(seed + 1);
        let (mut sent, mut received) = (0, 0);
        while received < TOTAL {
            match random.below(4) {
                0 => {
                    let bytes = random.below(3000);
                    let chunk = pattern(seed + 100, sent..sent + bytes);
                    if poll_once(stream.send(chunk)).await.is_some() {
                        sent += bytes;
                    }
                }
                1 => drop(poll_once(stream.flush()).await),
                2 => {
                    let patience = Duration::from_micros(random.below(300) as u64);
                    if let Ok(chunk) = timeout(patience, stream.recv()).await {
                        let chunk = chunk.expect("no reset");
                        assert_pattern(seed, received, &chunk);
                        received += chunk.len();
                    }
                }
                _ => yield_now().await,
            }
        }
        stream.shutdown().await.expect("finished");
        writing.await;
        assert_whole(seed + 100, sent, &reader.await);
    }
}
