//! While a stream sends a file, its other operations and all other streams make progress.

use crate::support::*;
use crate::tree::*;
use std::io::{Read, Write};
use std::rc::Rc;
use std::time::Duration;
use twinring::fs::File;
use twinring::{TcpStream, sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    sends_and_fin_wait_behind_a_file,
    files_on_one_stream_go_one_after_the_other,
    receiving_continues_during_and_after_a_file,
    many_files_starve_no_other_task,
];

const BYTES: usize = 300_000;

async fn sends_and_fin_wait_behind_a_file(tree: Tree) {
    let file = tree.file(1, BYTES).await;
    let (stream, peer) = narrow_pair().await;
    let stream = Rc::new(stream);
    let sender = Rc::clone(&stream);
    let sending = spawn(async move { sender.send_file(&file, 0, BYTES as u64).await });
    settle().await;
    assert!(!sending.is_finished(), "nobody reads");
    let sender = Rc::clone(&stream);
    let behind = spawn(async move {
        sender.send("behind").await.expect("an open stream");
        sender.shutdown().await
    });
    settle().await;
    assert!(!behind.is_finished(), "the file is still under way");
    assert!(poll_once(stream.flush()).await.is_none());
    let read = reading(peer).await;
    assert_eq!(sending.await.expect("not aborted").expect("an open stream"), BYTES as u64);
    behind.await.expect("not aborted").expect("an open stream");
    assert_eq!(read.len(), BYTES + 6);
    assert_pattern(1, 0, &read[..BYTES]);
    assert!(read.ends_with(b"behind"));
}

async fn files_on_one_stream_go_one_after_the_other(tree: Tree) {
    let (stream, peer) = narrow_pair().await;
    let stream = Rc::new(stream);
    let reading = reading(peer);
    let mut sending = Vec::new();
    for seed in 0..5 {
        let (sender, file) = (Rc::clone(&stream), tree.file(seed, 100_000).await);
        sending.push(spawn(async move { sender.send_file(&file, 0, 100_000).await }));
    }
    for sending in sending {
        assert_eq!(sending.await.expect("not aborted").expect("an open stream"), 100_000);
    }
    stream.shutdown().await.expect("an open stream");
    let read = reading.await;
    assert_eq!(read.len(), 500_000);
    for (seed, bytes) in read.chunks(100_000).enumerate() {
        assert_pattern(seed as u64, 0, bytes);
    }
}

/// The socket is O_NONBLOCK from its first file on, which must not make receives fail.
async fn receiving_continues_during_and_after_a_file(tree: Tree) {
    let file = tree.file(2, BYTES).await;
    let (stream, mut peer) = narrow_pair().await;
    let stream = Rc::new(stream);
    let sender = Rc::clone(&stream);
    // One receive armed before, one during, one after.
    assert!(poll_once(stream.recv()).await.is_none());
    let sending = spawn(async move { sender.send_file(&file, 0, BYTES as u64).await });
    settle().await;
    for round in 0..3 {
        peer.write_all(&pattern(round, 0..1000)).expect("room");
        assert_pattern(round, 0, &recv_exactly(&stream, 1000).await);
    }
    assert!(poll_once(stream.recv()).await.is_none());
    let mut peer = on_thread(move || {
        let mut bytes = vec![0; BYTES];
        peer.read_exact(&mut bytes).expect("no reset");
        assert_pattern(2, 0, &bytes);
        peer
    })
    .await;
    sending.await.expect("not aborted").expect("an open stream");
    for round in 0..3 {
        assert!(poll_once(stream.recv()).await.is_none());
        settle().await;
        peer.write_all(&pattern(round, 0..1000)).expect("room");
        assert_pattern(round, 0, &recv_exactly(&stream, 1000).await);
    }
    drop(peer);
    assert!(stream.recv().await.expect("no reset").is_empty());
}

async fn send_for_ever(stream: TcpStream, file: Rc<File>) {
    while stream.send_file(&file, 0, 4_000_000).await.is_ok() {}
}

async fn many_files_starve_no_other_task() {
    let tree = Tree::new(Ground::Disk);
    let file = Rc::new(tree.file(4, 4_000_000).await);
    let mut sending = Vec::new();
    let mut draining = Vec::new();
    for _ in 0..16 {
        let (stream, mut peer) = pair().await;
        draining.push(on_thread(move || {
            let mut sink = vec![0; 1 << 20];
            while peer.read(&mut sink).is_ok_and(|bytes| bytes > 0) {}
        }));
        sending.push(spawn(send_for_ever(stream, Rc::clone(&file))));
    }
    let (stream, mut peer) = pair().await;
    spawn(echo(stream));
    let pinging =
        on_thread(move || (0..20).for_each(|seed| ping(&mut peer, &pattern(seed, 0..64))));
    for _ in 0..20 {
        sleep(Duration::from_micros(100)).await;
    }
    pinging.await;
    sending.iter().for_each(|sending| sending.abort());
    for draining in draining {
        draining.await;
    }
}
