//! Connecting, accepting, addresses and options, over TCP and Unix sockets; sockets of the standard library,
//! descriptors for other code and names. A ring that was confined refuses what its program did not announce; epoll has
//! no ring to confine.

use crate::support::*;
use socket2::{Domain, SockRef, Socket, Type};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::path::Path;
use twinring::confine::Uses;
use twinring::fs::{Dir, Symlinks};
use twinring::net::{UdpOptions, resolve};
use twinring::{UnixListener, UnixStream};

pub(crate) const RULES: &[Rule] = rules![
    what_cannot_be_connected_is_an_error,
    ipv6_works_like_ipv4,
    both_ends_agree_on_their_addresses,
    what_is_taken_is_named_at_once_in_the_error,
    sockets_come_from_the_standard_library,
    connections_have_no_delay_until_it_is_set,
    a_duplicate_keeps_the_connection_and_no_events,
    names_are_resolved_without_blocking,
    unix_sockets_echo_both_ways,
    connecting_waits_while_a_unix_backlog_is_full,
    a_confined_ring_does_what_was_announced_and_nothing_else,
];

async fn what_cannot_be_connected_is_an_error() {
    for _ in 0..10 {
        let refused = TcpStream::connect(closed_port()).await;
        assert_eq!(errno(&refused), libc::ECONNREFUSED);
    }
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    assert!(TcpStream::connect(nowhere).await.is_err());
    let elsewhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 0));
    let bound_elsewhere = TcpStream::connect_from(Some(elsewhere), closed_port()).await;
    assert_eq!(errno(&bound_elsewhere), libc::EADDRNOTAVAIL);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let refused = async |path: &Path| UnixStream::connect(path).await.expect_err("refused").kind();
    assert_eq!(refused(&path).await, ErrorKind::NotFound);
    drop(UnixListener::bind(&path).expect("a new path"));
    assert_eq!(refused(&path).await, ErrorKind::ConnectionRefused);
    // 108 bytes at most.
    assert_eq!(refused("x".repeat(200).as_ref()).await, ErrorKind::InvalidInput);
}

async fn ipv6_works_like_ipv4() {
    testing::needs_ipv6();
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr();
    assert!(address.is_ipv6());
    spawn(echo_server(listener));
    let stream = TcpStream::connect(address).await.expect("a connection");
    assert_eq!(stream.peer_addr().expect("connected"), address);
    stream.send(pattern(1, 0..50_000)).await.expect("sent");
    assert_pattern(1, 0, &recv_exactly(&stream, 50_000).await);
}

async fn both_ends_agree_on_their_addresses() {
    let listener = listen();
    let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), 0));
    let connecting = TcpStream::connect_from(Some(from), listener.local_addr());
    let stream = connecting.await.expect("a connection");
    let (accepted, peer) = listener.accept_from().await.expect("its other end");
    assert_eq!(stream.local_addr().expect("bound").ip(), from.ip());
    assert_eq!(stream.local_addr().expect("bound"), accepted.peer_addr().expect("connected"));
    assert_eq!(accepted.peer_addr().expect("connected"), peer);
    assert_eq!(accepted.local_addr().expect("bound"), listener.local_addr());
}

/// Each bind slept for 100 ms, and all connections of the worker with it.
async fn what_is_taken_is_named_at_once_in_the_error() {
    /// How often this thread went to sleep.
    fn sleeps() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("/proc");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("the field").trim().parse().expect("a number")
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let _listens = UnixListener::bind(&path).expect("a new path");
    let listener = std::net::TcpListener::bind(loopback()).expect("a free port");
    let taken = listener.local_addr().expect("bound");
    let shared = UdpOptions::default().bind_shared(loopback(), 2).expect("a free port");
    let taken_by_datagrams = shared[0].local_addr();
    settle().await;
    let before = sleeps();
    for _ in 0..20 {
        let errors = [
            (TcpListener::bind(taken).map(drop), taken.to_string()),
            (
                UdpSocket::bind(taken_by_datagrams).map(drop),
                format!("cannot bind UDP {taken_by_datagrams}"),
            ),
            (
                UdpOptions::default().bind_shared(taken_by_datagrams, 2).map(drop),
                format!("cannot bind UDP {taken_by_datagrams}"),
            ),
            (UnixListener::bind(&path).map(drop), path.display().to_string()),
        ];
        for (bound, name) in errors {
            let error = bound.expect_err("taken");
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            assert!(error.to_string().contains(&name), "{error}");
        }
    }
    let slept = sleeps() - before;
    assert!(slept < 20, "slept {slept} times in 20 attempts");
}

async fn sockets_come_from_the_standard_library() {
    let listener = std::net::TcpListener::bind(loopback()).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let listener = TcpListener::from_std(listener).expect("a socket");
    assert_eq!(listener.local_addr(), address);
    let client = Peer::connect(address).expect("the backlog has room");
    spawn(echo(listener.accept().await.expect("a connection")));
    let client = TcpStream::from_std(client).expect("a socket");
    client.send("there and back").await.expect("room");
    assert_eq!(recv_exactly(&client, 14).await, b"there and back");
    // One that has its options before it connects.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(1 << 16).expect("a size");
    let granted = socket.recv_buffer_size().expect("a size");
    let stream = TcpStream::connect_socket(socket, address).await.expect("a listener");
    let has = stream.with_fd(|fd| SockRef::from(&fd).recv_buffer_size());
    assert_eq!(has.expect("a size"), granted);
    spawn(echo(listener.accept().await.expect("a connection")));
    stream.send("both ways").await.expect("queued");
    assert_eq!(recv_exactly(&stream, 9).await, b"both ways");
}

async fn connections_have_no_delay_until_it_is_set() {
    let (stream, _peer) = pair().await;
    let nodelay = || stream.with_fd(|fd| SockRef::from(&fd).tcp_nodelay()).expect("TCP");
    assert!(nodelay(), "inherited");
    stream.set_nodelay(false).expect("TCP_NODELAY");
    assert!(!nodelay());
}

/// Closing a descriptor that has a duplicate does not take it out of an epoll set: level-triggered,
/// its events would keep the worker busy for ever.
async fn a_duplicate_keeps_the_connection_and_no_events(_: Configuration, handle: Handle) {
    let (stream, mut peer) = pair().await;
    let duplicate = stream.with_fd(|fd| fd.try_clone_to_owned()).expect("a descriptor");
    arm(&stream).await;
    let open = handle.counters().slots_in_use;
    drop(stream);
    // A submission thread may be late to cancel the receive, which would take the bytes.
    while handle.counters().slots_in_use >= open {
        settle().await;
    }
    peer.write_all(b"for the duplicate").expect("connected");
    settle().await;
    let (_, waits) = calls_in(&handle, Duration::from_millis(20)).await;
    assert!(waits < 100, "{waits} waits while nothing happens");
    let mut duplicate = Peer::from(duplicate);
    duplicate.set_nonblocking(false).expect("a socket");
    let mut bytes = [0; 17];
    let read = on_thread(move || duplicate.read_exact(&mut bytes).map(|()| bytes));
    assert_eq!(&read.await.expect("connected"), b"for the duplicate");
}

async fn names_are_resolved_without_blocking() {
    testing::needs_localhost();
    let listener = TcpListener::bind(("localhost", 0)).expect("a free port");
    let address = listener.local_addr();
    assert!(address.ip().is_loopback());
    let addresses = resolve(("localhost", address.port())).await.expect("it is known here");
    assert!(addresses.contains(&address), "{addresses:?}");
    let literal = resolve(address.to_string()).await.expect("an address");
    assert_eq!(literal, [address]);
    resolve("no port here").await.expect_err("no port");
    let stream = TcpStream::connect(address.to_string()).await.expect("a listener");
    assert_eq!(stream.peer_addr().expect("connected"), address);
    // The second address of a name, if the first does not answer.
    let both: &'static [_] = Vec::leak(vec![closed_port(), address]);
    let stream = TcpStream::connect(both).await.expect("one of them listens");
    assert_eq!(stream.peer_addr().expect("connected"), address);
}

/// With paths, and with abstract names, which come from the standard library.
async fn unix_sockets_echo_both_ways() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let name = format!("twinring-{}-{:?}", std::process::id(), std::thread::current().id());
    let address = UnixAddr::from_abstract_name(&name).expect("short enough");
    let by_name = std::os::unix::net::UnixListener::bind_addr(&address).expect("a new name");
    let by_name = UnixListener::from_std(by_name).expect("a socket");
    let by_path = UnixListener::bind(&path).expect("a new path");
    let to_name = std::os::unix::net::UnixStream::connect_addr(&address).expect("a listener");
    let to_name = UnixStream::from_std(to_name).expect("a socket");
    let to_path = UnixStream::connect(&path).await.expect("a listener");
    for (listener, stream, path, name) in
        [(by_path, to_path, Some(&*path), None), (by_name, to_name, None, Some(name.as_bytes()))]
    {
        let served = listener.accept().await.expect("a connection");
        for address in [stream.peer_addr(), served.local_addr(), listener.local_addr()] {
            let address = address.expect("a socket");
            assert_eq!((address.as_pathname(), address.as_abstract_name()), (path, name));
        }
        assert!(stream.local_addr().expect("a socket").is_unnamed());
        let echoing = spawn(async move {
            net::copy(&served, &served).await.expect("the other end reads");
            served.close().await
        });
        let receiver = Rc::new(stream);
        let sender = Rc::clone(&receiver);
        let sending = spawn(async move {
            for start in (0..3_000_000).step_by(50_000) {
                sender.send(pattern(1, start..start + 50_000)).await.expect("the other end reads");
            }
            sender.shutdown().await.expect("the other end reads");
        });
        assert_whole(1, 3_000_000, &recv_to_end(&receiver).await.expect("no error"));
        sending.await.expect("no panic");
        echoing.await.expect("no panic").expect("nothing was lost");
    }
}

/// Epoll's connect(2) says EAGAIN then, and no event reports when there is room.
async fn connecting_waits_while_a_unix_backlog_is_full() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
    listener.bind(&socket2::SockAddr::unix(&path).expect("a path")).expect("a new path");
    listener.listen(0).expect("a bound socket");
    let _first = UnixStream::connect(&path).await.expect("the backlog has room for one");
    let second = spawn(async move { UnixStream::connect(path).await });
    settle().await;
    assert!(!second.is_finished(), "there is no room");
    let accepting = on_thread(move || [(); 2].map(|()| listener.accept().map(drop)));
    second.await.expect("no panic").expect("room at last");
    for accepted in accepting.await {
        accepted.expect("a connection");
    }
}

/// What a file, a connection and a datagram give: nothing, or the error.
async fn others() -> [io::Result<()>; 3] {
    let directory = Dir::open(Path::new("/proc/self")).expect("it is mounted");
    let peer = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = peer.local_addr().expect("an address");
    let file = directory.open_file(Path::new("stat"), Symlinks::Refuse).await.expect("a file");
    let stream = TcpStream::connect(address).await;
    let datagram = async {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.send_to(b"to myself", socket.local_addr()).await?;
        socket.recv_from().await.map(drop)
    };
    [file.read_at(0, 10).await.map(drop), stream.map(drop), datagram.await]
}

fn a_confined_ring_does_what_was_announced_and_nothing_else(configuration: Configuration) {
    let everything = Uses { accept: true, connect: true, datagrams: true, files: true };
    for uses in [everything, Uses { accept: true, ..Uses::default() }] {
        run_on(configuration.builder().confine(uses), async move |_| {
            another_is_served().await;
            for (number, result) in others().await.into_iter().enumerate() {
                let refused = result.map_err(|error| error.kind());
                match uses.files || configuration.is_epoll() {
                    true => refused.expect("it was announced"),
                    false => assert_eq!(refused, Err(ErrorKind::PermissionDenied), "{number}"),
                }
            }
        });
    }
}
