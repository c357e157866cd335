//! Rules 6, 10 and 11: running out of receive buffers is the engine's problem, and blocks no other socket; running out
//! of descriptors neither kills nor spins; idle connections hold no receive buffer, and cost no CPU. One task with
//! endless work leaves the others their turns.

use crate::files::tree::{Ground, Tree};
use crate::support::*;
use std::future::poll_fn;
use std::pin::Pin;
use twinring::Event;

pub(crate) const RULES: &[Rule] = rules![
    tasks_that_keep_every_buffer_starve_no_other_and_use_no_cpu,
    sockets_are_fed_with_buffers_that_are_there,
    an_empty_pool_is_shared_fairly,
    sockets_that_get_nothing_hold_up_no_other,
    accepting_pauses_without_descriptors_and_continues,
    busy_tasks_do_not_starve_others,
    woken_tasks_go_before_yielding_ones,
    a_task_moves_a_bounded_number_of_bytes_per_poll,
    a_task_sends_a_bounded_number_of_files_per_poll,
];

/// The whole pool is used up in one turn, by messages or by streams that wait for more.
fn tasks_that_keep_every_buffer_starve_no_other_and_use_no_cpu(configuration: Configuration) {
    for (options, streams, bytes) in
        [("buffer_count=16", 32, 40), ("buffer_count=4,buffer_bytes=64", 8, 4000)]
    {
        run_on(configuration.builder_with(options), async move |handle| {
            let (mut held, mut holders) = (Vec::new(), Vec::new());
            for _ in 0..streams {
                holders.push(pair().await);
            }
            for (seed, (stream, peer)) in (0..).zip(&mut holders) {
                assert!(poll_once(stream.recv()).await.is_none());
                peer.write_all(&pattern(seed, 0..bytes)).expect("room");
            }
            for (stream, _) in &holders {
                held.push(stream.recv().await.expect("bytes"));
            }
            settle().await;
            let (calls, turns) = calls_in(&handle, Duration::from_millis(100)).await;
            // One wait and its bookkeeping; with a submission thread a few more.
            assert!(calls < 40, "{calls} system calls in {turns} waits of 100 ms");
            another_is_served().await;
            for (seed, chunk) in (0..).zip(&held) {
                assert_pattern(seed, 0, chunk);
            }
        });
    }
}

/// Idle connections hold none, and cost no CPU. Each returned buffer armed the receives of all waiting sockets: 140
/// receives per message. And buffers of receives whose completions waited were given out once more: the slowest of
/// 1,000 connections waited for seconds.
fn sockets_are_fed_with_buffers_that_are_there(configuration: Configuration) {
    // Two for each connection, beside other tests.
    testing::needs_descriptors(3_000);
    const SMALL: &str = "buffer_count=4,buffer_bytes=1024";
    const LARGE: &str = "buffer_count=64,buffer_bytes=16384";
    // Buffers return from sends without a completion, while nothing else completes.
    const SILENT: &str = "buffer_count=4,buffer_bytes=4096";
    for (options, connections, bytes, rounds) in
        [(SMALL, 100, 4000, 4), (LARGE, 600, 16_000, 1), (SILENT, 6, 1000, 30)]
    {
        run_on(configuration.builder_with(options), async move |handle| {
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
            let idle = on_thread(move || {
                for round in 1..=rounds {
                    for (seed, peer) in (0..).zip(&mut peers) {
                        let mut answer = vec![0; bytes];
                        peer.read_exact(&mut answer).expect("an answer");
                        assert_pattern(seed, 0, &answer);
                        if round < rounds {
                            peer.write_all(&pattern(seed, 0..bytes)).expect("room");
                        }
                    }
                }
                peers
            })
            .await;
            settle().await;
            let (calls, _) = calls_in(&handle, Duration::from_millis(50)).await;
            // Seeded faults have operations of some connections begin again.
            let most = if configuration.has_faults() { 250 } else { 40 };
            assert!(calls < most, "{calls} system calls for {} idle connections", idle.len());
            let counters = handle.counters();
            // The first receive of each may find no buffer, and one for each buffer that was filled; faults from a
            // seed cause more of that.
            let most = match options {
                LARGE => connections + connections / 10,
                _ => 3 * counters.received + connections,
            };
            let found_none = counters.enobufs;
            assert!(found_none <= most || configuration.has_faults(), "{options}: {found_none}");
        });
    }
}

/// A receive that had waited for a buffer took all available ones.
fn an_empty_pool_is_shared_fairly(configuration: Configuration) {
    const STREAMS: usize = 12;
    const CHUNKS: usize = 16;
    if configuration.is_epoll() {
        // A task that is polled finds a buffer; how much it may take is a rule of fairness.
        return;
    }
    run_on(configuration.builder_with("buffer_count=16,buffer_bytes=256"), async |_| {
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let (stream, mut peer) = pair().await;
            peer.write_all(&[5; 4 * CHUNKS * 256]).expect("room");
            streams.push((stream, peer));
        }
        settle().await;
        let chunks = streams.into_iter().map(|(stream, peer)| {
            let own = Tally::default();
            let received = own.clone();
            spawn(async move {
                while !stream.recv().await.expect("bytes").is_empty() {
                    own.add(1);
                }
                drop(peer);
            });
            received
        });
        let chunks: Vec<Tally> = chunks.collect();
        while chunks.iter().map(Tally::get).sum::<usize>() < STREAMS * CHUNKS {
            yield_now().await;
        }
        assert!(chunks.iter().all(|own| own.get() > 0), "not shared");
    });
}

/// Sockets without bytes have their turns at the buffers, and leave them: it must take no event to go on behind those.
fn sockets_that_get_nothing_hold_up_no_other(configuration: Configuration) {
    run_on(configuration.builder_with("buffer_count=4,buffer_bytes=64"), async |_| {
        let (mut idle, mut busy) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            idle.push(pair().await);
        }
        for _ in 0..12 {
            let (stream, mut peer) = pair().await;
            peer.write_all(&[5; 64]).expect("room");
            busy.push((stream, peer));
        }
        settle().await;
        let (first, last) = (busy.remove(0), busy.remove(0));
        for (stream, peer) in busy {
            spawn(async move { stream.recv().await.map(|_bytes| peer) });
        }
        first.0.recv().await.expect("bytes");
        // Some of the others have found no buffer: now these wait behind them.
        let mut idle: Vec<_> = idle.iter().map(|(stream, _)| stream.recv()).collect();
        let mut last = last.0.recv();
        let queued = poll_fn(|cx| {
            assert!(idle.iter_mut().all(|recv| Pin::new(recv).poll(cx).is_pending()));
            Pin::new(&mut last).poll(cx)
        });
        queued.await.expect("bytes");
    });
}

fn accepting_pauses_without_descriptors_and_continues(configuration: Configuration) {
    const CONNECTIONS: usize = 60;
    alone(&[], 100, || {
        let notices = Tally::default();
        let told = notices.clone();
        let builder = configuration.builder().on_event(move |notice| {
            // Exhausted memory, caused by seeded faults, is reported once as well.
            if matches!(notice, Event::AcceptStalled(_)) {
                told.add(1);
            }
        });
        run_on(builder, async move |handle| {
            let listener = listen();
            let address = listener.local_addr();
            // In the backlog before the first is accepted, so that accepting runs out of descriptors, not connecting.
            let connect = |_| Peer::connect(address).expect("the backlog has room");
            let mut peers: Vec<Peer> = (0..CONNECTIONS).map(connect).collect();
            spawn(echo_server(listener));
            while handle.counters().accept_stalls == 0 {
                sleep(Duration::from_millis(5)).await;
            }
            settle().await;
            let served = ping_all(peers.drain(..1).collect()).await;
            let (calls, _) = calls_in(&handle, Duration::from_millis(150)).await;
            assert!(calls < 250, "{calls} system calls while accepting was stalled");
            // Half of the peers leave; the others, and new ones, are served.
            peers.truncate(peers.len() / 2);
            peers.extend(served);
            drop(ping_all(peers).await);
            ping_all(vec![Peer::connect(address).expect("descriptors are free")]).await;
        });
        assert_eq!(notices.get(), 1, "told once");
    });
}

/// Ten echoes for each.
async fn ping_all(mut peers: Vec<Peer>) -> Vec<Peer> {
    on_thread(move || {
        for peer in &mut peers {
            (0..10).for_each(|seed| ping(peer, &pattern(seed, 0..200)));
        }
        peers
    })
    .await
}

/// One that floods, one that drains, so that a send is nearly always taken at once, one that has left, and many that get
/// a large file.
async fn busy_tasks_do_not_starve_others() {
    const FILE_BYTES: usize = 4_000_000;
    let ((flooded, flood), (drained, drain)) = (pair().await, pair().await);
    let (ended, peer) = pair().await;
    drop(peer);
    let mut peers = vec![pouring(flood), draining(drain)];
    let mut busy = vec![
        spawn(async move { while !flooded.recv().await.expect("bytes").is_empty() {} }),
        // Small ones: a large one would fill the socket at once, and wait.
        spawn(async move { while drained.send("to nobody in particular").await.is_ok() {} }),
        spawn(async move { while ended.recv().await.is_ok_and(|p| p.is_empty()) {} }),
    ];
    let file = Rc::new(Tree::new(Ground::Disk).file(4, FILE_BYTES).await);
    for _ in 0..16 {
        let ((stream, peer), file) = (pair().await, Rc::clone(&file));
        peers.push(draining(peer));
        busy.push(spawn(async move {
            while stream.send_file(&file, 0, FILE_BYTES as u64).await.is_ok() {}
        }));
    }
    another_is_served().await;
    busy.iter().for_each(JoinHandle::abort);
    for peer in peers {
        peer.await;
    }
}

/// A woken task waited until all tasks that had yielded before were polled again.
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
    yielding.iter().for_each(JoinHandle::abort);
}

/// A receiver took 32 buffers of 64 KiB before another task had a turn.
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

/// Small ones: a socket that is full would give the others their turns.
async fn a_task_sends_a_bounded_number_of_files_per_poll() {
    let file = Tree::new(Ground::Memory).file(1, 10).await;
    let (stream, _peer) = pair().await;
    let sent = Tally::default();
    let counted = sent.clone();
    let sending = spawn(async move {
        while counted.get() < 200 {
            stream.send_file(&file, 0, 10).await.expect("an open stream");
            counted.add(1);
        }
    });
    let mut before = 0;
    while !sending.is_finished() {
        yield_now().await;
        let now = sent.get();
        assert!(now - before < 40, "{} files in one poll", now - before);
        before = now;
    }
}
