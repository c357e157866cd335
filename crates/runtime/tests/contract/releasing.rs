//! Rules 2, 4 and 9 where they involve the pool: sockets are closed, cancelled, dropped or torn
//! down while data keeps arriving, and nothing is written into a buffer that was released, or that
//! has a reader. Debug builds poison released buffers and verify them when they leave the
//! quarantine, including the memory of dropped pools; received data is compared here.

use crate::support::*;
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use twinring::{RecvBuf, TcpStream, sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    nothing_is_written_late_while_streams_come_and_go,
    nothing_is_written_late_when_a_runtime_ends_mid_receive,
];

/// Few small buffers, so that each is reused many times.
const FEW_BUFFERS: &str = "buffer_count=16,buffer_bytes=512";

/// Peers that write their patterns continuously, even if their connections end.
struct Flood {
    over: Arc<AtomicBool>,
    thread: Outcome<()>,
}

impl Flood {
    fn start(peers: Vec<(u64, Peer)>) -> Flood {
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let mut peers: Vec<_> = peers.into_iter().map(|(seed, peer)| (seed, peer, 0)).collect();
        let thread = on_thread(move || {
            for (_, peer, _) in &peers {
                peer.set_nonblocking(true).expect("a socket");
            }
            while !until.load(Ordering::Relaxed) && !peers.is_empty() {
                peers.retain_mut(|(seed, peer, at)| {
                    match peer.write(&pattern(*seed, *at..*at + 700)) {
                        Ok(written) => *at += written,
                        // Closed or reset by the other end.
                        Err(error) => return error.kind() == ErrorKind::WouldBlock,
                    }
                    true
                });
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        Flood { over, thread }
    }

    async fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.await;
    }
}

async fn flooded(streams: u64) -> (Vec<(u64, Rc<TcpStream>)>, Flood) {
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for seed in 0..streams {
        let (stream, peer) = pair().await;
        ours.push((seed, Rc::new(stream)));
        peers.push((seed, peer));
    }
    (ours, Flood::start(peers))
}

/// Reads without end, from byte `at` of the pattern, and keeps the last buffers for a while: they
/// must not change.
async fn read_and_keep(seed: u64, stream: Rc<TcpStream>, mut at: usize, kept_max: usize) {
    let mut kept: VecDeque<(usize, RecvBuf)> = VecDeque::new();
    while let Ok(chunk) = stream.recv().await
        && !chunk.is_empty()
    {
        let next = at + chunk.len();
        kept.push_back((at, chunk));
        at = next;
        while kept.len() > kept_max
            && let Some((at, chunk)) = kept.pop_front()
        {
            assert_pattern(seed, at, &chunk);
        }
    }
    kept.iter().for_each(|(at, chunk)| assert_pattern(seed, *at, chunk));
}

fn nothing_is_written_late_while_streams_come_and_go(configuration: Configuration) {
    const ROUNDS: u64 = 12;
    let builder = configuration.builder_with(FEW_BUFFERS).linger(Duration::from_millis(1));
    run_on(builder, |_| async {
        let mut random = Random::new(31);
        for _ in 0..ROUNDS {
            let (streams, flood) = flooded(9).await;
            let mut readers = Vec::new();
            for (seed, stream) in &streams {
                let (seed, stream) = (*seed, Rc::clone(stream));
                readers.push(match seed % 3 {
                    // An echo passes the buffers themselves on; its peer does not read, so some
                    // stay queued.
                    0 => spawn(async move {
                        while let Ok(chunk) = stream.recv().await
                            && !chunk.is_empty()
                            && stream.send(chunk).await.is_ok()
                        {}
                    }),
                    kept_max => spawn(read_and_keep(seed, stream, 0, kept_max as usize)),
                });
            }
            for (number, (_, stream)) in streams.into_iter().enumerate() {
                for _ in 0..random.below(4) {
                    yield_now().await;
                }
                match random.below(4) {
                    0 => stream.cancel(),
                    1 => readers[number].abort(),
                    2 => {
                        stream.set_reset_on_close().expect("a socket");
                        readers[number].abort();
                    }
                    _ => sleep(Duration::from_micros(random.below(400) as u64)).await,
                }
            }
            readers.iter().for_each(|reader| reader.abort());
            for reader in readers {
                // A panic in there has ended the test already.
                let _ended_or_aborted = reader.await;
            }
            flood.end().await;
        }
    });
}

fn nothing_is_written_late_when_a_runtime_ends_mid_receive(configuration: Configuration) {
    const RUNTIMES: usize = 12;
    for number in 0..RUNTIMES {
        let builder = configuration.builder_with(FEW_BUFFERS).linger(Duration::from_millis(1));
        let (kept, flood) = run_on(builder, |_| async move {
            let (streams, flood) = flooded(6).await;
            let mut kept = Vec::new();
            for (seed, stream) in &streams {
                let first = stream.recv().await.expect("bytes");
                spawn(read_and_keep(*seed, Rc::clone(stream), first.len(), 1));
                kept.push((*seed, first));
            }
            for _ in 0..number {
                yield_now().await;
            }
            (kept, flood)
        });
        // The peers continue to write, and received data is still there.
        kept.iter().for_each(|(seed, chunk)| assert_pattern(*seed, 0, chunk));
        // Its end is awaited in another runtime, which gets memory where the last one had it.
        configuration.run(flood.end());
    }
}
