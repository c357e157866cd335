//! A file arrives byte for byte, in its place between other sends; its stream's other operations and all other
//! streams make progress meanwhile; and one that does not get through to its end breaks its stream.

use super::tree::*;
use crate::support::*;
use twinring::fs::File;

pub(crate) const RULES: &[Rule] = rules![
    headers_and_parts_of_files_arrive_in_order,
    a_file_that_shrinks_is_reported,
    sends_and_fin_wait_behind_files,
    receiving_continues_during_and_after_a_file,
    a_reset_is_reported_and_kept,
    a_cancelled_or_dropped_file_breaks_the_stream_in_its_middle,
    cancelled_or_dropped_before_its_first_byte_it_has_done_nothing,
    what_cannot_be_sent_is_refused,
];

/// Parts of all sizes, of which some end behind the file: how much was sent is reported then.
async fn headers_and_parts_of_files_arrive_in_order(tree: Tree) {
    const FILE_BYTES: usize = 1_000_001;
    let file = tree.file(1, FILE_BYTES).await;
    for narrow in [false, true] {
        let (stream, peer) = if narrow { narrow_pair().await } else { pair().await };
        let (reading, mut expected) = (reading(peer), Vec::new());
        for (number, at) in [0, 1, 70_000, 1_000_000, 1_000_001, 1 << 40].into_iter().enumerate() {
            for len in [0, 1, 4095, 4096, 65_537, 262_144, 262_145, 1_000_001] {
                let there = FILE_BYTES.saturating_sub(at).min(len);
                let header = format!("{number}: {len}\n");
                expected.extend_from_slice(header.as_bytes());
                expected.extend(pattern(1, at..at + there));
                // A header that waits behind an earlier send, and one that does not.
                let plain = number % 2 == 0;
                match plain {
                    true => stream.send(header).await.expect("an open stream"),
                    false => stream.send_corked(header).await.expect("an open stream"),
                }
                let sent = stream.send_file(&file, at as u64, len as u64).await;
                assert_eq!(sent.expect("an open stream"), there as u64);
                if plain {
                    expected.extend_from_slice(b"behind");
                    stream.send("behind").await.expect("an open stream");
                }
            }
        }
        stream.shutdown().await.expect("an open stream");
        assert!(reading.await == expected);
    }
    // A header that nothing follows: the kernel keeps it for a moment only.
    let (stream, mut peer) = pair().await;
    stream.send_corked("one").await.expect("an open stream");
    let mut bytes = [0; 3];
    let read = on_thread(move || peer.read_exact(&mut bytes).map(|()| bytes)).await;
    assert_eq!(&read.expect("no reset"), b"one");
}

/// A stream in the middle of a file, whose peer does not read.
async fn in_the_middle(
    file: &Rc<File>,
    bytes: usize,
) -> (Rc<TcpStream>, Peer, JoinHandle<io::Result<u64>>) {
    let (stream, peer) = narrow_pair().await;
    let (stream, file) = (Rc::new(stream), Rc::clone(file));
    let sender = Rc::clone(&stream);
    let sending = spawn(async move { sender.send_file(&file, 0, bytes as u64).await });
    let peer = on_thread(move || {
        peer.peek(&mut [0]).expect("a first byte");
        peer
    })
    .await;
    settle().await;
    assert!(!sending.is_finished(), "nobody reads");
    (stream, peer, sending)
}

async fn a_file_that_shrinks_is_reported(tree: Tree) {
    const BYTES: usize = 400_000;
    let file = Rc::new(tree.file(7, BYTES).await);
    let (stream, peer, sending) = in_the_middle(&file, BYTES).await;
    let shortened = std::fs::File::options().write(true).open(tree.path("pattern-7-400000"));
    shortened.and_then(|file| file.set_len(200_000)).expect("a file");
    let reading = reading(peer);
    let sent = sending.await.expect("not aborted").expect("an open stream");
    stream.shutdown().await.expect("an open stream");
    let read = reading.await;
    assert_eq!(read.len() as u64, sent);
    assert!((1..=200_000).contains(&sent), "{sent}");
    // A page that was shortened while it was in the socket may read as zeros behind its end;
    // all before is the file.
    assert_pattern(7, 0, &read[..read.len().min(195_000)]);
}

const BYTES: usize = 300_000;

async fn sends_and_fin_wait_behind_files(tree: Tree) {
    let file = Rc::new(tree.file(0, BYTES).await);
    let (stream, peer, first) = in_the_middle(&file, BYTES).await;
    let mut sending = vec![first];
    for seed in 1..5 {
        let (sender, file) = (Rc::clone(&stream), tree.file(seed, BYTES).await);
        sending.push(spawn(async move { sender.send_file(&file, 0, BYTES as u64).await }));
        yield_now().await;
    }
    let sender = Rc::clone(&stream);
    let behind = spawn(async move {
        sender.send("behind").await.expect("an open stream");
        sender.shutdown().await
    });
    settle().await;
    assert!(!behind.is_finished(), "the files are still under way");
    assert!(poll_once(stream.flush()).await.is_none());
    let read = reading(peer).await;
    for sent in join_all(sending).await {
        assert_eq!(sent.expect("an open stream"), BYTES as u64);
    }
    behind.await.expect("not aborted").expect("an open stream");
    assert_eq!(read.len(), 5 * BYTES + 6);
    for (seed, bytes) in (0..5).zip(read.chunks(BYTES)) {
        assert_pattern(seed, 0, bytes);
    }
    assert!(read.ends_with(b"behind"));
}

/// The socket is O_NONBLOCK from its first file on, which must not make receives fail.
async fn receiving_continues_during_and_after_a_file(tree: Tree) {
    async fn receive(stream: &TcpStream, peer: &mut Peer, armed: bool) {
        for round in 0..3 {
            if armed {
                arm(stream).await;
            }
            peer.write_all(&pattern(round, 0..1000)).expect("room");
            assert_pattern(round, 0, &recv_exactly(stream, 1000).await);
        }
    }
    let file = Rc::new(tree.file(2, BYTES).await);
    for armed in [true, false] {
        let (stream, mut peer, sending) = in_the_middle(&file, BYTES).await;
        receive(&stream, &mut peer, false).await;
        // One receive armed during the file, or only after it.
        if armed {
            assert!(poll_once(stream.recv()).await.is_none());
        }
        let mut peer = on_thread(move || {
            let mut bytes = vec![0; BYTES];
            peer.read_exact(&mut bytes).expect("no reset");
            assert_pattern(2, 0, &bytes);
            peer
        })
        .await;
        sending.await.expect("not aborted").expect("an open stream");
        receive(&stream, &mut peer, true).await;
        drop(peer);
        assert!(stream.recv().await.expect("no reset").is_empty());
    }
}

async fn a_reset_is_reported_and_kept(tree: Tree) {
    let file = Rc::new(tree.file(1, BYTES).await);
    for receiving in [false, true] {
        let (stream, peer, sending) = in_the_middle(&file, BYTES).await;
        if receiving {
            assert!(poll_once(stream.recv()).await.is_none());
        }
        reset(peer);
        assert_reset(&stream, &file, sending.await.expect("not aborted")).await;
    }
    let (stream, peer) = pair().await;
    reset(peer);
    // On a busy machine the reset takes a while, and the socket has room for the whole file.
    while stream.peer_addr().is_ok() {
        settle().await;
    }
    assert_reset(&stream, &file, stream.send_file(&file, 0, BYTES as u64).await).await;
}

/// Checks that a stream which the peer has reset says so from now on.
async fn assert_reset(stream: &TcpStream, file: &File, sent: io::Result<u64>) {
    let broken = errno(&sent);
    assert!([libc::ECONNRESET, libc::EPIPE].contains(&broken), "errno {broken}");
    assert_eq!(errno(&stream.send("more").await), broken);
    assert_eq!(errno(&stream.send_file(file, 0, 10).await), broken);
    assert_eq!(errno(&stream.flush().await), broken);
    let received = stream.recv().await;
    assert_eq!(errno(&received), libc::ECONNRESET, "{received:?}");
}

/// Later sends report the error, and the peer reads a part and then a reset, not an end.
async fn a_cancelled_or_dropped_file_breaks_the_stream_in_its_middle(tree: Tree) {
    let file = Rc::new(tree.file(1, BYTES).await);
    for dropped in [false, true] {
        let (stream, mut peer, sending) = in_the_middle(&file, BYTES).await;
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
        assert_eq!(errno(&stream.send("more").await), libc::ECANCELED);
        assert_eq!(errno(&stream.shutdown().await), libc::ECANCELED);
        drop(stream);
        settle().await;
        on_thread(move || {
            let mut read = Vec::new();
            let end = peer.read_to_end(&mut read).expect_err("not the whole file");
            assert_eq!(end.kind(), ErrorKind::ConnectionReset);
            assert!(read.len() < BYTES);
            assert_pattern(1, 0, &read);
        })
        .await;
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

/// What is no file, and what is for a stream that was finished.
async fn what_cannot_be_sent_is_refused(tree: Tree) {
    let file = tree.file(1, BYTES).await;
    let (stream, peer) = pair().await;
    std::fs::create_dir(tree.path("sub")).expect("a directory");
    let directory = tree.open("sub").await;
    assert_eq!(errno(&stream.send_file(&directory, 0, 10).await), libc::EISDIR);
    assert_eq!(errno(&stream.send_file(&file, u64::MAX, 10).await), libc::EINVAL);
    // The program decides how to handle it: the stream continues.
    stream.send("end").await.expect("an open stream");
    stream.shutdown().await.expect("an open stream");
    assert_eq!(errno(&stream.send_file(&file, 0, 10).await), libc::EPIPE);
    assert_eq!(reading(peer).await, b"end");
}
