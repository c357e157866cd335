//! A file that does not get through to its end.

use crate::support::*;
use crate::tree::*;
use std::io::{self, Read};
use std::rc::Rc;
use twinring::fs::File;
use twinring::{JoinHandle, TcpStream, spawn};

pub(crate) const RULES: &[Rule] = rules![
    a_reset_in_the_middle_is_reported_and_kept,
    a_cancelled_or_dropped_file_breaks_the_stream_in_its_middle,
    cancelled_or_dropped_before_its_first_byte_it_has_done_nothing,
    a_stream_that_was_reset_or_finished_takes_no_file,
    streams_dropped_in_the_middle_leave_nothing_behind,
];

pub(crate) const BYTES: usize = 900_000;

/// A stream in the middle of a file, whose peer does not read.
pub(crate) async fn in_the_middle(
    file: &Rc<File>,
) -> (Rc<TcpStream>, Peer, JoinHandle<io::Result<u64>>) {
    let (stream, peer) = narrow_pair().await;
    let (stream, file) = (Rc::new(stream), Rc::clone(file));
    let sender = Rc::clone(&stream);
    let sending = spawn(async move { sender.send_file(&file, 0, BYTES as u64).await });
    let peer = on_thread(move || {
        peer.peek(&mut [0]).expect("a first byte");
        peer
    })
    .await;
    settle().await;
    assert!(!sending.is_finished(), "nobody reads");
    (stream, peer, sending)
}

async fn a_reset_in_the_middle_is_reported_and_kept(tree: Tree) {
    let file = Rc::new(tree.file(1, BYTES).await);
    for receiving in [false, true] {
        let (stream, peer, sending) = in_the_middle(&file).await;
        if receiving {
            assert!(poll_once(stream.recv()).await.is_none());
        }
        reset(peer);
        let broken = errno(&sending.await.expect("not aborted"));
        assert!([libc::ECONNRESET, libc::EPIPE].contains(&broken), "errno {broken}");
        assert_eq!(errno(&stream.send("more").await), broken);
        assert_eq!(errno(&stream.send_file(&file, 0, 10).await), broken);
        assert_eq!(errno(&stream.flush().await), broken);
        let received = stream.recv().await;
        assert_eq!(errno(&received), libc::ECONNRESET, "{received:?}");
    }
}

/// Later sends report the error, and the peer reads a part and then a reset, not an end.
async fn assert_broken(stream: Rc<TcpStream>, mut peer: Peer) {
    assert_eq!(errno(&stream.send("more").await), libc::ECANCELED);
    assert_eq!(errno(&stream.shutdown().await), libc::ECANCELED);
    drop(stream);
    settle().await;
    on_thread(move || {
        let mut read = Vec::new();
        let end = peer.read_to_end(&mut read).expect_err("not the whole file");
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
        assert!(read.len() < BYTES);
        assert_pattern(1, 0, &read);
    })
    .await;
}

async fn a_cancelled_or_dropped_file_breaks_the_stream_in_its_middle(tree: Tree) {
    let file = Rc::new(tree.file(1, BYTES).await);
    for dropped in [false, true] {
        let (stream, peer, sending) = in_the_middle(&file).await;
        // A task that waits for its end gets the error.
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
        assert_broken(stream, peer).await;
    }
}

async fn cancelled_or_dropped_before_its_first_byte_it_has_done_nothing(tree: Tree) {
    let file = Rc::new(tree.file(1, BYTES).await);
    let (stream, peer) = narrow_pair().await;
    let stream = Rc::new(stream);
    stream.send(pattern(2, 0..200_000)).await.expect("an open stream");
    let never = stream.send_file(&file, 0, BYTES as u64);
    assert!(poll_once(never).await.is_none());
    settle().await;
    let (sender, own) = (Rc::clone(&stream), Rc::clone(&file));
    let sending = spawn(async move { sender.send_file(&own, 0, BYTES as u64).await });
    settle().await;
    stream.cancel();
    assert_eq!(errno(&sending.await.expect("not aborted")), libc::ECANCELED);
    let reading = reading(peer);
    stream.send_file(&file, 5, 10).await.expect("an open stream");
    stream.shutdown().await.expect("an open stream");
    let read = reading.await;
    assert_eq!(read.len(), 200_010);
    assert_pattern(2, 0, &read[..200_000]);
    assert_pattern(1, 5, &read[200_000..]);
}

async fn a_stream_that_was_reset_or_finished_takes_no_file(tree: Tree) {
    let file = tree.file(1, BYTES).await;
    let (stream, peer) = pair().await;
    stream.shutdown().await.expect("an open stream");
    assert_eq!(errno(&stream.send_file(&file, 0, 10).await), libc::EPIPE);
    drop(peer);
    let (stream, peer) = pair().await;
    reset(peer);
    // On a busy machine the reset takes a while, and the socket has room for the whole file.
    while stream.peer_addr().is_ok() {
        settle().await;
    }
    let broken = errno(&stream.send_file(&file, 0, BYTES as u64).await);
    assert!([libc::ECONNRESET, libc::EPIPE].contains(&broken), "errno {broken}");
    assert_eq!(errno(&stream.send("more").await), broken);
    assert_eq!(errno(&stream.recv().await), libc::ECONNRESET);
}

fn streams_dropped_in_the_middle_leave_nothing_behind(configuration: Configuration) {
    alone(1000, || {
        configuration.run_with_handle(|_| async {
            let tree = Tree::new(Ground::Disk);
            let file = Rc::new(tree.file(1, BYTES).await);
            let before = open_descriptors();
            for round in 0..30 {
                let (stream, mut peer, sending) = in_the_middle(&file).await;
                sending.abort();
                drop(stream);
                if round % 2 == 0 {
                    drop(peer);
                } else {
                    on_thread(move || peer.read_to_end(&mut Vec::new()))
                        .await
                        .expect_err("a reset");
                }
            }
            closed_down_to(before).await;
        });
    });
}
