//! Rules 7 and 8: sends are owned, in order, continued when short, whole or not at all; their errors surface; the
//! buffers of a vectored send leave together. Backpressure holds both directions within bounds, without an effect on
//! other connections. Answers to messages that arrived together leave together, so that the peers' CPU is
//! interrupted once for all of them.

use crate::support::*;
use std::future::poll_fn;
use twinring::SendBuf;

pub(crate) const RULES: &[Rule] = rules![
    random_sends_of_every_kind_reach_slow_readers_in_order,
    what_several_tasks_send_stays_in_order,
    one_call_sends_all_buffers,
    a_failed_send_surfaces_at_the_next_call_and_at_close,
    a_reset_is_an_error_to_all_who_wait,
    nothing_can_be_sent_after_shutdown_write,
    a_peer_that_does_not_read_blocks_its_sender,
    unread_streams_stop_their_peers,
    answers_to_simultaneous_messages_leave_together,
    a_lone_answer_leaves_at_once,
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

/// The streams' sends begin in one turn, so that they are gathered, and end in different ways.
fn random_sends_of_every_kind_reach_slow_readers_in_order(configuration: Configuration) {
    // Streams are closed with most of their bytes queued. On an emulated machine with other work these need longer
    // than the default limit, after which the rest is given up by a reset.
    run_on(configuration.builder().linger(patience()), async |_| {
        let (mut tasks, mut peers) = (Vec::new(), Vec::new());
        for seed in 0..8 {
            let (stream, peer) = if seed < 4 { narrow_pair().await } else { pair().await };
            peers.push(peer);
            tasks.push(spawn(send_at_random(stream, seed)));
        }
        settle().await;
        let mut readers = Vec::new();
        for (seed, mut peer) in (0..).zip(peers) {
            // One byte: seeded faults cut receives short, and what is left unread resets a connection.
            peer.write_all(b"!").expect("room");
            readers.push(on_thread(move || read_slowly(peer, seed)));
        }
        for (expected, reader) in join_all(tasks).await.into_iter().zip(readers) {
            assert!(reader.await == expected);
        }
    });
}

/// Sends when it is told to, and returns what.
async fn send_at_random(stream: TcpStream, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed + 50);
    let mut expected = Vec::new();
    assert_eq!(recv_exactly(&stream, 1).await, b"!");
    while expected.len() < 600_000 {
        let mut buffers = Vec::new();
        for _ in 0..[1, 1, 0, 7, 300][random.below(5)] {
            let (buffer, bytes) = random_buffer(&mut random);
            assert_eq!(buffer.as_slice(), bytes);
            expected.extend_from_slice(&bytes);
            buffers.push(buffer);
            if expected.len() > 600_000 {
                break;
            }
        }
        match (buffers.len(), random.below(3)) {
            (1, 0) => stream.send_corked(buffers.remove(0)).await,
            (1, _) => stream.send(buffers.remove(0)).await,
            _ => stream.send_vectored(buffers).await,
        }
        .expect("sent");
        match random.below(10) {
            0 => stream.flush().await.expect("flushed"),
            1 => yield_now().await,
            _ => {}
        }
    }
    match seed % 3 {
        0 => stream.shutdown().await.expect("finished"),
        1 => stream.close().await.expect("all is sent"),
        _ => drop(stream),
    }
    expected
}

const SOURCES: usize = 6;

/// Byte or message `at` of a source, which says of which.
fn tagged(source: usize, at: usize) -> u8 {
    ((source << 5) | (at % 31)) as u8
}

/// For a peer that reads slowly, so that sends are short and those behind have to wait. What a task sends at once stays
/// whole. What came from elsewhere is forwarded, one or several buffers at a time; small ones of one turn are gathered.
fn what_several_tasks_send_stays_in_order(configuration: Configuration) {
    const MESSAGES: usize = 20;
    const BYTES: usize = 9_100;
    // Larger buffers are not copied.
    for (options, forwarded) in [("", false), ("", true), ("buffer_bytes=2048", true)] {
        let tag = move |source, at| tagged(source, if forwarded { at } else { at / BYTES });
        run_on(configuration.builder_with(options), async move |_| {
            let (target, peer) = narrow_pair().await;
            let target = Rc::new(target);
            let send = |source| {
                let target = Rc::clone(&target);
                spawn(async move {
                    let bytes: Vec<u8> = (0..MESSAGES * BYTES).map(|at| tag(source, at)).collect();
                    if forwarded {
                        let (stream, mut peer) = pair().await;
                        let writer = on_thread(move || {
                            bytes.chunks(700).for_each(|it| peer.write_all(it).expect("a reader"));
                        });
                        forward(&stream, &target).await;
                        return writer.await;
                    }
                    for (number, message) in bytes.chunks(BYTES).enumerate() {
                        match number % 2 {
                            0 => target.send_vectored(message.chunks(130).map(Vec::from)).await,
                            _ => target.send(message.to_vec()).await,
                        }
                        .expect("sent");
                    }
                })
            };
            let tasks: Vec<_> = (0..SOURCES).map(send).collect();
            let reader = reading(peer);
            another_is_served().await;
            join_all(tasks).await;
            target.shutdown().await.expect("no reset");
            let (received, mut next) = (reader.await, [0; SOURCES]);
            for byte in &received {
                let source = usize::from(byte >> 5);
                assert_eq!(*byte, tag(source, next[source]), "byte {} of {source}", next[source]);
                next[source] += 1;
            }
            assert_eq!(next, [MESSAGES * BYTES; SOURCES]);
            let is_whole = |message: &[u8]| message.iter().all(|byte| *byte == message[0]);
            assert!(forwarded || received.chunks(BYTES).all(is_whole));
        });
    }
}

/// As `net::copy`, with up to three buffers at a time.
async fn forward(from: &TcpStream, to: &TcpStream) {
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
            return;
        }
    }
}

async fn one_call_sends_all_buffers(configuration: Configuration, handle: Handle) {
    let (stream, peer) = pair().await;
    let before = handle.counters().sent;
    stream.send_vectored((0..60u8).map(|part| vec![part; 20])).await.expect("sent");
    stream.shutdown().await.expect("finished");
    // A fault cuts a send short, which takes a second call.
    assert!(configuration.has_faults() || handle.counters().sent - before == 1);
    let expected: Vec<u8> = (0..60u8).flat_map(|part| [part; 20]).collect();
    assert_eq!(reading(peer).await, expected);
}

async fn a_failed_send_surfaces_at_the_next_call_and_at_close() {
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
    let is_broken = |result| [libc::EPIPE, libc::ECONNRESET].contains(&errno(&result));
    let stream = broken(false).await;
    for _ in 0..3 {
        assert!(is_broken(stream.send("more").await), "a send without a peer");
        assert!(is_broken(stream.send_vectored(["more"]).await));
        assert!(is_broken(stream.flush().await), "a flush without a peer");
    }
    assert!(is_broken(stream.close().await), "a close that lost bytes");
    assert!(is_broken(broken(true).await.close().await));
    assert!(is_broken(broken(false).await.shutdown().await));
}

/// On epoll, the waiters of a queue were once forgotten when the queue failed, and hung. And the kernel
/// reports a reset to one system call and a plain end of stream to the next, so a send that gets it first
/// must not make the receive look like a clean end.
async fn a_reset_is_an_error_to_all_who_wait() {
    for receives_late in [false, true] {
        let (stream, peer) = narrow_pair().await;
        let stream = Rc::new(stream);
        let waiting = |task| {
            let stream = Rc::clone(&stream);
            spawn(async move {
                match task {
                    0..3 => loop {
                        stream.send(vec![0; 300_000]).await?;
                    },
                    _ => stream.flush().await,
                }
            })
        };
        let waiting: Vec<_> = (0..4).map(waiting).collect();
        let own = Rc::clone(&stream);
        let receiver = spawn(async move {
            if receives_late {
                sleep(Duration::from_millis(10)).await;
            }
            recv_to_end(&own).await
        });
        settle().await;
        assert!(waiting.iter().all(|task| !task.is_finished()), "a sender does not wait");
        reset(peer);
        for sent in join_all(waiting).await {
            assert!([libc::ECONNRESET, libc::EPIPE].contains(&errno(&sent)), "{sent:?}");
        }
        let received = receiver.await.expect("not aborted");
        assert_eq!(errno(&received), libc::ECONNRESET, "{received:?}, late: {receives_late}");
    }
}

async fn nothing_can_be_sent_after_shutdown_write() {
    let (stream, mut peer) = pair().await;
    stream.send("the last words").await.expect("sent");
    stream.shutdown().await.expect("finished");
    assert_eq!(errno(&stream.send("too late").await), libc::EPIPE);
    assert_eq!(errno(&stream.send_vectored(["too", "late"]).await), libc::EPIPE);
    let ready = poll_once(poll_fn(|cx| stream.poll_send_ready(cx))).await;
    assert_eq!(errno(&ready.expect("no wait")), libc::EPIPE);
    stream.shutdown().await.expect("a second shutdown is no error");
    stream.flush().await.expect("nothing is left");
    assert_eq!(reading(peer.try_clone().expect("a descriptor")).await, b"the last words");
    peer.write_all(b"an answer").expect("the other half is open");
    drop(peer);
    assert_eq!(recv_to_end(&stream).await.expect("no reset"), b"an answer");
    stream.close().await.expect("nothing was lost");
}

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
        let (mut sent, mut refused) = (0, 0);
        // The kernel moves bytes between its buffers for a while after it has refused some.
        while refused < 5 {
            let ready = poll_once(poll_fn(|cx| stream.poll_send_ready(cx))).await;
            let mut buf = Some(pattern(1, sent..sent + chunk).into());
            let taken = poll_once(poll_fn(|cx| stream.poll_send(cx, &mut buf))).await;
            assert_eq!(ready.is_some(), taken.is_some(), "ready means that it is taken");
            match taken {
                Some(result) => {
                    result.expect("the peer is there");
                    (sent, refused) = (sent + chunk, 0);
                    // A task that sends much has to let others have their turn.
                    yield_now().await;
                }
                None => {
                    assert!(poll_once(stream.send("nor is this")).await.is_none());
                    refused += 1;
                    settle().await;
                }
            }
            assert!(sent < QUEUED_BYTES_MAX + KERNEL_BYTES_MAX + chunk, "{sent} queued");
        }
        assert!(sent + chunk > QUEUED_BYTES_MAX, "held up after {sent} already");
        assert!(poll_once(poll_fn(|cx| stream.poll_flush(cx))).await.is_none());
        // Other connections are served meanwhile.
        another_is_served().await;
        let reader = reading(deaf);
        poll_fn(|cx| stream.poll_send_ready(cx)).await.expect("room again");
        poll_fn(|cx| stream.poll_shutdown(cx)).await.expect("all is sent");
        assert_whole(1, sent, &reader.await);
    }
}

/// And starves no other stream.
fn unread_streams_stop_their_peers(configuration: Configuration) {
    for (options, streams) in [("", 1), ("buffer_count=16", 4)] {
        run_on(configuration.builder_with(options), async move |_| {
            let mut unread = Vec::new();
            for seed in 0..streams {
                let (stream, mut peer) = narrow_pair().await;
                peer.set_nonblocking(true).expect("a socket");
                // Armed once, then never asked again.
                assert!(poll_once(stream.recv()).await.is_none());
                let data = pattern(seed, 0..4 << 20);
                let mut written = 0;
                let mut last_progress = Instant::now();
                while last_progress.elapsed() < Duration::from_millis(60) {
                    match peer.write(&data[written..]) {
                        Ok(bytes) => {
                            written += bytes;
                            last_progress = Instant::now();
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                    let bound = RECEIVED_BYTES_MAX + POOL_BYTES_MAX + KERNEL_BYTES_MAX;
                    assert!(written < bound, "{written} bytes taken that the peer does not read");
                    settle().await;
                }
                unread.push((seed, stream, peer, written));
            }
            another_is_served().await;
            for (seed, stream, peer, written) in unread {
                finish(&peer);
                let received = recv_to_end(&stream).await.expect("no reset");
                assert_whole(seed, written, &received);
            }
        });
    }
}

/// Each task, when it has its message, checks whether an answer of an earlier one has left.
fn answers_to_simultaneous_messages_leave_together(configuration: Configuration) {
    // With a submission thread, another thread submits. Faults hold arrivals back, so that they do not come together.
    if configuration.name.contains("sqpoll") || configuration.has_faults() {
        return;
    }
    let gathers = if configuration.is_epoll() { "gather=on" } else { "" };
    run_on(configuration.builder_with(&format!("buffer_count=16,{gathers}")), async |_| {
        let (mut streams, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let (stream, peer) = pair().await;
            peer.set_nonblocking(true).expect("a socket");
            streams.push(stream);
            peers.push(peer);
        }
        let peers = Rc::new(peers);
        let answering = |stream: TcpStream| {
            let peers = Rc::clone(&peers);
            spawn(async move {
                let message = stream.recv().await.expect("bytes");
                for mut peer in peers.iter() {
                    let early = peer.read(&mut [0; 8]).expect_err("an answer left alone");
                    assert_eq!(early.kind(), ErrorKind::WouldBlock);
                }
                stream.send(message).await.expect("room");
                stream
            })
        };
        let tasks: Vec<_> = streams.into_iter().map(answering).collect();
        settle().await;
        for mut peer in peers.iter() {
            peer.write_all(b"together").expect("room");
        }
        for stream in join_all(tasks).await {
            stream.flush().await.expect("no reset");
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
async fn a_lone_answer_leaves_at_once(configuration: Configuration, _: Handle) {
    if !configuration.is_epoll() || configuration.has_faults() {
        // A ring submits with the next enter, which is the next thing that it does. A fault has a send
        // refused, and it is made again only when this thread waits for events.
        return;
    }
    let (stream, mut peer) = pair().await;
    for _ in 0..3 {
        assert!(poll_once(stream.recv()).await.is_none());
        peer.write_all(b"alone").expect("room");
        let message = stream.recv().await.expect("bytes");
        stream.send(message).await.expect("room");
        // The worker's own thread waits here: an unsent answer would never arrive.
        peer.read_exact(&mut [0; 5]).expect("an answer that has left");
    }
}
