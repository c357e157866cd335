//! One task with endless work leaves the others their turns.

use crate::support::*;
use twinring::spawn;

pub(crate) const RULES: &[Rule] = rules![
    busy_tasks_do_not_starve_others,
    woken_tasks_go_before_yielding_ones,
    a_task_moves_a_bounded_number_of_bytes_per_poll,
];

/// One that floods, one that drains, so that a send is nearly always taken at once, and one that has left.
async fn busy_tasks_do_not_starve_others() {
    let ((flooded, flood), (drained, drain)) = (pair().await, pair().await);
    let (ended, peer) = pair().await;
    drop(peer);
    let peers = [pouring(flood), draining(drain)];
    let busy = [
        spawn(async move { while !flooded.recv().await.expect("bytes").is_empty() {} }),
        // Small ones: a large one would fill the socket at once, and wait.
        spawn(async move { while drained.send("to nobody in particular").await.is_ok() {} }),
        spawn(async move { while ended.recv().await.is_ok_and(|p| p.is_empty()) {} }),
    ];
    another_is_served().await;
    busy.iter().for_each(twinring::JoinHandle::abort);
    for peer in peers {
        peer.await;
    }
}

/// A woken task used to wait until all tasks that had yielded before were polled again.
async fn woken_tasks_go_before_yielding_ones() {
    const TASKS: usize = 200;
    let polls = Tally::default();
    let yielding = || {
        let polls = polls.clone();
        spawn(async move {
            loop {
                polls.add(1);
                yield_now().await;
            }
        })
    };
    let yielding: Vec<_> = (0..TASKS).map(|_| yielding()).collect();
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
    let (stream, peer) = pair().await;
    let pouring = pouring(peer);
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
