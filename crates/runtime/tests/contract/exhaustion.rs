//! Rule 6: running out of receive buffers is the engine's problem, and blocks no other socket.

use crate::support::*;
use std::io::{Read, Write};
use std::time::Duration;
use twinring::{sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    a_task_that_keeps_every_buffer_starves_no_other,
    unread_streams_starve_no_other,
    a_receive_that_waits_for_a_buffer_uses_no_cpu,
    buffers_of_silent_sends_reach_waiting_receives,
    sockets_are_fed_with_buffers_that_are_there,
];

/// Some eight of the smallest pools.
const HELD_BUFFERS: usize = 32;

/// Each peer sends one message, so that the whole pool can be used up in one turn.
fn a_task_that_keeps_every_buffer_starves_no_other(configuration: Configuration) {
    run_on(configuration.builder_with("buffer_count=16"), |_| async {
        let mut held = Vec::new();
        let mut holders = Vec::new();
        for _ in 0..HELD_BUFFERS {
            holders.push(pair().await);
        }
        for (seed, (stream, peer)) in holders.iter_mut().enumerate() {
            assert!(poll_once(stream.recv()).await.is_none());
            peer.write_all(&pattern(seed as u64, 0..40)).expect("room");
        }
        for (stream, _) in &holders {
            held.push(stream.recv().await.expect("bytes"));
        }
        another_is_served().await;
        for (seed, chunk) in held.iter().enumerate() {
            assert_pattern(seed as u64, 0, chunk);
        }
    });
}

fn unread_streams_starve_no_other(configuration: Configuration) {
    run_on(configuration.builder_with("buffer_count=16"), |_| async {
        let mut unread = Vec::new();
        for _ in 0..4 {
            let (stream, peer) = pair().await;
            assert!(poll_once(stream.recv()).await.is_none());
            peer.set_nonblocking(true).expect("a socket");
            while (&peer).write(&[9; 5000]).is_ok() {}
            unread.push((stream, peer));
        }
        settle().await;
        another_is_served().await;
        let (stream, _) = &unread[2];
        assert!(stream.recv().await.expect("bytes").iter().all(|byte| *byte == 9));
    });
}

fn a_receive_that_waits_for_a_buffer_uses_no_cpu(configuration: Configuration) {
    run_on(configuration.builder_with("buffer_count=4,buffer_bytes=64"), |handle| async move {
        let mut streams = Vec::new();
        let mut held = Vec::new();
        for _ in 0..8 {
            let (stream, mut peer) = pair().await;
            peer.write_all(&[5; 4000]).expect("room");
            held.push(stream.recv().await.expect("bytes"));
            streams.push((stream, peer));
        }
        settle().await;
        let before = handle.counters();
        sleep(Duration::from_millis(100)).await;
        let after = handle.counters();
        let (calls, turns) = (after.syscalls - before.syscalls, after.waits - before.waits);
        // One wait and its bookkeeping; with a submission thread a few more.
        assert!(calls < 40, "{calls} system calls in {turns} waits of 100 ms");
        drop(held);
    });
}

/// Buffers are released by sends without a completion; a receive that waits for one must not wait
/// for a completion that never comes.
fn buffers_of_silent_sends_reach_waiting_receives(configuration: Configuration) {
    run_on(configuration.builder_with("buffer_count=4,buffer_bytes=4096"), |_| async {
        for round in 0..30 {
            let mut waiting = Vec::new();
            for seed in 0..6 {
                let (stream, mut peer) = pair().await;
                peer.write_all(&pattern(seed + round, 0..1000)).expect("room");
                waiting.push((seed + round, stream, peer));
            }
            let echoing: Vec<_> = waiting
                .into_iter()
                .map(|(seed, stream, peer)| (seed, spawn(echo(stream)), peer))
                .collect();
            for (seed, echoing, mut peer) in echoing {
                on_thread(move || expect_answer(&mut peer, seed, 1000)).await;
                echoing.await.expect("not aborted").expect("the peer left cleanly");
            }
        }
    });
}

fn expect_answer(peer: &mut Peer, seed: u64, bytes: usize) {
    let mut answer = vec![0; bytes];
    peer.read_exact(&mut answer).expect("an answer");
    assert_pattern(seed, 0, &answer);
}

/// Each returned buffer used to arm the receives of all waiting sockets, and all but one ended
/// again for lack of a buffer: 140 receives per message, with 4,000 connections. And buffers that had gone to
/// receives whose completions waited to be handled were given out once more, and every second socket in the
/// queue went to its end: the slowest of 1,000 connections waited for seconds.
fn sockets_are_fed_with_buffers_that_are_there(configuration: Configuration) {
    // Two for each connection, beside other tests.
    testing::needs_descriptors(3_000);
    const SMALL: &str = "buffer_count=4,buffer_bytes=1024";
    const LARGE: &str = "buffer_count=64,buffer_bytes=16384";
    for (options, connections, bytes, rounds) in [(SMALL, 100, 4000, 4), (LARGE, 600, 16_000, 1)] {
        run_on(configuration.builder_with(options), |handle| async move {
            let listener = listen();
            let address = listener.local_addr();
            // All wait when the first is served.
            let peers = on_thread(move || {
                let ask = |seed| {
                    let mut peer = Peer::connect(address).expect("the backlog has room");
                    peer.write_all(&pattern(seed, 0..bytes)).expect("room");
                    peer
                };
                (0..connections).map(ask).collect::<Vec<Peer>>()
            });
            let mut peers = peers.await;
            spawn(echo_server(listener));
            on_thread(move || {
                for round in 1..=rounds {
                    for (seed, peer) in (0..).zip(&mut peers) {
                        expect_answer(peer, seed, bytes);
                        if round < rounds {
                            peer.write_all(&pattern(seed, 0..bytes)).expect("room");
                        }
                    }
                }
            })
            .await;
            let counters = handle.counters();
            // The first receive of each may find no buffer, and one for each buffer that was filled; faults from a
            // seed cause more of that.
            let most = match options {
                SMALL => 3 * counters.received + connections,
                _ => connections + connections / 10,
            };
            let found_none = counters.enobufs;
            assert!(found_none <= most || configuration.has_faults(), "{options}: {found_none}");
        });
    }
}
