//! Rule 8 for vectored sends: their buffers leave in order and together, whole or not at all, with any
//! number of short sends.

use crate::support::*;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;
use twinring::{SendBuf, TcpStream, spawn};

pub(crate) const RULES: &[Rule] = rules![
    buffers_of_every_kind_reach_a_slow_reader_in_order,
    vectored_sends_of_several_tasks_stay_whole,
    a_dropped_vectored_send_sends_nothing_and_returns_its_buffers,
    received_buffers_are_sent_again_in_order,
    one_call_sends_all_buffers,
    errors_are_those_of_a_send,
];

/// Bytes `range` of stream `seed` as buffers of random kinds and lengths, some of them empty.
fn cut(random: &mut Random, seed: u64, mut at: usize, end: usize) -> Vec<SendBuf> {
    let longest = [1, 50, 3_000, 100_000][random.below(4)];
    let mut buffers = Vec::new();
    while at < end {
        // A few hundred at most: the rest is the last one.
        let bytes = match buffers.len() {
            0..300 => random.below(longest + 1).min(end - at),
            _ => end - at,
        };
        let bytes = pattern(seed, at..at + bytes);
        at += bytes.len();
        buffers.push(match random.below(3) {
            0 => SendBuf::from(bytes),
            1 => SendBuf::from(Rc::<[u8]>::from(bytes)),
            _ => {
                let end = bytes.len();
                SendBuf::shared(Rc::from([&b"xy"[..], &bytes, b"z"].concat()), 2..2 + end)
            }
        });
    }
    buffers
}

fn buffers_of_every_kind_reach_a_slow_reader_in_order(configuration: Configuration) {
    configuration.run(async {
        for seed in 1..4 {
            let (stream, mut peer) = narrow_pair().await;
            let reader = on_thread(move || read_to_end(&mut peer).expect("no reset"));
            let mut random = Random::new(seed);
            let mut sent = 0;
            while sent < 1_000_000 {
                let end = sent + [0, 1, 500, 20_000, 300_000][random.below(5)];
                let buffers = cut(&mut random, seed, sent, end);
                stream.send_vectored(buffers).await.expect("sent");
                sent = end;
                match random.below(6) {
                    0 => stream.flush().await.expect("flushed"),
                    1 => yield_now().await,
                    2 => {
                        stream.send(pattern(seed, sent..sent + 700)).await.expect("sent");
                        sent += 700;
                    }
                    3 => {
                        stream.send_corked(pattern(seed, sent..sent + 9)).await.expect("sent");
                        sent += 9;
                    }
                    _ => {}
                }
            }
            stream.shutdown().await.expect("finished");
            let received = reader.await;
            assert_eq!(received.len(), sent);
            assert_pattern(seed, 0, &received);
        }
    });
}

fn vectored_sends_of_several_tasks_stay_whole(configuration: Configuration) {
    const PARTS: usize = 70;
    const PART: usize = 130;
    configuration.run(async {
        let (stream, mut peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        let tasks: Vec<_> = (0..5u8)
            .map(|task| {
                let stream = Rc::clone(&stream);
                spawn(async move {
                    for _ in 0..20 {
                        let parts = (0..PARTS).map(|_| vec![task; PART]);
                        stream.send_vectored(parts).await.expect("sent");
                    }
                })
            })
            .collect();
        let reader = on_thread(move || read_to_end(&mut peer).expect("no reset"));
        for task in tasks {
            task.await.expect("every sender ends");
        }
        stream.shutdown().await.expect("finished");
        let received = reader.await;
        assert_eq!(received.len(), 5 * 20 * PARTS * PART);
        for message in received.chunks(PARTS * PART) {
            assert!(message.iter().all(|byte| *byte == message[0]), "messages were mixed");
        }
    });
}

fn a_dropped_vectored_send_sends_nothing_and_returns_its_buffers(configuration: Configuration) {
    configuration.run(async {
        let (stream, mut peer) = narrow_pair().await;
        let sent = 1_000_000;
        let mut random = Random::new(5);
        stream.send_vectored(cut(&mut random, 1, 0, sent)).await.expect("one of any size is taken");
        for _ in 0..3 {
            assert!(poll_once(stream.send_vectored([vec![0xee; 5000]])).await.is_none());
            let mut send = stream.send_vectored(["not", "", "sent"]);
            assert!(poll_once(&mut send).await.is_none(), "taken beyond the bound");
            let returned = send.into_buffers().expect("they were not queued");
            let returned: Vec<&[u8]> = returned.iter().map(SendBuf::as_slice).collect();
            assert_eq!(returned, [&b"not"[..], b"", b"sent"]);
        }
        let reader = on_thread(move || read_to_end(&mut peer).expect("no reset"));
        let mut send = stream.send_vectored([pattern(1, sent..sent + 100)]);
        (&mut send).await.expect("sent");
        assert!(send.into_buffers().is_none(), "they were queued");
        stream.shutdown().await.expect("finished");
        let received = reader.await;
        assert_eq!(received.len(), sent + 100);
        assert_pattern(1, 0, &received);
    });
}

/// The buffers of the pool go out several at a time, and come back to it.
fn received_buffers_are_sent_again_in_order(configuration: Configuration) {
    const TOTAL: usize = 400_000;
    configuration.run(async {
        let (from, mut writer) = pair().await;
        let (to, mut reader) = narrow_pair().await;
        let reading = on_thread(move || read_to_end(&mut reader).expect("no reset"));
        let writing = on_thread(move || writer.write_all(&pattern(6, 0..TOTAL)).map(|()| writer));
        let mut received = 0;
        while received < TOTAL {
            let mut chunks = vec![from.recv().await.expect("bytes")];
            while chunks.len() < 3
                && let Some(chunk) = poll_once(from.recv()).await
            {
                chunks.push(chunk.expect("bytes"));
            }
            received += chunks.iter().map(|chunk| chunk.len()).sum::<usize>();
            to.send_vectored(chunks).await.expect("sent");
        }
        to.shutdown().await.expect("finished");
        writing.await.expect("the server reads");
        let received = reading.await;
        assert_eq!(received.len(), TOTAL);
        assert_pattern(6, 0, &received);
    });
}

fn one_call_sends_all_buffers(configuration: Configuration) {
    if configuration.has_faults() {
        // A short send takes a second call.
        return;
    }
    configuration.run_with_handle(|handle| async move {
        let (stream, mut peer) = pair().await;
        let before = handle.counters().sent;
        stream.send_vectored((0..60u8).map(|part| vec![part; 20])).await.expect("sent");
        stream.shutdown().await.expect("finished");
        assert_eq!(handle.counters().sent - before, 1);
        let received = on_thread(move || read_to_end(&mut peer).expect("no reset")).await;
        let expected: Vec<u8> = (0..60u8).flat_map(|part| [part; 20]).collect();
        assert_eq!(received, expected);
    });
}

fn errors_are_those_of_a_send(configuration: Configuration) {
    async fn fails(stream: &TcpStream) -> i32 {
        for _ in 0..1000 {
            let sent = stream.send_vectored(["one", "two"]).await;
            if sent.is_err() {
                return errno(&sent);
            }
            settle().await;
        }
        panic!("no error is reported");
    }
    configuration.run(async {
        let (stream, peer) = pair().await;
        stream.send_vectored(Vec::<SendBuf>::new()).await.expect("nothing is easily sent");
        reset(peer);
        let broken = fails(&stream).await;
        assert!([libc::EPIPE, libc::ECONNRESET].contains(&broken), "{broken}");
        let (stream, _peer) = pair().await;
        stream.shutdown().await.expect("finished");
        assert_eq!(fails(&stream).await, libc::EPIPE);
        let (stream, _peer) = narrow_pair().await;
        stream.send(vec![0; 1_000_000]).await.expect("one buffer of any size is taken");
        let mut send = stream.send_vectored(["one", "two"]);
        assert!(poll_once(&mut send).await.is_none());
        stream.cancel();
        assert_eq!(
            errno(&twinring::timeout(Duration::from_secs(20), send).await.expect("ended")),
            libc::ECANCELED
        );
        stream.set_reset_on_close().expect("a socket");
    });
}
