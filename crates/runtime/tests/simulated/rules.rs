//! Rules of the driver contract, on the simulated engine. The peers of the contract suite make
//! blocking calls on threads of their own, which no world can have; so here both ends are streams.

use crate::anywhere;
use std::io::{self, Write};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use twinring::fs::{Dir, SendStrategy, Symlinks};
use twinring::sim::{Fault, Faults, World};
use twinring::{
    Datagram, Either, Notice, Runtime, TcpListener, TcpStream, UdpSocket, race, sleep, spawn,
    timeout,
};

/// Runs `main` in a world of its own, which has to be empty afterwards.
fn in_world<T: 'static>(faults: Faults, main: impl Future<Output = T> + 'static) -> T {
    let world = World::new(21, faults);
    let runtime = Runtime::builder().build().expect("the simulated engine");
    let mut main = Some(main);
    let main = std::cell::RefCell::new(&mut main);
    let running = runtime.start(|_| main.borrow_mut().take().expect("one worker"));
    let running = running.expect("a worker");
    assert!(world.run_until(Duration::from_secs(600), || running.is_over()), "it comes to an end");
    let output = running.outcome().expect("the engine works").remove(0);
    world.finish();
    output.expect("it ran to its end")
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(anywhere()).expect("a free port");
    let near = TcpStream::connect(listener.local_addr()).await.expect("a connection");
    (near, listener.accept().await.expect("a connection"))
}

async fn read_to_end(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let piece = stream.recv().await?;
        if piece.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&piece);
    }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn a_peer_that_does_not_read_holds_its_sender_up() {
    in_world(Faults::none(), async {
        let (near, far) = pair().await;
        let mut sent = 0;
        while timeout(Duration::from_secs(1), near.send(vec![7; 10_000])).await.is_ok() {
            sent += 10_000;
            assert!(sent < 2_000_000, "nothing stops the sender");
        }
        let reading = spawn(async move { read_to_end(&far).await.map(|bytes| bytes.len()) });
        near.finish().await.expect("the peer reads");
        assert_eq!(reading.await.expect("it ran").expect("no reset"), sent);
    });
}

#[test]
fn dropped_receives_lose_nothing() {
    let faults = Faults::none().with(Fault::Late, 200_000).with(Fault::ShortReceive, 500_000);
    in_world(faults, async {
        let (near, far) = pair().await;
        spawn(async move {
            for number in 0..2_000u32 {
                far.send(number.to_be_bytes().to_vec()).await.expect("the peer reads");
            }
            far.finish().await.expect("the peer reads");
        });
        let mut received = Vec::new();
        loop {
            match race(near.recv(), sleep(Duration::from_micros(300))).await {
                Either::Left(piece) => match piece.expect("no reset") {
                    piece if piece.is_empty() => break,
                    piece => received.extend_from_slice(&piece),
                },
                Either::Right(()) => {}
            }
        }
        assert!(received.chunks(4).zip(0..2_000u32).all(|(got, sent)| got == sent.to_be_bytes()));
        assert_eq!(received.len(), 8_000);
    });
}

#[test]
fn cancelled_operations_end_once() {
    in_world(Faults::none(), async {
        let (near, far) = pair().await;
        let near = Rc::new(near);
        let waiting = Rc::clone(&near);
        let waiting = spawn(async move { errno(waiting.recv().await) });
        sleep(Duration::from_millis(1)).await;
        near.cancel();
        assert_eq!(waiting.await, Ok(Some(libc_ecanceled())));
        far.send("goes on").await.expect("open");
        assert_eq!(&*near.recv().await.expect("open"), b"goes on");
    });
}

/// ECANCELED, without a dependency for one number.
fn libc_ecanceled() -> i32 {
    125
}

#[test]
fn a_reset_on_close_is_a_reset() {
    in_world(Faults::none(), async {
        let (near, far) = pair().await;
        near.send(vec![1; 100_000]).await.expect("room");
        near.set_reset_on_close().expect("open");
        drop(near);
        let end = read_to_end(&far).await;
        assert_eq!(end.expect_err("not the end").kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn what_was_queued_is_sent_after_a_drop() {
    in_world(Faults::none().with(Fault::Slow, 10_000), async {
        let (near, far) = pair().await;
        near.send(vec![3; 200_000]).await.expect("room");
        drop(near);
        // All of it, or a reset once the linger limit is over: never a part that looks whole.
        match read_to_end(&far).await {
            Ok(bytes) => assert_eq!(bytes.len(), 200_000),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
    });
}

#[test]
fn nobody_listens_and_nobody_answers() {
    in_world(Faults::none(), async {
        let closed = TcpListener::bind(anywhere()).expect("a free port").local_addr();
        let refused = TcpStream::connect(closed).await.expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let full = twinring::ListenOptions { backlog: 1, ..Default::default() };
        let listener = full.bind(anywhere(), 1).expect("a free port").remove(0);
        let filler = TcpStream::connect(listener.local_addr()).await.expect("room for one");
        let mut second = pin!(TcpStream::connect(listener.local_addr()));
        assert!(timeout(Duration::from_secs(1), second.as_mut()).await.is_err(), "it waits");
        let listener = TcpListener::from_bound(listener).expect("a listener");
        drop((listener.accept().await.expect("the first"), filler));
        second.await.expect("its SYN was sent again");
    });
}

#[test]
fn accepting_goes_on_when_descriptors_are_free() {
    let faults = Faults::none().with(Fault::NoDescriptor, 400_000);
    let world = World::new(22, faults);
    let told = std::sync::Arc::new(std::sync::Mutex::new(0));
    let telling = std::sync::Arc::clone(&told);
    let builder = Runtime::builder().on_notice(move |notice| {
        assert!(matches!(notice, Notice::AcceptStalled(_)), "{notice}");
        *telling.lock().expect("no panic") += 1;
    });
    let runtime = builder.build().expect("the simulated engine");
    let serving = runtime.start(|_| async {
        let listener = loop {
            match TcpListener::bind(anywhere()) {
                Ok(listener) => break listener,
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        };
        let mut served = 0;
        while served < 20 {
            let Ok(client) = TcpStream::connect(listener.local_addr()).await else { continue };
            client.send("hello").await.expect("open");
            let server = listener.accept().await.expect("it waits instead");
            assert_eq!(&*server.recv().await.expect("open"), b"hello");
            served += 1;
        }
    });
    let serving = serving.expect("a worker");
    assert!(world.run_until(Duration::from_secs(600), || serving.is_over()));
    assert_eq!(*told.lock().expect("no panic"), 1, "the operator is told once");
    world.finish();
}

#[test]
fn lost_datagrams_are_counted_and_errors_waited_past() {
    in_world(Faults::none().with(Fault::DatagramDuplicated, 200_000), async {
        let receiver = UdpSocket::bind(anywhere()).expect("a free port");
        let sender = UdpSocket::connect(receiver.local_addr()).expect("a route");
        let mut batch: Vec<_> =
            (0..5_000u32).map(|n| Datagram::new(n.to_be_bytes().to_vec())).collect();
        sender.send_batch(&mut batch).await.expect("not cancelled");
        sender.flush().await.expect("not cancelled");
        sleep(Duration::from_secs(1)).await;
        receiver.stop_receiving().expect("a filter");
        let mut received = Vec::new();
        while timeout(Duration::from_millis(50), receiver.recv_batch(&mut received)).await.is_ok() {
        }
        let stats = receiver.stats().expect("SO_MEMINFO");
        assert!(stats.kernel_drops > 0, "the buffer is too small for all");
        assert_eq!(stats.received, received.len() as u64);
        assert!(received.len() as u64 + stats.kernel_drops > 5_000, "some came twice");
        drop(receiver);
        sender.send("nobody is there").await.expect("sent");
        sleep(Duration::from_secs(1)).await;
        sender.send("and still not").await.expect("sent");
        sender.flush().await.expect("not cancelled");
        assert_eq!(sender.counted().icmp_errors, 1);
    });
}

#[test]
fn a_file_that_ends_early_says_so() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_owned();
    let content: Vec<u8> = (0..300_000u32).map(|at| (at / 5) as u8).collect();
    let mut file = std::fs::File::create(path.join("file")).expect("a file");
    file.write_all(&content).expect("room");
    in_world(Faults::none().with(Fault::FileTruncated, 1_000), async move {
        let root = Dir::open(&path).expect("the directory");
        let mut short = 0;
        for _ in 0..20 {
            let file =
                root.open_file("file".as_ref(), Symlinks::Beneath).await.expect("it is there");
            let (near, far) = pair().await;
            let reading = spawn(async move { read_to_end(&far).await.expect("no reset") });
            let strategy = SendStrategy::Sendfile;
            let sent = near.send_file_by(strategy, &file, 0, 300_000).await.expect("open");
            drop(near);
            let read = reading.await.expect("it ran");
            assert_eq!(read.len() as u64, sent);
            assert!(content.starts_with(&read));
            short += u64::from(sent < 300_000);
        }
        assert!(short > 0 && short < 20, "{short} of 20 were cut");
    });
}
