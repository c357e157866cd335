//! The contracts of the traits, independent of the library on top.

use crate::support::*;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;
use testing::Test;
use twinring::sleep;
use twinring_compat::{Compat, WRITE_BYTES_MAX};

/// The traits of both families have methods of the same names, so each test picks one family.
mod tokio_traits {
    pub(super) use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, copy, split};
}

pub(crate) const TESTS: &[Test] = on_engines![
    small_reads_lose_nothing,
    a_dropped_read_loses_nothing,
    a_peer_that_does_not_read_stops_the_writer,
    a_vectored_write_is_one_write,
    bytes_left_over_come_back,
    an_echo_with_the_traits_of_futures,
    unix_streams_are_adapted_alike
];

async fn small_reads_lose_nothing() {
    use tokio_traits::*;
    let (stream, mut peer) = pair().await;
    let sent = pattern(200_000);
    let theirs = sent.clone();
    let writer = on_thread(move || write_all(&mut peer, &theirs));
    let mut stream = Compat::new(stream);
    let mut received = Vec::new();
    // All sizes from nothing at all to more than a receive buffer has.
    for size in (0..300).cycle().map(|size| size * 100) {
        let mut buffer = vec![0; size];
        let bytes = stream.read(&mut buffer).await.expect("no error");
        received.extend_from_slice(&buffer[..bytes]);
        if bytes == 0 && size > 0 {
            break;
        }
    }
    writer.await;
    assert!(received == sent);
    assert_eq!(stream.read(&mut [0; 10]).await.expect("the end again"), 0);
}

async fn a_dropped_read_loses_nothing() {
    use tokio_traits::*;
    let (stream, mut peer) = pair().await;
    let mut stream = Compat::new(stream);
    let sent = pattern(5000);
    let mut received = Vec::new();
    for piece in sent.chunks(50) {
        assert!(poll_once(stream.read_u8()).await.is_none(), "nothing was sent");
        write_all(&mut peer, piece);
        let mut byte = [0];
        while poll_once(stream.read_exact(&mut byte)).await.is_none() {
            sleep(Duration::from_micros(100)).await;
        }
        received.push(byte[0]);
        let mut rest = [0; 49];
        stream.read_exact(&mut rest).await.expect("no error");
        received.extend_from_slice(&rest);
    }
    assert!(received == sent);
}

async fn a_peer_that_does_not_read_stops_the_writer() {
    use tokio_traits::*;
    let (stream, mut peer) = pair().await;
    let mut stream = Compat::new(Rc::new(stream));
    let mut written = 0;
    // However large the kernel's buffers are, they are full in the end.
    while let Ok(bytes) =
        twinring::timeout(Duration::from_millis(200), stream.write(&[7; 100_000])).await
    {
        let bytes = bytes.expect("no error");
        assert!((1..=WRITE_BYTES_MAX).contains(&bytes), "a write of {bytes}");
        written += bytes;
        assert!(written < 64 << 20, "there is no end of it");
    }
    let reader = on_thread(move || read_to_end(&mut peer).expect("no reset").len());
    let bytes = stream.write(b"room again").await.expect("the peer reads now");
    drop(stream);
    assert_eq!(reader.await, written + bytes);
}

async fn a_vectored_write_is_one_write() {
    use tokio_traits::*;
    let (stream, mut peer) = pair().await;
    let mut stream = Compat::new(stream);
    assert!(tokio::io::AsyncWrite::is_write_vectored(&stream));
    let parts = [pattern(10), Vec::new(), pattern(40_000), pattern(60_000)];
    let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let bytes = stream.write_vectored(&slices).await.expect("room");
    assert_eq!(bytes, WRITE_BYTES_MAX, "as much as one write takes");
    assert_eq!(stream.write_vectored(&[]).await.expect("nothing to do"), 0);
    // Nothing is held back: flushing returns at once, and the bytes come without further calls.
    assert!(poll_once(stream.flush()).await.is_some());
    let read = on_thread(move || {
        let mut read = vec![0; WRITE_BYTES_MAX];
        io::Read::read_exact(&mut peer, &mut read).map(|()| read)
    });
    assert!(read.await.expect("no reset") == parts.concat()[..bytes]);
    stream.get_ref().flush().await.expect("the kernel has them");
}

async fn bytes_left_over_come_back() {
    use tokio_traits::*;
    let (stream, mut peer) = pair().await;
    write_all(&mut peer, b"header|body");
    let mut stream = Compat::from(stream);
    let mut header = [0; 7];
    stream.read_exact(&mut header).await.expect("seven bytes");
    let (stream, left) = stream.into_inner();
    let mut rest = left.map(|left| left.to_vec()).unwrap_or_default();
    while rest.len() < 4 {
        rest.extend_from_slice(&stream.recv().await.expect("the rest"));
    }
    assert_eq!(rest, b"body");
}

async fn an_echo_with_the_traits_of_futures() {
    use futures_util::io::{AsyncReadExt, AsyncWriteExt, copy_buf};
    let (ours, theirs) = twinring::UnixStream::pair().expect("a pair");
    let echo = twinring::spawn(async move {
        // The adapter is an AsyncBufRead: received bytes are copied once, to be sent.
        let (reader, mut writer) = Compat::new(theirs).split();
        let reader = futures_util::io::BufReader::new(reader);
        let copied = copy_buf(reader, &mut writer).await.expect("no error");
        writer.close().await.expect("connected");
        copied
    });
    let sent = pattern(1 << 20);
    let mut ours = Compat::new(Rc::new(ours));
    let mut receiving = Compat::new(Rc::clone(ours.get_ref()));
    let write = async {
        ours.write_all(&sent).await.expect("the other end reads");
        ours.flush().await.expect("connected");
        ours.close().await.expect("the other end reads");
    };
    let mut received = Vec::new();
    let ((), read) = futures_util::future::join(write, receiving.read_to_end(&mut received)).await;
    read.expect("no reset");
    assert!(received == sent);
    assert_eq!(echo.await.expect("no panic"), sent.len() as u64);
}

async fn unix_streams_are_adapted_alike() {
    use tokio_traits::*;
    let (one, other) = twinring::UnixStream::pair().expect("a pair");
    let (mut one, other) = (Compat::new(one), Compat::new(other));
    let echo = twinring::spawn(async move {
        let (mut reader, mut writer) = split(other);
        copy(&mut reader, &mut writer).await.expect("no error");
        writer.shutdown().await.expect("connected");
    });
    one.write_all(b"hello\n").await.expect("room");
    let mut line = String::new();
    one.read_line(&mut line).await.expect("a line");
    assert_eq!(line, "hello\n");
    one.shutdown().await.expect("connected");
    assert_eq!(one.read(&mut [0]).await.expect("the end"), 0);
    echo.await.expect("no panic");
}
