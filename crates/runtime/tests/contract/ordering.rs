//! Rule 8: sends are owned, in order, continued when short, whole or not at all; their errors surface. The
//! buffers of a vectored send leave together.

use crate::support::*;
use std::io::Read;
use std::rc::Rc;
use std::time::Duration;
use twinring::{SendBuf, TcpStream, spawn};

pub(crate) const RULES: &[Rule] = rules![
    random_sends_of_every_kind_reach_a_slow_reader_in_order,
    sends_of_several_tasks_stay_whole,
    buffers_received_elsewhere_are_forwarded_in_order,
    one_call_sends_all_buffers,
    a_failed_send_surfaces_at_the_next_call_and_at_close,
    all_waiting_senders_see_a_reset,
    nothing_can_be_sent_after_shutdown_write,
];

static LETTERS: [u8; 3000] = [b'x'; 3000];

/// The next buffer of a random sequence, and its bytes. Some are empty.
fn random_buffer(random: &mut Random) -> (SendBuf, Vec<u8>) {
    let largest = [1, 10, 300, 5_000, 60_000, 500_000][random.below(6)];
    let bytes = pattern(random.below(1000) as u64, 0..random.below(largest + 1));
    let whole = bytes.len();
    match random.below(6) {
        0 => (SendBuf::from(bytes.clone()), bytes),
        1 => (SendBuf::from(Rc::<[u8]>::from(bytes.as_slice())), bytes),
        2 => {
            let (start, end) = (random.below(whole + 1), whole + random.below(3));
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

/// Reads in random portions, with pauses.
fn read_slowly(mut peer: Peer, seed: u64) -> Vec<u8> {
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
}

async fn random_sends_of_every_kind_reach_a_slow_reader_in_order() {
    for seed in 1..4 {
        let (stream, peer) = narrow_pair().await;
        let reader = on_thread(move || read_slowly(peer, seed));
        let mut random = Random::new(seed + 50);
        let mut expected = Vec::new();
        while expected.len() < 1_500_000 {
            let count = [1, 1, 0, 7, 300][random.below(5)];
            let mut buffers = Vec::new();
            for _ in 0..count {
                let (buffer, bytes) = random_buffer(&mut random);
                assert_eq!(buffer.as_slice(), bytes);
                expected.extend_from_slice(&bytes);
                buffers.push(buffer);
                if expected.len() > 1_500_000 {
                    break;
                }
            }
            match (buffers.pop(), random.below(3)) {
                (Some(one), 0) if buffers.is_empty() => stream.send_corked(one).await,
                (Some(one), _) if buffers.is_empty() => stream.send(one).await,
                (last, _) => {
                    buffers.extend(last);
                    stream.send_vectored(buffers).await
                }
            }
            .expect("sent");
            match random.below(10) {
                0 => stream.flush().await.expect("flushed"),
                1 => yield_now().await,
                _ => {}
            }
        }
        stream.shutdown().await.expect("finished");
        let received = reader.await;
        let differ = received.iter().zip(&expected).position(|(one, other)| one != other);
        assert_eq!((received.len(), differ), (expected.len(), None));
    }
}

async fn sends_of_several_tasks_stay_whole() {
    const PARTS: usize = 70;
    const PART: usize = 130;
    let (stream, peer) = narrow_pair().await;
    let stream = Rc::new(stream);
    let tasks: Vec<_> = (0..5u8)
        .map(|task| {
            let stream = Rc::clone(&stream);
            spawn(async move {
                for _ in 0..10 {
                    stream.send(vec![task; PARTS * PART]).await.expect("sent");
                    let parts = (0..PARTS).map(|_| vec![task; PART]);
                    stream.send_vectored(parts).await.expect("sent");
                }
            })
        })
        .collect();
    let reader = reading(peer);
    for task in tasks {
        task.await.expect("every sender ends");
    }
    stream.shutdown().await.expect("finished");
    let received = reader.await;
    assert_eq!(received.len(), 5 * 20 * PARTS * PART);
    for message in received.chunks(PARTS * PART) {
        assert!(message.iter().all(|byte| *byte == message[0]), "messages were mixed");
    }
}

/// A proxy hands pool buffers from one socket to another, one or several at a time, which reads slowly: the
/// pool's memory must neither be reused too early nor be parked.
async fn buffers_received_elsewhere_are_forwarded_in_order() {
    const TOTAL: usize = 600_000;
    let (from, mut writer) = pair().await;
    let (to, reader) = narrow_pair().await;
    let forwarding = spawn(async move {
        for most in (1..4).cycle() {
            let mut chunks = vec![from.recv().await.expect("no reset")];
            while chunks.len() < most
                && let Some(chunk) = poll_once(from.recv()).await
            {
                chunks.push(chunk.expect("no reset"));
            }
            let ended = chunks.iter().any(|chunk| chunk.is_empty());
            match chunks.len() {
                1 => to.send(chunks.remove(0)).await.expect("sent"),
                _ => to.send_vectored(chunks).await.expect("sent"),
            }
            if ended {
                return to.shutdown().await;
            }
        }
        Ok(())
    });
    let writing = on_thread(move || {
        std::io::Write::write_all(&mut writer, &pattern(6, 0..TOTAL)).expect("it reads");
    });
    another_is_served().await;
    let received = reading(reader).await;
    writing.await;
    forwarding.await.expect("no panic").expect("sent");
    assert_whole(6, TOTAL, &received);
}

fn one_call_sends_all_buffers(configuration: Configuration) {
    if configuration.has_faults() {
        // A short send takes a second call.
        return;
    }
    configuration.run_with_handle(|handle| async move {
        let (stream, peer) = pair().await;
        let before = handle.counters().sent;
        stream.send_vectored((0..60u8).map(|part| vec![part; 20])).await.expect("sent");
        stream.shutdown().await.expect("finished");
        assert_eq!(handle.counters().sent - before, 1);
        let received = reading(peer).await;
        let expected: Vec<u8> = (0..60u8).flat_map(|part| [part; 20]).collect();
        assert_eq!(received, expected);
    });
}

fn a_failed_send_surfaces_at_the_next_call_and_at_close(configuration: Configuration) {
    async fn broken(vectored: bool) -> TcpStream {
        let (stream, peer) = pair().await;
        reset(peer);
        // Already connected; the engine notices the reset when it sends.
        while match vectored {
            true => stream.send_vectored(["one", "two"]).await.is_ok(),
            false => stream.send("lost").await.is_ok(),
        } {
            settle().await;
        }
        stream
    }
    let is_broken = |errno| [libc::EPIPE, libc::ECONNRESET].contains(&errno);
    configuration.run(async move {
        let stream = broken(false).await;
        for _ in 0..3 {
            assert!(is_broken(errno(&stream.send("more").await)), "a send without a peer");
            assert!(is_broken(errno(&stream.send_vectored(["more"]).await)));
            assert!(is_broken(errno(&stream.flush().await)), "a flush without a peer");
        }
        assert!(is_broken(errno(&stream.close().await)), "a close that lost bytes");
        assert!(is_broken(errno(&broken(true).await.close().await)));
        assert!(is_broken(errno(&broken(false).await.shutdown().await)));
    });
}

/// On epoll, the waiters of a queue were once forgotten when the queue failed, and hung.
async fn all_waiting_senders_see_a_reset() {
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
}

async fn nothing_can_be_sent_after_shutdown_write() {
    let (stream, mut peer) = pair().await;
    stream.send("the last words").await.expect("sent");
    stream.shutdown().await.expect("finished");
    assert_eq!(errno(&stream.send("too late").await), libc::EPIPE);
    assert_eq!(errno(&stream.send_vectored(["too", "late"]).await), libc::EPIPE);
    stream.shutdown().await.expect("a second shutdown is no error");
    stream.flush().await.expect("nothing is left");
    let heard = on_thread(move || (read_to_end(&mut peer).expect("no reset"), peer)).await;
    assert_eq!(heard.0, b"the last words");
    stream.close().await.expect("nothing was lost");
}
