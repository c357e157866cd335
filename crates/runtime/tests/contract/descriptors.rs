//! Rule 10: running out of descriptors neither kills nor spins.

use crate::support::*;
use std::time::Duration;
use twinring::{Event, sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![accepting_pauses_without_descriptors_and_continues,];

fn accepting_pauses_without_descriptors_and_continues(configuration: Configuration) {
    const CONNECTIONS: usize = 60;
    alone(100, || {
        let notices = Tally::default();
        let told = notices.clone();
        let builder = configuration.builder().on_event(move |notice| {
            // Exhausted memory, caused by seeded faults, is reported once as well.
            if matches!(notice, Event::AcceptStalled(_)) {
                told.add(1);
            }
        });
        run_on(builder, |handle| async move {
            let listener = listen();
            let address = listener.local_addr();
            // All of them are in the backlog before the first is accepted, so that accepting runs
            // out of descriptors, with any number that the harness was started with. (When
            // connecting and accepting in turn, an odd number made the last connect fail, with
            // nothing to accept.)
            let mut peers: Vec<Peer> = (0..CONNECTIONS)
                .map(|_| Peer::connect(address).expect("the backlog has room"))
                .collect();
            spawn(echo_server(listener));
            while handle.counters().accept_stalls == 0 {
                sleep(Duration::from_millis(5)).await;
            }
            settle().await;
            let before = handle.counters();
            let mut served = peers.swap_remove(0);
            let mut served = on_thread(move || {
                (0..10).for_each(|seed| ping(&mut served, &pattern(seed, 0..100)));
                served
            })
            .await;
            sleep(Duration::from_millis(150)).await;
            let after = handle.counters();
            let calls = after.syscalls - before.syscalls;
            assert!(calls < 250, "{calls} system calls while accepting was stalled");
            // Half of the peers leave; the others, and new ones, are served.
            peers.truncate(peers.len() / 2);
            for seed in 0..10 {
                ping_later(&mut served, seed).await;
            }
            for (seed, mut peer) in peers.into_iter().enumerate() {
                ping_later(&mut peer, seed as u64).await;
            }
            let mut newcomer = Peer::connect(address).expect("descriptors are free");
            ping_later(&mut newcomer, 77).await;
        });
        assert_eq!(notices.get(), 1, "told once");
    });
}

async fn ping_later(peer: &mut Peer, seed: u64) {
    let mut peer = peer.try_clone().expect("a descriptor");
    on_thread(move || ping(&mut peer, &pattern(seed, 0..200))).await;
}
