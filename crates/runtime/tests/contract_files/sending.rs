//! A file arrives byte for byte, in its place between other sends.

use crate::support::*;
use crate::tree::*;
use std::io::Read;
use std::rc::Rc;
use std::time::Duration;
use twinring::spawn;

pub(crate) const RULES: &[Rule] = rules![
    files_of_all_sizes_arrive,
    a_large_file_reaches_a_slow_reader,
    headers_and_files_arrive_in_order,
    a_file_that_ends_early_is_reported_and_what_is_none_is_refused,
    a_file_that_shrinks_is_reported,
    a_header_alone_arrives,
];

async fn files_of_all_sizes_arrive(tree: Tree) {
    for bytes in [0, 1, 4095, 4096, 65_537, 262_144, 262_145, 1_000_001] {
        let file = tree.file(1, bytes).await;
        for at in [0, 1, 70_000] {
            let (stream, peer) = pair().await;
            let reading = reading(peer);
            stream.send_corked("header").await.expect("an open stream");
            let len = bytes.saturating_sub(at);
            let sent = stream.send_file(&file, at as u64, len as u64).await;
            assert_eq!(sent.expect("an open stream"), len as u64);
            stream.send("trailer").await.expect("an open stream");
            stream.shutdown().await.expect("an open stream");
            let read = reading.await;
            assert_eq!(read.len(), len + 13);
            assert!(read.starts_with(b"header") && read.ends_with(b"trailer"));
            assert_pattern(1, at, &read[6..][..len]);
        }
    }
}

async fn a_large_file_reaches_a_slow_reader(tree: Tree) {
    const LARGE_BYTES: usize = 8 << 20;
    let file = tree.file(3, LARGE_BYTES).await;
    let (stream, mut peer) = pair().await;
    let reading = on_thread(move || {
        let mut read = vec![0; LARGE_BYTES];
        for chunk in read.chunks_mut(1 << 20) {
            peer.read_exact(chunk).expect("no reset");
            std::thread::sleep(Duration::from_micros(500));
        }
        read
    });
    let sent = stream.send_file(&file, 0, LARGE_BYTES as u64).await;
    assert_eq!(sent.expect("an open stream"), LARGE_BYTES as u64);
    drop((file, stream));
    assert_pattern(3, 0, &reading.await);
}

async fn headers_and_files_arrive_in_order(tree: Tree) {
    const ROUNDS: usize = 30;
    let file = tree.file(4, 60_000).await;
    for narrow in [false, true] {
        let (stream, peer) = if narrow { narrow_pair().await } else { pair().await };
        let reading = reading(peer);
        let mut expected = Vec::new();
        for round in 0..ROUNDS {
            let (at, len) = (round * 977, 6000 * (round % 5));
            let header = format!("{round}: {len}\n");
            expected.extend_from_slice(header.as_bytes());
            expected.extend(pattern(4, at..at + len));
            // A header that waits behind an earlier send, and one that does not.
            let plain = round % 3 == 0;
            match plain {
                true => stream.send(header).await.expect("an open stream"),
                false => stream.send_corked(header).await.expect("an open stream"),
            }
            let sent = stream.send_file(&file, at as u64, len as u64).await;
            assert_eq!(sent.expect("an open stream"), len as u64);
            if plain {
                expected.extend_from_slice(b"behind");
                stream.send("behind").await.expect("an open stream");
            }
        }
        stream.shutdown().await.expect("an open stream");
        assert!(reading.await == expected);
    }
}

async fn a_file_that_ends_early_is_reported_and_what_is_none_is_refused(tree: Tree) {
    let file = tree.file(6, 100_000).await;
    let (stream, peer) = pair().await;
    let reading = reading(peer);
    for (at, len, expected) in
        [(0, 100_001, 100_000), (99_999, 1 << 40, 1), (100_000, 1, 0), (1 << 40, 5, 0)]
    {
        let sent = stream.send_file(&file, at, len).await;
        assert_eq!(sent.expect("an open stream"), expected);
    }
    std::fs::create_dir(tree.path("sub")).expect("a directory");
    let directory = tree.open("sub").await;
    let refused = stream.send_file(&directory, 0, 10).await;
    assert_eq!(errno(&refused), libc::EISDIR);
    let refused = stream.send_file(&file, u64::MAX, 10).await;
    assert_eq!(errno(&refused), libc::EINVAL);
    // The program decides how to handle it: the stream continues.
    stream.send("end").await.expect("an open stream");
    stream.shutdown().await.expect("an open stream");
    let read = reading.await;
    assert_eq!(read.len(), 100_004);
    assert_pattern(6, 0, &read[..100_000]);
    assert!(read.ends_with(b"end"));
}

async fn a_file_that_shrinks_is_reported(tree: Tree) {
    const BYTES: usize = 400_000;
    tree.write("file", &pattern(7, 0..BYTES));
    let file = tree.open("file").await;
    let (stream, peer) = narrow_pair().await;
    let stream = Rc::new(stream);
    let sender = Rc::clone(&stream);
    let sending = spawn(async move {
        let sent = sender.send_file(&file, 0, BYTES as u64).await.expect("an open stream");
        sender.shutdown().await.expect("an open stream");
        sent
    });
    settle().await;
    assert!(!sending.is_finished(), "nobody reads");
    let shortened = std::fs::File::options().write(true).open(tree.path("file"));
    shortened.and_then(|file| file.set_len(200_000)).expect("a file");
    let read = reading(peer).await;
    let sent = sending.await.expect("not aborted");
    assert_eq!(read.len() as u64, sent);
    assert!((1..=200_000).contains(&sent), "{sent}");
    // A page that was shortened while it was in the socket may read as zeros behind its end;
    // all before is the file.
    assert_pattern(7, 0, &read[..read.len().min(195_000)]);
}

async fn a_header_alone_arrives() {
    let (stream, mut peer) = pair().await;
    stream.send_corked("one").await.expect("an open stream");
    // Nothing follows: the kernel keeps it for a moment only.
    let mut bytes = [0; 3];
    let read = on_thread(move || peer.read_exact(&mut bytes).map(|()| bytes)).await;
    assert_eq!(&read.expect("no reset"), b"one");
}
