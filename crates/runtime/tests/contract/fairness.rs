//! One task with endless work leaves the others their turns.

use crate::support::*;
use std::io::{Read, Write};
use std::time::Duration;
use twinring::{sleep, spawn};

contract!(
    a_firehose_does_not_starve_others,
    a_drain_does_not_starve_others,
    endless_ends_of_stream_do_not_starve_others,
);

/// Ten echoes and ten timers, which would not come to an end beside a task that never yields.
async fn others_are_served() {
    let (stream, mut peer) = pair().await;
    spawn(echo(stream));
    let pinging =
        on_thread(move || (0..10).for_each(|seed| ping(&mut peer, &pattern(seed, 0..64))));
    for _ in 0..10 {
        sleep(Duration::from_micros(100)).await;
    }
    pinging.await;
}

fn a_firehose_does_not_starve_others(configuration: Configuration) {
    configuration.run(async {
        let (stream, mut peer) = pair().await;
        let pouring = on_thread(move || while peer.write_all(&[8; 65536]).is_ok() {});
        let drinking =
            spawn(async move { while !stream.recv().await.expect("bytes").is_empty() {} });
        others_are_served().await;
        drinking.abort();
        pouring.await;
    });
}

/// The peer reads as fast as it can, so that a send is nearly always taken at once.
fn a_drain_does_not_starve_others(configuration: Configuration) {
    configuration.run(async {
        let (stream, mut peer) = pair().await;
        let draining = on_thread(move || {
            let mut sink = vec![0; 1 << 20];
            while peer.read(&mut sink).is_ok_and(|bytes| bytes > 0) {}
        });
        let sending = spawn(async move {
            // Small ones: a large one would fill the socket at once, and wait.
            while stream.send("to nobody in particular").await.is_ok() {}
        });
        others_are_served().await;
        sending.abort();
        draining.await;
    });
}

fn endless_ends_of_stream_do_not_starve_others(configuration: Configuration) {
    configuration.run(async {
        let (stream, peer) = pair().await;
        drop(peer);
        let asking = spawn(async move { while stream.recv().await.is_ok_and(|p| p.is_empty()) {} });
        others_are_served().await;
        asking.abort();
    });
}
