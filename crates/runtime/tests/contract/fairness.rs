//! One task with endless work leaves the others their turns.

use crate::support::*;
use std::io::{Read, Write};
use std::time::Duration;
use twinring::{sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    busy_tasks_do_not_starve_others,
    woken_tasks_go_before_yielding_ones,
    a_task_moves_a_bounded_number_of_bytes_per_poll,
    an_empty_pool_is_shared_fairly,
];

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

/// One that floods, one that drains, so that a send is nearly always taken at once, and one that has left.
async fn busy_tasks_do_not_starve_others() {
    let ((flooded, mut pouring), (drained, mut drain)) = (pair().await, pair().await);
    let (ended, peer) = pair().await;
    drop(peer);
    let pouring = on_thread(move || while pouring.write_all(&[8; 65536]).is_ok() {});
    let draining = on_thread(move || {
        let mut sink = vec![0; 1 << 20];
        while drain.read(&mut sink).is_ok_and(|bytes| bytes > 0) {}
    });
    let busy = [
        spawn(async move { while !flooded.recv().await.expect("bytes").is_empty() {} }),
        // Small ones: a large one would fill the socket at once, and wait.
        spawn(async move { while drained.send("to nobody in particular").await.is_ok() {} }),
        spawn(async move { while ended.recv().await.is_ok_and(|p| p.is_empty()) {} }),
    ];
    others_are_served().await;
    busy.iter().for_each(twinring::JoinHandle::abort);
    pouring.await;
    draining.await;
}

/// A woken task used to wait until all tasks that had yielded before were polled again.
async fn woken_tasks_go_before_yielding_ones() {
    const TASKS: usize = 200;
    let polls = Tally::default();
    let yielding: Vec<_> = (0..TASKS)
        .map(|_| {
            let polls = polls.clone();
            spawn(async move {
                loop {
                    polls.add(1);
                    yield_now().await;
                }
            })
        })
        .collect();
    while polls.get() < 10 * TASKS {
        yield_now().await;
    }
    for _ in 0..10 {
        let before = polls.get();
        // Its first poll counts as a wake.
        spawn(async {}).await.expect("no abort");
        let waited = polls.get() - before;
        assert!(waited < TASKS / 4, "{waited} polls of others before that of a woken task");
    }
    yielding.iter().for_each(twinring::JoinHandle::abort);
}

/// A receiver used to take 32 buffers of 64 KiB before another task had a turn.
async fn a_task_moves_a_bounded_number_of_bytes_per_poll() {
    const BYTES_MAX: usize = 256 * 1024 + 64 * 1024;
    let (stream, mut peer) = pair().await;
    let pouring = on_thread(move || while peer.write_all(&[8; 1 << 20]).is_ok() {});
    let received = Tally::default();
    let counted = received.clone();
    let receiving = spawn(async move {
        loop {
            counted.add(stream.recv().await.expect("bytes").len());
        }
    });
    let mut before = 0;
    while received.get() < 16 << 20 {
        yield_now().await;
        let moved = received.get() - before;
        assert!(moved <= BYTES_MAX, "{moved} bytes in one poll");
        before += moved;
    }
    receiving.abort();
    pouring.await;
}

/// A receive that had waited for a buffer used to take all available ones, and the others waited
/// for as many rounds as there were sockets: with thousands of busy connections for seconds.
fn an_empty_pool_is_shared_fairly(configuration: Configuration) {
    const STREAMS: usize = 12;
    const CHUNKS: usize = 16;
    if configuration.is_epoll() {
        // A task that is polled finds a buffer; how much it may take is the rule above.
        return;
    }
    run_on(configuration.builder_with("buffer_count=16,buffer_bytes=256"), |_| async {
        let (total, mut chunks) = (Tally::default(), Vec::new());
        let (mut streams, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..STREAMS {
            let (stream, mut peer) = pair().await;
            peer.write_all(&[5; 4 * CHUNKS * 256]).expect("room");
            streams.push(stream);
            peers.push(peer);
        }
        // Simulated networks take their time.
        settle().await;
        for stream in streams {
            let (own, total) = (Tally::default(), total.clone());
            chunks.push(own.clone());
            spawn(async move {
                while !stream.recv().await.expect("bytes").is_empty() {
                    own.add(1);
                    total.add(1);
                }
            });
        }
        while total.get() < STREAMS * CHUNKS {
            yield_now().await;
        }
        let chunks: Vec<usize> = chunks.iter().map(Tally::get).collect();
        assert!(chunks.iter().all(|own| *own > 0), "not shared: {chunks:?}");
    });
}
