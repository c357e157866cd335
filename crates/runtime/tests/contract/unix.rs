//! Unix stream sockets keep the rules of TCP streams.

use crate::support::*;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream as Peer};
use std::path::PathBuf;
use std::time::Duration;
use twinring::{UnixListener, UnixStream, spawn, timeout};

pub(crate) const RULES: &[Rule] = rules![
    an_echo_both_ways,
    a_peer_that_does_not_read_stops_the_sender,
    a_dropped_receive_loses_nothing,
    connecting_waits_while_the_backlog_is_full,
    errors_name_the_path,
    a_peer_that_goes_away_is_an_error,
    names_may_be_abstract,
    buffers_are_sent_together,
];

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

async fn echo(stream: UnixStream) -> io::Result<()> {
    loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() {
            return stream.shutdown().await;
        }
        stream.send(chunk).await?;
    }
}

async fn recv_to_end(stream: &UnixStream) -> Vec<u8> {
    let mut received = Vec::new();
    loop {
        let chunk = stream.recv().await.expect("no error");
        if chunk.is_empty() {
            return received;
        }
        received.extend_from_slice(&chunk);
    }
}

fn an_echo_both_ways(configuration: Configuration) {
    configuration.run(async {
        let directory = directory();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a new path");
        let server = spawn(async move {
            let stream = listener.accept().await.expect("a connection");
            let address = stream.local_addr().expect("a socket");
            echo(stream).await.expect("no error");
            address.as_pathname().map(PathBuf::from)
        });
        let stream = UnixStream::connect(&path).await.expect("a listener");
        let peer = stream.peer_addr().expect("connected");
        assert_eq!(peer.as_pathname(), Some(&*path));
        let sent = pattern(1, 0..3_000_000);
        let send = async {
            for chunk in sent.chunks(50_000) {
                stream.send(chunk.to_vec()).await.expect("the other end reads");
            }
            stream.shutdown().await.expect("the other end reads");
        };
        let (received, ()) = both(recv_to_end(&stream), send).await;
        assert!(received == sent);
        assert_eq!(server.await.expect("no panic"), Some(path));
    });
}

/// Awaits two futures at once.
async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (Box::pin(one), Box::pin(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        if first.is_none() {
            first = ready(one.as_mut().poll(cx));
        }
        if second.is_none() {
            second = ready(other.as_mut().poll(cx));
        }
        match (first.take(), second.take()) {
            (Some(one), Some(other)) => std::task::Poll::Ready((one, other)),
            (one, other) => {
                (first, second) = (one, other);
                std::task::Poll::Pending
            }
        }
    })
    .await
}

fn ready<T>(polled: std::task::Poll<T>) -> Option<T> {
    match polled {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

fn a_peer_that_does_not_read_stops_the_sender(configuration: Configuration) {
    configuration.run(async {
        let (ours, mut theirs) = Peer::pair().expect("a pair");
        let stream = UnixStream::from_std(ours).expect("a socket");
        let mut sent = 0;
        while timeout(Duration::from_millis(100), stream.send(pattern(2, sent..sent + 60_000)))
            .await
            .is_ok_and(|queued| queued.is_ok())
        {
            sent += 60_000;
            assert!(sent < 4_000_000, "there is no end of it");
        }
        drop(stream);
        let received = on_thread(move || {
            let mut bytes = Vec::new();
            theirs.read_to_end(&mut bytes).map(|_| bytes)
        });
        let received = received.await.expect("no reset");
        assert_eq!(received.len(), sent);
        assert_pattern(2, 0, &received);
    });
}

fn a_dropped_receive_loses_nothing(configuration: Configuration) {
    configuration.run(async {
        let (ours, mut theirs) = Peer::pair().expect("a pair");
        let stream = UnixStream::from_std(ours).expect("a socket");
        for round in 0_usize..20 {
            assert!(poll_once(stream.recv()).await.is_none());
            let sent = pattern(3, round..round + 100);
            theirs.write_all(&sent).expect("room");
            let mut received = Vec::new();
            while received.len() < sent.len() {
                received.extend_from_slice(&stream.recv().await.expect("bytes"));
            }
            assert_eq!(received, sent);
        }
    });
}

/// Epoll's connect(2) says EAGAIN then, and no event reports when there is room.
fn connecting_waits_while_the_backlog_is_full(configuration: Configuration) {
    configuration.run(async {
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
    });
}

fn errors_name_the_path(configuration: Configuration) {
    configuration.run(async {
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
    });
}

fn a_peer_that_goes_away_is_an_error(configuration: Configuration) {
    configuration.run(async {
        let (ours, theirs) = Peer::pair().expect("a pair");
        let stream = UnixStream::from_std(ours).expect("a socket");
        assert!(poll_once(stream.recv()).await.is_none());
        drop(theirs);
        assert!(stream.recv().await.expect("the end").is_empty());
        // The first send may be queued before the error is known.
        let failed = loop {
            if let Err(error) = stream.send("hello?").await {
                break error;
            }
            settle().await;
        };
        assert_eq!(failed.kind(), io::ErrorKind::BrokenPipe);
    });
}

fn names_may_be_abstract(configuration: Configuration) {
    configuration.run(async {
        let name = format!("twinring-{}-{:?}", std::process::id(), std::thread::current().id());
        let address = SocketAddr::from_abstract_name(&name).expect("short enough");
        let listener = UnixListener::bind(&address).expect("a new name");
        let taken = UnixListener::bind(&address).expect_err("it is in use");
        assert!(taken.to_string().contains(&name), "{taken}");
        let stream = UnixStream::connect(&address).await.expect("a listener");
        let served = listener.accept().await.expect("a connection");
        for address in [stream.peer_addr(), served.local_addr(), listener.local_addr()] {
            let address = address.expect("connected");
            assert_eq!(address.as_abstract_name(), Some(name.as_bytes()));
        }
    });
}

fn buffers_are_sent_together(configuration: Configuration) {
    configuration.run(async {
        let (one, other) = UnixStream::pair().expect("a pair");
        let sent = pattern(8, 0..1_000_000);
        let send = async {
            for chunk in sent.chunks(100_000) {
                let parts = chunk.chunks(777).map(<[u8]>::to_vec);
                one.send_vectored(parts).await.expect("the other end reads");
            }
            one.shutdown().await.expect("the other end reads");
        };
        let (received, ()) = both(recv_to_end(&other), send).await;
        assert!(received == sent);
    });
}
