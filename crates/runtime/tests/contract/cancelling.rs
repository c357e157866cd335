//! Rule 3: `cancel` ends what is pending, each operation once, and nothing else.

use crate::support::*;
use std::io::Write;
use std::rc::Rc;
use twinring::spawn;

pub(crate) const RULES: &[Rule] = rules![
    each_pending_operation_ends_once_with_ecanceled,
    cancelling_again_and_again_keeps_both_directions_whole,
    cancelling_without_pending_operations_does_nothing,
];

async fn each_pending_operation_ends_once_with_ecanceled() {
    let (stream, mut peer) = narrow_pair().await;
    let stream = Rc::new(stream);
    let sent = 1_000_000;
    stream.send(pattern(4, 0..sent)).await.expect("one buffer of any size is taken");
    let mut pending = Vec::new();
    for number in 0..8 {
        let stream = Rc::clone(&stream);
        pending.push(spawn(async move {
            match number % 4 {
                0 => stream.recv().await.map(|_| ()),
                1 => stream.send(vec![0; 10]).await,
                2 => stream.send_vectored(["one", "two"]).await,
                _ => stream.flush().await,
            }
        }));
    }
    settle().await;
    assert!(pending.iter().all(|task| !task.is_finished()), "something did not wait");
    stream.cancel();
    for task in pending {
        assert_eq!(errno(&task.await.expect("not aborted")), libc::ECANCELED);
    }
    // The stream works on, in both directions.
    peer.write_all(b"still here").expect("room");
    assert_eq!(recv_exactly(&stream, 10).await, b"still here");
    let reader = reading(peer);
    stream.shutdown().await.expect("finished");
    assert_whole(4, sent, &reader.await);
}

async fn cancelling_again_and_again_keeps_both_directions_whole() {
    const TOTAL: usize = 1_000_000;
    let (stream, peer) = narrow_pair().await;
    let stream = Rc::new(stream);
    let mut writing = peer.try_clone().expect("a descriptor");
    let writer = on_thread(move || {
        for start in (0..TOTAL).step_by(400) {
            writing.write_all(&pattern(5, start..start + 400)).expect("the other reads");
        }
        finish(&writing);
    });
    let reader = reading(peer);
    let (own, cancelled) = (Rc::clone(&stream), Rc::clone(&stream));
    let canceller = spawn(async move {
        loop {
            cancelled.cancel();
            yield_now().await;
        }
    });
    let sending = spawn(async move {
        let mut sent = 0;
        while sent < TOTAL {
            match errno(&own.send(pattern(6, sent..sent + 20_000)).await) {
                0 => sent += 20_000,
                errno => assert_eq!(errno, libc::ECANCELED),
            }
        }
    });
    let mut received = 0;
    loop {
        match stream.recv().await {
            Ok(chunk) if chunk.is_empty() => break,
            Ok(chunk) => {
                assert_pattern(5, received, &chunk);
                received += chunk.len();
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
        }
    }
    assert_eq!(received, TOTAL);
    writer.await;
    sending.await.expect("no panic");
    canceller.abort();
    stream.shutdown().await.expect("finished");
    assert_whole(6, TOTAL, &reader.await);
}

async fn cancelling_without_pending_operations_does_nothing() {
    let (stream, mut peer) = pair().await;
    for round in 0..50 {
        stream.cancel();
        stream.cancel();
        peer.write_all(&pattern(round, 0..50)).expect("room");
        assert_pattern(round, 0, &recv_exactly(&stream, 50).await);
        stream.cancel();
        stream.send(pattern(round, 0..50)).await.expect("sent");
        stream.flush().await.expect("flushed");
    }
}
