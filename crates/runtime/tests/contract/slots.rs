//! Rule 1: slots are reused, generations are not; late completions find nothing.

use crate::support::*;
use std::time::Duration;
use twinring::{sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    connections_that_come_and_go_see_only_their_own_bytes,
    a_slot_reused_in_the_same_turn_starts_afresh,
    gauges_return_to_their_initial_values,
];

/// Every third connection disappears with its answer under way, so that completions of the old
/// slot arrive while its successor is already in use.
async fn connections_that_come_and_go_see_only_their_own_bytes() {
    const THREADS: usize = 2;
    const CONNECTIONS: usize = 400;
    let listener = listen();
    let address = listener.local_addr();
    spawn(echo_server(listener));
    let peers: Vec<_> = (0..THREADS)
        .map(|thread| {
            on_thread(move || {
                for number in 0..CONNECTIONS {
                    let seed = (thread * CONNECTIONS + number) as u64;
                    let mut peer = Peer::connect(address).expect("a connection");
                    match number % 3 {
                        0 => ping(&mut peer, &pattern(seed, 0..200)),
                        1 => {
                            std::io::Write::write_all(&mut peer, &pattern(seed, 0..3000))
                                .expect("the server reads");
                            reset(peer);
                        }
                        _ => drop(peer),
                    }
                }
            })
        })
        .collect();
    for peer in peers {
        peer.await;
    }
}

async fn a_slot_reused_in_the_same_turn_starts_afresh() {
    for round in 0..60 {
        let (stream, mut old) = pair().await;
        // Armed, with data coming in, and dropped without another turn in between.
        assert!(poll_once(stream.recv()).await.is_none());
        std::io::Write::write_all(&mut old, &pattern(1000 + round, 0..500)).expect("room");
        drop(stream);
        let (stream, mut new) = pair().await;
        let bytes = pattern(round, 0..300);
        std::io::Write::write_all(&mut new, &bytes).expect("room");
        let received = twinring::timeout(Duration::from_secs(10), recv_exactly(&stream, 300));
        assert!(received.await.expect("data in time") == bytes, "bytes of another stream");
    }
}

/// The gauges that show an operator that nothing leaks.
fn gauges_return_to_their_initial_values(configuration: Configuration) {
    const PEERS: u64 = 20;
    let handle = configuration.run_with_handle(|handle| async move {
        let listener = listen();
        let address = listener.local_addr();
        spawn(echo_server(listener));
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
