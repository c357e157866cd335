//! Rule 4: a runtime that ends leaves no descriptor, no mapping and no hang behind, with any
//! operation pending. These tests run in processes of their own, without other tests' descriptors.

use crate::support::*;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;
use twinring::{Runtime, TcpStream, sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    everything_pending_is_closed,
    a_stop_from_outside_ends_everything_at_once,
    runtimes_leave_nothing_behind,
    a_stream_that_outlives_its_runtime_is_closed,
];

const DESCRIPTORS: usize = 4000;

/// Receives, sends to peers that do not read, connects without an answer, accepts and timers, all
/// at once.
async fn leave_everything_pending() -> Vec<Peer> {
    let mut peers = Vec::new();
    for number in 0..300 {
        let (stream, mut peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        if number % 3 == 0 {
            peer.write_all(&pattern(number, 0..1000)).expect("room");
        }
        for task in 0..3 {
            let stream = Rc::clone(&stream);
            spawn(async move {
                match task {
                    0 => drop(stream.recv().await),
                    1 => while stream.send(vec![1; 40_000]).await.is_ok() {},
                    _ => sleep(Duration::from_secs(3600)).await,
                }
            });
        }
        peers.push(peer);
    }
    let (busy, listener, fillers) = full_backlog();
    for _ in 0..50 {
        spawn(async move { TcpStream::connect(busy).await.map(drop) });
    }
    let accepting = listen();
    spawn(async move { accepting.accept().await.map(drop) });
    settle().await;
    drop((listener, fillers));
    peers
}

fn everything_pending_is_closed(configuration: Configuration) {
    alone(DESCRIPTORS, || {
        let before = open_descriptors();
        let builder = configuration.builder().linger(Duration::from_millis(20));
        let peers = run_on(builder, |_| leave_everything_pending());
        assert_eq!(open_descriptors(), before + peers.len(), "only the peers' ends are left");
        drop(peers);
        // The thread ran one worker; a second one finds everything in order.
        configuration.run(async {
            another_is_served().await;
        });
        assert_eq!(open_descriptors(), before);
    });
}

fn a_stop_from_outside_ends_everything_at_once(configuration: Configuration) {
    alone(DESCRIPTORS, || {
        let before = open_descriptors();
        let builder = configuration.builder().linger(Duration::from_secs(3600));
        stop_from_outside(builder, leave_everything_pending());
        assert_eq!(open_descriptors(), before);
    });
}

fn runtimes_leave_nothing_behind(configuration: Configuration) {
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
        maps.lines().count()
    };
    alone(DESCRIPTORS, || {
        let use_one = |round| {
            configuration.run(async move {
                let (stream, mut peer) = pair().await;
                peer.write_all(&pattern(round, 0..5000)).expect("room");
                assert_pattern(round, 0, &recv_exactly(&stream, 5000).await);
                // With an operation of each kind pending.
                assert!(poll_once(stream.recv()).await.is_none());
                spawn(async move { stream.recv().await.map(drop) });
                yield_now().await;
            });
        };
        (0..5).for_each(use_one);
        drop(configuration.builder().build().expect("one that never runs"));
        let before = (open_descriptors(), mappings());
        (0..40).for_each(use_one);
        let after = (open_descriptors(), mappings());
        assert_eq!(after.0, before.0, "descriptors");
        assert!(after.1 < before.1 + 20, "memory mappings grew from {} to {}", before.1, after.1);
    });
}

fn a_stream_that_outlives_its_runtime_is_closed(configuration: Configuration) {
    let runtime: Runtime = configuration.builder().build().expect("tried before");
    let (stream, mut peer, kept) = runtime
        .block_on(async {
            let (stream, mut peer) = pair().await;
            peer.write_all(&pattern(8, 0..100)).expect("room");
            let kept = stream.recv().await.expect("bytes");
            (stream, peer, kept)
        })
        .expect("the engine works");
    let _closed_or_reset = read_to_end(&mut peer);
    assert!(stream.peer_addr().is_err());
    drop(stream);
    // Received bytes are the reader's, as long as it wants.
    assert_pattern(8, 0, &kept);
}
