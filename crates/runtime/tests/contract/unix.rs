//! Unix stream sockets: their names, and what is different from TCP. All else is the same code.

use crate::support::*;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use twinring::{UnixListener, UnixStream, spawn};

pub(crate) const RULES: &[Rule] = rules![
    an_echo_both_ways,
    connecting_waits_while_the_backlog_is_full,
    errors_name_the_path,
    sockets_with_abstract_names_come_from_the_standard_library,
];

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

async fn an_echo_both_ways() {
    let directory = directory();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a new path");
    let stream = UnixStream::connect(&path).await.expect("a listener");
    let served = listener.accept().await.expect("a connection");
    for address in [stream.peer_addr(), served.local_addr(), listener.local_addr()] {
        assert_eq!(address.expect("a socket").as_pathname(), Some(&*path));
    }
    let echoing = spawn(async move {
        loop {
            let chunk = served.recv().await.expect("no error");
            if chunk.is_empty() {
                return served.close().await;
            }
            served.send(chunk).await.expect("the other end reads");
        }
    });
    let (receiver, sender) = stream.into_split();
    let sending = spawn(async move {
        for start in (0..3_000_000).step_by(50_000) {
            sender.send(pattern(1, start..start + 50_000)).await.expect("the other end reads");
        }
    });
    let mut received = 0;
    loop {
        let chunk = receiver.recv().await.expect("no error");
        if chunk.is_empty() {
            break;
        }
        assert_pattern(1, received, &chunk);
        received += chunk.len();
    }
    assert_eq!(received, 3_000_000);
    sending.await.expect("no panic");
    echoing.await.expect("no panic").expect("nothing was lost");
}

/// Epoll's connect(2) says EAGAIN then, and no event reports when there is room.
async fn connecting_waits_while_the_backlog_is_full() {
    let directory = directory();
    let path = directory.path().join("socket");
    let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None);
    let listener = listener.expect("a socket");
    listener.bind(&socket2::SockAddr::unix(&path).expect("a path")).expect("a new path");
    listener.listen(0).expect("a bound socket");
    let first = UnixStream::connect(&path).await.expect("the backlog has room for one");
    let second = spawn({
        let path = path.clone();
        async move { UnixStream::connect(path).await }
    });
    settle().await;
    assert!(!second.is_finished(), "there is no room");
    let accepting = on_thread(move || {
        let mut accepted = Vec::new();
        for _ in 0..2 {
            accepted.push(listener.accept().expect("a connection"));
        }
        accepted.len()
    });
    second.await.expect("no panic").expect("room at last");
    assert_eq!(accepting.await, 2);
    drop(first);
}

async fn errors_name_the_path() {
    let directory = directory();
    let path = directory.path().join("socket");
    let missing = UnixStream::connect(&path).await.expect_err("no listener");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let listener = UnixListener::bind(&path).expect("a new path");
    let taken = UnixListener::bind(&path).expect_err("it exists");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    assert!(taken.to_string().contains(&*path.to_string_lossy()), "{taken}");
    drop(listener);
    let refused = UnixStream::connect(&path).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    let too_long = UnixStream::connect("x".repeat(200)).await.expect_err("108 bytes at most");
    assert_eq!(too_long.kind(), io::ErrorKind::InvalidInput);
}

async fn sockets_with_abstract_names_come_from_the_standard_library() {
    let name = format!("twinring-{}-{:?}", std::process::id(), std::thread::current().id());
    let address = SocketAddr::from_abstract_name(&name).expect("short enough");
    let listener = std::os::unix::net::UnixListener::bind_addr(&address).expect("a new name");
    let listener = UnixListener::from_std(listener).expect("a socket");
    let stream = std::os::unix::net::UnixStream::connect_addr(&address).expect("a listener");
    let stream = UnixStream::from_std(stream).expect("a socket");
    let served = listener.accept().await.expect("a connection");
    for address in [stream.peer_addr(), served.local_addr(), listener.local_addr()] {
        let address = address.expect("connected");
        assert_eq!(address.as_abstract_name(), Some(name.as_bytes()));
    }
    assert!(stream.local_addr().expect("a socket").is_unnamed());
}
