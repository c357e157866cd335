//! Rule 3: `cancel` ends what is pending, each operation once, and nothing else.

use crate::support::*;
use std::io::Write;
use std::rc::Rc;
use twinring::spawn;

pub(crate) const RULES: &[Rule] = rules![
    each_pending_operation_ends_once_with_ecanceled,
    cancelling_loses_nothing_received,
    cancelling_without_pending_operations_does_nothing,
    cancelling_again_and_again_keeps_both_directions_whole,
];

fn each_pending_operation_ends_once_with_ecanceled(configuration: Configuration) {
    configuration.run(async {
        let (stream, mut peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        let sent = 1_000_000;
        stream.send(pattern(4, 0..sent)).await.expect("one buffer of any size is taken");
        let mut pending = Vec::new();
        for number in 0..6 {
            let stream = Rc::clone(&stream);
            pending.push(spawn(async move {
                match number % 3 {
                    0 => stream.recv().await.map(|_| ()),
                    1 => stream.send(vec![0; 10]).await,
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
        let reader = on_thread(move || read_to_end(&mut peer).expect("no reset"));
        stream.shutdown().await.expect("finished");
        let received = reader.await;
        assert_eq!(received.len(), sent, "a cancelled send was sent, or a queued one was not");
        assert_pattern(4, 0, &received);
    });
}

fn cancelling_loses_nothing_received(configuration: Configuration) {
    configuration.run(async {
        let (stream, mut peer) = pair().await;
        let stream = Rc::new(stream);
        const TOTAL: usize = 40_000;
        let writer = on_thread(move || {
            for start in (0..TOTAL).step_by(400) {
                peer.write_all(&pattern(5, start..start + 400)).expect("the other reads");
            }
            peer
        });
        let canceller = {
            let stream = Rc::clone(&stream);
            spawn(async move {
                loop {
                    stream.cancel();
                    yield_now().await;
                }
            })
        };
        let mut received = 0;
        while received < TOTAL {
            match stream.recv().await {
                Ok(chunk) => {
                    assert!(!chunk.is_empty(), "the stream ended early");
                    assert_pattern(5, received, &chunk);
                    received += chunk.len();
                }
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
            }
        }
        canceller.abort();
        drop(writer.await);
        assert!(stream.recv().await.expect("the end").is_empty());
    });
}

fn cancelling_without_pending_operations_does_nothing(configuration: Configuration) {
    configuration.run(async {
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
    });
}

fn cancelling_again_and_again_keeps_both_directions_whole(configuration: Configuration) {
    configuration.run(async {
        let (stream, mut peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        let reader = on_thread(move || read_to_end(&mut peer).expect("no reset"));
        let canceller = {
            let stream = Rc::clone(&stream);
            spawn(async move {
                loop {
                    stream.cancel();
                    yield_now().await;
                }
            })
        };
        let mut sent = 0;
        while sent < 2_000_000 {
            let result = stream.send(pattern(6, sent..sent + 20_000)).await;
            match errno(&result) {
                0 => sent += 20_000,
                errno => assert_eq!(errno, libc::ECANCELED),
            }
        }
        canceller.abort();
        stream.shutdown().await.expect("finished");
        let received = reader.await;
        assert_eq!(received.len(), sent);
        assert_pattern(6, 0, &received);
    });
}
