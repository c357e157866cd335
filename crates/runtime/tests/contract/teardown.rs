//! Rules 1, 2, 4 and 9: slots are reused, generations are not, and late completions find nothing; a runtime that
//! ends leaves no descriptor, no mapping and no hang behind, with any operation pending; nothing is
//! written into a buffer that was released, or that has a reader. Debug builds poison released buffers and verify
//! them when they leave the quarantine, including the memory of dropped pools; received data is compared here.

use crate::files::tree::{Ground, Tree};
use crate::support::*;
use std::collections::VecDeque;
use twinring::RecvBuf;

pub(crate) const RULES: &[Rule] = rules![
    everything_pending_ends_with_its_runtime,
    runtimes_leave_nothing_behind,
    what_outlives_its_runtime_is_closed,
    nothing_is_written_late_while_streams_and_runtimes_go,
    a_slot_reused_in_the_same_turn_starts_afresh,
    gauges_return_to_their_initial_values,
];

/// Receives, sends to peers that do not read, connects without an answer, accepts and timers, all
/// at once.
async fn leave_everything_pending() -> Vec<Peer> {
    let mut peers = Vec::new();
    for number in 0..300 {
        let (stream, mut peer) = narrow_pair().await;
        if number % 3 == 0 {
            peer.write_all(&pattern(number, 0..1000)).expect("room");
        }
        busy_tasks(&Rc::new(stream));
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

fn everything_pending_ends_with_its_runtime(configuration: Configuration) {
    ends_without_a_trace(configuration, Duration::ZERO, leave_everything_pending);
}

fn runtimes_leave_nothing_behind(configuration: Configuration) {
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
        maps.lines().count()
    };
    let pages = || {
        let memory = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
        let pages = memory.split(' ').next().and_then(|pages| pages.parse::<usize>().ok());
        pages.expect("the size of the address space")
    };
    alone(&[], 4000, || {
        let use_one = |round| {
            configuration.run(async move {
                // Building a runtime inside of one is fine, running it is not.
                let inner = configuration.builder().build().expect("tried before");
                let refused = inner.block_on(async {}).expect_err("there is one");
                assert!(refused.to_string().contains("already"), "{refused}");
                drop(inner);
                let (stream, mut peer) = pair().await;
                peer.write_all(&pattern(round, 0..5000)).expect("room");
                assert_pattern(round, 0, &recv_exactly(&stream, 5000).await);
                // With an operation of each kind pending.
                assert!(poll_once(stream.recv()).await.is_none());
                spawn(async move { stream.recv().await.map(drop) });
                yield_now().await;
            });
        };
        // Pools are in quarantine for a while.
        (0..10).for_each(use_one);
        drop(configuration.builder().build().expect("one that never runs"));
        let before = (open_descriptors(), mappings(), pages());
        (0..40).for_each(use_one);
        let after = (open_descriptors(), mappings(), pages());
        // The C library may reserve 64 MiB for a thread, and 40 pools of io_uring are 640.
        assert!(after.2 < before.2 + 80_000, "memory grew from {} to {} pages", before.2, after.2);
        assert_eq!(after.0, before.0, "descriptors");
        assert!(after.1 < before.1 + 20, "memory mappings grew from {} to {}", before.1, after.1);
    });
}

fn what_outlives_its_runtime_is_closed(configuration: Configuration) {
    alone(&[], 1000, || {
        let before = open_descriptors();
        let runtime = configuration.builder().build().expect("tried before");
        let (stream, mut peer, kept, files) = runtime
            .block_on(async {
                let (stream, mut peer) = pair().await;
                peer.write_all(&pattern(8, 0..100)).expect("room");
                let kept = stream.recv().await.expect("bytes");
                let (disk, elsewhere) = (Tree::new(Ground::Disk), Tree::new(Ground::Elsewhere));
                let files = (disk.file(1, 10).await, elsewhere.file(1, 10).await);
                (stream, peer, kept, files)
            })
            .expect("the engine works");
        drop(runtime);
        let _closed_or_reset = read_to_end(&mut peer);
        assert!(stream.peer_addr().is_err());
        drop((stream, peer, files));
        // Received bytes are the reader's, as long as it wants.
        assert_pattern(8, 0, &kept);
        assert_eq!(open_descriptors(), before);
    });
}

/// Reads without end, from byte `at` of the pattern, and keeps the last buffers for a while: they
/// must not change.
async fn read_and_keep(seed: u64, stream: Rc<TcpStream>, mut at: usize, kept_max: usize) {
    let mut kept: VecDeque<(usize, RecvBuf)> = VecDeque::new();
    while let Ok(chunk) = stream.recv().await
        && !chunk.is_empty()
    {
        let next = at + chunk.len();
        kept.push_back((at, chunk));
        at = next;
        while kept.len() > kept_max
            && let Some((at, chunk)) = kept.pop_front()
        {
            assert_pattern(seed, at, &chunk);
        }
    }
    kept.iter().for_each(|(at, chunk)| assert_pattern(seed, *at, chunk));
}

/// Peers write on and on, few small buffers are reused many times, and streams are closed, cancelled, reset or left
/// to the end of their runtime in the middle of it.
fn nothing_is_written_late_while_streams_and_runtimes_go(configuration: Configuration) {
    const RUNTIMES: u64 = 20;
    const STREAMS: u64 = 9;
    for number in 0..RUNTIMES {
        let builder = configuration.builder_with("buffer_count=16,buffer_bytes=512");
        let (kept, flood) = run_on(builder.linger(Duration::from_millis(1)), async move |_| {
            let (mut random, mut kept) = (Random::new(31 + number), Vec::new());
            let (mut streams, mut peers) = (Vec::new(), Vec::new());
            for seed in 0..STREAMS {
                let (stream, peer) = pair().await;
                peer.set_nonblocking(true).expect("a socket");
                streams.push((seed, Rc::new(stream)));
                peers.push((seed, peer, 0));
            }
            // Until each was closed or reset by the other end.
            let flood = on_thread(move || {
                while !peers.is_empty() {
                    peers.retain_mut(|(seed, peer, at)| {
                        let written = peer.write(&pattern(*seed, *at..*at + 700));
                        *at += written.as_ref().map_or(0, |bytes| *bytes);
                        !written.is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
                    });
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            for (seed, stream) in streams {
                let own = Rc::clone(&stream);
                let reader = if seed % 3 == 0 {
                    // Passes the buffers themselves on. Its peer does not read, so some stay queued.
                    spawn(async move { drop(net::copy(&own, &own).await) })
                } else {
                    let first = stream.recv().await.expect("bytes");
                    let reading = read_and_keep(seed, own, first.len(), seed as usize % 3);
                    kept.push((seed, first));
                    spawn(reading)
                };
                for _ in 0..random.below(4) {
                    yield_now().await;
                }
                match random.below(5) {
                    0 => stream.cancel(),
                    1 => reader.abort(),
                    2 => {
                        stream.set_reset_on_close().expect("a socket");
                        reader.abort();
                    }
                    3 => sleep(Duration::from_micros(random.below(400) as u64)).await,
                    _ => {}
                }
            }
            sleep(Duration::from_millis(number % 3)).await;
            (kept, flood)
        });
        // The peers continue to write, and received data is still there.
        kept.iter().for_each(|(seed, chunk)| assert_pattern(*seed, 0, chunk));
        // Its end is awaited in another runtime, which gets memory where the last one had it.
        configuration.run(flood);
    }
}

async fn a_slot_reused_in_the_same_turn_starts_afresh() {
    for round in 0..60 {
        let (stream, mut old) = pair().await;
        // Armed, with data coming in, and dropped without another turn in between.
        assert!(poll_once(stream.recv()).await.is_none());
        old.write_all(&pattern(1000 + round, 0..500)).expect("room");
        drop(stream);
        let (stream, mut new) = pair().await;
        let bytes = pattern(round, 0..300);
        new.write_all(&bytes).expect("room");
        let received = timeout(Duration::from_secs(10), recv_exactly(&stream, 300));
        assert!(received.await.expect("data in time") == bytes, "bytes of another stream");
    }
}

/// The gauges that show an operator that nothing leaks.
fn gauges_return_to_their_initial_values(configuration: Configuration) {
    const PEERS: u64 = 20;
    let handle = run_on(configuration.builder(), async move |handle| {
        let address = echo_service();
        settle().await;
        let before = handle.counters().slots_in_use;
        let peers = on_thread(move || {
            let served = |seed| {
                let mut peer = Peer::connect(address).expect("a connection");
                ping(&mut peer, &pattern(seed, 0..300));
                peer
            };
            (0..PEERS).map(served).collect::<Vec<Peer>>()
        })
        .await;
        settle().await;
        assert_eq!(handle.counters().slots_in_use, before + PEERS);
        drop(peers);
        // Bounded by the watchdog.
        let in_use = || (handle.counters().slots_in_use, handle.counters().buffers_in_use);
        while in_use() != (before, 0) {
            sleep(Duration::from_millis(1)).await;
        }
        handle
    });
    let counters = handle.counters();
    assert_eq!((counters.slots_in_use, counters.buffers_in_use), (0, 0), "{}", configuration.name);
}
