//! Rule 8: sends are owned, in order, continued when short; their errors surface.

use crate::support::*;
use std::io::Read;
use std::rc::Rc;
use std::time::Duration;
use twinring::{SendBuf, TcpStream, sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    random_sends_of_every_kind_reach_a_slow_reader_in_order,
    sends_of_several_tasks_stay_whole,
    buffers_received_elsewhere_are_forwarded_in_order,
    a_failed_send_surfaces_at_the_next_call_and_at_close,
    all_waiting_senders_see_a_reset,
    nothing_can_be_sent_after_shutdown_write,
];

static LETTERS: [u8; 3000] = [b'x'; 3000];

/// The next buffer of a random sequence, and its bytes.
fn random_buffer(random: &mut Random) -> (SendBuf, Vec<u8>) {
    let largest = [1, 10, 300, 5_000, 60_000, 500_000][random.below(6)];
    let bytes = pattern(random.below(1000) as u64, 0..1 + random.below(largest));
    let whole = bytes.len();
    match random.below(6) {
        0 => (SendBuf::from(bytes.clone()), bytes),
        1 => (SendBuf::from(Rc::<[u8]>::from(bytes.as_slice())), bytes),
        2 => {
            let (start, end) = (random.below(whole), whole + random.below(3));
            let part = bytes[start..].to_vec();
            (SendBuf::shared(Rc::from(bytes), start..end), part)
        }
        3 => {
            let end = whole.min(LETTERS.len());
            (SendBuf::from(&LETTERS[..end]), vec![b'x'; end])
        }
        4 => (SendBuf::from("a static text"), b"a static text".to_vec()),
        _ => {
            let text: String = bytes.iter().map(|byte| char::from(b'a' + byte % 26)).collect();
            (SendBuf::from(text.clone()), text.into_bytes())
        }
    }
}

fn random_sends_of_every_kind_reach_a_slow_reader_in_order(configuration: Configuration) {
    configuration.run(async {
        for seed in 1..3 {
            let (stream, mut peer) = narrow_pair().await;
            let reader = on_thread(move || {
                let mut random = Random::new(seed);
                let mut received = Vec::new();
                let mut chunk = vec![0; 100_000];
                loop {
                    let room = 1 + random.below(chunk.len());
                    match peer.read(&mut chunk[..room]).expect("no reset") {
                        0 => return received,
                        bytes => received.extend_from_slice(&chunk[..bytes]),
                    }
                    if random.below(40) == 0 {
                        std::thread::sleep(Duration::from_micros(300));
                    }
                }
            });
            let mut random = Random::new(seed + 50);
            let mut expected = Vec::new();
            while expected.len() < 1_500_000 {
                let (buffer, bytes) = random_buffer(&mut random);
                assert_eq!(buffer.as_slice(), bytes);
                stream.send(buffer).await.expect("sent");
                expected.extend_from_slice(&bytes);
                match random.below(10) {
                    0 => stream.flush().await.expect("flushed"),
                    1 => yield_now().await,
                    2 => stream.send("").await.expect("nothing is easily sent"),
                    _ => {}
                }
            }
            stream.shutdown().await.expect("finished");
            let received = reader.await;
            let differ = received.iter().zip(&expected).position(|(one, other)| one != other);
            assert_eq!((received.len(), differ), (expected.len(), None));
        }
    });
}

fn sends_of_several_tasks_stay_whole(configuration: Configuration) {
    configuration.run(async {
        const MESSAGE: usize = 9000;
        let (stream, mut peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        let tasks: Vec<_> = (0..5u8)
            .map(|task| {
                let stream = Rc::clone(&stream);
                spawn(async move {
                    for _ in 0..20 {
                        stream.send(vec![task; MESSAGE]).await.expect("sent");
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
        assert_eq!(received.len(), 5 * 20 * MESSAGE);
        for message in received.chunks(MESSAGE) {
            assert!(message.iter().all(|byte| *byte == message[0]), "messages were mixed");
        }
    });
}

/// A proxy hands pool buffers from one socket to another, which reads slowly: the pool's memory
/// must neither be reused too early nor be parked.
fn buffers_received_elsewhere_are_forwarded_in_order(configuration: Configuration) {
    configuration.run(async {
        const TOTAL: usize = 600_000;
        let (from, mut writer) = pair().await;
        let (to, mut reader) = narrow_pair().await;
        spawn(async move {
            loop {
                let chunk = from.recv().await.expect("no reset");
                if chunk.is_empty() {
                    return to.shutdown().await;
                }
                to.send(chunk).await.expect("sent");
            }
        });
        let writing = on_thread(move || {
            std::io::Write::write_all(&mut writer, &pattern(6, 0..TOTAL))
                .expect("the server reads");
        });
        let (other, mut peer) = pair().await;
        spawn(echo(other));
        on_thread(move || (0..10).for_each(|seed| ping(&mut peer, &pattern(seed, 0..2000)))).await;
        let received = on_thread(move || read_to_end(&mut reader).expect("no reset")).await;
        writing.await;
        assert_eq!(received.len(), TOTAL);
        assert_pattern(6, 0, &received);
    });
}

fn a_failed_send_surfaces_at_the_next_call_and_at_close(configuration: Configuration) {
    async fn broken() -> TcpStream {
        let (stream, peer) = pair().await;
        reset(peer);
        // Already connected; the engine notices the reset when it sends.
        while stream.send("lost").await.is_ok() {
            settle().await;
        }
        stream
    }
    let is_broken = |errno| [libc::EPIPE, libc::ECONNRESET].contains(&errno);
    configuration.run(async move {
        let stream = broken().await;
        for _ in 0..3 {
            assert!(is_broken(errno(&stream.send("more").await)), "a send without a peer");
            assert!(is_broken(errno(&stream.flush().await)), "a flush without a peer");
        }
        assert!(is_broken(errno(&stream.close().await)), "a close that lost bytes");
        assert!(is_broken(errno(&broken().await.close().await)));
        assert!(is_broken(errno(&broken().await.shutdown().await)));
    });
}

/// On epoll, the waiters of a queue were once forgotten when the queue failed, and hung.
fn all_waiting_senders_see_a_reset(configuration: Configuration) {
    configuration.run(async {
        let (stream, peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        let waiting: Vec<_> = (0..4)
            .map(|task| {
                let stream = Rc::clone(&stream);
                spawn(async move {
                    match task {
                        0..3 => loop {
                            stream.send(vec![0; 300_000]).await?;
                        },
                        _ => stream.flush().await,
                    }
                })
            })
            .collect();
        settle().await;
        assert!(waiting.iter().all(|task| !task.is_finished()), "a sender does not wait");
        reset(peer);
        for task in waiting {
            assert_ne!(errno(&task.await.expect("not aborted")), 0);
        }
    });
}

fn nothing_can_be_sent_after_shutdown_write(configuration: Configuration) {
    configuration.run(async {
        let (stream, mut peer) = pair().await;
        stream.send("the last words").await.expect("sent");
        stream.shutdown().await.expect("finished");
        assert_eq!(errno(&stream.send("too late").await), libc::EPIPE);
        stream.shutdown().await.expect("a second shutdown is no error");
        stream.flush().await.expect("nothing is left");
        let heard = on_thread(move || (read_to_end(&mut peer).expect("no reset"), peer)).await;
        assert_eq!(heard.0, b"the last words");
        sleep(Duration::ZERO).await;
        stream.close().await.expect("nothing was lost");
    });
}
