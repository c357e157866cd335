//! What a simulated machine does to programs and a real one does not on demand, so that no rule of
//! the contract suite meets it.

use crate::anywhere;
use std::cell::RefCell;
use std::io::{self, ErrorKind, Write};
use std::pin::pin;
use std::time::Duration;
use twinring::fs::{Dir, SendStrategy, Symlinks};
use twinring::sim::{Fault, Faults, World};
use twinring::{Runtime, TcpListener, TcpStream, spawn, timeout};

/// Runs `main` in a world of its own, which has to be empty afterwards.
fn in_world<T: 'static>(faults: Faults, main: impl Future<Output = T> + 'static) -> T {
    let world = World::new(21, faults);
    let output =
        Runtime::builder().stop_on_panic(true).build().and_then(|runtime| runtime.block_on(main));
    world.finish();
    output.expect("the simulated engine")
}

#[test]
fn a_connection_refused_by_a_full_backlog_is_retried() {
    in_world(Faults::none(), async {
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
fn a_file_that_ends_early_is_reported() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_owned();
    let content: Vec<u8> = (0..300_000u32).map(|at| (at / 5) as u8).collect();
    std::fs::write(path.join("file"), &content).expect("room");
    let cut = [200, 100_000].map(|per_million| {
        let (path, content) = (path.clone(), content.clone());
        in_world(Faults::none().with(Fault::FileTruncated, per_million), async move {
            let mut cut = 0;
            for _ in 0..20 {
                cut += usize::from(sends_less_of(&path, &content).await);
            }
            cut
        })
    });
    assert!(cut[0] < 20 && cut[1] > 0, "{cut:?} of 20 were cut");
}

/// Sends a file; true if the send reported fewer bytes than the file has.
async fn sends_less_of(path: &std::path::Path, content: &[u8]) -> bool {
    let root = Dir::open(path).expect("the directory");
    let file = root.open_file("file".as_ref(), Symlinks::Beneath).await.expect("it is there");
    let listener = TcpListener::bind(anywhere()).expect("a free port");
    let near = TcpStream::connect(listener.local_addr()).await.expect("a connection");
    let far = listener.accept().await.expect("a connection");
    let reading = spawn(async move { read_to_end(&far).await.expect("no reset") });
    let sent = near.send_file_by(SendStrategy::Sendfile, &file, 0, content.len() as u64).await;
    let sent = sent.expect("open");
    drop(near);
    let read = reading.await.expect("it ran");
    assert_eq!(read.len() as u64, sent);
    assert!(content.starts_with(&read));
    sent < content.len() as u64
}

async fn read_to_end(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&chunk);
    }
}

/// EMFILE by counting, not by chance.
#[test]
fn descriptors_run_out_and_come_back() {
    let world = World::new(5, Faults::none());
    world.set_descriptors_max(3);
    let sockets = RefCell::new(Vec::new());
    let more = || std::net::UdpSocket::bind(anywhere()).map(|one| sockets.borrow_mut().push(one));
    (0..3).for_each(|_| more().expect("there are three"));
    assert_eq!(more().expect_err("and no more").raw_os_error(), Some(24), "EMFILE");
    let copied = sockets.borrow()[0].try_clone();
    assert_eq!(copied.expect_err("no copy either").raw_os_error(), Some(24));
    drop(sockets.borrow_mut().pop());
    let copy = sockets.borrow()[0].try_clone().expect("one is free");
    assert_eq!(copy.local_addr().ok(), sockets.borrow()[0].local_addr().ok());
    drop((sockets, copy));
    world.finish();
}

/// Opening met the shortage only where it had to wait for a disk, which a file in the page cache
/// never does.
#[test]
fn a_file_that_is_cached_needs_a_descriptor_too() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_owned();
    std::fs::write(path.join("file"), "content").expect("room");
    let world = World::new(6, Faults::none());
    // One is the engine's own.
    world.set_descriptors_max(2);
    let opened = Runtime::builder()
        .stop_on_panic(true)
        .build()
        .expect("the simulated engine")
        .block_on(async move {
            let root = Dir::open(&path).expect("the directory");
            let open = async || root.open_file("file".as_ref(), Symlinks::Beneath).await.map(drop);
            let last = std::net::UdpSocket::bind(anywhere()).expect("there is one");
            assert_eq!(open().await.expect_err("and no more").raw_os_error(), Some(24), "EMFILE");
            drop(last);
            open().await
        });
    opened.expect("the engine works").expect("one is free");
    world.finish();
}

/// EAGAIN hit a non-blocking peer, which took it for a full socket and had sent nothing:
/// `unread_streams_starve_no_other` waited for its bytes for ever (seed 4).
#[test]
fn non_blocking_sends_fill_a_socket() {
    in_world(Faults::none().with(Fault::Again, 900_000), async {
        for _ in 0..20 {
            let listener = TcpListener::bind(anywhere()).expect("a free port");
            let peer = std::net::TcpStream::connect(listener.local_addr()).expect("it listens");
            let stream = listener.accept().await.expect("a connection");
            peer.set_nonblocking(true).expect("a socket");
            let mut written = 0;
            let full = loop {
                match (&peer).write(&[9; 5000]) {
                    Ok(bytes) => written += bytes,
                    Err(error) => break error,
                }
            };
            assert_eq!(full.kind(), ErrorKind::WouldBlock);
            assert!(written >= 64 * 1024, "{written} bytes fill a socket");
            drop(peer);
            assert_eq!(read_to_end(&stream).await.expect("no reset").len(), written);
        }
    });
}
