//! The rules for sendfile(2) hold for every other way to send a file.

use crate::reading::{LARGE_BYTES, large};
use crate::support::*;
use crate::tree::*;
use std::future::Future;
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use twinring::fs::{File, SendStrategy};
use twinring::{Handle, JoinHandle, Notice, TcpStream, spawn};

contract!(
    each_way_sends_the_same_bytes,
    each_way_reaches_a_slow_reader,
    each_way_keeps_the_order,
    each_way_reports_the_end_of_the_file,
    each_way_reports_a_reset,
    each_way_breaks_the_stream_in_its_middle,
    each_way_does_nothing_before_its_first_byte,
    an_abandoned_file_is_never_taken_for_complete,
    many_streams_share_pipe_and_buffers,
    a_runtime_that_ends_in_the_middle_leaves_nothing_behind,
    a_cold_file_is_brought_in_first
        real "asks what the page cache has",
    a_remote_file_is_read_and_reported_once,
    zero_copy_reports_copies
        real "sends without a copy",
);

/// Those that the other modules do not use all the time.
const OTHERS: [SendStrategy; 3] =
    [SendStrategy::Splice, SendStrategy::ZeroCopy, SendStrategy::Read];

/// Runs a rule for each of them: with files on a disk, and in tick mode with files in memory.
fn each<F>(configuration: Configuration, rule: impl Fn(Rc<Tree>, SendStrategy, Handle) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let in_ticks = || configuration.builder().tick(Duration::from_millis(1));
    for strategy in OTHERS {
        let run = |builder, ground| {
            run_on(builder, |handle| rule(Rc::new(Tree::new(ground)), strategy, handle));
        };
        run(configuration.builder(), Ground::Disk);
        run(in_ticks(), Ground::Memory);
    }
}

fn each_way_sends_the_same_bytes(configuration: Configuration) {
    each(configuration, |tree, strategy, _| async move {
        for bytes in [0, 1, 4095, 65_537, 262_145, 1_000_001] {
            let file = tree.file(1, bytes).await;
            for at in [0, 1, 70_000] {
                let (stream, mut peer) = pair().await;
                let reading = on_thread(move || read_to_end(&mut peer).expect("no reset"));
                stream.send_more("header").await.expect("an open stream");
                let len = bytes.saturating_sub(at);
                let sent = stream.send_file_by(strategy, &file, at as u64, len as u64).await;
                assert_eq!(sent.expect("an open stream"), len as u64);
                stream.send("trailer").await.expect("an open stream");
                stream.shutdown_write().await.expect("an open stream");
                let read = reading.await;
                assert_eq!(read.len(), len + 13);
                assert!(read.starts_with(b"header") && read.ends_with(b"trailer"));
                assert_pattern(1, at, &read[6..][..len]);
            }
        }
    });
}

fn each_way_reaches_a_slow_reader(configuration: Configuration) {
    each(configuration, |tree, strategy, _| async move {
        tree.write("file", large());
        let file = tree.open("file").await;
        let (stream, mut peer) = pair().await;
        let reading = on_thread(move || {
            let mut read = vec![0; LARGE_BYTES];
            for chunk in read.chunks_mut(1 << 20) {
                peer.read_exact(chunk).expect("no reset");
                std::thread::sleep(Duration::from_micros(500));
            }
            read
        });
        let sent = stream.send_file_by(strategy, &file, 0, LARGE_BYTES as u64).await;
        assert_eq!(sent.expect("an open stream"), LARGE_BYTES as u64);
        drop((file, stream));
        assert!(reading.await == large());
    });
}

fn each_way_keeps_the_order(configuration: Configuration) {
    const ROUNDS: usize = 24;
    each(configuration, |tree, strategy, _| async move {
        let file = tree.file(4, 60_000).await;
        for narrow in [false, true] {
            let (stream, mut peer) = if narrow { narrow_pair().await } else { pair().await };
            let reading = on_thread(move || read_to_end(&mut peer).expect("no reset"));
            let mut expected = Vec::new();
            for round in 0..ROUNDS {
                let (at, len) = (round * 977, 6000 * (round % 5));
                // Every second file goes the usual way.
                let strategy = if round % 2 == 0 { strategy } else { SendStrategy::Sendfile };
                let header = format!("{round}: {len}\n");
                expected.extend_from_slice(header.as_bytes());
                expected.extend(pattern(4, at..at + len));
                expected.extend_from_slice(b"behind");
                stream.send_more(header).await.expect("an open stream");
                let sent = stream.send_file_by(strategy, &file, at as u64, len as u64).await;
                assert_eq!(sent.expect("an open stream"), len as u64);
                stream.send("behind").await.expect("an open stream");
            }
            stream.shutdown_write().await.expect("an open stream");
            assert!(reading.await == expected);
        }
    });
}

fn each_way_reports_the_end_of_the_file(configuration: Configuration) {
    each(configuration, |tree, strategy, _| async move {
        let file = tree.file(6, 100_000).await;
        let (stream, mut peer) = pair().await;
        let reading = on_thread(move || read_to_end(&mut peer).expect("no reset"));
        for (at, len, expected) in
            [(0, 100_001, 100_000), (99_999, 1 << 40, 1), (100_000, 1, 0), (1 << 40, 5, 0)]
        {
            let sent = stream.send_file_by(strategy, &file, at, len).await;
            assert_eq!(sent.expect("an open stream"), expected);
        }
        std::fs::create_dir(tree.path("sub")).expect("a directory");
        let directory = tree.open("sub").await;
        let refused = stream.send_file_by(strategy, &directory, 0, 10).await;
        assert_eq!(errno(&refused), libc::EISDIR);
        let refused = stream.send_file_by(strategy, &file, u64::MAX, 10).await;
        assert_eq!(errno(&refused), libc::EINVAL);
        stream.send("end").await.expect("an open stream");
        stream.shutdown_write().await.expect("an open stream");
        let read = reading.await;
        assert_eq!(read.len(), 100_004);
        assert_pattern(6, 0, &read[..100_000]);
        assert!(read.ends_with(b"end"));
    });
}

const BYTES: usize = 900_000;

/// A stream in the middle of a file, whose peer does not read.
async fn in_the_middle(
    strategy: SendStrategy,
    file: &Rc<File>,
) -> (Rc<TcpStream>, Peer, JoinHandle<io::Result<u64>>) {
    let (stream, peer) = narrow_pair().await;
    let (stream, file) = (Rc::new(stream), Rc::clone(file));
    let sender = Rc::clone(&stream);
    let sending = spawn(async move { sender.send_file_by(strategy, &file, 0, BYTES as u64).await });
    let peer = on_thread(move || {
        peer.peek(&mut [0]).expect("a first byte");
        peer
    })
    .await;
    settle().await;
    assert!(!sending.is_finished(), "nobody reads");
    (stream, peer, sending)
}

fn each_way_reports_a_reset(configuration: Configuration) {
    each(configuration, |tree, strategy, _| async move {
        let file = Rc::new(tree.file(1, BYTES).await);
        for receiving in [false, true] {
            let (stream, peer, sending) = in_the_middle(strategy, &file).await;
            if receiving {
                assert!(poll_once(stream.recv()).await.is_none());
            }
            reset(peer);
            let broken = errno(&sending.await.expect("not aborted"));
            assert!([libc::ECONNRESET, libc::EPIPE].contains(&broken), "errno {broken}");
            assert_eq!(errno(&stream.send("more").await), broken);
            assert_eq!(errno(&stream.send_file_by(strategy, &file, 0, 10).await), broken);
            let received = stream.recv().await;
            assert_eq!(errno(&received), libc::ECONNRESET, "{received:?}");
        }
    });
}

/// The peer has a beginning of the file, and then gets a reset.
async fn assert_cut_short(mut peer: Peer) {
    on_thread(move || {
        let mut read = Vec::new();
        let end = peer.read_to_end(&mut read).expect_err("not the whole file");
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
        assert!(read.len() < BYTES);
        assert_pattern(1, 0, &read);
    })
    .await;
}

fn each_way_breaks_the_stream_in_its_middle(configuration: Configuration) {
    each(configuration, |tree, strategy, _| async move {
        let file = Rc::new(tree.file(1, BYTES).await);
        for dropped in [false, true] {
            let (stream, peer, sending) = in_the_middle(strategy, &file).await;
            let sender = Rc::clone(&stream);
            let behind = spawn(async move { sender.send("behind").await });
            yield_now().await;
            if dropped {
                sending.abort();
            } else {
                stream.cancel();
                assert_eq!(errno(&sending.await.expect("not aborted")), libc::ECANCELED);
            }
            assert_eq!(errno(&behind.await.expect("not aborted")), libc::ECANCELED);
            assert_eq!(errno(&stream.shutdown_write().await), libc::ECANCELED);
            drop(stream);
            settle().await;
            assert_cut_short(peer).await;
        }
    });
}

fn each_way_does_nothing_before_its_first_byte(configuration: Configuration) {
    each(configuration, |tree, strategy, _| async move {
        let file = Rc::new(tree.file(1, BYTES).await);
        let (stream, mut peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        stream.send(pattern(2, 0..200_000)).await.expect("an open stream");
        let never = stream.send_file_by(strategy, &file, 0, BYTES as u64);
        assert!(poll_once(never).await.is_none());
        settle().await;
        let (sender, own) = (Rc::clone(&stream), Rc::clone(&file));
        let sending =
            spawn(async move { sender.send_file_by(strategy, &own, 0, BYTES as u64).await });
        settle().await;
        stream.cancel();
        assert_eq!(errno(&sending.await.expect("not aborted")), libc::ECANCELED);
        let reading = on_thread(move || read_to_end(&mut peer).expect("no reset"));
        stream.send_file_by(strategy, &file, 5, 10).await.expect("an open stream");
        stream.shutdown_write().await.expect("an open stream");
        let read = reading.await;
        assert_eq!(read.len(), 200_010);
        assert_pattern(2, 0, &read[..200_000]);
        assert_pattern(1, 5, &read[200_000..]);
    });
}

fn an_abandoned_file_is_never_taken_for_complete(configuration: Configuration) {
    each(configuration, |tree, strategy, _| async move {
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
    each(configuration, |tree, strategy, _| async move {
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
        each(configuration, move |tree, strategy, _| {
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
    each(configuration, |tree, strategy, handle| async move {
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
            return skip("disk", "the build is not on a disk that can be asked");
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
            return skip("zero_copy", "this kernel sends nothing without a copy");
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
