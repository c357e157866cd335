//! Answers to messages that arrived together leave together, so that the peers' CPU is interrupted
//! once for all of them; sending is otherwise unchanged.

use crate::support::*;
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use twinring::spawn;

pub(crate) const RULES: &[Rule] = rules![
    answers_to_simultaneous_messages_leave_together,
    a_lone_answer_leaves_at_once,
    gathered_sends_keep_their_order,
    tasks_that_send_on_one_stream_together_keep_their_order,
];

/// Each task, when it has its message, checks whether an answer of an earlier one has left.
fn answers_to_simultaneous_messages_leave_together(configuration: Configuration) {
    const STREAMS: usize = 4;
    if configuration.name.contains("sqpoll") {
        // Another thread submits, or the machine has sends of its own.
        return;
    }
    if configuration.has_faults() {
        // Faults hold arrivals back, so that they do not come together.
        return;
    }
    run_on(configuration.builder_with("gather=on,buffer_count=16"), |_| async {
        let (mut streams, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..STREAMS {
            let (stream, peer) = pair().await;
            peer.set_nonblocking(true).expect("a socket");
            streams.push(stream);
            peers.push(peer);
        }
        let peers = Rc::new(peers);
        let mut tasks = Vec::new();
        for stream in streams {
            let peers = Rc::clone(&peers);
            tasks.push(spawn(async move {
                let message = stream.recv().await.expect("bytes");
                for mut peer in peers.iter() {
                    let early = peer.read(&mut [0; 8]).expect_err("an answer left alone");
                    assert_eq!(early.kind(), ErrorKind::WouldBlock);
                }
                stream.send(message).await.expect("room");
                stream
            }));
        }
        settle().await;
        for mut peer in peers.iter() {
            peer.write_all(b"together").expect("room");
        }
        for task in tasks {
            task.await.expect("no panic").flush().await.expect("no reset");
        }
        for mut peer in peers.iter() {
            peer.set_nonblocking(false).expect("a socket");
            let mut answer = [0; 8];
            peer.read_exact(&mut answer).expect("an answer");
            assert_eq!(&answer, b"together");
        }
    });
}

/// Without other work there is nothing to gather: a single connection loses no latency.
fn a_lone_answer_leaves_at_once(configuration: Configuration) {
    if !configuration.is_epoll() || configuration.has_faults() {
        // A ring submits with the next enter, which is the next thing that it does. A fault has a send
        // refused, and it is made again only when this thread waits for events.
        return;
    }
    configuration.run(async {
        let (stream, mut peer) = pair().await;
        for _ in 0..3 {
            assert!(poll_once(stream.recv()).await.is_none());
            peer.write_all(b"alone").expect("room");
            let message = stream.recv().await.expect("bytes");
            stream.send(message).await.expect("room");
            // The worker's own thread waits here: an unsent answer would never arrive.
            peer.read_exact(&mut [0; 5]).expect("an answer that has left");
        }
    });
}

/// Streams whose sends begin in one turn, and end in different ways.
fn gathered_sends_keep_their_order(configuration: Configuration) {
    const BYTES: usize = 70_000;
    // The streams are dropped with most of their bytes queued. On an emulated machine with other work
    // these need longer than the default limit, after which the rest is given up by a reset.
    let builder = configuration.builder().linger(patience());
    run_on(builder, |_| async {
        for narrow in [false, true] {
            let (mut readers, mut peers) = (Vec::new(), Vec::new());
            for way in 0..8 {
                let (stream, peer) = if narrow { narrow_pair().await } else { pair().await };
                readers.push((way, reading(peer.try_clone().expect("a descriptor"))));
                peers.push(peer);
                spawn(async move {
                    stream.recv().await.expect("bytes");
                    let step = [10, 300, 6999, BYTES][way as usize % 4];
                    for start in (0..BYTES).step_by(step) {
                        let part = pattern(way, start..(start + step).min(BYTES));
                        match start / step % 5 {
                            3 => stream.send_corked(part).await.expect("no reset"),
                            _ => stream.send(part).await.expect("no reset"),
                        }
                    }
                    match way % 3 {
                        0 => stream.shutdown().await.expect("no reset"),
                        1 => stream.close().await.expect("no reset"),
                        _ => drop(stream),
                    }
                });
            }
            settle().await;
            for peer in &mut peers {
                // One byte: seeded faults cut receives short, and what is left unread resets a connection.
                peer.write_all(b"!").expect("room");
                finish(peer);
            }
            for (way, reader) in readers {
                assert_whole(way, BYTES, &reader.await);
            }
        }
    });
}

/// Byte `at` of a source, which says of which.
fn tagged(source: usize, at: usize) -> u8 {
    ((source << 5) | (at % 31)) as u8
}

/// Several small pieces of one turn are for a peer that reads slowly, so that one of them is sent in
/// part: those behind it have to wait.
fn tasks_that_send_on_one_stream_together_keep_their_order(configuration: Configuration) {
    const SOURCES: usize = 6;
    const BYTES: usize = 60_000;
    // Larger pieces are not copied.
    run_on(configuration.builder_with("buffer_bytes=2048"), |_| async {
        let (target, mut reading) = narrow_pair().await;
        let (target, mut tasks) = (Rc::new(target), Vec::new());
        for source in 0..SOURCES {
            let (stream, mut peer) = pair().await;
            let writer = on_thread(move || {
                let bytes: Vec<u8> = (0..BYTES).map(|at| tagged(source, at)).collect();
                bytes.chunks(700).for_each(|piece| peer.write_all(piece).expect("a reader"));
                finish(&peer);
            });
            let target = Rc::clone(&target);
            tasks.push(spawn(async move {
                loop {
                    let piece = stream.recv().await.expect("bytes");
                    if piece.is_empty() {
                        return writer.await;
                    }
                    target.send(piece).await.expect("room");
                }
            }));
        }
        let reader = on_thread(move || read_to_end(&mut reading));
        for task in tasks {
            task.await.expect("no panic");
        }
        target.shutdown().await.expect("no reset");
        let read = reader.await.expect("no reset");
        let mut next = [0; SOURCES];
        for byte in read {
            let source = usize::from(byte >> 5);
            assert_eq!(byte, tagged(source, next[source]), "byte {} of {source}", next[source]);
            next[source] += 1;
        }
        assert_eq!(next, [BYTES; SOURCES]);
    });
}
