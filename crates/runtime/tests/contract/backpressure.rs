//! Rule 7: backpressure in both directions, within bounds, and without an effect on other
//! connections.

use crate::support::*;
use std::io::Write;
use std::time::{Duration, Instant};
use twinring::TcpStream;

pub(crate) const RULES: &[Rule] =
    rules![a_peer_that_does_not_read_blocks_its_sender, an_unread_stream_stops_its_peer,];

/// The bound that `TcpStream::send` documents: less than this is queued before it waits.
const QUEUED_BYTES_MAX: usize = 256 * 1024;
/// Received and unread, per stream, in bytes; the receive in progress may add a pool's worth.
const RECEIVED_BYTES_MAX: usize = 128 * 1024;
const POOL_BYTES_MAX: usize = 1 << 20;
/// Both kernel buffers of a narrow pair, with what the kernel grants beyond the request.
const KERNEL_BYTES_MAX: usize = 256 * 1024;

async fn a_peer_that_does_not_read_blocks_its_sender() {
    for chunk in [100, 5_000, 100_000] {
        let (stream, deaf) = narrow_pair().await;
        let bound = QUEUED_BYTES_MAX + KERNEL_BYTES_MAX + chunk;
        let sent = fill(&stream, 1, chunk, |sent| assert!(sent < bound, "{sent} queued")).await;
        assert!(sent + chunk > QUEUED_BYTES_MAX, "held up after {sent} already");
        // Other connections are served meanwhile.
        another_is_served().await;
        let reader = reading(deaf);
        stream.shutdown().await.expect("finished");
        assert_whole(1, sent, &reader.await);
    }
}

/// Sends chunks of stream `seed` to a peer that does not read, until nothing is accepted for some
/// time; returns how many bytes were accepted. `check` is called with each state on the way.
async fn fill(stream: &TcpStream, seed: u64, chunk: usize, check: impl Fn(usize)) -> usize {
    let (mut sent, mut refused) = (0, 0);
    // The kernel moves bytes between its buffers for a while after it has refused some.
    while refused < 5 {
        match poll_once(stream.send(pattern(seed, sent..sent + chunk))).await {
            Some(result) => {
                result.expect("the peer is there");
                sent += chunk;
                refused = 0;
            }
            None => {
                refused += 1;
                settle().await;
            }
        }
        check(sent);
    }
    sent
}

async fn an_unread_stream_stops_its_peer() {
    let (stream, mut peer) = narrow_pair().await;
    peer.set_nonblocking(true).expect("a socket");
    let data = pattern(3, 0..4 << 20);
    let mut written = 0;
    // Armed once, then never asked again.
    assert!(poll_once(stream.recv()).await.is_none());
    let mut last_progress = Instant::now();
    while last_progress.elapsed() < Duration::from_millis(60) {
        match peer.write(&data[written..]) {
            Ok(bytes) => {
                written += bytes;
                last_progress = Instant::now();
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        let bound = RECEIVED_BYTES_MAX + POOL_BYTES_MAX + KERNEL_BYTES_MAX;
        assert!(written < bound, "{written} bytes taken that the peer does not read");
        settle().await;
    }
    another_is_served().await;
    finish(&peer);
    let received = recv_to_end(&stream).await.expect("no reset");
    assert_whole(3, written, &received);
}
