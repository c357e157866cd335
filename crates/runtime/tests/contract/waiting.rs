//! Futures that wait leave nothing behind when they are dropped.

use crate::support::*;
use std::future::Future;
use std::io::Write;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use twinring::{TcpStream, UdpSocket, shutdown_requested, sleep, spawn, timeout};

pub(crate) const RULES: &[Rule] = rules![
    a_dropped_future_removes_its_waker,
    dropping_one_future_leaves_the_other_of_its_task,
    a_send_that_is_given_up_gives_its_buffer_back,
];

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls a future that has to wait, and drops it.
async fn wait_and_give_up(what: &str, future: impl Future) {
    yield_now().await;
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    {
        let mut future = pin!(future);
        for _ in 0..2 {
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "{what}");
        }
        assert_eq!(Arc::strong_count(&woken), 3, "{what} waits once");
    }
    assert_eq!(Arc::strong_count(&woken), 2, "{what} has left its waker behind");
}

/// A stream whose peer reads nothing, with as much queued as it takes.
async fn full() -> (TcpStream, Peer) {
    let (stream, peer) = narrow_pair().await;
    while timeout(Duration::from_millis(20), stream.send(vec![0; 64 * 1024])).await.is_ok() {}
    (stream, peer)
}

/// `timeout(1s, stream.recv())` from ever new tasks made a list that grew, and whose drop overflowed the
/// stack.
async fn a_dropped_future_removes_its_waker() {
    let (stream, _peer) = pair().await;
    let (full, _reads_nothing) = full().await;
    let listener = listen();
    let udp = UdpSocket::bind(loopback()).expect("a free port");
    wait_and_give_up("recv", stream.recv()).await;
    wait_and_give_up("send", full.send("more")).await;
    wait_and_give_up("send_corked", full.send_corked("more")).await;
    wait_and_give_up("flush", full.flush()).await;
    wait_and_give_up("accept", listener.accept()).await;
    wait_and_give_up("recv_from", udp.recv_from()).await;
    wait_and_give_up("recv_batch", udp.recv_batch(&mut Vec::new())).await;
    wait_and_give_up("sleep", sleep(Duration::from_secs(3600))).await;
    wait_and_give_up("a task", spawn(std::future::pending::<()>())).await;
    wait_and_give_up("shutdown_requested", shutdown_requested()).await;
    full.set_reset_on_close().expect("an open socket");
}

/// A future that left a queue by the name of its task removed the others of that task, too.
fn dropping_one_future_leaves_the_other_of_its_task(configuration: Configuration) {
    configuration.run(async move {
        for keeps_first in [true, false] {
            let (stream, mut peer) = pair().await;
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let cx = &mut Context::from_waker(&waker);
            let [mut first, mut second] = [stream.recv(), stream.recv()];
            assert!(Pin::new(&mut first).poll(cx).is_pending());
            assert!(Pin::new(&mut second).poll(cx).is_pending());
            let mut kept = if keeps_first { first } else { second };
            // One byte, which seeded faults cannot cut short.
            peer.write_all(b"n").expect("an open socket");
            let chunk = loop {
                while woken.0.swap(0, Ordering::Relaxed) == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
                match Pin::new(&mut kept).poll(cx) {
                    Poll::Ready(chunk) => break chunk.expect("received"),
                    Poll::Pending => assert!(configuration.has_faults(), "woken for nothing"),
                }
            };
            assert_eq!(&*chunk, b"n");
        }
    });
}

/// Of 200 sends with a timeout 136 had not been queued, and their bytes were gone.
async fn a_send_that_is_given_up_gives_its_buffer_back() {
    let (stream, peer) = full().await;
    let mut send = stream.send("kept");
    let late = timeout(Duration::from_millis(5), &mut send).await;
    assert!(late.is_err(), "there was room");
    let buffer = send.into_buffer().expect("not queued");
    assert_eq!(buffer.as_slice(), b"kept");
    let reading = on_thread(move || {
        let mut peer = peer;
        read_to_end(&mut peer).expect("all of it")
    });
    let mut send = stream.send(buffer);
    (&mut send).await.expect("the peer reads");
    assert!(send.into_buffer().is_none(), "queued, and given back");
    stream.close().await.expect("the peer reads");
    let received = reading.await;
    assert!(received.ends_with(b"\0kept"), "sent once, at the end");
}
