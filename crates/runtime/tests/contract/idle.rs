//! Rule 11: idle connections hold no receive buffer, and cost no CPU.

use crate::support::*;
use std::time::Duration;
use twinring::{sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![hundreds_of_idle_connections_live_on_four_buffers,];

fn hundreds_of_idle_connections_live_on_four_buffers(configuration: Configuration) {
    // Two for each connection, beside other tests.
    testing::needs_descriptors(3_000);
    run_on(configuration.builder_with("buffer_count=4"), |handle| async move {
        let listener = listen();
        let address = listener.local_addr();
        spawn(echo_server(listener));
        let mut peers = on_thread(move || {
            let connect = |_| Peer::connect(address).expect("a connection");
            let mut peers: Vec<Peer> = (0..500).map(connect).collect();
            // All are accepted and waited for once the last one is.
            ping(peers.last_mut().expect("some"), b"are you there?");
            peers
        })
        .await;
        settle().await;
        let before = handle.counters();
        sleep(Duration::from_millis(50)).await;
        let after = handle.counters();
        let calls = after.syscalls - before.syscalls;
        // Seeded faults have operations of some connections begin again.
        let most = if configuration.has_faults() { 250 } else { 40 };
        assert!(calls < most, "{calls} system calls for idle connections");
        on_thread(move || {
            for (seed, peer) in peers.iter_mut().enumerate() {
                ping(peer, &pattern(seed as u64, 0..300));
            }
        })
        .await;
    });
}
