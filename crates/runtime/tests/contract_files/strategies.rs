//! The other ways to send a file than sendfile(2).

use crate::breaking::{BYTES, in_the_middle};
use crate::support::*;
use crate::tree::*;
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use twinring::fs::SendStrategy;
use twinring::{Notice, spawn};

pub(crate) const RULES: &[Rule] = rules![
    an_abandoned_file_is_never_taken_for_complete,
    many_streams_share_pipe_and_buffers,
    a_runtime_that_ends_in_the_middle_leaves_nothing_behind,
    a_cold_file_is_brought_in_first,
    a_remote_file_is_read_and_reported_once,
    zero_copy_reports_copies,
];

fn an_abandoned_file_is_never_taken_for_complete(configuration: Configuration) {
    by_other_strategies(configuration, |tree, strategy, _| async move {
        let file = tree.file(1, 300_000).await;
        for polls in 0..12 {
            for keeps_stream in [false, true] {
                let (stream, mut peer) = pair().await;
                stream.send("head").await.expect("an open stream");
                let mut sent = None;
                {
                    let mut sending =
                        std::pin::pin!(stream.send_file_by(strategy, &file, 0, 300_000));
                    for _ in 0..polls {
                        if sent.is_none() {
                            sent = poll_once(sending.as_mut()).await;
                        }
                        yield_now().await;
                    }
                }
                let behind = match keeps_stream {
                    true => Some(stream.send("behind").await.is_ok()),
                    false => None,
                };
                drop(stream);
                let (read, end) = on_thread(move || {
                    let mut read = Vec::new();
                    let end = peer.read_to_end(&mut read).map(drop);
                    (read, end)
                })
                .await;
                if end.is_err() {
                    assert_ne!(behind, Some(true), "it was taken over");
                    continue;
                }
                let mut read = read.strip_prefix(b"head").expect("sent before");
                if behind == Some(true) {
                    read = read.strip_suffix(b"behind").expect("sent behind");
                }
                let whole = if sent.is_some() { 300_000 } else { 0 };
                assert_eq!(read.len(), whole, "{strategy}, {polls} polls");
                assert_pattern(1, 0, read);
            }
        }
    });
}

fn many_streams_share_pipe_and_buffers(configuration: Configuration) {
    const STREAMS: usize = 21;
    const EACH: usize = 300_000;
    by_other_strategies(configuration, |tree, strategy, _| async move {
        let file = Rc::new(tree.file(9, EACH + 10 * STREAMS).await);
        // Peers that do not read hold what they can get, and the others go on.
        let mut idle = Vec::new();
        for _ in 0..6 {
            let (stream, peer) = pair().await;
            let file = Rc::clone(&file);
            let sending = spawn(async move {
                loop {
                    stream.send_file_by(strategy, &file, 0, EACH as u64).await?;
                }
                #[allow(unreachable_code)]
                io::Result::Ok(())
            });
            idle.push((sending, peer));
        }
        settle().await;
        let mut senders = Vec::new();
        for number in 0..STREAMS {
            let file = Rc::clone(&file);
            senders.push(spawn(async move {
                let (stream, mut peer) =
                    if number % 3 == 0 { narrow_pair().await } else { pair().await };
                let len = if number % 3 == 0 { EACH / 4 } else { EACH };
                let reading = on_thread(move || read_to_end(&mut peer).expect("no reset"));
                let at = 10 * number;
                let sent = stream.send_file_by(strategy, &file, at as u64, len as u64).await;
                assert_eq!(sent.expect("an open stream"), len as u64);
                drop((stream, file));
                let read = reading.await;
                assert_eq!(read.len(), len);
                assert_pattern(9, at, &read);
            }));
        }
        for sender in senders {
            sender.await.expect("not aborted");
        }
        for (sending, _peer) in idle {
            assert!(!sending.is_finished(), "nobody reads");
        }
    });
}

fn a_runtime_that_ends_in_the_middle_leaves_nothing_behind(configuration: Configuration) {
    alone(1000, || {
        let before = open_descriptors();
        let peers = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&peers);
        by_other_strategies(configuration, move |tree, strategy, _| {
            let kept = Arc::clone(&kept);
            async move {
                let file = Rc::new(tree.file(1, BYTES).await);
                for _ in 0..10 {
                    let (stream, peer, _sending) = in_the_middle(strategy, &file).await;
                    // Its task keeps the stream to the end of the runtime.
                    drop(stream);
                    kept.lock().expect("no panic").push(peer);
                }
            }
        });
        let peers = std::mem::take(&mut *peers.lock().expect("no panic"));
        assert_eq!(open_descriptors(), before + peers.len(), "only the peers' ends are left");
        for mut peer in peers {
            let mut read = Vec::new();
            let end = peer.read_to_end(&mut read).expect_err("not the whole file");
            assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
            assert_pattern(1, 0, &read);
        }
    });
}

fn a_cold_file_is_brought_in_first(configuration: Configuration) {
    by_other_strategies(configuration, |tree, strategy, handle| async move {
        let file = tree.file(3, 400_000).await;
        let on_disk = tree.is_on_disk();
        let brought_in = || {
            let counters = handle.counters();
            counters.file_operations + counters.file_jobs
        };
        // Not every time: without fincore(1), it is unknown whether the file became cold.
        for _ in 0..20 {
            if on_disk {
                tree.chill("pattern-3-400000");
            }
            let before = brought_in();
            let (stream, mut peer) = pair().await;
            let reading = on_thread(move || read_to_end(&mut peer).expect("no reset"));
            stream.send_file_by(strategy, &file, 0, 400_000).await.expect("an open stream");
            drop(stream);
            assert_pattern(3, 0, &reading.await);
            if !on_disk || brought_in() > before {
                return;
            }
        }
        panic!("{strategy}: the worker waited for the disk, 20 times");
    });
}

fn a_remote_file_is_read_and_reported_once(configuration: Configuration) {
    for strategy in SendStrategy::ALL {
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        let builder = configuration.builder().on_notice(move |notice| {
            if matches!(notice, Notice::SendStrategy { .. }) {
                telling.lock().unwrap().push(notice);
            }
        });
        run_on(builder, |handle| async move {
            let tree = Tree::new(Ground::Elsewhere);
            for round in 0..3 {
                let file = tree.file(round, 100_000).await;
                let (stream, mut peer) = pair().await;
                let reading = on_thread(move || read_to_end(&mut peer).expect("no reset"));
                stream.send_file_by(strategy, &file, 0, 100_000).await.expect("an open stream");
                drop(stream);
                assert_pattern(round, 0, &reading.await);
            }
            let counters = handle.counters();
            assert_eq!(counters.sendfiles + counters.splices + counters.zero_copy_sends, 0);
        });
        let told = told.lock().unwrap();
        match &told[..] {
            [] => assert_eq!(strategy, SendStrategy::Read),
            [Notice::SendStrategy { wanted, .. }] => assert_eq!(*wanted, strategy),
            other => panic!("{other:?}"),
        }
    }
}

fn zero_copy_reports_copies(configuration: Configuration) {
    run_on(configuration.builder(), |handle| async move {
        let tree = Tree::new(Ground::Disk);
        if !tree.is_on_disk() {
            testing::needs("a disk", "the build is not on a disk that can be asked");
        }
        let file = tree.file(1, 1_000_000).await;
        let (stream, mut peer) = pair().await;
        let reading = on_thread(move || {
            let mut read = vec![0; 1_000_000];
            peer.read_exact(&mut read).map(|()| (read, peer)).expect("no reset")
        });
        let sent = stream.send_file_by(SendStrategy::ZeroCopy, &file, 0, 1_000_000).await;
        assert_eq!(sent.expect("an open stream"), 1_000_000);
        let (read, peer) = reading.await;
        assert_pattern(1, 0, &read);
        if handle.counters().zero_copy_sends == 0 {
            testing::needs("zero_copy", "this kernel sends nothing without a copy");
        }
        // Within a bounded time all data is acknowledged, and the kernel reports it.
        for _ in 0..500 {
            let counters = handle.counters();
            assert!(counters.zero_copy_done <= counters.zero_copy_sends);
            if counters.zero_copy_done == counters.zero_copy_sends {
                assert_eq!(counters.zero_copy_copied, counters.zero_copy_done, "over loopback");
                return drop(peer);
            }
            twinring::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?}", handle.counters());
    });
}
